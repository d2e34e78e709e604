"""What a job reads: the files and folders that verl's composed config names, whoever named them; and that they are there, and can be trusted.

It lists and stats files, and parses Python files for their imports; it never imports one.
"""

import ast
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.trust import need
from verl_regress.plan.compose import CONFIG, Composed, leaves
from verl_regress.plan.environment import Environment
from verl_regress.plan.overrides import OURS, TRAIN_SEED
from verl_regress.plan.reward_fn import parsed

# Read in verl 0.7.1 to 0.9.1 and main: the ends of keys that name files; of keys for what the job writes; and the key for what it either
# writes or reads.
_NAMES_FILES = ("path", "paths", "file", "files", "dir")
_WRITTEN = (
    "default_local_dir", "default_hdfs_dir", "rollout_data_dir", "validation_data_dir", "save_path", "timeline_json_file",
    "record_file", "prometheus.file", "cache_dir", "download_dir", "log_dir", "output_dir", "save_dir", "temp_dir",
)  # fmt: skip
_CACHES = ("cache_dir", "download_dir")  # of these, which are shared on purpose
_DUMPED = "dump_dir"
_CODE = (".py", ".pyc", ".so")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")  # of the Hugging Face hub
_OLD_REPO = re.compile(r"\w[\w.-]*")  # such as gpt2
HUB = "HF_HUB_CACHE"  # in env_vars; without it, the hub's files are in HF_HOME
_MODEL, DATA, _REWARD = "model sha256", "data sha256", "reward_fn sha256"  # facts of the judge


@dataclass(frozen=True)
class Input:
    """A file or folder that the job reads, under the key of verl's config that names it; `named` is how messages name it, and who did.

    `fact` is the name under which runs compare its content; None: they do not, because each run continues from a checkpoint of its own
    side. What is `outside` the shared root only the nodes may have. One that is not `needed` may be missing. Of a folder that `is_code`
    the Python files count, by size and time.
    """

    key: str
    path: Path
    named: str
    fact: str | None
    needed: bool = True
    outside: bool = False
    is_code: bool = False


class Artefact(NamedTuple):
    """What a JobSpec or a knob names, and `make prepare` makes: model or dataset, its name, and how messages name it."""

    kind: str
    name: str
    named: str


def find(
    root: SharedRoot,
    environment: Environment,
    job: JobDir,
    composed: Composed,
    artefacts: Mapping[str, Artefact],
    wrong: Refusals,
) -> tuple[Input, ...]:
    """The inputs of `job`, each path once, without what is in its own directory. `artefacts` has what our own overrides name, by path.

    One that the user named and that is relative or missing, and one that another user can change, is noted in `wrong`.
    """
    texts = [(key, text) for key, text in leaves(composed.config) if isinstance(text, str) and text]
    found: dict[Path, Input] = {}
    refused: set[str] = set()
    # What a user named comes first.
    for key, text in sorted(texts, key=lambda each: composed.origin_of(each[0]) is None):
        origin = composed.origin_of(key)
        artefact = artefacts.get(text) if origin == OURS else None
        with wrong.noted():
            _need_own_output(root, job, composed, key, text)
            one = _input(root, environment, key, text, origin, artefact)
            if one is not None and not one.path.is_relative_to(job.first.path) and one.path not in found:
                found[one.path] = one
                _need_once(root, one, artefact, refused)
                for module in _imported_by(one.path) if one.path.suffix == ".py" and root.has(one.path) else ():
                    beside = Input(key, module, f"{key}={shown(str(module))} (from an import in {one.path})", one.fact)
                    if found.setdefault(module, beside) is beside:
                        _need(root, beside)
    return tuple(found.values())


def _need_own_output(root: SharedRoot, job: JobDir, composed: Composed, key: str, text: str) -> None:
    """Raise BadInput for a place on the shared root where each job that has this setting would write over the others' files."""
    is_cache = key.endswith(_CACHES) or not key.endswith(_WRITTEN)
    if is_cache or composed.origin_of(key) in (None, OURS, TRAIN_SEED) or not root.has(path := Path(text)):
        return
    if not path.is_relative_to(job.first.path) and job.ray_id not in text:
        raise BadInput(
            f"{composed.named(key, text)} is where each job that has it would write over the files of the others: leave it out, or write "
            f"{key}={text.rstrip('/')}/${{trainer.experiment_name}}, which is the job's own name."
        )


def _need_once(root: SharedRoot, one: Input, artefact: Artefact | None, refused: set[str]) -> None:
    """As `_need`, but once for all files of a data set that was never made; `refused` has what was refused before."""
    try:
        _need(root, one, artefact)
    except BadInput:
        if one.named in refused:
            return
        refused.add(one.named)
        raise


def _input(
    root: SharedRoot, environment: Environment, key: str, text: str, origin: str | None, artefact: Artefact | None
) -> Input | None:
    """The input that this text is; None if it is none. Without an origin it is verl's own default, which the job may never read."""
    # Arguments of the user's own function (reward_kwargs, …) have any name.
    names_files, is_named = key.endswith(_NAMES_FILES) and "kwargs." not in key, origin is not None
    plain = text.removeprefix("file://")
    is_text = plain.isprintable() or (names_files and is_named)
    if key.endswith(_WRITTEN) or "://" in plain or "${" in plain or not is_text:
        return None
    named = f"{key}={shown(plain)} (from {origin or CONFIG})" if artefact is None else artefact.named
    path, may_be_missing = Path(plain), key.endswith(_DUMPED)
    is_of_model = names_files and "model" in key
    is_old_repo = is_of_model and _OLD_REPO.fullmatch(plain) is not None
    hub = Path(environment.variables.get(HUB, f"{environment.variables['HF_HOME']}/hub"))
    cached = hub / f"models--{plain.replace('/', '--')}" if is_old_repo or _REPO.fullmatch(plain) else None
    if cached is not None and (os.path.lexists(cached) or (is_of_model and not is_old_repo)):
        path, may_be_missing = cached, True  # the nodes may fetch it
        if is_named and root.has(cached) and not cached.is_dir():
            _need_way_to_hub(environment, named, cached)
    elif not path.is_absolute():
        if is_named and (names_files or plain.startswith(("./", "../"))):
            what = "neither a repository in the hub's cache nor a whole path" if is_old_repo else "a relative path"
            raise BadInput(
                f"{named} is {what}, and each process has another current directory: "
                "write ${shared_root}/user/code/… or another whole path."
            )
        return None
    if ".." in path.parts:
        if is_named and names_files:
            raise BadInput(f"{named} is refused: it must do without '..'.")
        return None
    is_here = root.has(path) and os.path.lexists(path)
    # A model, or the cache's copies of one; or a folder that we may not list: its files may be readable by their names.
    is_model = is_here and (os.path.lexists(path / "snapshots") or any(path.glob("*config.json")))
    is_model = is_model or (is_here and path.is_dir() and not os.access(path, os.R_OK))
    # Any other text may be a path by chance, such as a stop word.
    is_sure = (names_files and (is_named or is_here)) or is_model or (is_here and path.is_file())
    if not is_sure:
        return None
    if root.path.is_relative_to(path):
        if key.endswith(("model.path", "files", "custom_reward_function.path")):
            raise BadInput(f"{named} is refused: the whole shared root is in it; name what is read.")
        return None
    outside = root.escape_of(path) is not None
    return Input(key, path, named, _fact(key, path, is_model=is_model), is_named and not may_be_missing, outside)


def _need_way_to_hub(environment: Environment, named: str, cached: Path) -> None:
    """Raise BadInput for a repository that the cache lacks, in a job that may not ask the hub for it."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environment.variables.get(variable, "").lower() in ("1", "true", "yes", "on"):
            raise BadInput(
                f"{named} is not in the hub's cache ({cached}), and {variable}=1 (from {environment.origins.get(variable, 'the nodes')}) keeps the "
                "job from fetching it: make it a model of the shared root with 'make prepare MODEL_SOURCE=hub:… MODEL=…' and name its folder, "
                f"or write {variable}: '0' under env_vars of the JobSpec."
            )


def _fact(key: str, path: Path, *, is_model: bool) -> str | None:
    if key.endswith("resume_from_path"):
        return None
    if key.endswith("custom_reward_function.path"):
        return _REWARD
    if path.suffix in _CODE:
        return f"input {key} sha256"
    if is_model or key.endswith(("model.path", "model_path", "tokenizer_path", "adapter_path")):
        return _MODEL
    return DATA if key.startswith("data.") and key.endswith("files") else f"input {key} sha256"


def _need(root: SharedRoot, one: Input, artefact: Artefact | None = None) -> None:
    """Raise BadInput for an input on the shared root that is missing, or that another user can change."""
    if not root.has(one.path):
        return
    file, problem = one.path / "config.json" if one.key.endswith("model.path") else one.path, ""
    try:
        if artefact is not None and artefact.kind == "dataset" and one.path.parent.is_file():
            raise BadInput(
                f"{one.named} is a file, but dataset names a folder: one file goes into data.train_files and data.val_files."
            )
        # A pipe would stop whoever reads it.
        if one.needed and not stat.S_ISREG(mode := file.stat().st_mode) and not stat.S_ISDIR(mode):
            problem = "neither a file nor a folder"
    except (OSError, ValueError) as error:
        problem = "missing" if isinstance(error, FileNotFoundError) else f"not readable ({error})"
    if problem:
        cure = "name one that is there" if artefact is None else f"run 'make prepare', or name another {artefact.kind}"
        raise BadInput(f"{one.named} is not usable, because {shown(str(file))} is {shown(problem)}: {cure}.")
    need(one.path, one.named, "or name one of your own")


def _imported_by(path: Path) -> list[Path]:
    """The Python files beside `path` that it imports, directly or through each other. A file that cannot be parsed imports none."""
    found = [path]
    for each in found:  # which grows
        for name in _imports(each, path.parent):
            files = (name.with_name(f"{name.name}.py"), name / "__init__.py")
            found += [file for file in files if file not in found and file.is_file()]
    return found[1:]


def _imports(path: Path, folder: Path) -> Iterator[Path]:
    """Where the modules and packages that a file imports would be: under its own folder, and under `folder`, as if that were imported from."""
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        level, module = getattr(node, "level", 0), getattr(node, "module", None)
        start = path.parents[level - 1] if 0 < level <= len(path.parents) else folder
        for each in node.names:
            parts = f"{module}.{each.name}".split(".") if module else each.name.split(".")
            if level or parts[0] not in sys.stdlib_module_names:
                yield from (start.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1))
