"""Where everything is under the shared root. Only this module spells out the project's paths."""

from __future__ import annotations

import argparse
import json
import os
import stat
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HELPER_DIR = Path(__file__).resolve().parents[2]  # this version of the helper (scripts/lib/helper.bash)
_OPEN_TO_ALL = 0o1777  # sticky, like /tmp
_RESERVE_BYTES = 16384  # more than any state needs


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
        """What snapshots of version 1.1 shared: their bytecode still is here, until `make gc` removes them."""
        return self.path / "common" / "code" / "objects"

    @property
    def helpers(self) -> Path:
        """Versions of this package, each named after the first digits of its hash (scripts/lib/helper.bash)."""
        return self.path / "common" / "code" / "verl_regress"

    @property
    def sessions(self) -> Path:
        """Regression sessions, one directory each (verl_regress.store.sessions)."""
        return self.path / "verify"

    @property
    def bisections(self) -> Path:
        """Searches for the commit that changed training, one directory each (verl_regress.session.bisection)."""
        return self.path / "bisect"

    @property
    def user_code(self) -> Path:
        """Code that users provide: reward functions."""
        return self.path / "user" / "code"

    @property
    def secrets(self) -> Path:
        """The secrets of jobs that are not over: a directory per cluster, a file per Ray id, readable by their owner alone."""
        return self.path / "secrets"

    def ray_logs(self, cluster: str) -> Path:
        """The output of `ray start` on each node of that cluster (scripts/lib/cluster.bash)."""
        return self.path / "ray" / cluster

    def packages(self, cluster: str, node: str) -> Path:
        """The packages that the node had when its Ray was started (verl_regress.cluster.packages)."""
        return self.ray_logs(cluster) / f"{node}.packages.json"

    def queue(self, cluster: str) -> Path:
        """The cluster's queue: one link per unfinished job, in order of submission (verl_regress.worker.queue)."""
        return self.path / "queue" / cluster

    def escape_of(self, path: Path) -> str | None:
        """Why `path` leads out of the shared root, itself or through a link on the way; None if it stays inside.

        Every path that users name is checked here: every user may write to `common/` and `user/`, so any name there may
        be a link to somewhere that only this node has, or that was never meant to be read.
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
        """`text` with `${shared_root}` filled in; every other ${…} is left to Hydra."""
        return text.replace("${shared_root}", str(self.path))

    def ensure(self) -> list[Path]:
        """Create missing directories; returns those that were created.

        `common/` and `user/` are writable by all users, sticky like /tmp: users cannot remove each other's files.
        """
        created = [directory for directory in [*self._closed, *self._open_to_all] if not directory.is_dir()]
        for directory in created:
            directory.mkdir(parents=True, exist_ok=True)
        for directory in self._open_to_all:
            if directory.stat().st_uid == os.getuid():
                directory.chmod(_OPEN_TO_ALL)
        return created

    def is_complete(self) -> bool:
        """Is there nothing for `ensure` to do?"""
        return all(directory.is_dir() for directory in [*self._closed, *self._open_to_all]) and all(
            found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) == _OPEN_TO_ALL
            for found in (directory.stat() for directory in self._open_to_all)
        )

    @property
    def _closed(self) -> list[Path]:
        return [self.datasets, self.path / "hf", self.jobs, self.path / "outputs", self.path / "ray"]

    @property
    def _open_to_all(self) -> list[Path]:
        return [
            *(self.path / "common" / part for part in ("", "models", "datasets", "code", "code/verl")),
            *(self.path / "user" / part for part in ("", "code")),
        ]


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` by a temporary name and a rename: a reader sees the old file or the new one, never half.

    Never writes through a link: the rename replaces one at `path`, and one at the temporary name is an error.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", opener=_no_link) as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def reserve(path: Path) -> None:
    """Take the space of the JSON file `path` now, in case the disk is full when it is written. Raises OSError."""
    with _reserve_of(path).open("wb") as file:
        file.write(b" " * _RESERVE_BYTES)  # JSON ignores trailing spaces
        file.flush()
        os.fsync(file.fileno())


def write_reserved(path: Path, text: str) -> None:
    """Write `text` to `path` atomically; on a full disk into the space that was reserved for it. Raises OSError."""
    space = _reserve_of(path)
    try:
        write_atomically(path, text)
        space.unlink(missing_ok=True)
    except OSError:
        if not space.exists():
            raise
        with space.open("r+b") as file:  # writing in place needs no new block
            file.write(text.encode("utf-8"))
        space.replace(path)


def _reserve_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserve")


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@dataclass(frozen=True)
class JobDir:
    """One attempt of a job: the first is `jobs/<submission_id>/`, later ones (resume, retry) are `attempts/N/` in it.

    Each is created once by an atomic mkdir; its `config/` is written before submission and never after.
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
        """Attempt N of the same job, whether it exists or not."""
        return self.first if attempt == 1 else JobDir(self.first.path / "attempts" / str(attempt))

    def attempts(self) -> list[JobDir]:
        """All existing attempts of the job, oldest first. A link is none: it may lead to another job's."""
        home = self.first.path / "attempts"
        try:
            with os.scandir(home) as found:
                names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return [self.first]
        if home.is_symlink():
            return [self.first]
        return [self.first, *map(self.numbered, sorted(int(name) for name in names if name.isdecimal()))]

    @property
    def config(self) -> Path:
        """The request and the plan made from it, written once."""
        return self.path / "config"

    @property
    def driver_log(self) -> Path:
        """The driver's whole output, while it runs and after its node is gone."""
        return self.path / "logs" / "driver.log"

    @property
    def metrics(self) -> Path:
        """One JSON object per training step: `{"step": n, "data": {metric: value}}`, by verl's file logger."""
        return self.path / "logs" / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """verl's `global_step_N` directories."""
        return self.path / "checkpoints"

    @property
    def debug(self) -> Path:
        """Debug bundles: Ray and the nodes at key moments of the job, one directory each (verl_regress.jobs.debug)."""
        return self.path / "debug"

    @property
    def state(self) -> Path:
        """JSON files, one writer each: submitted, launcher, queued, turn, started, identity, ended, observed, collected."""
        return self.path / "state"

    @property
    def launcher(self) -> Path:
        """Who the launcher is; it locks this file for as long as it lives (verl_regress.jobs.liveness)."""
        return self.state / "launcher"

    @property
    def submitting(self) -> Path:
        """The submitter locks this file while it submits the attempt (verl_regress.jobs.status)."""
        return self.state / "submitting"

    @property
    def reports(self) -> Path:
        """Reports of the job's own processes (py/hooks/job_report.py), one file per kind and process."""
        return self.state / "reports"

    def write_state(self, name: str, content: dict[str, Any]) -> None:
        """Write `state/<name>` atomically, stamped with the time (UTC, ISO 8601)."""
        write_reserved(self.state / name, json.dumps({"time": now(), **content}, indent=2) + "\n")

    def reserve_state(self, name: str) -> None:
        """Reserve the space of `state/<name>` now, in case the disk is full later. Raises OSError."""
        reserve(self.state / name)

    def read_state(self, name: str) -> dict[str, Any] | None:
        """`state/<name>`, or None if it was not written."""
        return read_json(self.state / name)

    def read_config(self, name: str) -> dict[str, Any] | None:
        """`config/<name>`, or None if it is missing (the submitter died before config/ was complete)."""
        return read_json(self.config / name)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file."""
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
    """`layout` has no arguments of its own."""


def run(args: argparse.Namespace) -> int:
    """Create what is missing under the shared root."""
    SharedRoot(args.shared_root).ensure()
    return 0
