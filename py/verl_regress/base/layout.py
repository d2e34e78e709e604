"""Where everything is under the shared root. Only this module spells out the project's paths."""

import argparse
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.files import now, read_json, write_reserved
from verl_regress.base.trust import group_number

HELPER_DIR = Path(__file__).resolve().parents[3]  # this version of the helper (scripts/lib/helper.bash)
_OPEN_TO_ALL = 0o1777  # sticky, like /tmp
# With SHARED_GROUP: its members make entries, which get the group too (setgid), and remove none of each other's (sticky).
_OPEN_TO_GROUP, _GROUP_ALONE = 0o3775, 0o3770
_OWN = 0o2755  # each user's own, because its code runs as that user


class _Below:
    """A path below the `path` of the object that has it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, instance: "SharedRoot | JobDir", _owner: type) -> Path:
        return instance.path / self._path


@dataclass(frozen=True)
class SharedRoot:
    """The directory that every node sees at the same path (the knob SHARED_ROOT)."""

    path: Path

    hf_home = _Below("hf")
    jobs = _Below("jobs")  # One directory per submission id
    jobs_lock = _Below("jobs/.lock")  # Shared by submissions, held alone by `make gc`
    datasets = _Below("datasets")  # Prepared data, one directory per name
    models = _Below("common/models")  # Prepared models, one directory per name
    snapshots = _Below("common/code/verl")  # Immutable verl source trees, one directory per code id
    # Versions of this package, each named after the first digits of its hash (scripts/lib/helper.bash)
    helpers = _Below("common/code/verl_regress")
    sessions = _Below("verify")  # Regression sessions, one directory each (verl_regress.store.sessions)
    # Searches for the commit that changed training, one directory each (verl_regress.session.bisect)
    bisections = _Below("bisect")
    acceptance = _Below("acceptance")  # Reports of `make acceptance`, one directory each
    user_code = _Below("user/code")  # Code that users provide: reward functions
    # The secrets of jobs that are not over: a directory per cluster, a file per Ray id, readable by their owner alone
    secrets = _Below("secrets")

    def ray_logs(self, cluster: str) -> Path:
        """The output of `ray start` on each node of that cluster (scripts/lib/cluster.bash)."""
        return self.path / "ray" / cluster

    def queue(self, cluster: str) -> Path:
        """The cluster's queue: an empty file per unfinished job, in order of submission (verl_regress.worker.queue)."""
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
        if not self.leads_to(path):
            real = os.path.realpath(path)
            return f"it is a link to {real}, which leaves {self.path}, and other nodes may not have it"
        return None

    def leads_to(self, path: Path) -> bool:
        """Is what `path` leads to, through all its links, on the shared root?"""
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.path))

    def has(self, path: Path) -> bool:
        """Is `path` on the shared root, by its name or by what it leads to? What is elsewhere, only the nodes may have."""
        return path.is_relative_to(self.path) or self.leads_to(path)

    def fill_in(self, text: str) -> str:
        """`text` with `${shared_root}` filled in; every other ${…} is left to Hydra."""
        return text.replace("${shared_root}", str(self.path))

    def ensure(self, group: int | None = None) -> None:
        """Create missing directories. Raises RegressError.

        `group` is the number of SHARED_GROUP, whose members may then write everywhere (docs/shared-root.md). Without one,
        `common/` and `user/` are writable by all users, and the rest by this one.
        """
        for directory, mode in self._modes(group).items():
            directory.mkdir(parents=True, exist_ok=True)
            if mode is not None:
                _open(directory, mode, group)
        if not self.jobs_lock.exists() and os.access(self.jobs, os.W_OK):
            self.jobs_lock.touch()
        if group is not None and self.jobs_lock.exists():
            _open(self.jobs_lock, _OPEN_TO_GROUP & 0o666, group)

    @property
    def hf(self) -> Path:
        """The cache of the Hugging Face libraries, which are not made for several users: in a group's shared root each has one."""
        place = self.hf_home
        is_of_group = place.is_dir() and bool(place.stat().st_mode & stat.S_ISVTX)
        return self._own_hf if is_of_group else place

    @property
    def _own_hf(self) -> Path:
        return self.hf_home / f"uid-{os.getuid()}"

    def _modes(self, group: int | None) -> dict[Path, int | None]:
        """The directories that must be there, and the mode that each must have (None: any)."""
        ours = [self.datasets, self.hf_home, self.jobs, self.path / "outputs", self.path / "ray"]
        of_all = [self.path / "common" / part for part in ("", "models", "datasets", "code", "code/verl")]
        of_all += [self.path / "user", self.user_code]
        if group is None:
            return {**dict.fromkeys(ours), **dict.fromkeys(of_all, _OPEN_TO_ALL)}
        ours += [self.path, self.path / "queue", self.sessions, self.bisections, self.acceptance, self.helpers]
        own = {self.secrets: _GROUP_ALONE, self._own_hf: _OWN}
        return {**dict.fromkeys([*ours, *of_all], _OPEN_TO_GROUP), **own}


def _open(path: Path, mode: int, group: int | None) -> None:
    """Set mode and group, if this user owns the path. Raises RegressError."""
    found = path.stat()
    if found.st_uid != os.getuid() or (stat.S_IMODE(found.st_mode) == mode and group in (None, found.st_gid)):
        return
    try:
        if group is not None:
            os.chown(path, -1, group)
        path.chmod(mode)
    except PermissionError as error:
        raise RegressError(
            f"{path} cannot be given to the group {group} (SHARED_GROUP) by uid {os.getuid()}, which is not in that "
            "group: name a group of yours."
        ) from error


@dataclass(frozen=True)
class JobDir:
    """One attempt of a job: the first is `jobs/<submission_id>/`, later ones (resume, retry) are `attempts/N/` in it.

    Each is created once by an atomic mkdir; its `config/` is written before submission and never after.
    """

    path: Path

    config = _Below("config")  # The request and the plan made from it, written once
    driver_log = _Below("logs/driver.log")  # The driver's whole output, while it runs and after its node is gone
    # One JSON object per training step: `{"step": n, "data": {metric: value}}`, by verl's file logger
    metrics = _Below("logs/metrics.jsonl")
    checkpoints = _Below("checkpoints")  # verl's `global_step_N` directories
    samples = _Below("samples")  # With TRAIN_SEED, the prompts and answers of each step: `N.jsonl`, by verl
    hf_modules = _Below("hf_modules")  # Where transformers copies a model's Python files to, and imports them from
    # Debug bundles: Ray and the nodes at key moments of the job, one directory each (verl_regress.jobs.debug)
    debug = _Below("debug")
    # JSON files, one writer each: submitted, launcher, queued, turn, started, inputs, identity, ended, observed, collected
    state = _Below("state")
    # Who the launcher is; it locks this file for as long as it lives (verl_regress.jobs.status)
    launcher = _Below("state/launcher")
    # The submitter locks this file while it submits the attempt (verl_regress.jobs.status)
    submitting = _Below("state/submitting")
    # Reports of the job's own processes (py/hooks/job_report.py), one file per kind and process
    reports = _Below("state/reports")

    @property
    def attempt(self) -> int:
        """1 for the job directory itself, N for `attempts/N`."""
        return int(self.path.name) if self.path.parent.name == "attempts" else 1

    @property
    def first(self) -> "JobDir":
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

    def numbered(self, attempt: int) -> "JobDir":
        """Attempt N of the same job, whether it exists or not."""
        return self.first if attempt == 1 else JobDir(self.first.path / "attempts" / str(attempt))

    def attempts(self) -> list["JobDir"]:
        """All existing attempts of the job, oldest first; the first alone if they cannot be listed, as another user's may be."""
        numbers = []
        with suppress(OSError):
            names = [path.name for path in (self.first.path / "attempts").iterdir()]
            numbers = sorted(int(name) for name in names if name.isdecimal())
        return [self.first, *map(self.numbered, numbers)]

    def write_state(self, name: str, content: dict[str, Any]) -> None:
        """Write `state/<name>` atomically, stamped with the time (UTC, ISO 8601)."""
        write_reserved(self.state / name, json.dumps({"time": now(), **content}, indent=2) + "\n")

    def read_state(self, name: str) -> dict[str, Any] | None:
        """`state/<name>`, or None if it was not written. Raises Unreadable."""
        return read_json(self.state / name)

    def read_config(self, name: str) -> dict[str, Any] | None:
        """`config/<name>`, or None if it is missing (the submitter died before config/ was complete). Raises Unreadable."""
        return read_json(self.config / name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`layout [--cluster NAME]`."""
    parser.add_argument("--cluster", help="the knob CLUSTER_NAME, whose places must be this user's")


def run(args: argparse.Namespace) -> int:
    """Create what is missing under the shared root, and open it to SHARED_GROUP; prints "examples" if those are missing.

    Raises BadInput or RegressError.
    """
    root, name = SharedRoot(args.shared_root), args.shared_group
    group = group_number(name) if name else None
    cluster = args.cluster if group is not None else None
    for place in (root.queue(cluster), root.ray_logs(cluster), root.secrets / cluster) if cluster else ():
        if place.is_dir() and place.stat().st_uid != os.getuid():
            raise BadInput(
                f"The cluster name {cluster} (CLUSTER_NAME) is taken on this shared root by uid "
                f"{place.stat().st_uid} ({place}): set another CLUSTER_NAME."
            )
    root.ensure(group)
    if not (root.user_code / "examples").is_dir():
        print("examples")
    return 0
