"""`make gc`: which checkpoints, snapshots and versions of the helper nobody needs any more, and who needs the others.

A job's config/, logs/, state/ and debug/ and the reports of sessions are never removed. What can be reached from a root stays: from the
newest KEEP jobs that have a complete checkpoint, a job that may still run, a session that is not over, a job of another checkout, cluster or user, a
knob that names a code. So does whatever was made or written in the last KEEP_HOURS, as it may be about to be used. No link is followed or removed: what it leads to may be in use.

The lock that submissions share is held from the first look to the last removal, so nothing new can need what goes. What goes is renamed
aside first (`.NAME.gone`), so that nobody takes half of it for whole if gc is killed; the next gc deletes that.
"""

import argparse
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_regress.base import layout, lock, say
from verl_regress.base.errors import first, printable
from verl_regress.base.files import read_text
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import is_mine
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import checkpoints, find, sweep
from verl_regress.jobs.status import DAMAGED, status_in_list
from verl_regress.store import artefact, snapshot
from verl_regress.store.sessions import Session, all_of

_LOCK_SECONDS = 300.0  # a submission has the lock for seconds
_GC_SECONDS = 1800.0  # `make gc` has it until it has deleted all that it found
_SESSION = 7 * 86400.0  # seconds without new evidence: until then, a session may be continued
_AT_WORK = 86400.0  # seconds without a write: until then, an unfinished copy may be one that is being made
_GONE = ".gone"
_UNFINISHED = ".tmp"  # store/artefact.py, store/snapshot.py
_NAME = r"/([A-Za-z0-9][A-Za-z0-9_.-]*)"
_HELPER = re.compile(r"[0-9a-f]{12}")  # scripts/lib/helper.bash: the first digits of its hash; each use touches it


def uncollected(root: SharedRoot) -> AbstractContextManager[None]:
    """Keep `make gc` from removing what the block begins to use: a submission, until Ray has the job. Raises RegressError."""
    return lock.held(root.jobs_lock, "a submission", _GC_SECONDS, shared=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`gc --cluster NAME --keep N [--keep-hours N] [--named CODE …] [--dry-run]`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME: whose lost jobs' secrets go too")
    parser.add_argument("--keep", type=int, required=True, help="the knob KEEP: how many jobs keep their checkpoints")
    parser.add_argument("--keep-hours", type=int, default=24, help="the knob KEEP_HOURS: what is younger stays")
    parser.add_argument("--named", action="append", default=[], help="a code id or source that a knob names")
    parser.add_argument("--dry-run", action="store_true", help="say the same, remove nothing")


def run(args: argparse.Namespace) -> int:
    """Remove what nobody needs, or with --dry-run only list it. Raises RegressError without the lock."""
    root = SharedRoot(args.shared_root)
    with lock.held(root.jobs_lock, "make gc", _LOCK_SECONDS, shared=args.dry_run):
        jobs = find.newest(root)
        if not args.dry_run:
            sweep.attempt(root, args.cluster)
            _finish(root, jobs)
        waste = _show(_Survey(root, args, jobs))
        freed = _mb(sum(each.bytes for each in waste))
        for each in waste:
            if args.dry_run:
                say.info(f"would remove {each.what}: {_mb(each.bytes)}")
            else:
                each.remove()
                say.changed(f"removed {each.what}: {_mb(each.bytes)}")
    if not waste:
        say.skip("gc (nothing to remove)")
    elif args.dry_run:
        say.info(f"would free {freed} in all (DRY_RUN=1)")
    else:
        say.ok(f"freed {freed} in all")
    return 0


def _show(survey: "_Survey") -> list["Waste"]:
    """Print how much of each kind goes, and why the rest stays; returns what goes."""
    waste = []
    kinds = {
        "jobs with checkpoints": survey.jobs,
        "snapshots": survey.snapshots,
        "helper versions": survey.helpers,
        "unfinished copies": survey.unfinished,
    }
    for what, find_things in kinds.items():
        things = find_things()
        for line in _lines(what, things):
            say.info(line)
        waste += [each for thing in things if thing.reason is None for each in thing.waste]
    return waste


def _mb(size: int) -> str:
    return f"{size / 10**6:.1f} MB"


def _finish(root: SharedRoot, jobs: Iterable[JobDir]) -> None:
    """Delete what a gc of ours that was killed has left."""
    attempts = (attempt for job in jobs for attempt in job.attempts())
    places = [*_homes_of_copies(root), *_helper_homes(root), *(attempt.checkpoints for attempt in attempts)]
    for path in (path for place in places for path in _entries(place)):
        if path.name.startswith(".") and path.suffix == _GONE and is_mine(path):
            artefact.delete(path)


@dataclass(frozen=True)
class Waste:
    """One thing to remove; `job` if it is a job's checkpoints."""

    what: str
    paths: Sequence[Path]
    job: JobDir | None = None

    @cached_property
    def states(self) -> list[os.stat_result]:
        """The state of each file and folder of it."""
        return [state for path in self.paths for state in _states(path)]

    @property
    def bytes(self) -> int:
        """Their bytes on disk, before they were removed."""
        return sum(state.st_blocks * 512 for state in self.states)

    def remove(self) -> None:
        """Remove it, and record that in the state of its job. Raises OSError."""
        record = {"checkpoints": [path.name for path in self.paths], "bytes": self.bytes}
        for aside in [path.rename(path.with_name(f".{path.name}{_GONE}")) for path in self.paths]:
            artefact.delete(aside)
        if self.job is not None:  # last: on a full disk there is space now
            self.job.write_state("collected", record)


@dataclass(frozen=True)
class _Thing:
    """A job with checkpoints or a snapshot: what of it would go, and why it stays (None: it goes)."""

    name: str
    reason: str | None
    waste: Sequence[Waste]


def _lines(what: str, things: Sequence[_Thing]) -> list[str]:
    """`3 snapshots: 1 to remove, 2 to keep`, and for each reason how many it keeps, with the first of them; nothing if there are none."""
    names: dict[str, list[str]] = {}
    for thing in things:
        if thing.reason is not None:
            names.setdefault(thing.reason, []).append(thing.name)
    kept = sum(map(len, names.values()))
    total = f"{len(things)} {what}: {len(things) - kept} to remove, {kept} to keep"
    reasons = [f"  keep {len(each)} ({reason}): {first(each)}" for reason, each in names.items()]
    return [total, *map(printable, reasons)] if things else []


@dataclass(frozen=True)
class _Job:
    """What decides about a job: `plan` is the text of all files of its plans (None: it cannot be read), `full` are its checkpoints, of which
    `has_complete` says whether a trainer could continue from one.
    """

    name: str
    plan: str | None = None
    is_foreign: bool = True
    is_over: bool = False
    is_young: bool = True
    full: Sequence[Waste] = ()
    has_complete: bool = False

    def names(self, home: Path) -> set[str]:
        """The names under `home` that occur in its plans."""
        return set(re.findall(re.escape(str(home)) + _NAME, self.plan or ""))


class _Survey:
    """Checks everything and changes nothing. `args.owner` is whose jobs may lose something (None: nobody's)."""

    def __init__(self, root: SharedRoot, args: argparse.Namespace, jobs: Iterable[JobDir]) -> None:
        self._root, self._args, self._known, self._now = root, args, _ask_ray(), time.time()
        self._jobs = [self._read(job) for job in jobs]
        self._claims = list(self._claims_of(all_of(root)))
        self._why = self._reasons_of_jobs()

    def jobs(self) -> list[_Thing]:
        """The jobs with checkpoints."""
        return [_Thing(job.name, self._why.get(job.name), job.full) for job in self._jobs if job.full]

    def snapshots(self) -> list[_Thing]:
        """The snapshots. The newest jobs keep theirs even without checkpoints: 'make retry' needs it."""
        users = [job for number, job in enumerate(self._jobs) if job.name in self._why or number < self._args.keep]
        home, known = self._root.snapshots, snapshot.list_snapshots(self._root)
        used = {code: f"the job {job.name} uses it" for job in reversed(users) for code in job.names(home)}
        named = {code for code, record in known.items() if {code, record["source"]} & {*self._args.named}}
        used |= dict.fromkeys(named, "CODE_ID, CODE_A or CODE_B names it")
        found = []
        for path in (path for path in _entries(home) if path.name in known):
            made, reason = (path / snapshot.RECORD_FILE).stat().st_mtime, used.get(path.name)
            found.append(self._thing("snapshot", path, made, reason or self._claim_on(path.name)))
        return found

    def helpers(self) -> list[_Thing]:
        """The versions of the helper. A job keeps the one that it started with; a session may run from any, even between its jobs."""
        paths = [path for home in _helper_homes(self._root) for path in _entries(home) if _HELPER.fullmatch(path.name)]
        running = [(job.name, job.plan or "") for job in self._jobs if not job.is_over]
        used = {path.name: reason for path in paths for _, reason in self._claims[:1]}
        used |= {
            path.name: f"the job {job} runs from it" for path in paths for job, plan in running if path.name in plan
        }
        used[layout.HELPER_DIR.name] = "in use"
        return [self._thing("helper", path, path.stat().st_ctime, used.get(path.name)) for path in paths]

    def unfinished(self) -> list[_Thing]:
        """What a `make prepare` or `make snapshot` that was killed has left: no name leads to it, so nobody uses it."""
        paths = [path for home in _homes_of_copies(self._root) for path in _entries(home)]
        return [self._copy(path) for path in paths if path.name.startswith(".") and path.suffix == _UNFINISHED]

    def _copy(self, path: Path) -> _Thing:
        waste, reason = Waste(f"unfinished copy {path}", [path]), None
        if not is_mine(path):
            reason = "another user's"
        # By ctime, because a copied model keeps its files' times.
        elif max((state.st_ctime for state in waste.states), default=self._now) > self._now - _AT_WORK:
            reason = "written in the last day"
        return _Thing(path.name, reason, [waste])

    def _thing(self, kind: str, path: Path, made: float, reason: str | None) -> _Thing:
        """A snapshot or a helper, which may stay though no knob, no plan and no session names it."""
        closed = [job.name for job in self._jobs if job.plan is None]
        if reason is None and not is_mine(path):
            reason = "another user's"
        elif reason is None and closed:
            reason = f"{first(closed)} cannot be read, and may use it"
        elif reason is None and self._is_young(made):
            reason = self._young
        return _Thing(path.name, reason, [Waste(f"{kind} {path.name}", [path])])

    def _read(self, job: JobDir) -> _Job:
        attempts = job.attempts()
        full = [_checkpoints(attempt, paths) for attempt in attempts if (paths := _entries(attempt.checkpoints))]
        try:
            return self._judge(job.submission_id, attempts, full)
        except DAMAGED:  # another user closed it, or a file is cut off or far too long
            return _Job(job.submission_id, full=full)

    def _judge(self, name: str, attempts: Sequence[JobDir], full: Sequence[Waste]) -> _Job:
        """What decides about the job of these attempts, which have the checkpoints `full`. Raises what DAMAGED lists."""
        states = [state for each in full for state in each.states]
        plan = "\n".join(text for attempt in attempts for text in _texts(attempt.config))
        is_ours = all(self._is_ours(attempt) for attempt in attempts)
        is_foreign = not is_ours or any(state.st_uid != os.geteuid() for state in states)
        is_over = all(self._is_over(attempt, is_foreign=is_foreign) for attempt in attempts)
        files = [file for each in attempts for file in (each.config, each.driver_log, each.state / "ended")]
        written = [*states, *(file.stat() for file in files if file.exists())]
        is_young = any(self._is_young(state.st_mtime) for state in written)
        has_complete = any(checkpoints.newest(attempt) for attempt in attempts)
        return _Job(name, plan, is_foreign, is_over, is_young, full, has_complete)

    def _is_ours(self, attempt: JobDir) -> bool:
        plan, owner = attempt.read_config("resolved.json") or {}, self._args.owner
        is_owners = owner is not None and owner.has(plan) and plan.get("cluster") == self._args.cluster
        return is_owners and is_mine(attempt.path)

    def _is_over(self, attempt: JobDir, *, is_foreign: bool) -> bool:
        """Has the attempt ended? Our Ray knows nothing of another cluster's job."""
        with suppress(*DAMAGED):  # a state of it is cut off, or another user closed it
            if is_foreign:
                return attempt.read_state("ended") is not None
            return status_in_list(attempt, self._known).status.exit is not None
        return False

    def _claims_of(self, sessions: Iterable[Session]) -> Iterator[tuple[str | None, str]]:
        """Of each session that may be continued: its evidence, which names what it needs (None: it may need anything), and the reason."""
        for session in sessions:
            written = max((state.st_mtime for state in _states(session.path)), default=0.0)
            text = None
            with suppress(OSError):  # another user closed it
                if session.is_over:
                    continue
                text = "\n".join(_texts(session.evidence_dir))
            if written > self._now - _SESSION:
                yield text, _reason_of(session)

    def _claim_on(self, name: str) -> str | None:
        """Why a session needs the job or the code of that name."""
        return next((reason for text, reason in self._claims if text is None or json.dumps(name) in text), None)

    def _reasons_of_jobs(self) -> dict[str, str]:
        """The reason why a job keeps its checkpoints and its snapshot, by its name; jobs that keep neither are left out."""
        keep = self._args.keep
        newest = [job for job in self._jobs if not job.is_foreign and job.has_complete][:keep]
        at_work = [job for job in self._jobs if not job.is_over or job.is_young]
        readers = {name: job.name for job in at_work for name in job.names(self._root.jobs) - {job.name}}
        reasons = {}
        for job in self._jobs:
            if job.plan is None:
                reasons[job.name] = "cannot be read"
            elif job.is_foreign:
                reasons[job.name] = "of another checkout, cluster or user"
            elif not job.is_over:
                reasons[job.name] = "may still run"
            elif job in newest:
                reasons[job.name] = f"the newest, KEEP={keep}"
            elif claim := self._claim_on(job.name):
                reasons[job.name] = claim
            elif job.name in readers:
                reasons[job.name] = f"the job {readers[job.name]} reads them"
            elif job.is_young:
                reasons[job.name] = self._young
        return reasons

    def _is_young(self, written: float) -> bool:
        grace: float = self._args.keep_hours * 3600.0
        return written > self._now - grace

    @property
    def _young(self) -> str:
        return f"younger than KEEP_HOURS={self._args.keep_hours}"


def _checkpoints(attempt: JobDir, paths: Sequence[Path]) -> Waste:
    return Waste(f"checkpoints of {attempt.ray_id} ({', '.join(path.name for path in paths)})", paths, attempt)


def _texts(folder: Path) -> list[str]:
    """The files of a folder; a job has no plan if its submitter was killed. Raises OSError."""
    paths = sorted(folder.iterdir()) if folder.exists() else []
    return [read_text(path) for path in paths if not path.is_symlink()]


def _reason_of(session: Session) -> str:
    name, path = session.path.name, session.path
    whose = "" if is_mine(path) else f"ask user {path.stat().st_uid} to "
    return f"the session {name} is not over: {whose}continue it with 'make verify SESSION={name}', or give it up with 'rm -r {path}'"


def _entries(directory: Path) -> list[Path]:
    """What is in a directory; no links, and nothing if the directory is a link itself: what a link leads to may be in use."""
    with suppress(PermissionError):  # another user closed it
        if not directory.is_symlink():
            return [path for path in sorted(directory.glob("*")) if not path.is_symlink()]
    return []


def _helper_homes(root: SharedRoot) -> list[Path]:
    return [root.helpers, *_entries(root.helpers)]  # with SHARED_GROUP each checkout has a folder in it


def _homes_of_copies(root: SharedRoot) -> list[Path]:
    return [root.snapshots, root.datasets, root.models]


def _states(path: Path) -> Iterator[os.stat_result]:
    """The state of a path and of everything below it; leaves out what another process removes meanwhile, or another user closed."""
    with suppress(OSError):
        yield path.lstat()
        if path.is_dir() and not path.is_symlink():
            for each in list(path.iterdir()):
                yield from _states(each)


def _ask_ray() -> Mapping[str, Any] | None:
    """What Ray says of its jobs; None, and a line that says what follows, if it does not answer."""
    try:
        return RayApi(nodes.ADDRESS).jobs()
    except Unreachable as error:
        say.info(f"{error} A job that recorded no end counts as unfinished.")
        return None
