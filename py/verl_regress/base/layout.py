"""Where everything lives under the shared root. Every path of the project is spelled here and nowhere else."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HELPER_DIR = Path(__file__).resolve().parents[2]  # this version of the helper (scripts/lib/helper.bash)
_RESERVE_BYTES = 16384  # more than any state takes


@dataclass(frozen=True)
class SharedRoot:
    """The directory that every node sees at the same path (the knob SHARED_ROOT)."""

    path: Path

    @property
    def jobs(self) -> Path:
        """One directory per submission id."""
        return self.path / "jobs"

    @property
    def datasets(self) -> Path:
        """Prepared data, one directory per name."""
        return self.path / "datasets"

    @property
    def models(self) -> Path:
        """Prepared models, one directory per name."""
        return self.path / "common" / "models"

    @property
    def snapshots(self) -> Path:
        """Immutable verl source trees, one directory per code id."""
        return self.path / "common" / "code" / "verl"

    @property
    def objects(self) -> Path:
        """What snapshots share, by content."""
        return self.path / "common" / "code" / "objects"

    @property
    def helpers(self) -> Path:
        """Versions of this package, each under the first digits of its hash (scripts/lib/helper.bash)."""
        return self.path / "common" / "code" / "verl_regress"

    @property
    def sessions(self) -> Path:
        """Regression sessions, one directory a time (verl_regress.store.sessions)."""
        return self.path / "verify"

    @property
    def user_code(self) -> Path:
        """Code that users bring: reward functions."""
        return self.path / "user" / "code"

    @property
    def secrets(self) -> Path:
        """The secrets of jobs that are not over: a directory a cluster, a file a Ray id, for their owner alone."""
        return self.path / "secrets"

    def ray_logs(self, cluster: str) -> Path:
        """What `ray start` said on each node of that cluster (scripts/lib/cluster.bash)."""
        return self.path / "ray" / cluster

    def packages(self, cluster: str, node: str) -> Path:
        """Which packages that node had when its Ray was started (verl_regress.cluster.packages)."""
        return self.ray_logs(cluster) / f"{node}.packages.json"

    def queue(self, cluster: str) -> Path:
        """One link per job of that cluster that is not over, in the order in which they came (verl_regress.worker.queue)."""
        return self.path / "queue" / cluster

    def escape_of(self, path: Path) -> str | None:
        """Why `path` leads out of the shared root, itself or by a link on its way; None where it stays inside.

        The one answer to paths that users name: every user may write into `common/` and `user/`, so any name there may be a
        link to somewhere else, which this node has and others have not, or which was never meant to be read.
        """
        if ".." in path.parts:
            return "it must do without '..'"
        if not path.is_relative_to(self.path):
            return f"it is not under {self.path}, and other nodes may not have it"
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(os.path.realpath(self.path)):
            return f"it is a link to {real}, which leaves {self.path}, and other nodes may not have it"
        return None

    def fill_in(self, text: str) -> str:
        """`text` with `${shared_root}` filled in; every other ${…} is Hydra's own."""
        return text.replace("${shared_root}", str(self.path))

    def ensure(self) -> list[Path]:
        """Create what is missing; returns the directories that were created.

        `common/` and `user/` are writable by all users, sticky like /tmp: nobody can remove what is another's.
        """
        wanted = [self.datasets, self.path / "hf", self.jobs, self.path / "outputs", self.path / "ray"]
        open_to_all = [
            *(self.path / "common" / part for part in ("", "models", "datasets", "code", "code/verl", "code/objects")),
            *(self.path / "user" / part for part in ("", "code")),
        ]
        created = [directory for directory in [*wanted, *open_to_all] if not directory.is_dir()]
        for directory in created:
            directory.mkdir(parents=True, exist_ok=True)
        for directory in open_to_all:
            if directory.stat().st_uid == os.getuid():
                directory.chmod(0o1777)
        return created


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` by a temporary name and a rename: a reader sees the old file or the new, never half.

    A link in the place of either is not followed: the rename replaces it, and what is open is new or no link.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", opener=_no_link) as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@dataclass(frozen=True)
class JobDir:
    """One attempt of a job: `jobs/<submission_id>/` the first, `attempts/N/` in it those that resumed or retried it.

    Each is created once by an atomic mkdir, its `config/` written before submission and never after.
    """

    path: Path

    @property
    def attempt(self) -> int:
        """1 for the job directory itself, N for `attempts/N`."""
        return int(self.path.name) if self.path.parent.name == "attempts" else 1

    @property
    def first(self) -> JobDir:
        """The job directory itself."""
        return JobDir(self.path.parents[1]) if self.attempt > 1 else self

    @property
    def root(self) -> SharedRoot:
        """The shared root that the job is on."""
        return SharedRoot(self.first.path.parents[1])

    @property
    def submission_id(self) -> str:
        """The job's id, the same for all attempts."""
        return self.first.path.name

    @property
    def ray_id(self) -> str:
        """Ray's submission id of this attempt: the job's own, or `<submission_id>.aN`."""
        return self.submission_id if self.attempt == 1 else f"{self.submission_id}.a{self.attempt}"

    def numbered(self, attempt: int) -> JobDir:
        """Attempt N of the same job, there or not."""
        return self.first if attempt == 1 else JobDir(self.first.path / "attempts" / str(attempt))

    def attempts(self) -> list[JobDir]:
        """All attempts of the job that there are, the first first."""
        try:
            names = [path.name for path in (self.first.path / "attempts").iterdir()]
        except FileNotFoundError:
            return [self.first]
        return [self.first, *map(self.numbered, sorted(int(name) for name in names if name.isdecimal()))]

    @property
    def config(self) -> Path:
        """What was asked and what came of it, written once."""
        return self.path / "config"

    @property
    def driver_log(self) -> Path:
        """The whole output of the driver, while it runs and after its node is gone."""
        return self.path / "logs" / "driver.log"

    @property
    def metrics(self) -> Path:
        """One JSON object a training step: `{"step": n, "data": {metric: value}}`, by verl's file logger."""
        return self.path / "logs" / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """verl's `global_step_N` directories."""
        return self.path / "checkpoints"

    @property
    def debug(self) -> Path:
        """What Ray and the nodes were like at the job's turns, one directory a moment (verl_regress.jobs.debug)."""
        return self.path / "debug"

    @property
    def state(self) -> Path:
        """Small JSON files, one writer each: submitted, launcher, queued, turn, started, identity, ended, observed, collected."""
        return self.path / "state"

    @property
    def launcher(self) -> Path:
        """Who the launcher is; it holds the lock of this file for as long as it lives (verl_regress.jobs.liveness)."""
        return self.state / "launcher"

    @property
    def reports(self) -> Path:
        """What the job's own processes report (py/hooks/job_report.py), one file a kind and process."""
        return self.state / "reports"

    def write_state(self, name: str, content: dict[str, Any]) -> None:
        """Write `state/<name>` whole, stamped with the time (UTC, ISO 8601)."""
        text = json.dumps({"time": now(), **content}, indent=2) + "\n"
        reserve = self._reserve(name)
        try:
            write_atomically(self.state / name, text)
            reserve.unlink(missing_ok=True)
        except OSError:
            if not reserve.exists():
                raise
            with reserve.open("r+b") as file:  # what is written in place needs no further block
                file.write(text.encode("utf-8"))
            reserve.replace(self.state / name)

    def reserve_state(self, name: str) -> None:
        """Hold the space of `state/<name>` from now on, for a disk that is full by then. Raises OSError."""
        with self._reserve(name).open("wb") as file:
            file.write(b" " * _RESERVE_BYTES)  # behind JSON, blanks are nothing
            file.flush()
            os.fsync(file.fileno())

    def _reserve(self, name: str) -> Path:
        return self.state / f".{name}.reserve"

    def read_state(self, name: str) -> dict[str, Any] | None:
        """`state/<name>`, or None where nobody wrote it."""
        return read_json(self.state / name)

    def read_config(self, name: str) -> dict[str, Any] | None:
        """`config/<name>`, or None where it is not there (a submitter that died before it was whole)."""
        return read_json(self.config / name)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is no such file."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content


def as_json(content: Any) -> str:
    """`content` as a JSON document that people read, too: indented, not escaped, with a newline at the end."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """`layout` takes no argument of its own."""


def run(args: argparse.Namespace) -> int:
    """Create what is missing under the shared root."""
    SharedRoot(args.shared_root).ensure()
    return 0
