"""A request: the two documents, the command line, the knobs, and what a further attempt continues."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_regress.base import documents
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.jobspec import BaseConfig, Deterministic, JobSpec
from verl_regress.base.layout import JobDir
from verl_regress.base.owner import Owner
from verl_regress.base.workloads import WORKLOADS, Workload
from verl_regress.jobs.checkpoints import resume_overrides, step_of
from verl_regress.plan.overrides import DETERMINISTIC, TRAIN_SEED, Override


@dataclass(frozen=True)
class CommandLine:
    """What the command line (or a knob in the environment) said; None or empty for what it did not set."""

    code_id: str | None = None
    submission_id: str | None = None
    overrides: tuple[Override, ...] = ()
    deterministic: bool = False  # the knob DETERMINISTIC
    seed: int | None = None  # the knob TRAIN_SEED
    perturbed: bool = False  # as make verify asks for it
    recompute_rewards: bool = False  # likewise
    plain_secrets: bool = False  # the knob ALLOW_PLAIN_SECRETS
    debugger: str | None = None  # the knob DEBUGGER: 1 or post-mortem; None: off
    debugger_host: str | None = None  # where debugpy listens; None: on the node's address
    fail_on: tuple[str, ...] = ()  # the knob FAIL_ON: verl_regress.jobs.conditions


@dataclass(frozen=True)
class Defaults:
    """The knobs that JobSpec and base config override; `max_running` is None for no limit by number."""

    profile: str
    model: str
    dataset: str
    code_id: str
    cluster: str
    max_running: int | None = None
    workers: int = 1
    gpus_per_worker: int = 1


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
        return [*(Override(text, "make resume") for text in resume_overrides(self.checkpoint)), kept]

    def recorded(self) -> dict[str, Any]:
        """The attempt that it comes from, the checkpoint and its step."""
        checkpoint = str(self.checkpoint) if self.checkpoint else None
        return {"attempt": self.parent.attempt, "checkpoint": checkpoint, "step": self.step}


@dataclass(frozen=True)
class Request:
    """Everything that decides a plan, apart from the shared root. A new job has no `attempt`."""

    spec: JobSpec
    base: BaseConfig
    said: CommandLine
    defaults: Defaults
    attempt: Attempt | None = None
    owner: Owner | None = None

    @property
    def workload(self) -> Workload:
        """The workload that the JobSpec names."""
        return WORKLOADS[self.spec.workload]

    def by_seed(self, value: object, *keys: str) -> list[Override]:
        """What TRAIN_SEED adds: `value` for each of these keys that the release has."""
        return [Override(f"{key}={value}", TRAIN_SEED, optional=True) for key in keys if self.said.seed is not None]

    @property
    def deterministic(self) -> Deterministic:
        """What DETERMINISTIC=1 adds if it was asked for. Raises BadInput if the base config does not say it."""
        if not self.said.deterministic:
            return Deterministic()
        if self.base.deterministic is None:
            raise BadInput(
                f"{DETERMINISTIC} is not possible with {self.base.origin} (RAY_BASE_CONFIG), which has no section 'deterministic': copy it from env/ray/dev.yaml, or leave DETERMINISTIC out."
            )
        return self.base.deterministic

    def recorded(self) -> dict[str, Any]:
        """The request without the two documents, for config/asked.json."""
        origins = {"job_spec": self.spec.origin, "ray_config": self.base.origin}
        return {"origins": origins, "said": asdict(self.said), "defaults": asdict(self.defaults)}


def of_job(job: JobDir) -> Request:
    """The request for an attempt, as its `config/` records it, without the debugger, which is on for one attempt. Raises RegressError."""
    try:
        return of_files(job.config)
    except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
        raise RegressError(
            f"The request in {job.config} cannot be repeated, because it is damaged, an earlier version wrote it, or its submitter died: submit "
            "the job again with 'make submit'."
        ) from error


def of_files(directory: Path) -> Request:
    """The request in the files asked.json, job_spec.yaml (or .json) and ray_config.yaml. Raises BadInput, or OSError."""
    asked = json.loads((directory / "asked.json").read_text(encoding="utf-8"))
    given = directory / "job_spec.yaml"
    origins, said = asked["origins"], {**asked["said"], "debugger": None, "debugger_host": None}
    spec = (given if given.exists() else given.with_suffix(".json")).read_bytes().decode("utf-8")
    base = (directory / "ray_config.yaml").read_bytes().decode("utf-8")
    return Request(
        JobSpec.from_document(documents.parse(spec, origins["job_spec"], "jobspec")),
        BaseConfig.from_document(documents.parse(base, origins["ray_config"], "base_config")),
        CommandLine(
            **{
                **said,
                "overrides": tuple(Override(**override) for override in said["overrides"]),
                "fail_on": tuple(said.get("fail_on", ())),
            }
        ),
        Defaults(**asked["defaults"]),
    )
