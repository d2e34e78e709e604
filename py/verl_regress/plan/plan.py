"""From a request to the plan of its submission. Pure: reads the shared root, creates nothing, uses no network."""

import json
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_regress.base import ids
from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.layout import HELPER_DIR, JobDir, SharedRoot
from verl_regress.base.trust import need, trusted
from verl_regress.base.workloads import JobPaths
from verl_regress.plan import contents, data_files, inputs, needs, plain_secrets, readers, reward_fn, sizes, user_code
from verl_regress.plan.compose import Composed, compose
from verl_regress.plan.environment import Environment
from verl_regress.plan.inputs import Artefact, Input
from verl_regress.plan.overrides import DETERMINISTIC, OURS, Override, merge, of_profile, of_shape, with_file_logger
from verl_regress.plan.request import Request
from verl_regress.plan.source import Source
from verl_regress.plan.steps import Steps, steps_of
from verl_regress.plan.values import need_no_shell
from verl_regress.store import snapshot

_MOST_BYTES = 126_976  # MAX_ARG_STRLEN, less what Ray (2.60) writes around all env_vars: beyond it a job stays PENDING
_PRELOADED = "LD_PRELOAD"
_PROMPT = "data.max_prompt_length"
_TOOLS = tuple(f"actor_rollout_ref.rollout.multi_turn.{name}_path" for name in ("tool_config", "function_tool"))
_TRAINED = ("actor_rollout_ref.model.path", "model.path")  # a critic and others are further inputs


@dataclass(frozen=True)
class Code:
    """The snapshot that runs: its name, where that was given, its directory, and its record, once it is read."""

    code_id: str
    origin: str
    path: Path
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Driver:
    """What Ray at `address` starts, the launcher as the job's entrypoint, and the resources that it reserves."""

    address: str
    entrypoint: str
    entrypoint_num_cpus: float
    entrypoint_resources: Mapping[str, float]


@dataclass(frozen=True)
class Draft:
    """What a request decides before snapshot and inputs, which may not be there yet, are read; `artefacts` are by the paths in verl's config."""

    request: Request
    code: Code
    paths: JobPaths
    artefacts: Mapping[str, Artefact]
    driver: Driver
    environment: Environment
    overrides: list[Override]

    def compose(self, code_path: Path, record: Mapping[str, Any], wrong: Refusals) -> Composed:
        """Compose it with the config of the verl at `code_path`, as `compose` does, and check what both decide."""
        composed = compose(code_path, record, self.request.workload.module, self.overrides, wrong)
        with wrong.noted():
            self.environment.check_ray_init(composed)
        return composed


@dataclass(frozen=True)
class Plan(Draft):
    """Everything that a submission needs; `resolved()` is what goes to config/resolved.json.

    `cluster_has` is how many of its devices the whole cluster has, `packages` the nodes' packages; a plan made without asking the cluster
    has neither. `inputs` is what the job reads, and `hashes` what those on the shared root contain, once they are hashed; `steps` are those
    that it is to train; `code_dirs` are
    the folders of PYTHONPATH there, and `caches` those of the Hugging Face libraries.
    """

    composed: Composed
    inputs: tuple[Input, ...]
    steps: Steps
    code_dirs: tuple[Path, ...]
    caches: tuple[Path, ...]
    cluster_has: int | None = None
    packages: Mapping[str, Any] | None = None
    hashes: Mapping[Path, str | None] = field(default_factory=dict)

    @property
    def job(self) -> JobDir:
        """The directory of the attempt."""
        return self.paths.job

    @property
    def argv(self) -> tuple[str, ...]:
        """The trainer's command line."""
        return ("python3", "-m", self.request.workload.module, *(override.text for override in self.composed.overrides))

    def resolved(self) -> dict[str, Any]:
        """The whole plan as plain data."""
        request, paths, packages, devices = self.request, self.paths, self.packages, self.composed.devices
        return {
            "submission_id": self.job.submission_id,
            "attempt": self.job.attempt,
            "parent": request.attempt.recorded() if request.attempt else None,
            "workload": request.spec.workload,
            "profile": request.defaults.profile,
            "cluster": request.defaults.cluster,
            "owner": request.owner.recorded() if request.owner else None,
            "code_id": self.code.code_id,
            "shared_root": str(self.job.root.path),
            "code_path": str(self.code.path),
            "model": str(next((one.path for one in self.inputs if one.key in _TRAINED), paths.model)),
            "dataset": self._dataset(),
            "reward_fn": str(paths.reward_fn) if paths.reward_fn is not None else None,
            "reward_function": self._reward_function(),
            "inputs": [
                {**asdict(one), "path": str(one.path), "sha256": self.hashes.get(one.path)} for one in self.inputs
            ],
            "steps": self.steps.recorded(),
            "sampling": self._sampling(),
            "code_dirs": [str(folder) for folder in self.code_dirs],
            "caches": [str(folder) for folder in self.caches],
            "trusted_uids": trusted(),  # the launcher does not have the knob, and nodes may run as different users
            "job_dir": str(self.job.path),
            **asdict(self.driver),
            "devices": {"resource": devices.resource, "count": devices.count, "cluster_has": self.cluster_has},
            "max_running": request.defaults.max_running,
            "packages": packages and {key: packages[key] for key in packages if key not in ("lists", "head")},
            "argv": list(self.argv),
            "overrides": [{"text": each.text, "origin": each.origin} for each in self.composed.overrides],
            "left_out": [{"text": each.text, "origin": each.origin} for each in self.composed.left_out],
            "secrets": [secret.name for secret in self.environment.secrets],
            "debugger": request.said.debugger,
            "fail_on": list(request.said.fail_on),
        }

    def _sampling(self) -> dict[str, Any]:
        """How long prompts may be, and which setting names tools: what metrics alone do not say (verl_regress.jobs.conditions)."""
        value = self.composed.value
        return {"max_prompt_length": value(_PROMPT), "tools": next((key for key in _TOOLS if value(key)), None)}

    def _reward_function(self) -> str | None:
        """The reward function that is not verl's own, as messages name it."""
        _, path, name = reward_fn.named_in(self.composed)
        return f"{name} in {path}" if path else None

    def _dataset(self) -> str:
        """The data set, or else the files that verl's config names."""
        files = [one.path for one in self.inputs if one.fact == inputs.DATA]
        is_whole = all(file.is_relative_to(self.paths.dataset) for file in files)
        return str(self.paths.dataset) if is_whole else ", ".join(map(str, files))

    def metadata(self) -> dict[str, str]:
        """The metadata that Ray keeps with the job; the submitter adds where it was sent from, and how."""
        request = self.request
        about = {"code_id": self.code.code_id, "workload": request.spec.workload, "profile": request.defaults.profile}
        parent = request.attempt.recorded() if request.attempt else {}
        return about | {f"parent_{key}": str(value) for key, value in parent.items()}

    def command_line(self, **metadata: str) -> list[str]:
        """`ray job submit` of this plan as argv, with `metadata` in addition to its own."""
        options = {
            "--address": self.driver.address,
            "--submission-id": self.job.ray_id,
            "--entrypoint-num-cpus": f"{self.driver.entrypoint_num_cpus:g}",
            "--entrypoint-resources": json.dumps(self.driver.entrypoint_resources),
            "--runtime-env-json": json.dumps(self.environment.runtime_env()),
            "--metadata-json": json.dumps(metadata | self.metadata()),
        }
        words = [word for option in options.items() for word in option]
        return ["ray", "job", "submit", "--no-wait", *words, "--", *shlex.split(self.driver.entrypoint)]


def draft(root: SharedRoot, request: Request, wrong: Refusals) -> Draft:
    """Check the request itself, and merge its layers; the command line wins, then the JobSpec, the base config, the knobs.

    An override that cannot be used is noted in `wrong` and left out. Raises BadInput.
    """
    plain_secrets.check(request)  # first: other messages quote overrides and variables
    spec = request.spec
    if spec.shared_root is not None and Path(spec.shared_root) != root.path:
        raise BadInput(
            f"shared_root={shown(spec.shared_root)} (from {spec.origin}) is not this cluster's {root.path} (SHARED_ROOT): "
            "leave it out, or set SHARED_ROOT and bring the cluster up again."
        )
    code = _code_named(root, request)
    job = _job_dir(root, request, code.code_id)
    model, dataset = (_asked(root, request, kind) for kind in ("model", "dataset"))
    if spec.reward_fn_path is not None and not request.workload.has_reward:
        raise BadInput(
            f"reward_fn_path={shown(spec.reward_fn_path)} (from {spec.origin}) is refused: {spec.workload} has no reward; leave it out."
        )
    reward = None if spec.reward_fn_path is None else Path(root.fill_in(spec.reward_fn_path))
    paths = JobPaths(root.models / model.name, root.datasets / dataset.name, job, reward)
    artefacts = {f"{paths.dataset}/{name}": dataset for name in request.workload.data_files} | {str(paths.model): model}
    overrides = _overrides(root, request, paths, wrong)
    environment = Environment.build(root, request, code.path, job)
    size = len(json.dumps([environment.variables, [override.text for override in overrides]]))
    if size > _MOST_BYTES:
        raise BadInput(
            f"The env_vars and overrides of the job have {size:,} bytes as JSON, but Linux takes {_MOST_BYTES:,} in one variable (execve(2)): "
            "put long values into files on the shared root, and give their paths instead."
        )
    return Draft(request, code, paths, artefacts, _driver(request, job), environment, overrides)


def make(root: SharedRoot, request: Request) -> Plan:
    """Plan the submission of a new job, or of a further attempt of one. Raises BadInput, which has all that is wrong with the request."""
    with Refusals() as wrong:
        made = draft(root, request, wrong)
        was = request.attempt.parent.read_config("code.json") if request.attempt else None
        code = replace(made.code, record=snapshot.load(root, made.code.code_id, made.code.origin, was))
        snapshot.need_whole(code.path, code.record, f"CODE_ID={code.code_id} (from {code.origin})")
        composed = made.compose(code.path, code.record, wrong)
        caches = _named_by_variables(root, made, ("HF_HOME", inputs.HUB), "or let its owner remove it", alone=True)
        code_dirs = _named_by_variables(root, made, ("PYTHONPATH", _PRELOADED), "or name one of your own")
        found = inputs.find(made.environment, made.paths.job, composed, made.artefacts, wrong)
        read = _with_user_code(root, made, code_dirs, found, wrong)
        # What refused overrides would have decided is not checked: it would be wrong because of them.
        rows = None if wrong.found else _check_whole(root, replace(made, code=code), composed, read, wrong)
        steps = steps_of(code.path, request.workload, composed, rows)
        decided = {**vars(made), "code": code, "composed": composed, "inputs": read, "steps": steps}
        return Plan(**decided, code_dirs=tuple(code_dirs), caches=tuple(caches))


def _check_whole(
    root: SharedRoot, made: Draft, composed: Composed, read: tuple[Input, ...], wrong: Refusals
) -> int | None:
    """Check what several settings decide together; returns how many rows an epoch of the training data has, None if that is not known."""
    request, code, workload = made.request, made.code, made.request.workload
    with wrong.noted():
        reward_fn.check(root, composed, made.paths.reward_fn, request.spec.origin)
        reward_fn.check_call(root, composed, code.path, code.record)
    contents.check(root, workload, composed, read, wrong)
    sizes.check(workload, composed, wrong)
    with wrong.noted():
        needs.check_keys(composed, made.environment)
    data, source = data_files.check(root, workload, composed, code.path, wrong), Source(code.path)
    names_loops = data.columns is None or "agent_name" in data.columns
    running = readers.running(composed, source, workload, names_loops=names_loops)
    readers.check(composed, source, workload, running, wrong)
    with wrong.noted():
        _need_compiled(code, running)
    return data.rows


def _need_compiled(code: Code, running: Collection[str]) -> None:
    """Raise BadInput for a snapshot of whose files one that the trainer loads cannot be compiled."""
    broken = next(((file, why) for file, why in code.record.get("broken", {}).items() if file in running), None)
    if broken is not None:
        raise BadInput(
            f"CODE_ID={code.code_id} (from {code.origin}) has {broken[0]}, which Python cannot compile ({broken[1]}), and the trainer loads it: "
            "fix it in your tree, and make a snapshot of that under another CODE_ID."
        )


def _with_user_code(
    root: SharedRoot, made: Draft, folders: Mapping[Path, str], read: tuple[Input, ...], wrong: Refusals
) -> tuple[Input, ...]:
    """The inputs with the code that the job can import, and with what its files of tools and agent loops name."""
    entries = made.environment.variables["PYTHONPATH"].split(os.pathsep)
    is_whole = all(root.has(Path(entry)) or Path(entry).is_relative_to(HELPER_DIR) for entry in entries)
    found = {one.path: one for one in read}
    for one in user_code.named_in(root, read, [made.code.path, *folders], wrong, is_whole=is_whole):
        found.setdefault(one.path, one)
    for one in user_code.on_path(folders):
        found.setdefault(one.path, one)
    return tuple(found.values())


def _named_by_variables(
    root: SharedRoot, made: Draft, names: tuple[str, ...], cure: str, *, alone: bool = False
) -> dict[Path, str]:
    """What these variables name on the shared root, but for the snapshot and the helper, with how messages name it. Raises BadInput for what
    another user can change.
    """
    found = {}
    for name in names:
        separated = made.environment.variables.get(name, "").replace(" ", os.pathsep if name == _PRELOADED else " ")
        for entry in filter(None, separated.split(os.pathsep)):
            path = Path(entry)
            if path != made.code.path and not path.is_relative_to(HELPER_DIR) and root.has(path):
                is_of_node = entry in os.environ.get(name, "").split(os.pathsep)
                said = made.environment.origins.get(name, "the knob SHARED_ROOT")
                origin = "the nodes' own environment" if is_of_node else said
                found[path] = f"{name}={shown(entry)} (from {origin})"
                need(path, found[path], cure, alone=alone)
    return found


def _code_named(root: SharedRoot, request: Request) -> Code:
    """The snapshot, which may not be there yet. Raises BadInput."""
    spec, said = request.spec, request.said
    code_id, origin = spec.code_id, spec.origin
    if said.code_id is not None:
        code_id, origin = said.code_id, "the command line"
    elif spec.code_path is not None:
        path = Path(root.fill_in(spec.code_path))
        if path.parent != root.snapshots:
            raise BadInput(
                f"code_path={shown(str(path))} (from {spec.origin}) is not a snapshot: it must be a folder of "
                "${shared_root}/common/code/verl."
            )
        code_id = path.name
    elif code_id is None:
        code_id, origin = request.defaults.code_id, "the knob CODE_ID"
    return Code(code_id, origin, root.snapshots / ids.check_name(code_id, snapshot.KNOB))


def _job_dir(root: SharedRoot, request: Request, code_id: str) -> JobDir:
    """The directory of the attempt, which must not exist yet."""
    spec, said = request.spec, request.said
    if said.submission_id is not None:
        name = ids.check(said.submission_id, "SUBMISSION_ID on the command line")
    elif spec.submission_id is not None:
        name = ids.check(spec.submission_id, spec.origin)
    else:
        name = ids.make(spec.workload, code_id)
    job = JobDir(root.jobs / name) if request.attempt is None else request.attempt.job_dir
    escape = root.escape_of(root.jobs)
    if escape is not None:
        raise BadInput(f"{root.jobs} cannot take a job's directory: {escape}; make it a directory of its own.")
    if os.path.lexists(job.path):  # lexists: a dangling link counts too
        raise BadInput(
            f"submission_id '{job.submission_id}' is taken: {job.path} exists and is never reused; "
            "give another one, or leave it out to get a generated one."
        )
    return job


def _asked(root: SharedRoot, request: Request, kind: str) -> Artefact:
    """The model or the data set of the job: a path, or a plain name under the shared root. Raises BadInput."""
    given: str | None = getattr(request.spec, kind)
    suffix = request.workload.dataset_suffix if kind == "dataset" else ""
    name = root.fill_in(getattr(request.defaults, kind) + suffix if given is None else given)
    origin = f"the knob {kind.upper()}" if given is None else request.spec.origin
    artefact = Artefact(kind, name, f"{kind}={shown(name)} (from {origin})")
    need_no_shell(artefact.named, name)
    return artefact


def _overrides(root: SharedRoot, request: Request, paths: JobPaths, wrong: Refusals) -> list[Override]:
    """The overrides of all layers as one list. A run with TRAIN_SEED is to be compared, so verl's file logger records it."""
    spec, base, workload, defaults = request.spec, request.base, request.workload, request.defaults
    reward = [] if paths.reward_fn is None else [f"{reward_fn.NEW_REWARD}.path={paths.reward_fn}"]
    merged = merge(
        [Override(text, OURS) for text in workload.overrides(paths)],
        _samples(request, paths.job),
        *of_profile(workload, base.trainer_overrides, base.origin),
        [Override(text, spec.origin) for text in reward],
        [Override(text, spec.origin) for text in spec.trainer_overrides],
        *of_profile(workload, request.deterministic.overrides, DETERMINISTIC),
        request.by_seed(request.said.seed, *workload.seed_keys),
        request.said.overrides,
        request.attempt.overrides() if request.attempt is not None else [],
        wrong=wrong,
    )
    texts = [of_shape(root.fill_in(each.text), defaults.workers, defaults.gpus_per_worker) for each in merged]
    filled = [replace(each, text=text) for each, text in zip(merged, texts, strict=True)]
    return filled if request.said.seed is None else [with_file_logger(override) for override in filled]


def _samples(request: Request, job: JobDir) -> list[Override]:
    """Where a run with TRAIN_SEED records what it samples, by which it is compared: in its own directory, or nowhere if the user says null."""
    key = request.workload.samples_key
    typed = [*request.spec.trainer_overrides, *(each.text for each in request.said.overrides)]
    said = next((text for text in reversed(typed) if text.lstrip("+").startswith(f"{key}=")), "")
    if not key or said.endswith("=null"):
        return []
    return [replace(each, fixed=True) for each in request.by_seed(job.samples, key)]


def _driver(request: Request, job: JobDir) -> Driver:
    """The entrypoint: the launcher with the job's directory as its only argument. Checks its resources."""
    spec, base = request.spec, request.base
    driver = Driver(
        address=base.address if spec.address is None else spec.address,
        entrypoint=shlex.join(["python3", str(HELPER_DIR / "py/run.py"), "launch", str(job.path)]),
        entrypoint_num_cpus=base.entrypoint_num_cpus if spec.entrypoint_num_cpus is None else spec.entrypoint_num_cpus,
        entrypoint_resources={**base.entrypoint_resources, **spec.entrypoint_resources},
    )
    if driver.entrypoint_resources.get("worker_node", 0) <= 0:
        origin = spec.origin if "worker_node" in spec.entrypoint_resources else base.origin
        raise BadInput(
            f"entrypoint_resources.worker_node={driver.entrypoint_resources.get('worker_node', 'nothing')} (from {origin}) would let the "
            "driver run on the head: it must be above 0, usually 1."
        )
    return driver
