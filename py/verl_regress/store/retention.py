"""`make gc`: which checkpoints, snapshots and helper versions nobody needs any more, and who needs the others.

A job's config/, logs/, state/ and debug/ and the reports of sessions are never removed. What can be reached from a root stays: from the
newest KEEP jobs that have checkpoints, a job that may still run, a session that is not over, a job of another checkout, cluster or user, a
knob that names a code. So does whatever is less than a day old. No link is followed or removed: what it leads to may be in use.

The lock that submissions share is held from the first look to the last removal, so nothing new can need what goes. What goes is renamed
aside first (`.NAME.gone`), so that nobody takes half of it for whole if gc is killed; the next gc deletes that.
"""

import argparse
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_regress.base import layout, lock, say
from verl_regress.base.errors import Unreadable, first, printable
from verl_regress.base.files import read_json, read_text
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import is_mine
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import find, sweep
from verl_regress.jobs.status import DAMAGED, Status, status_in_list
from verl_regress.store import artefact, snapshot
from verl_regress.store.sessions import Session, all_of

_LOCK_SECONDS = 300.0  # a submission has the lock for seconds
_GC_SECONDS = 1800.0  # `make gc` has it until it has deleted all that it found
_GRACE = 86400.0  # seconds: what was made or written since then may be about to be used
_SESSION = 7 * 86400.0  # seconds without new evidence: until then, a session may be continued
_YOUNG = "less than a day old"
_GONE = ".gone"
_HELPER = re.compile(r"[0-9a-f]{12}")  # scripts/lib/helper.bash: the first digits of its hash
_CHECKOUT = re.compile(r"[0-9a-f]{16}")  # scripts/lib/owner.bash: the id of a WORKDIR
_NAME = r"/([A-Za-z0-9][A-Za-z0-9_.-]*)"


def uncollected(root: SharedRoot) -> AbstractContextManager[None]:
    """Keep `make gc` from removing what the block begins to use: a submission, until Ray has the job. Raises RegressError."""
    return lock.held(root.jobs_lock, "a submission", _GC_SECONDS, shared=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`gc --cluster NAME --keep N [--named CODE …] [--dry-run]`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME: whose lost jobs' secrets go too")
    parser.add_argument("--keep", type=int, required=True, help="the knob KEEP: how many jobs keep their checkpoints")
    parser.add_argument("--named", action="append", default=[], help="a code id or source that a knob names")
    parser.add_argument("--dry-run", action="store_true", help="say the same, remove nothing")


def run(args: argparse.Namespace) -> int:
    """Remove what nobody needs, or with --dry-run only list it. Raises RegressError without the lock."""
    root = SharedRoot(args.shared_root)
    with lock.held(root.jobs_lock, "make gc", _LOCK_SECONDS, shared=args.dry_run):
        if not args.dry_run:
            sweep.attempt(root, args.cluster)
            _finish(root)
        found, freed = _Survey(root, args, _ask_ray(RayApi(nodes.ADDRESS))).kinds(), 0
        for line in (line for kind in found for line in kind.lines()):
            say.info(line)
        waste = [each for kind in found for each in kind.waste]
        for each in waste:
            size = each.bytes
            freed += size
            if args.dry_run:
                say.info(f"would remove {each.what}: {_mb(size)}")
            else:
                each.remove()
                say.changed(f"removed {each.what}: {_mb(size)}")
    if not waste:
        say.skip("gc (nothing to remove)")
    elif args.dry_run:
        say.info(f"would free {_mb(freed)} in all (DRY_RUN=1)")
    else:
        say.ok(f"freed {_mb(freed)} in all")
    return 0


def _mb(size: int) -> str:
    return f"{size / 10**6:.1f} MB"


def _finish(root: SharedRoot) -> None:
    """Delete what a gc of ours that was killed has left."""
    attempts = (attempt for job in find.newest(root) for attempt in job.attempts())
    places = [root.snapshots, *_helper_homes(root), *(attempt.checkpoints for attempt in attempts)]
    for path in (path for place in places for path in _entries(place)):
        if path.name.startswith(".") and path.suffix == _GONE and is_mine(path):
            artefact.delete(path)


@dataclass(frozen=True)
class Waste:
    """One thing to remove; `job` if it is a job's checkpoints."""

    what: str
    paths: tuple[Path, ...]
    job: JobDir | None = None

    @property
    def bytes(self) -> int:
        """Their bytes on disk."""
        return sum(state.st_blocks * 512 for path in self.paths for state in _states(path))

    def remove(self) -> None:
        """Remove it, and record that in the state of its job. Raises OSError."""
        record = {"checkpoints": [path.name for path in self.paths], "bytes": self.bytes}
        for aside in [path.rename(path.with_name(f".{path.name}{_GONE}")) for path in self.paths]:
            artefact.delete(aside)
        if self.job is not None:  # last: on a full disk there is space now
            self.job.write_state("collected", record)


@dataclass
class _Kind:
    """One kind of thing: what of it goes, and why the rest stays."""

    what: str
    gone: int = 0
    waste: list[Waste] = field(default_factory=list)
    stays: dict[str, list[str]] = field(default_factory=dict)  # the names, by the reason

    def decide(self, name: str, reasons: Iterable[str | None], waste: Iterable[Waste]) -> None:
        """It stays for the first of the reasons that is one, or is `waste`."""
        reason = next(filter(None, reasons), None)
        if reason is None:
            self.gone += 1
            self.waste += waste
        else:
            self.stays.setdefault(reason, []).append(name)

    def lines(self) -> list[str]:
        """`3 snapshots: 1 to remove, 2 to keep`, and for each reason how many it keeps, with the first of them; nothing if there are none."""
        kept = sum(map(len, self.stays.values()))
        total = f"{self.gone + kept} {self.what}: {self.gone} to remove, {kept} to keep"
        reasons = [f"  keep {len(names)} ({reason}): {first(names)}" for reason, names in self.stays.items()]
        return [total, *map(printable, reasons)] if self.gone or kept else []


@dataclass(frozen=True)
class _Job:
    """What decides about a job. `plan` is the text of all files of its plans; None if they cannot be read."""

    name: str
    attempts: list[JobDir]
    plan: str | None
    is_foreign: bool
    is_over: bool

    @property
    def checkpoints(self) -> list[Path]:
        return [path for attempt in self.attempts for path in _entries(attempt.checkpoints)]

    def names(self, home: Path) -> set[str]:
        """The names under `home` that occur in its plans."""
        return set(re.findall(re.escape(str(home)) + _NAME, self.plan or ""))


class _Survey:
    """Checks everything and changes nothing. `mine` are the arguments, with the `owner` whose jobs may lose something (None: nobody's),
    `known` is what Ray says of each of its jobs, None if it does not answer.
    """

    def __init__(self, root: SharedRoot, mine: argparse.Namespace, known: Mapping[str, Any] | None) -> None:
        self._root, self._mine, self._known, self._now = root, mine, known, time.time()
        self._jobs = [self._read(job) for job in find.newest(root)]
        at_work = [session for session in all_of(root) if self._is_at_work(session)]
        self._claims = [(_needs(session), _reason_of(session)) for session in at_work]

    def kinds(self) -> list[_Kind]:
        """What goes and what stays, by kind."""
        full = _Kind("jobs with checkpoints")
        for job in self._jobs:
            found = [(attempt, paths) for attempt in job.attempts if (paths := _entries(attempt.checkpoints))]
            waste = [
                Waste(
                    f"checkpoints of {attempt.ray_id} ({', '.join(path.name for path in paths)})", tuple(paths), attempt
                )
                for attempt, paths in found
            ]
            if waste:
                full.decide(job.name, [self._why.get(job.name)], waste)
        return [full, self._snapshots(), self._helpers()]

    def _read(self, job: JobDir) -> _Job:
        attempts = job.attempts()
        try:
            plan = "\n".join(text for attempt in attempts for text in _texts(attempt.config))
            is_foreign = not all(self._is_ours(attempt) for attempt in attempts)
        except DAMAGED:  # another user closed it, or a file is cut off or far too long
            return _Job(job.submission_id, attempts, None, is_foreign=True, is_over=False)
        try:
            is_over = all(self._is_over(attempt) for attempt in attempts)
        except DAMAGED:  # a state of it is cut off
            is_over = False
        return _Job(job.submission_id, attempts, plan, is_foreign, is_over)

    def _is_ours(self, attempt: JobDir) -> bool:
        plan, mine = attempt.read_config("resolved.json") or {}, self._mine
        is_owners = mine.owner is not None and mine.owner.has(plan) and plan.get("cluster") == mine.cluster
        files = (state for path in _entries(attempt.checkpoints) for state in _states(path))
        return is_owners and is_mine(attempt.path) and all(state.st_uid == os.geteuid() for state in files)

    def _is_over(self, attempt: JobDir) -> bool:
        """LOST and NOT_SUBMITTED are also what jobs of other clusters look like, and submissions that are still at work."""
        judged = status_in_list(attempt, self._known)
        if judged.status not in (Status.LOST, Status.NOT_SUBMITTED):
            return judged.status.exit is not None
        if (attempt.read_config("resolved.json") or {}).get("cluster") != self._mine.cluster:
            return attempt.read_state("ended") is not None  # only its own Ray knows more
        written = _written([attempt.config, attempt.driver_log, *_entries(attempt.checkpoints)])
        return written < self._now - _GRACE

    def _is_at_work(self, session: Session) -> bool:
        """Can it still be continued? Until its report is written, or for a week after its last evidence."""
        try:
            return not session.is_over and _written([session.path]) > self._now - _SESSION
        except PermissionError:  # another user closed it
            return session.path.stat().st_mtime > self._now - _SESSION

    def _claims_of(self, name: str) -> Iterator[str]:
        """Why sessions need the job or the code of that name."""
        return (reason for text, reason in self._claims if text is None or json.dumps(name) in text)

    @cached_property
    def _why(self) -> dict[str, str]:
        """The reason why a job keeps its checkpoints and its snapshot, by its name; jobs that keep neither are left out."""
        jobs, keep = self._jobs, self._mine.keep
        newest = {job.name for job in [job for job in jobs if not job.is_foreign and job.checkpoints][:keep]}
        running = [job for job in jobs if not job.is_over]
        readers = {name: job.name for job in running for name in job.names(self._root.jobs) - {job.name}}

        def reasons(job: _Job) -> Iterator[str]:
            if job.plan is None:
                yield "cannot be read"
            if job.is_foreign:
                yield "of another checkout, cluster or user"
            if not job.is_over:
                yield "may still run"
            if job.name in newest:
                yield f"the newest, KEEP={keep}"
            yield from self._claims_of(job.name)
            if job.name in readers:
                yield f"the job {readers[job.name]} reads them"
            ended = (path for attempt in job.attempts for path in attempt.state.glob("ended"))
            if self._is_young(_written([*job.checkpoints, *ended])):
                yield _YOUNG

        return {job.name: reason for job in jobs if (reason := next(reasons(job), None))}

    def _snapshots(self) -> _Kind:
        # The newest jobs keep their snapshot even without checkpoints: 'make retry' needs it.
        users = [job for number, job in enumerate(self._jobs) if job.name in self._why or number < self._mine.keep]
        home = self._root.snapshots
        used = {code: f"the job {job.name} uses it" for job in reversed(users) for code in job.names(home)}
        kind, known = _Kind("snapshots"), set(snapshot.list_snapshots(self._root))
        for path in (path for path in _entries(home) if path.name in known):
            record = path / snapshot.RECORD_FILE
            is_named = not {path.name, _source(record)}.isdisjoint(self._mine.named)
            reasons = (
                None if is_mine(path) else "another user's",
                "CODE_ID, CODE_A or CODE_B names it" if is_named else None,
                used.get(path.name),
                *self._claims_of(path.name),
                self._may_use,
                _YOUNG if self._is_young(record.stat().st_mtime) else None,
            )
            kind.decide(path.name, reasons, [Waste(f"snapshot {path.name}", (path,))])
        return kind

    def _helpers(self) -> _Kind:
        kind, homes = _Kind("helper versions"), _helper_homes(self._root)
        running = [job for job in self._jobs if not job.is_over]
        used = {
            name: f"the job {job.name} runs from it" for home in homes for job in running for name in job.names(home)
        }
        for path in (path for home in homes for path in _entries(home) if _HELPER.fullmatch(path.name)):
            reasons = (
                None if is_mine(path) else "another user's",
                "in use" if path.name == layout.HELPER_DIR.name else None,
                used.get(path.name),
                self._may_use,
                _YOUNG if self._is_young(path.stat().st_ctime) else None,
            )
            kind.decide(path.name, reasons, [Waste(f"helper {path.name}", (path,))])
        return kind

    def _is_young(self, written: float) -> bool:
        return written > self._now - _GRACE

    @property
    def _may_use(self) -> str | None:
        """The reason to keep what no plan names, if there are plans that cannot be read."""
        closed = [job.name for job in self._jobs if job.plan is None]
        return f"{first(closed)} cannot be read, and may use it" if closed else None


def _texts(config: Path) -> list[str]:
    """The files of a plan; a job has none if its submitter was killed. Raises OSError and Unreadable."""
    try:
        names = sorted(os.listdir(config))  # noqa: PTH208 (raises for a directory that another user closed)
    except FileNotFoundError:
        return []
    return [read_text(config / name) for name in names if not (config / name).is_symlink()]


def _needs(session: Session) -> str | None:
    """The evidence of a session as text, which names each job and code that it needs; None if it may need any, because it cannot be read,
    or has only begun.
    """
    evidence = session.evidence_if_readable()
    return json.dumps(evidence) if "codes" in evidence.get("begin", {}) else None


def _reason_of(session: Session) -> str:
    name, path = session.path.name, session.path
    if is_mine(path):
        cure = f"continue it with 'make verify SESSION={name}', or give it up with 'rm -r {path}'"
    else:
        cure = f"ask user {path.stat().st_uid} to continue it, or to give it up with 'rm -r {path}'"
    return f"the session {name} is not over: {cure}"


def _source(record: Path) -> str | None:
    try:
        return (read_json(record) or {}).get("source")
    except Unreadable:
        return None


def _helper_homes(root: SharedRoot) -> list[Path]:
    """Where versions of the helper are: with SHARED_GROUP each checkout has its own place (scripts/lib/helper.bash)."""
    return [root.helpers, *(path for path in _entries(root.helpers) if _CHECKOUT.fullmatch(path.name))]


def _entries(directory: Path) -> list[Path]:
    """What is in a directory; no links, and nothing if the directory is a link itself: what a link leads to may be in use."""
    with suppress(PermissionError):  # another user closed it
        if not directory.is_symlink():
            return [path for path in sorted(directory.glob("*")) if not path.is_symlink()]
    return []


def _states(path: Path) -> Iterator[os.stat_result]:
    """The stat of a path and of everything below it; leaves out what another process removes meanwhile."""
    with suppress(FileNotFoundError):
        yield path.lstat()
        if path.is_dir() and not path.is_symlink():
            for each in list(path.iterdir()):
                yield from _states(each)


def _written(paths: Iterable[Path]) -> float:
    """When one of these paths, or anything below, was last written (seconds); 0 if there is none."""
    return max((state.st_mtime for path in paths for state in _states(path)), default=0.0)


def _ask_ray(api: RayApi) -> Mapping[str, Any] | None:
    """What Ray says of its jobs; None, and a line that says what follows, if it does not answer."""
    try:
        return api.jobs()
    except Unreachable as error:
        say.info(f"{error} A job that recorded no end counts as unfinished.")
        return None
