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
    "default_local_dir",
    "default_hdfs_dir",
    "rollout_data_dir",
    "validation_data_dir",
    "save_path",
    "timeline_json_file",
    "record_file",
    "prometheus.file",
    "cache_dir",
    "download_dir",
    "log_dir",
    "output_dir",
    "save_dir",
    "temp_dir",
)
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


@dataclass(frozen=True)
class _Setting:
    """A text in verl's composed config, and the layer that set it (None: it is verl's own default, which the job may never read);
    `artefact` is what it names if our own override set it.
    """

    key: str
    text: str
    origin: str | None
    artefact: Artefact | None

    @property
    def plain(self) -> str:
        """The text as a path."""
        return self.text.removeprefix("file://")

    @property
    def named(self) -> str:
        """How messages name it, and who set it."""
        own = f"{self.key}={shown(self.plain)} (from {self.origin or CONFIG})"
        return own if self.artefact is None else self.artefact.named

    @property
    def is_set(self) -> bool:
        """Whether a layer above verl's own config set it."""
        return self.origin is not None

    @property
    def names_files(self) -> bool:
        """Whether the key is for files; arguments of the user's own function (reward_kwargs, …) have any name."""
        return self.key.endswith(_NAMES_FILES) and "kwargs." not in self.key

    @property
    def may_be_read(self) -> bool:
        """Whether the text can be what a job reads, by its key and its letters."""
        is_text = self.plain.isprintable() or (self.names_files and self.is_set)
        return is_text and not self.key.endswith(_WRITTEN) and "://" not in self.plain and "${" not in self.plain

    @property
    def is_of_model(self) -> bool:
        """Whether the key is for a model, which may be a repository of the hub."""
        return self.names_files and "model" in self.key

    @property
    def is_old_repo(self) -> bool:
        """Whether the text may be a repository with a name of one word."""
        return self.is_of_model and _OLD_REPO.fullmatch(self.plain) is not None

    def refuse_if_meant(self, why: str) -> None:
        """Raise BadInput if the user meant a path; any other text may look like one by chance."""
        if self.is_set and (self.names_files or self.plain.startswith(("./", "../"))):
            raise BadInput(f"{self.named} {why}")


def find(
    environment: Environment, job: JobDir, composed: Composed, artefacts: Mapping[str, Artefact], wrong: Refusals
) -> tuple[Input, ...]:
    """The inputs of `job`, each path once, without what is in its own directory. `artefacts` has what our own overrides name, by path.

    One that the user named and that is relative or missing, and one that another user can change, is noted in `wrong`.
    """
    texts = [(key, text) for key, text in leaves(composed.config) if isinstance(text, str) and text]
    root, found, refused = job.root, dict[Path, Input](), set[str]()
    # What a user named comes first.
    for key, text in sorted(texts, key=lambda each: composed.origin_of(each[0]) is None):
        origin = composed.origin_of(key)
        artefact = artefacts.get(text) if origin == OURS else None
        with wrong.noted():
            _need_own_output(job, composed, key, text)
            one = _input(root, environment, _Setting(key, text, origin, artefact))
            if one is None or one.path.is_relative_to(job.first.path) or one.path in found:
                continue
            found[one.path] = one
            _need_once(root, one, artefact, refused)
            for module in _modules_of(root, one):
                if found.setdefault(module.path, module) is module:
                    _need(root, module)
    return tuple(found.values())


def _need_own_output(job: JobDir, composed: Composed, key: str, text: str) -> None:
    """Raise BadInput for a place on the shared root where each job that has this setting would write over the others' files."""
    is_cache = key.endswith(_CACHES) or not key.endswith(_WRITTEN)
    if is_cache or composed.origin_of(key) in (None, OURS, TRAIN_SEED) or not job.root.has(path := Path(text)):
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


def _input(root: SharedRoot, environment: Environment, setting: _Setting) -> Input | None:
    """The input that a setting names; None if it names none."""
    if not setting.may_be_read:
        return None
    cached = _in_hub_cache(environment, setting)
    if cached is not None and setting.is_set and root.has(cached) and not cached.is_dir():
        _need_way_to_hub(environment, setting.named, cached)
    path = cached or _whole_path(setting)
    if path is None or _has_dots(path, setting):
        return None
    is_here = root.has(path) and os.path.lexists(path)
    is_model = is_here and _is_model(path)
    if not (is_model or _is_sure(path, setting, is_here=is_here)) or _has_root(path, root, setting):
        return None
    is_needed = setting.is_set and cached is None and not setting.key.endswith(_DUMPED)
    fact, is_outside = _fact(setting.key, path, is_model=is_model), root.escape_of(path) is not None
    return Input(setting.key, path, setting.named, fact, is_needed, is_outside)


def _in_hub_cache(environment: Environment, setting: _Setting) -> Path | None:
    """The folder in the hub's cache of the repository that a setting names, even if the nodes have yet to fetch it; None if it names none.

    A name of one word, or under a key that is not for a model, counts only if the cache has it.
    """
    if not setting.is_old_repo and _REPO.fullmatch(setting.plain) is None:
        return None
    hub = Path(environment.variables.get(HUB, f"{environment.variables['HF_HOME']}/hub"))
    cached = hub / f"models--{setting.plain.replace('/', '--')}"
    is_repo = (setting.is_of_model and not setting.is_old_repo) or os.path.lexists(cached)
    return cached if is_repo else None


def _whole_path(setting: _Setting) -> Path | None:
    """The text as a path; None for a relative one. Raises BadInput if the user meant that."""
    path = Path(setting.plain)
    if path.is_absolute():
        return path
    what = "neither a repository in the hub's cache nor a whole path" if setting.is_old_repo else "a relative path"
    setting.refuse_if_meant(
        f"is {what}, and each process has another current directory: write ${{shared_root}}/user/code/… or another whole path."
    )
    return None


def _has_dots(path: Path, setting: _Setting) -> bool:
    """Whether a path has '..' in it. Raises BadInput if the user meant that."""
    if ".." not in path.parts:
        return False
    setting.refuse_if_meant("is refused: it must do without '..'.")
    return True


def _has_root(path: Path, root: SharedRoot, setting: _Setting) -> bool:
    """Whether the whole shared root is in a folder. Raises BadInput if all of that would be read."""
    if not root.path.is_relative_to(path):
        return False
    if setting.key.endswith(("model.path", "files", "custom_reward_function.path")):
        raise BadInput(f"{setting.named} is refused: the whole shared root is in it; name what is read.")
    return True


def _is_sure(path: Path, setting: _Setting, *, is_here: bool) -> bool:
    """Whether a setting certainly means that file or folder; any other text may be a path by chance, such as a stop word."""
    if setting.names_files:
        return setting.is_set or is_here
    return is_here and path.is_file()


def _is_model(path: Path) -> bool:
    """A model, or the cache's copies of one; or a folder that we may not list: its files may be readable by their names."""
    has_config = os.path.lexists(path / "snapshots") or any(path.glob("*config.json"))
    return has_config or (path.is_dir() and not os.access(path, os.R_OK))


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


def _modules_of(root: SharedRoot, one: Input) -> Iterator[Input]:
    """The Python files that an input on the shared root imports, as inputs of their own."""
    if one.path.suffix == ".py" and root.has(one.path):
        for path in _imported_by(one.path):
            yield Input(one.key, path, f"{one.key}={shown(str(path))} (from an import in {one.path})", one.fact)


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
