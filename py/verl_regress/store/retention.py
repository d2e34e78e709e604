"""`make gc`: which checkpoints, snapshots and helper versions are no longer needed, and why everything else stays.

A job's config/, logs/, state/ and debug/ and the reports of sessions are never removed. Everything that may still be
needed stays: the newest KEEP jobs that have checkpoints, and the newest KEEP that have a complete one, every job that is
not surely over and what it reads from, every job of another checkout, cluster or user, every job while a regression
session is running, and whatever is less than an hour old. No link is followed or removed: what it leads to may be in
use. It reads and deletes without a lock
(verl_regress.store.removal).
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from verl_regress.base import layout, say
from verl_regress.base.errors import BadInput, first, printable
from verl_regress.base.files import read_json
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import Owner
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import checkpoints, find, sweep
from verl_regress.jobs.status import Status, judge_among
from verl_regress.jobs.unreadable import DAMAGED
from verl_regress.store import removal, snapshot, uses
from verl_regress.store.removal import Waste, human
from verl_regress.store.sessions import Session

_Each = TypeVar("_Each")

_SETTLED = 3600.0  # seconds: what was made or written since then may be about to be used
# Seconds without new evidence after which an unfinished session counts as dead: it may be continued after a weekend.
_SESSION = 7 * 86400.0
_HELPER = re.compile(r"[0-9a-f]{12}")  # scripts/lib/helper.bash: the first digits of its hash
_CHECKOUT = re.compile(r"[0-9a-f]{16}")  # scripts/lib/owner.bash: the id of a WORKDIR


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`gc --cluster NAME --keep N [--named CODE …] [--dry-run]`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME: whose lost jobs' secrets go too")
    parser.add_argument("--keep", required=True, help="the knob KEEP: how many jobs keep their checkpoints, the newest")
    parser.add_argument("--named", action="append", default=[], help="a code id or source that a knob names")
    parser.add_argument("--dry-run", action="store_true", help="say the same, remove nothing")


def run(args: argparse.Namespace) -> int:
    """Remove what is not needed, or with --dry-run only list it. Raises BadInput for KEEP, RegressError without the lock."""
    if re.fullmatch(r"[0-9]{1,6}", args.keep) is None:
        raise BadInput(
            f"KEEP={args.keep!r} is not usable: give the number of jobs that keep their checkpoints, 0 or more."
        )
    root = SharedRoot(args.shared_root)
    if not args.dry_run:
        sweep.attempt(root, args.cluster)
    # First: what is submitted after this is read by it.
    removing = None if args.dry_run else removal.Removal(root)
    found = survey(
        root,
        int(args.keep),
        set(args.named),
        _ask_ray(RayApi(nodes.ADDRESS)),
        time.time(),
        # The helper's global option; without it, the caller owns no job that names an owner.
        owner=args.owner,
        cluster=args.cluster,
        objects_too=removal.are_objects_free(root),
    )
    say.info(found.checked)
    if found.waste:
        _remove(found.waste, removing)
    else:
        say.skip("gc (nothing to remove)")
    return 0


def _remove(wastes: Sequence[Waste], removing: removal.Removal | None) -> None:
    """List it, and remove it unless this is a dry run. Raises RegressError, OSError."""
    will = "would" if removing is None else "will"
    for waste in wastes:
        say.info(f"{will} remove {waste}")
    total = human(sum(waste.bytes for waste in wastes))
    say.info(f"{will} free {total} in all{' (DRY_RUN=1)' if removing is None else ''}")
    if removing is None:
        return
    freed = 0
    for waste, is_removed in removing.remove(wastes):
        if is_removed:
            freed += waste.bytes
            say.changed(f"removed {waste}")
        else:
            say.skip(f"{waste.what} (in use by now, or removed by another gc)")
    say.ok(f"freed {human(freed)} in all")


@dataclass
class Survey:
    """What was checked, in a sentence; and what of it is waste, in the order of removal."""

    checked: str
    waste: list[Waste] = field(default_factory=list)


def survey(
    root: SharedRoot,
    keep: int,
    named: set[str],
    known: Mapping[str, Any] | None,
    now: float,
    *,
    owner: Owner | None = None,
    cluster: str | None = None,
    objects_too: bool = True,
) -> Survey:
    """Check everything and change nothing.

    `named` are code ids and sources to keep; `known` is what Ray says of each of its jobs, None if it does not answer;
    `now` is in seconds since the epoch; `owner` is the caller and `cluster` the caller's. Without `objects_too`, no
    objects are waste.
    """
    found = _find(root, keep, known, now, owner, cluster)
    homes = _helper_homes(root)
    disk = _Disk()
    waste = _remains(root, found.ours, homes, disk)
    waste += _old_checkpoints([job for job in found.readable if job.submission_id not in found.spared_ids], disk)
    unused = _unused_snapshots(root, found, keep, named, now)
    waste += [Waste(f"snapshot {path.name}", (path,), disk.free([path])) for path in unused]
    objects = _unused_objects(root, gone=unused) if objects_too and not found.is_use_unknown else []
    if objects:
        waste.append(Waste(f"{len(objects)} objects that no snapshot uses", tuple(objects), disk.free(objects)))
    versions = [
        path for home in homes for path in uses.entries(home) if _HELPER.fullmatch(path.name) and uses.is_mine(path)
    ]
    waste += [
        Waste(f"helper {path.name}", (path,), disk.free([path])) for path in _old_helpers(found, homes, versions, now)
    ]
    checked = f"{found}, {len(_snapshots(root))} snapshots ({len(unused)} unused), {len(versions)} helpers"
    return Survey(checked + _left_to_others(root, found.closed, found.listed), waste)


@dataclass(frozen=True)
class _Found:
    """All jobs and sessions, by what they may still need."""

    listed: list[JobDir]  # all of them, the newest first
    closed: list[JobDir]  # what they use cannot be read
    readable: list[JobDir]
    ours: list[JobDir]
    foreign: list[JobDir]
    full: list[JobDir]  # those of ours with checkpoints
    kept: list[JobDir]  # those of them that keep theirs by KEEP
    young: list[JobDir]  # those of them that wrote within the last hour
    going_on: list[JobDir]
    sessions: list[Session]
    at_work: list[Session]
    hidden: list[Session]  # those of them that cannot be read
    read_from: set[str]  # the ids of jobs that jobs or sessions that go on use

    @property
    def is_use_unknown(self) -> bool:
        """A job or a session that cannot be read may use any snapshot."""
        return bool(self.closed or self.hidden)

    @cached_property
    def spared(self) -> list[JobDir]:
        """The jobs that keep their checkpoints: all of them while a session of this user's, or one that cannot be read, is at work.

        Another user's session compares only that user's jobs, and those that it reads from.
        """
        if self.hidden or any(uses.is_mine(session.path) for session in self.at_work):
            return self.readable
        read = [job for job in self.readable if job.submission_id in self.read_from]
        return [*self.kept, *self.young, *self.foreign, *self.going_on, *read]

    @cached_property
    def spared_ids(self) -> set[str]:
        """Their ids."""
        return {job.submission_id for job in self.spared}

    def __str__(self) -> str:
        """What was checked, the beginning of the sentence."""
        return (
            f"checked {len(self.listed)} jobs ({len(self.full)} with checkpoints, of which {len(self.kept)} keep them, {len(self.young)} "
            f"younger than an hour, {len(self.going_on)} that may still run, {len(self.read_from)} that those or sessions use, {len(self.foreign)} of another "
            f"checkout or cluster), {len(self.sessions)} sessions ({len(self.at_work)} running or interrupted in the last week)"
        )


def _find(
    root: SharedRoot, keep: int, known: Mapping[str, Any] | None, now: float, owner: Owner | None, cluster: str | None
) -> _Found:
    """Read all jobs and sessions; the arguments are those of `survey`."""
    listed = find.newest(root)
    readable, closed = _sorted(listed, uses.is_readable)
    ours, foreign = _sorted(readable, lambda job: all(_is_ours(each, owner, cluster) for each in job.attempts()))
    full = [job for job in ours if any(map(_checkpoints, job.attempts()))]
    going_on = [job for job in readable if not _is_over(job, known, now, cluster)]
    sessions = [Session(path) for path in sorted(root.sessions.glob("*")) if path.is_dir()]
    at_work = [session for session in sessions if _is_at_work(session, now)]
    open_ones, hidden = _sorted(at_work, uses.is_readable_session)
    return _Found(
        listed=listed,
        closed=closed,
        readable=readable,
        ours=ours,
        foreign=foreign,
        full=full,
        kept=_kept(full, keep),
        young=[job for job in full if not all(_are_settled(attempt, now) for attempt in job.attempts())],
        going_on=going_on,
        sessions=sessions,
        at_work=at_work,
        hidden=hidden,
        read_from=_mentioned(going_on, root.jobs) | _compared(open_ones),
    )


def _kept(full: Sequence[JobDir], keep: int) -> list[JobDir]:
    """The newest `keep` of these jobs with checkpoints, and the newest `keep` from which a job can continue: a newer one that saved only
    a part does not cost an older one its checkpoints.
    """
    whole = islice(filter(_has_whole, full), keep)
    return list({job.submission_id: job for job in (*full[:keep], *whole)}.values())


def _has_whole(job: JobDir) -> bool:
    try:
        return any(checkpoints.newest(attempt) is not None for attempt in job.attempts())
    except DAMAGED:
        return False


def _sorted(those: Iterable[_Each], is_one: Callable[[_Each], bool]) -> tuple[list[_Each], list[_Each]]:
    """Those that are one, and the others."""
    kinds: tuple[list[_Each], list[_Each]] = ([], [])
    for each in those:
        kinds[0 if is_one(each) else 1].append(each)
    return kinds


def _remains(root: SharedRoot, ours: Iterable[JobDir], homes: Iterable[Path], disk: _Disk) -> list[Waste]:
    """What commands that were killed have left."""
    places = [root.jobs, root.snapshots, root.objects, *homes]
    places += [attempt.checkpoints for job in ours for attempt in job.attempts()]
    found = (path for place in places for path in uses.entries(place) if removal.is_leftover(path))
    left = tuple(path for path in found if uses.is_all_mine(path))
    return [Waste(f"{len(left)} leftovers of killed commands", left, disk.free(left))] if left else []


def _old_checkpoints(jobs: Iterable[JobDir], disk: _Disk) -> list[Waste]:
    """The checkpoints of these jobs that this user may remove, a piece of waste for each attempt."""
    found = []
    for attempts in (job.attempts() for job in jobs):
        for attempt in attempts:
            paths = tuple(path for path in _checkpoints(attempt) if uses.is_all_mine(path))
            what = f"checkpoints of {attempt.ray_id} ({', '.join(path.name for path in paths)})"
            if paths:
                found.append(Waste(what, paths, disk.free(paths), attempt, len(attempts)))
    return found


def _left_to_others(root: SharedRoot, closed: list[JobDir], listed: list[JobDir]) -> str:
    """How much of what other users own stays, and what could not be read; nothing if there is none of either."""
    jobs = sum(not uses.is_mine(job.first.path) for job in listed)
    snapshots = sum(not uses.is_mine(path) for path in uses.entries(root.snapshots))
    said = f"; left to other users: {jobs} jobs, {snapshots} snapshots" if jobs or snapshots else ""
    if closed:
        names = first([printable(job.submission_id) for job in closed])
        said += f"; {len(closed)} jobs cannot be read ({names}), so every snapshot and helper stays"
    return said


def _ask_ray(api: RayApi) -> Mapping[str, Any] | None:
    """What Ray says of its jobs; None, and a line that says what follows, if it does not answer."""
    try:
        return api.jobs()
    except Unreachable as error:
        say.info(f"{error} A job that recorded no end counts as unfinished.")
        return None


def _helper_homes(root: SharedRoot) -> list[Path]:
    """Where versions of the helper are: with SHARED_GROUP each checkout has its own place (scripts/lib/helper.bash)."""
    return [root.helpers, *(path for path in uses.entries(root.helpers) if _CHECKOUT.fullmatch(path.name))]


def _is_ours(attempt: JobDir, owner: Owner | None, cluster: str | None) -> bool:
    """Does the caller own the job, in this cluster? Jobs from before owners were recorded belong to the user of their files."""
    if not uses.is_mine(attempt.path):
        return False
    plan = attempt.read_config("resolved.json") or {}
    if not _is_of_cluster(plan, cluster):
        return False
    return plan.get("owner") is None or (owner is not None and owner.has(plan))


def _is_of_cluster(plan: Mapping[str, Any], cluster: str | None) -> bool:
    """Jobs from before clusters were recorded count as this cluster's."""
    return plan.get("cluster") in (None, cluster)


def _checkpoints(attempt: JobDir) -> tuple[Path, ...]:
    if attempt.state.is_symlink():  # that they were removed would be recorded where it leads to
        return ()
    return tuple(path for path in uses.entries(attempt.checkpoints) if not removal.is_leftover(path))


def _are_settled(attempt: JobDir, now: float) -> bool:
    """Did it end, and was its last checkpoint written, more than an hour ago?"""
    paths = [*_checkpoints(attempt), *attempt.state.glob("ended")]
    return max((state.st_mtime for path in paths for state in uses.states(path)), default=0.0) < now - _SETTLED


def _is_over(job: JobDir, known: Mapping[str, Any] | None, now: float, cluster: str | None) -> bool:
    try:
        return all(_attempt_is_over(attempt, known, now, cluster) for attempt in job.attempts())
    except DAMAGED:  # a state of it is cut off, or another user closed it
        return False


def _attempt_is_over(attempt: JobDir, known: Mapping[str, Any] | None, now: float, cluster: str | None) -> bool:
    """Is it over? LOST and NOT_SUBMITTED are also what jobs of other clusters and submissions in progress look like."""
    if uses.is_held(attempt):
        return False
    judged = judge_among(attempt, known)
    if judged.status in (Status.LOST, Status.NOT_SUBMITTED):
        if not _is_of_cluster(attempt.read_config("resolved.json") or {}, cluster):
            return attempt.read_state("ended") is not None  # only its own Ray knows more
        return _last_written(attempt) < now - _SETTLED
    return judged.status.exit is not None


def _last_written(attempt: JobDir) -> float:
    parts = (attempt.config, attempt.driver_log.parent, attempt.checkpoints)
    inner = (state for part in parts for path in uses.entries(part) for state in uses.states(path))
    return max(state.st_mtime for state in (attempt.path.lstat(), *inner))


def _is_at_work(session: Session, now: float) -> bool:
    try:
        evidence = list((session.path / "evidence").glob("*.json"))
        newest = max(path.lstat().st_mtime for path in (session.path, *evidence))  # a link may lead nowhere
        return not session.is_over and newest > now - _SESSION
    except PermissionError:  # another user closed it
        return session.path.stat().st_mtime > now - _SESSION


def _compared(sessions: list[Session]) -> set[str]:
    """The jobs that these sessions have recorded: their own, and those that they took over."""
    return {name for each in sessions for name in each.job_ids()}


def _codes(session: Session, spared: set[str], at_work: list[Session]) -> set[str]:
    """A and B of a session that still compares them, or one of whose jobs is kept."""
    is_needed = session in at_work or bool(session.job_ids_if_readable() & spared)
    return session.codes_if_readable() if is_needed else set()


def _mentioned(those: Iterable[JobDir], home: Path) -> set[str]:
    """The names under `home` that occur anywhere in these jobs' plans."""
    return uses.names_under(home, uses.plans(those))


def _snapshots(root: SharedRoot) -> list[Path]:
    """The snapshots that this user may remove."""
    found = set(snapshot.list_snapshots(root))
    return [path for path in uses.entries(root.snapshots) if path.name in found and uses.is_mine(path)]


def _unused_objects(root: SharedRoot, gone: Collection[Path]) -> list[Path]:
    """What this user's snapshots of version 1.1 shared, except folders of bytecode that a snapshot not in `gone` links to.

    The other objects are second names of the snapshots' own files.
    """
    left = (path for path in root.snapshots.glob("*") if path not in gone and not removal.is_leftover(path))
    used = uses.linked_bytecode(left)
    found = (path for path in uses.entries(root.objects) if not removal.is_leftover(path))
    return [path for path in found if path.name not in used and uses.is_mine(path)]


def _unused_snapshots(root: SharedRoot, found: _Found, keep: int, named: set[str], now: float) -> list[Path]:
    """The snapshots of this user's that nothing names and nothing may use."""
    if found.is_use_unknown:
        return []
    # The newest jobs keep their snapshots even without checkpoints: 'make retry' needs them.
    used = _mentioned([*found.spared, *found.readable[:keep]], root.snapshots) | {
        code for session in found.sessions for code in _codes(session, found.spared_ids, found.at_work)
    }
    unused = [path for path in _snapshots(root) if path.name not in used and not _is_named(path, named)]
    return [path for path in unused if _is_settled(path, now)]


def _old_helpers(found: _Found, homes: Sequence[Path], versions: Iterable[Path], now: float) -> list[Path]:
    """The versions of the helper that no job uses which may still run."""
    if found.closed:
        return []
    in_use = {name for home in homes for name in _mentioned(found.going_on, home)} | {layout.HELPER_DIR.name}
    return [path for path in versions if path.name not in in_use and _changed(path) < now - _SETTLED]


def _is_named(path: Path, named: set[str]) -> bool:
    record = read_json(path / snapshot.RECORD_FILE) or {}
    return path.name in named or record.get("source") in named


def _is_settled(path: Path, now: float) -> bool:
    try:
        return (path / snapshot.RECORD_FILE).stat().st_mtime < now - _SETTLED
    except FileNotFoundError:  # another gc has removed it meanwhile
        return False


def _changed(path: Path) -> float:
    """When it was made or renamed; now, if another gc has removed it meanwhile."""
    try:
        return path.stat().st_ctime
    except FileNotFoundError:
        return time.time()


class _Disk:
    """Counts the bytes that become free: a file with several links counts with its last one."""

    def __init__(self) -> None:
        self._gone: Counter[tuple[int, int]] = Counter()

    def free(self, paths: Iterable[Path]) -> int:
        """Count these paths as gone too; returns the bytes on disk that this sets free."""
        return sum(self._last_link_of(state) for path in paths for state in uses.states(path))

    def _last_link_of(self, state: os.stat_result) -> int:
        links = 1 if stat.S_ISDIR(state.st_mode) else state.st_nlink
        self._gone[state.st_dev, state.st_ino] += 1
        return state.st_blocks * 512 if self._gone[state.st_dev, state.st_ino] == links else 0
