"""A session's directory `${SHARED_ROOT}/verify/<time>/`, its jobs in order, and the evidence recorded of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from verl_regress.base.layout import SharedRoot, now, read_json, write_atomically
from verl_regress.jobs.checkpoints import continuing

# The secret that every job of a session gets and whose leaks are searched for. No JobSpec may name it (VERL_…).
CANARY = "VERL_REGRESS_CANARY"


@dataclass(frozen=True)
class Job:
    """One job of a session: the workload, its code (A or B), and what it adds to the JobSpec."""

    name: str
    workload: str
    code: str
    continues: str | None = None  # the job from whose last checkpoint this one trains one more step


JOBS = (
    Job("ppo_a", "ppo", "A"),
    Job("ppo_b", "ppo", "B"),
    Job("grpo", "grpo", "A"),
    Job("sft", "sft", "A"),
    Job("further", "ppo", "A", continues="ppo_a"),
)


@dataclass(frozen=True)
class Session:
    """The directory of one session; judging needs only its `evidence/`."""

    path: Path

    @classmethod
    def begin(cls, root: SharedRoot) -> Session:
        """Make the directory of a new session, named after the time (UTC)."""
        path = root.sessions / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
        (path / "evidence").mkdir(parents=True)
        return cls(path)

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Record one piece of evidence, stamped with the time."""
        write_atomically(self._file(name), json.dumps({"time": now(), **content}, indent=1, ensure_ascii=False) + "\n")

    def read(self, name: str) -> dict[str, Any] | None:
        """One piece of evidence, or None if it was not gathered."""
        return read_json(self._file(name))

    def evidence(self) -> dict[str, Any]:
        """All of it, by name."""
        return {
            path.stem: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((self.path / "evidence").glob("*.json"))
        }

    def next_job(self, wanted: set[str]) -> Job | None:
        """The first wanted job that is not recorded yet."""
        return next((job for job in JOBS if job.name in wanted and self.read(f"job-{job.name}") is None), None)

    def overrides_of(self, job: Job) -> list[str]:
        """What the job adds to its JobSpec: one more step from the newest checkpoint of the job that it continues."""
        if job.continues is None:
            return []
        before = self.read(f"job-{job.continues}") or {}
        newest = (before.get("checkpoints") or ["global_step_0"])[-1]
        steps = int(newest.rsplit("_", 1)[1])
        return [
            *continuing(Path(f"{before.get('job_dir')}/checkpoints/{newest}")),
            f"trainer.total_training_steps={steps + 1}",
        ]

    def _file(self, name: str) -> Path:
        return self.path / "evidence" / f"{name}.json"


def jobs_of(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence of each recorded job by name, in the order in which they run."""
    return {job.name: evidence[f"job-{job.name}"] for job in JOBS if f"job-{job.name}" in evidence}
