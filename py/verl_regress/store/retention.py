"""`make gc`: which checkpoints, snapshots and helper versions are no longer needed, and why everything else stays.

A job's config/, logs/, state/ and debug/ and the reports of sessions are never removed. Everything that may still be
needed stays: the newest KEEP jobs that have checkpoints, every job that is not surely over and what it reads from,
every job of another checkout, cluster or user, every job while a regression session is running, and whatever is less
than an hour old. No link is followed or removed: what it leads to may be in use. No submission can be planned meanwhile: each shares the lock on `jobs/` from its first read of a snapshot until Ray has
the job, and gc holds that lock exclusively.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_regress.base import layout, lock, say
from verl_regress.base.errors import BadInput, Unreadable, first, printable
from verl_regress.base.layout import JobDir, SharedRoot, read_json
from verl_regress.base.owner import Owner
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import find, sweep
from verl_regress.jobs.status import Status, judge_among
from verl_regress.jobs.unreadable import DAMAGED
from verl_regress.store import snapshot
from verl_regress.store.sessions import Session, jobs_of

_SETTLED = 3600.0  # seconds: what was made or written since then may be about to be used
# Seconds without new evidence after which an unfinished session counts as dead: it may be continued after a weekend.
_SESSION = 7 * 86400.0
_GONE = ".gone"  # ends the name of a half-removed directory
_LOCK_SECONDS = 30.0  # a submission holds the lock for one or two
_HELPER = re.compile(r"[0-9a-f]{12}")  # scripts/lib/helper.bash: the first digits of its hash
_CHECKOUT = re.compile(r"[0-9a-f]{16}")  # scripts/lib/owner.bash: the id of a WORKDIR
_NAME = r"/([A-Za-z0-9][A-Za-z0-9_.-]*)"


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
    with (
        lock.alone(root.jobs, _LOCK_SECONDS),
        lock.held_itself(
            root.objects, fcntl.LOCK_EX | fcntl.LOCK_NB
        ) as are_objects_free,  # version 1.1 shares it meanwhile
    ):
        known = _ask_ray(RayApi(nodes.ADDRESS))
        found = survey(
            root,
            int(args.keep),
            set(args.named),
            known,
            time.time(),
            # The helper's global option; without it, the caller owns no job that names an owner.
            owner=args.owner,
            cluster=args.cluster,
            objects_too=are_objects_free,
        )
        say.info(found.checked)
        total = human(sum(waste.bytes for waste in found.waste))
        if not found.waste:
            say.skip("gc (nothing to remove)")
            return 0
        will = "would" if args.dry_run else "will"
        for waste in found.waste:
            say.info(f"{will} remove {waste}")
        say.info(f"{will} free {total} in all{' (DRY_RUN=1)' if args.dry_run else ''}")
        if args.dry_run:
            return 0
        for waste in found.waste:
            _remove(waste)
            say.changed(f"removed {waste}")
        say.ok(f"freed {total} in all")
    return 0


@dataclass(frozen=True)
class Waste:
    """One thing to remove: its paths, and the bytes on disk that this frees once everything before it is gone."""

    what: str
    paths: tuple[Path, ...]
    bytes: int
    job: JobDir | None = None  # the job of these checkpoints

    def __str__(self) -> str:
        """`snapshot codeB: 1.2 MiB`."""
        return f"{self.what}: {human(self.bytes)}"


@dataclass
class Survey:
    """What was checked, in a sentence, and what of it is waste, in the order of removal."""

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
    listed = find.newest_first(root)
    closed = [job for job in listed if not _is_readable(job)]
    everything = [job for job in listed if job not in closed]
    foreign = [job for job in everything if not all(_is_ours(attempt, owner, cluster) for attempt in job.attempts())]
    full = [job for job in everything if job not in foreign and any(map(_checkpoints, job.attempts()))]
    kept = full[:keep]
    young = [job for job in full if not all(_are_settled(attempt, now) for attempt in job.attempts())]
    going_on = [job for job in everything if not _is_over(job, known, now, cluster)]
    sessions = [Session(path) for path in sorted(root.sessions.glob("*")) if path.is_dir()]
    at_work = [session for session in sessions if _is_at_work(session, now)]
    hidden = [session for session in at_work if not _is_readable_session(session)]
    read_from = _mentioned(going_on, root.jobs) | _compared([each for each in at_work if each not in hidden])
    read = [job for job in everything if job.submission_id in read_from]
    # Another user's session compares only that user's jobs, and those that it reads from.
    is_all_spared = bool(hidden) or any(_is_mine(session.path) for session in at_work)
    spared = everything if is_all_spared else [*kept, *young, *foreign, *going_on, *read]
    spared_ids = {job.submission_id for job in spared}
    # The newest jobs keep their snapshots even without checkpoints: 'make retry' needs them.
    used = _mentioned([*spared, *everything[:keep]], root.snapshots) | {
        code for session in sessions for code in _codes(session, spared_ids, at_work)
    }

    disk = _Disk()
    waste = [
        Waste(
            f"checkpoints of {attempt.ray_id} ({', '.join(path.name for path in paths)})",
            paths,
            disk.free(paths),
            attempt,
        )
        for job in everything
        if job.submission_id not in spared_ids
        for attempt in job.attempts()
        if (paths := tuple(path for path in _entries(attempt.checkpoints) if _is_all_mine(path)))
    ]
    unused = [path for path in _snapshots(root) if path.name not in used and not _is_named(path, named)]
    # What a job or a session that cannot be read uses is unknown.
    unused = [path for path in unused if _is_settled(path, now) and not closed and not hidden]
    waste += [Waste(f"snapshot {path.name}", (path,), disk.free([path])) for path in unused]
    objects = _unused_objects(root, gone=unused) if objects_too and not closed and not hidden else []
    if objects:
        waste.append(Waste(f"{len(objects)} objects that no snapshot uses", tuple(objects), disk.free(objects)))
    homes = _helper_homes(root)
    in_use = {name for home in homes for name in _mentioned(going_on, home)} | {layout.HELPER_DIR.name}
    versions = [path for home in homes for path in _entries(home) if _HELPER.fullmatch(path.name) and _is_mine(path)]
    waste += [
        Waste(f"helper {path.name}", (path,), disk.free([path]))
        for path in versions
        if path.name not in in_use and path.stat().st_ctime < now - _SETTLED and not closed
    ]
    checked = (
        f"checked {len(listed)} jobs ({len(full)} with checkpoints, of which the newest {len(kept)} keep them, {len(young)} "
        f"younger than an hour, {len(going_on)} not surely over, {len(read_from)} read from by those, {len(foreign)} of another "
        f"checkout or cluster), {len(sessions)} sessions ({len(at_work)} at work), {len(_snapshots(root))} snapshots "
        f"({len(unused)} unused), {len(versions)} helpers"
    )
    return Survey(checked + _left_to_others(root, closed, listed), waste)


def _left_to_others(root: SharedRoot, closed: list[JobDir], listed: list[JobDir]) -> str:
    """How much of what other users own stays, and what could not be read; nothing if there is none of either."""
    jobs = sum(not _is_mine(job.first.path) for job in listed)
    snapshots = sum(not _is_mine(path) for path in _entries(root.snapshots))
    said = f"; left to other users: {jobs} jobs, {snapshots} snapshots" if jobs or snapshots else ""
    if closed:
        names = first([printable(job.submission_id) for job in closed])
        said += f"; {len(closed)} jobs cannot be read ({names}), so every snapshot and helper stays"
    return said


def human(size: int) -> str:
    """`512 bytes`, `1.5 KiB`, `3.2 GiB`."""
    amount, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"


def _ask_ray(api: RayApi) -> Mapping[str, Any] | None:
    """What Ray says of its jobs; None, and a line that says what follows, if it does not answer."""
    try:
        return api.jobs()
    except Unreachable as error:
        say.info(f"{error} A job that recorded no end counts as unfinished.")
        return None


def _is_mine(path: Path) -> bool:
    """Is it this user's? Another's stays even where the file system would let us remove it."""
    return path.lstat().st_uid == os.geteuid()


def _is_all_mine(path: Path) -> bool:
    """Is all below it this user's, too?"""
    return all(state.st_uid == os.geteuid() for state in _states(path))


def _is_readable(job: JobDir) -> bool:
    """Can what a job refers to be read? Otherwise another user closed it, or its plan is cut off."""
    try:
        attempts = job.first.path / "attempts"
        for directory in (job.first.path, *([attempts] if attempts.is_dir() else [])):
            with os.scandir(directory):
                pass
        return all(map(_is_config_readable, job.attempts()))
    except (OSError, Unreadable):
        return False


def _is_config_readable(attempt: JobDir) -> bool:
    """Raises OSError or Unreadable if not even its names can be."""
    attempt.read_config("resolved.json")
    files = list(attempt.config.iterdir()) if attempt.config.is_dir() else []
    is_mine = _is_mine(attempt.path)  # then so are its files
    return is_mine or all(os.access(file, os.R_OK, effective_ids=True) for file in files)


def _helper_homes(root: SharedRoot) -> list[Path]:
    """Where versions of the helper are: with SHARED_GROUP each checkout has its own place (scripts/lib/helper.bash)."""
    return [root.helpers, *(path for path in _entries(root.helpers) if _CHECKOUT.fullmatch(path.name))]


def _entries(directory: Path) -> tuple[Path, ...]:
    """What is in a directory, except links; nothing if the directory is a link itself."""
    if directory.is_symlink():
        return ()
    return tuple(path for path in sorted(directory.glob("*")) if not path.is_symlink())


def _within(directory: Path) -> Iterator[Path]:
    """Everything below a directory, without following a link."""
    for entry in _entries(directory):
        yield from (entry, *entry.rglob("*"))


def _is_ours(attempt: JobDir, owner: Owner | None, cluster: str | None) -> bool:
    """Does the caller own the job, in this cluster? Jobs from before owners were recorded belong to the user of their files."""
    if not _is_mine(attempt.path):
        return False
    plan = attempt.read_config("resolved.json") or {}
    if not _is_of_cluster(plan, cluster):
        return False
    return plan.get("owner") is None or (owner is not None and owner.has(plan))


def _is_of_cluster(plan: Mapping[str, Any], cluster: str | None) -> bool:
    """Jobs from before clusters were recorded count as this cluster's."""
    return plan.get("cluster") in (None, cluster)


def _checkpoints(attempt: JobDir) -> tuple[Path, ...]:
    return tuple(path for path in _entries(attempt.checkpoints) if path.suffix != _GONE)


def _are_settled(attempt: JobDir, now: float) -> bool:
    """Did it end, and was its last checkpoint written, more than an hour ago?"""
    paths = _checkpoints(attempt)
    files = [*paths, *(inner for path in paths for inner in path.rglob("*")), *attempt.state.glob("ended")]
    return max((path.lstat().st_mtime for path in files), default=0.0) < now - _SETTLED


def _is_over(job: JobDir, known: Mapping[str, Any] | None, now: float, cluster: str | None) -> bool:
    try:
        return all(_attempt_is_over(attempt, known, now, cluster) for attempt in job.attempts())
    except DAMAGED:  # a state of it is cut off, or another user closed it
        return False


def _attempt_is_over(attempt: JobDir, known: Mapping[str, Any] | None, now: float, cluster: str | None) -> bool:
    """Is it over? LOST and NOT_SUBMITTED are also what jobs of other clusters and submissions in progress look like."""
    if _is_held(attempt):
        return False
    judged = judge_among(attempt, known)
    if judged.status in (Status.LOST, Status.NOT_SUBMITTED):
        if not _is_of_cluster(attempt.read_config("resolved.json") or {}, cluster):
            return attempt.read_state("ended") is not None  # only its own Ray knows more
        return _last_written(attempt) < now - _SETTLED
    return judged.status.exit is not None


def _is_held(attempt: JobDir) -> bool:
    """Does a launcher or a submitter hold its lock, in whatever cluster? If that cannot be asked, it counts as held."""
    for file in (attempt.launcher, attempt.submitting):
        try:
            if lock.is_held(file):
                return True
        except FileNotFoundError:
            pass
        except OSError:
            return True
    return False


def _last_written(attempt: JobDir) -> float:
    parts = (attempt.config, attempt.driver_log.parent, attempt.checkpoints)
    return max(path.lstat().st_mtime for part in parts for path in (attempt.path, *_within(part)))


def _is_at_work(session: Session, now: float) -> bool:
    try:
        evidence = list((session.path / "evidence").glob("*.json"))
        newest = max(path.stat().st_mtime for path in (session.path, *evidence))
        return not session.is_over and newest > now - _SESSION
    except PermissionError:  # another user closed it
        return session.path.stat().st_mtime > now - _SESSION


def _is_readable_session(session: Session) -> bool:
    try:
        with os.scandir(session.path / "evidence"):
            session.evidence()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _compared(sessions: list[Session]) -> set[str]:
    """The jobs that these sessions have recorded: their own, and those that they took over."""
    return {str(job["submission_id"]) for each in sessions for job in jobs_of(each.evidence()).values()}


def _codes(session: Session, spared: set[str], at_work: list[Session]) -> set[str]:
    """A and B of a session that still compares them, or one of whose jobs is kept."""
    its_jobs = {job["submission_id"] for job in jobs_of(session.evidence_if_readable()).values()}
    if session not in at_work and not its_jobs & spared:
        return set()
    return set(session.begin_if_readable().get("codes", {}).values())


def _mentioned(those: Iterable[JobDir], home: Path) -> set[str]:
    """The names under `home` that occur anywhere in these jobs' plans."""
    pattern = re.compile(re.escape(str(home)) + _NAME)
    files = [file for job in those for attempt in job.attempts() for file in _entries(attempt.config) if file.is_file()]
    return {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8", errors="replace"))}


def _snapshots(root: SharedRoot) -> list[Path]:
    """The snapshots that this user may remove."""
    found = set(snapshot.list_snapshots(root))
    return [path for path in _entries(root.snapshots) if path.name in found and _is_mine(path)]


def _unused_objects(root: SharedRoot, gone: Collection[Path]) -> list[Path]:
    """What this user's snapshots of version 1.1 shared, except folders of bytecode that a snapshot not in `gone` links to.

    The other objects are second names of the snapshots' own files.
    """
    links = (path for path in root.snapshots.glob(f"*/verl/**/{snapshot.BYTECODE}") if path.is_symlink())
    used = {link.readlink().name for link in links if not any(link.is_relative_to(path) for path in gone)}
    return [path for path in _entries(root.objects) if path.name not in used and _is_mine(path)]


def _is_named(path: Path, named: set[str]) -> bool:
    record = read_json(path / snapshot.RECORD_FILE) or {}
    return path.name in named or record.get("source") in named


def _is_settled(path: Path, now: float) -> bool:
    return (path / snapshot.RECORD_FILE).stat().st_mtime < now - _SETTLED


class _Disk:
    """Counts the bytes that become free: a file with several links counts with its last one."""

    def __init__(self) -> None:
        self._gone: Counter[tuple[int, int]] = Counter()

    def free(self, paths: Iterable[Path]) -> int:
        """Count these paths as gone too; returns the bytes on disk that this sets free."""
        return sum(self._last_link_of(state) for path in paths for state in _states(path))

    def _last_link_of(self, state: os.stat_result) -> int:
        links = 1 if stat.S_ISDIR(state.st_mode) else state.st_nlink
        self._gone[state.st_dev, state.st_ino] += 1
        return state.st_blocks * 512 if self._gone[state.st_dev, state.st_ino] == links else 0


def _states(path: Path) -> Iterator[os.stat_result]:
    yield path.lstat()
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            yield from _states(inner)


def _remove(waste: Waste) -> None:
    """Record it in the job's state first: if gc is killed in the middle, it can be run again."""
    if waste.job is not None:
        waste.job.write_state("collected", {"checkpoints": [path.name for path in waste.paths], "bytes": waste.bytes})
    for path in waste.paths:
        _remove_path(path)


def _remove_path(path: Path) -> None:
    """Rename a directory first: a half-removed one must not look like a snapshot or a checkpoint."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    unnamed = path.with_name(f".{path.name}.{os.getpid()}{_GONE}")
    path.rename(unnamed)
    for folder, _, _ in os.walk(unnamed):
        Path(folder).chmod(0o755)
    shutil.rmtree(unnamed)
