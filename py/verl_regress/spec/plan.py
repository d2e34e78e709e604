"""From a request to the plan of its submission. Pure: reads the shared root, creates nothing, uses no network."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_regress.base import documents, ids
from verl_regress.base.documents import Document
from verl_regress.base.errors import BadInput, IdTaken, RegressError, shown
from verl_regress.base.layout import HELPER_DIR, JobDir, SharedRoot
from verl_regress.base.owner import Owner
from verl_regress.jobs.checkpoints import continuing, step_of
from verl_regress.secrets import job_secrets
from verl_regress.secrets.job_secrets import Secret
from verl_regress.spec import environment, limits, reward_fn
from verl_regress.spec.compose import DETERMINISTIC, Override, compose
from verl_regress.spec.devices import Devices
from verl_regress.spec.workloads import FIXED_KEYS, WORKLOADS, Places, Workload
from verl_regress.store import snapshot

_MOST = 1_000_000  # of a resource, far above any cluster: anything larger, or infinite, is a mistake


@dataclass(frozen=True)
class CommandLine:
    """What the command line (or a knob in the environment) said; None or empty for what it did not set."""

    workload: str | None = None
    code_id: str | None = None
    submission_id: str | None = None
    overrides: tuple[Override, ...] = ()
    secrets: tuple[str, ...] = ()  # names of secrets in addition to the JobSpec's
    deterministic: bool = False  # the knob DETERMINISTIC


@dataclass(frozen=True)
class Defaults:
    """The knobs that JobSpec and base config override; `max_running` is None for no limit by number."""

    profile: str
    model: str
    dataset: str
    code_id: str
    cluster: str
    max_running: int | None = None


@dataclass(frozen=True)
class Attempt:
    """A further attempt of a job: its directory, which does not exist yet, and what it continues."""

    job_dir: JobDir
    parent: JobDir
    checkpoint: Path | None = None  # None: it starts at the first step

    @property
    def step(self) -> int:
        """The step after which it continues."""
        return step_of(self.checkpoint.name) if self.checkpoint else 0

    def overrides(self) -> list[Override]:
        """Overrides that make the trainer continue, above all other layers; a parent's checkpoint is never removed."""
        if self.checkpoint is None:
            return []
        kept = Override("trainer.del_local_ckpt_after_load=False", "make resume", optional=True)  # SFT lacks it
        return [*(Override(text, "make resume") for text in continuing(self.checkpoint)), kept]

    def told(self) -> dict[str, Any]:
        """The attempt that it comes from, the checkpoint and its step."""
        checkpoint = str(self.checkpoint) if self.checkpoint else None
        return {"attempt": self.parent.attempt, "checkpoint": checkpoint, "step": self.step}


@dataclass(frozen=True)
class Plan:
    """Everything that a submission needs; `resolved()` is what goes to config/resolved.json.

    `cluster_has` is how many of its devices the whole cluster has, `packages` the nodes' packages for
    config/packages.json. A plan made without asking the cluster has neither.
    """

    submission_id: str
    workload: str
    profile: str
    cluster: str
    code: Mapping[str, Any]
    code_path: Path
    job_dir: JobDir
    address: str
    entrypoint: str
    entrypoint_num_cpus: float
    entrypoint_resources: Mapping[str, float]
    env_vars: Mapping[str, str]
    argv: tuple[str, ...]
    overrides: tuple[Override, ...]
    left_out: tuple[Override, ...]
    shared_root: Path
    secrets: tuple[Secret, ...]
    model: Path
    dataset: Path
    devices: Devices
    max_running: int | None
    reward_fn: Path | None
    verl_config: str = field(repr=False)
    spec: Document = field(repr=False)
    base: Document = field(repr=False)
    said: CommandLine = field(repr=False)
    defaults: Defaults = field(repr=False)
    attempt: Attempt | None = None
    owner: Owner | None = None
    cluster_has: int | None = None
    packages: Mapping[str, Any] | None = None

    def asked(self) -> dict[str, Any]:
        """The request without the two documents, as `recorded` reads it."""
        origins = {"job_spec": self.spec.origin, "ray_config": self.base.origin}
        return {"origins": origins, "said": asdict(self.said), "defaults": asdict(self.defaults)}

    def runtime_env(self) -> dict[str, Any]:
        """The job's runtime_env: environment variables only, nothing is uploaded."""
        late = self.literal_env_vars()
        return {"env_vars": {name: value for name, value in self.env_vars.items() if name not in late}}

    def literal_env_vars(self) -> dict[str, str]:
        """The environment variables that the hook env_vars sets in each process: those with a `$`, which Ray would
        expand, and those of DETERMINISTIC=1, which verl passes to its actors itself: Ray takes no variable from
        both.
        """
        late = _deterministic(self.base).get("env_vars", {}) if self.said.deterministic else {}
        return {name: value for name, value in self.env_vars.items() if "$" in value or name in late}

    @property
    def repeats_anyway(self) -> bool:
        """Whether DETERMINISTIC=1 was asked for, but the profile has nothing to add for it."""
        return self.said.deterministic and not _deterministic(self.base)

    def resolved(self) -> dict[str, Any]:
        """The whole plan as plain data."""
        return {
            "submission_id": self.submission_id,
            "attempt": self.job_dir.attempt,
            "parent": self.attempt.told() if self.attempt else None,
            "workload": self.workload,
            "profile": self.profile,
            "cluster": self.cluster,
            "owner": self.owner.recorded() if self.owner else None,
            "code_id": self.code["code_id"],
            "shared_root": str(self.shared_root),
            "code_path": str(self.code_path),
            "model": str(self.model),
            "dataset": str(self.dataset),
            "reward_fn": str(self.reward_fn) if self.reward_fn is not None else None,
            "job_dir": str(self.job_dir.path),
            "address": self.address,
            "entrypoint": self.entrypoint,
            "entrypoint_num_cpus": self.entrypoint_num_cpus,
            "entrypoint_resources": dict(self.entrypoint_resources),
            "devices": {**self.devices.told(), "cluster_has": self.cluster_has},
            "max_running": self.max_running,
            "packages": _less_lists(self.packages),
            "argv": list(self.argv),
            "overrides": [override.told() for override in self.overrides],
            "left_out": [override.told() for override in self.left_out],
            "secrets": [secret.name for secret in self.secrets],
        }

    @property
    def secrets_file(self) -> Path | None:
        """Where the values of its secrets are until it is over; None if it has none."""
        return Path(self.env_vars[job_secrets.FILE_VARIABLE]) if self.secrets else None

    def metadata(self) -> dict[str, str]:
        """The metadata that Ray keeps with the job; the submitter adds where it was sent from, and how."""
        parent = {f"parent_{key}": str(value) for key, value in self.attempt.told().items()} if self.attempt else {}
        return {"code_id": str(self.code["code_id"]), "workload": self.workload, "profile": self.profile, **parent}

    def command_line(self, **metadata: str) -> list[str]:
        """`ray job submit` of this plan as argv, with `metadata` in addition to its own."""
        return [
            "ray", "job", "submit", "--no-wait",
            "--address", self.address,
            "--submission-id", self.job_dir.ray_id,
            "--entrypoint-num-cpus", f"{self.entrypoint_num_cpus:g}",
            "--entrypoint-resources", json.dumps(self.entrypoint_resources),
            "--runtime-env-json", json.dumps(self.runtime_env()),
            "--metadata-json", json.dumps(metadata | self.metadata()),
            "--", *shlex.split(self.entrypoint),
        ]  # fmt: skip


def _less_lists(packages: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if packages is None else {key: value for key, value in packages.items() if key not in ("lists", "head")}


def make(
    root: SharedRoot,
    spec: Document,
    base: Document,
    said: CommandLine,
    defaults: Defaults,
    attempt: Attempt | None = None,
    owner: Owner | None = None,
) -> Plan:
    """Plan a submission of `owner`, of a new job or of a further attempt of one.

    Precedence, highest first: command line, JobSpec, base config, knobs. Raises BadInput.
    """
    workload_name = said.workload or spec.content["workload"]
    if workload_name not in WORKLOADS:
        origin = "the command line" if said.workload else spec.origin
        raise BadInput(
            f"WORKLOAD={shown(workload_name)} (from {origin}) is unknown: use one of {', '.join(WORKLOADS)}."
        )
    if workload_name != spec.content["workload"]:
        raise BadInput(
            f"WORKLOAD={workload_name} (from the command line) but {spec.origin} is for {spec.content['workload']}: name one."
        )
    workload = WORKLOADS[workload_name]
    _check_shared_root(root, spec)
    code_path, code, code_origin = _code(root, spec, said, defaults)

    if attempt is not None:
        submission_id = attempt.job_dir.submission_id
    elif said.submission_id is not None:
        submission_id = ids.check(said.submission_id, "SUBMISSION_ID on the command line")
    elif "submission_id" in spec.content:
        submission_id = ids.check(spec.content["submission_id"], spec.origin)
    else:
        submission_id = ids.make(workload_name, code["code_id"])
    job_dir = attempt.job_dir if attempt is not None else JobDir(root.jobs / submission_id)
    escape = root.escape_of(root.jobs)
    if escape is not None:
        raise BadInput(f"{root.jobs} cannot take a job's directory: {escape}; make it a directory of its own.")
    if os.path.lexists(job_dir.path):  # lexists: a dangling link counts too
        raise IdTaken(
            f"submission_id '{submission_id}' is taken: {job_dir.path} exists and is never reused; "
            "give another one, or leave it out and one is made."
        )

    model = _artefact(root, spec, "model", root.models, defaults.model, ("config.json",))
    dataset = _artefact(
        root, spec, "dataset", root.datasets, defaults.dataset + workload.dataset_suffix, workload.data_files
    )
    reward = _reward_fn(root, spec, workload)
    deterministic = _deterministic(base) if said.deterministic else {}
    overrides = _merge(
        [Override(text, "verl-regress") for text in workload.overrides(Places(model, dataset, job_dir))],
        *_of_profile(root, workload, base.content.get("trainer_overrides", {}), base.origin),
        [] if reward is None else [Override(f"{reward_fn.key_of(code_path)}={reward}", spec.origin)],
        [Override(root.fill_in(text), spec.origin) for text in spec.content.get("trainer_overrides", [])],
        *_of_profile(root, workload, deterministic.get("overrides", {}), DETERMINISTIC),
        [replace(override, text=root.fill_in(override.text)) for override in said.overrides],
        attempt.overrides() if attempt is not None else [],
    )
    resources = {
        **base.content["entrypoint_resources"],
        **spec.content.get("resources", {}).get("entrypoint_resources", {}),
    }
    entrypoint_num_cpus = spec.content.get("resources", {}).get(
        "entrypoint_num_cpus", base.content["entrypoint_num_cpus"]
    )
    _check_resources({**resources, "entrypoint_num_cpus": entrypoint_num_cpus}, spec, base)
    env_vars = environment.of_job(root, job_dir, code_path, workload, spec, base, deterministic.get("env_vars", {}))
    secrets = (*job_secrets.named(spec), *map(Secret, said.secrets))
    env_vars |= environment.of_secrets(secrets, env_vars, job_secrets.file_of(root, defaults.cluster, job_dir), base)
    limits.check(overrides, env_vars, environment.origins(spec, base))
    snapshot.need_whole(code_path, code, code_origin)
    composed = compose(code_path, code, workload.module, overrides)
    set_by = {override.parts()[1]: override.origin for override in composed.overrides}
    reward_fn.check_function(root, composed.reward, reward, spec.origin, set_by)
    return Plan(
        submission_id=submission_id,
        workload=workload_name,
        profile=defaults.profile,
        cluster=defaults.cluster,
        code=code,
        code_path=code_path,
        job_dir=job_dir,
        address=spec.content.get("ray", {}).get("address", base.content["address"]),
        entrypoint=shlex.join(["python3", str(HELPER_DIR / "run.py"), "launch", str(job_dir.path)]),
        entrypoint_num_cpus=entrypoint_num_cpus,
        entrypoint_resources=resources,
        env_vars=env_vars,
        argv=("python3", "-m", workload.module, *(override.text for override in composed.overrides)),
        overrides=composed.overrides,
        left_out=composed.left_out,
        shared_root=root.path,
        secrets=secrets,
        model=model,
        dataset=dataset,
        devices=composed.devices,
        max_running=defaults.max_running,
        reward_fn=reward,
        verl_config=composed.text,
        spec=spec,
        base=base,
        said=said,
        defaults=defaults,
        attempt=attempt,
        owner=owner,
    )


def recorded(job: JobDir) -> tuple[Document, Document, CommandLine, Defaults]:
    """The request for an attempt, as its `config/` records it: everything that `make` takes. Raises RegressError.

    Secrets that only the command line named are left out: their values are no longer available.
    """
    asked = job.read_config("asked.json")
    if asked is None:
        raise RegressError(
            f"{job.config}/asked.json is not there, so what was asked is not known whole (an older verl-regress wrote it, or "
            "its submitter died): submit it again with 'make submit'."
        )
    given = job.config / "job_spec.yaml"
    origins, said = asked["origins"], {**asked["said"], "secrets": ()}
    spec = (given if given.exists() else given.with_suffix(".json")).read_bytes().decode("utf-8")
    base = (job.config / "ray_config.yaml").read_bytes().decode("utf-8")
    return (
        documents.parse(spec, origins["job_spec"], "jobspec"),
        documents.parse(base, origins["ray_config"], "base_config"),
        CommandLine(**{**said, "overrides": tuple(Override(**override) for override in said["overrides"])}),
        Defaults(**asked["defaults"]),
    )


def _check_shared_root(root: SharedRoot, spec: Document) -> None:
    given = spec.content.get("shared_root", str(root.path))
    if Path(given) != root.path:
        raise BadInput(
            f"shared_root={shown(given)} (from {spec.origin}) is not this cluster's {root.path} (SHARED_ROOT): "
            "leave it out, or set SHARED_ROOT and bring the cluster up again."
        )


def _code(
    root: SharedRoot, spec: Document, said: CommandLine, defaults: Defaults
) -> tuple[Path, Mapping[str, Any], str]:
    """The snapshot's directory and record, and where its code id was given."""
    if said.code_id is not None:
        code_id, origin = said.code_id, "the command line"
    elif "code_path" in spec.content:
        path = Path(root.fill_in(spec.content["code_path"]))
        if path.parent != root.snapshots:
            raise BadInput(
                f"code_path={shown(str(path))} (from {spec.origin}) is not a snapshot: it must be a folder of "
                "${shared_root}/common/code/verl."
            )
        code_id, origin = path.name, spec.origin
    elif "code_id" in spec.content:
        code_id, origin = spec.content["code_id"], spec.origin
    else:
        code_id, origin = defaults.code_id, "the knob CODE_ID"
    return root.snapshots / code_id, snapshot.load(root, code_id, origin), origin


def _artefact(root: SharedRoot, spec: Document, kind: str, home: Path, default: str, files: Iterable[str]) -> Path:
    """The directory of a prepared model or data set; a plain name is looked up in `home` under the shared root."""
    path = home / root.fill_in(spec.content.get(kind, default))
    given = shown(root.fill_in(spec.content.get(kind, default)))
    origin = spec.origin if kind in spec.content else f"the knob {kind.upper()}"
    for file in (path / name for name in files):
        try:
            escape = root.escape_of(file)
            if escape is not None:
                raise BadInput(f"{kind}={given} (from {origin}) is refused: {shown(escape, 500)}; name another {kind}.")
            file.open("rb").close()
        except (OSError, ValueError) as error:
            state = "missing" if isinstance(error, FileNotFoundError) else f"not readable ({error})"
            raise BadInput(
                f"{kind}={given} (from {origin}) is not usable, {shown(str(file))} is {shown(state)}: run 'make prepare', or name another {kind}."
            ) from None
    return path


def _reward_fn(root: SharedRoot, spec: Document, workload: Workload) -> Path | None:
    """The file of the JobSpec's reward function."""
    given = spec.content.get("reward_fn_path")
    if given is None:
        return None
    if not workload.has_reward:
        raise BadInput(
            f"reward_fn_path={shown(given)} (from {spec.origin}) is refused: {spec.content['workload']} has no reward; leave it out."
        )
    return reward_fn.check(root, root.fill_in(given), spec.origin)


def _of_profile(
    root: SharedRoot, workload: Workload, by_workload: Mapping[str, list[str]], origin: str
) -> Iterator[list[Override]]:
    """The layers from a list in the base config; ? makes an override optional."""
    for key in workload.profile_keys:
        yield [
            Override(root.fill_in(text.removeprefix("?")), origin, optional=text.startswith("?"))
            for text in by_workload.get(key, [])
        ]


def _deterministic(base: Document) -> Mapping[str, Any]:
    """What the base config says that DETERMINISTIC=1 adds. Raises BadInput if it says nothing."""
    section: Mapping[str, Any] | None = base.content.get("deterministic")
    if section is None:
        raise BadInput(
            f"{DETERMINISTIC} is not possible with {base.origin} (RAY_BASE_CONFIG), which does not say under 'deterministic' what "
            "it takes: copy that from env/ray/dev.yaml, or leave DETERMINISTIC out."
        )
    return section


def _merge(*layers: list[Override]) -> list[Override]:
    """Later layers win key by key, in the order of first mention. Keys of FIXED_KEYS stay as in the first layer.

    A key that one layer adds (+, ++) stays an added key when a later one only sets it: Hydra would refuse it otherwise.
    A key that is added and then deleted (~) is left out, for the same reason.
    """
    merged: dict[str, Override] = {}
    for number, layer in enumerate(layers):
        for override in layer:
            prefix, key = override.parts()
            if number > 0 and any(f"{fixed}.".startswith(f"{key}.") for fixed in FIXED_KEYS):
                raise BadInput(
                    f"{override.shown} is refused: a job writes under its own directory and nowhere else; leave it out."
                )
            earlier = merged[key].parts()[0] if key in merged else ""
            if (earlier, prefix) == ("+", "~"):
                del merged[key]
                continue
            kept = earlier.replace("~", "") if not prefix else ""
            merged[key] = replace(override, text=kept + override.text)
    return list(merged.values())


def _check_resources(resources: Mapping[str, float], spec: Document, base: Document) -> None:
    given = spec.content.get("resources", {}).get("entrypoint_resources", {})
    origin = spec.origin if "worker_node" in given else base.origin
    if not 0 < resources.get("worker_node", 0) < math.inf:  # NaN is neither above 0 nor below
        raise BadInput(
            f"entrypoint_resources.worker_node={resources.get('worker_node', 'nothing')} (from {origin}) would let the "
            "driver run on the head: it must be above 0, usually 1."
        )
    for name, amount in resources.items():
        if not 0 <= amount <= _MOST:  # false for NaN too
            told = f"{spec.origin} or {base.origin}"
            raise BadInput(
                f"The resource {shown(name)}={shown(str(amount))} (from {told}) is not usable: ask for 0 to {_MOST:,}."
            )
