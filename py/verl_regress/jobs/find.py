"""Finding jobs: one by id or by the word `latest`, or all of them."""

from __future__ import annotations

import argparse
import calendar
import contextlib
import heapq
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_regress.base import ids, owner, records
from verl_regress.base.errors import BadInput, Unreadable, printable, shown
from verl_regress.base.files import unreadable
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import Owner
from verl_regress.cluster.ray_api import RayApi

_MARK = ".made-"  # begins the name of a mark that tells the time; no id begins so
_OWNED = ".of-"  # … that tells the owner
_ANY_MARK = re.compile(r"(\.made-|\.of-)([^-]*)-(.*)", re.DOTALL)
_MADE_ID = re.compile(r"-([0-9]{8}T[0-9]{6}Z)-[0-9a-f]{4}$")
_OF_SESSION = re.compile(r"-([0-9]{8}T[0-9]{6}Z)(-[0-9]+)?$")  # ends the ids of the jobs of a session or a search
# In which a time can be written (seconds); the owner of a file can give it any.
_YEARS_1_TO_9999 = (-62135596800.0, 253402300799.0)
_LAG = 60.0  # seconds at most from the id to the directory, with the difference of two clocks


def add_job(parser: argparse.ArgumentParser) -> None:
    """The positional argument JOB of every command on one job."""
    parser.add_argument("job", help="a submission id, <id>.aN for its attempt N, or 'latest'")


def dated(root: SharedRoot) -> list[tuple[float, JobDir]]:
    """The newest attempt of every job and when it was made (seconds), the most recent job first.

    This reads each job and uses no mark, so it misses none; for a few jobs, take them from `newest`.
    """
    found = [each for name in ids_of(root) if (each := _dated(root, name)) is not None]
    return sorted(found, key=lambda each: (each[0], each[1].submission_id), reverse=True)


def _dated(root: SharedRoot, name: str) -> tuple[float, JobDir] | None:
    """One of them; None if it was removed meanwhile."""
    job = JobDir(root.jobs / name).attempts()[-1]
    try:
        return made(job), job
    except FileNotFoundError:
        return None


def ids_of(root: SharedRoot) -> list[str]:
    """The ids of all jobs, in no order; no job is read."""
    return Listed.of(root).ids


def newest(root: SharedRoot, listed: Listed | None = None, names: Iterable[str] | None = None) -> Iterator[JobDir]:
    """The newest attempt of each job that is `listed` (None: of all), or of those of them with one of the ids `names`, the most
    recent job first.

    A job is read only when it may be the next one: no later than a minute after the time in its id or in its newest mark. A job with
    neither may always be. So a mark that is lost costs time, or puts a resumed job too low, until the next `make gc`; one from
    tomorrow costs one read.
    """
    listed = Listed.of(root) if listed is None else listed
    guesses: list[tuple[float, int, tuple[int, ...], str]] = [
        (-_at_latest(name, listed.made), 0, (), name) for name in (listed.ids if names is None else names)
    ]
    heapq.heapify(guesses)
    read: dict[str, JobDir] = {}
    while guesses:
        _, is_sure, _, name = heapq.heappop(guesses)
        if is_sure:
            yield read[name]
            continue
        try:
            found = _dated(root, name)
        except OSError:  # a server has lost it (ESTALE, EIO): whoever reads it says so
            found = _at_latest(name, listed.made), JobDir(root.jobs / name)
        if found is not None:
            when, read[name] = found
            heapq.heappush(guesses, (-when, 1, (*(-ord(letter) for letter in name), 1), name))


def mark(attempt: JobDir, by: Owner | None = None) -> None:
    """Let others know by names alone whose this attempt is, and when it was made if its job's id does not tell.

    A mark is an empty file in `jobs/`, named after the job and after its owner or its time. Without it (a full disk) the job is
    still found by its id. A further attempt always has one of its time: by it, `make gc` sees that a job which was over
    goes on.
    """
    when = made(attempt)
    marks = [_owner_mark(attempt, {} if by is None else {"owner": by.recorded()})]
    if _needs_mark(attempt, when):
        marks.append(_mark(attempt, when))
    mark_again(marks)


def lost_marks(root: SharedRoot, jobs: Iterable[tuple[float, JobDir]]) -> list[Path]:
    """The marks that these jobs should have (`dated`) and have not. Each is read: another user may have made one of its marks."""
    marks = Listed.of(root)
    lost: list[Path] = []
    for when, job in jobs:
        if _needs_mark(job, when) and marks.made.get(job.submission_id, -math.inf) + _LAG < when:
            lost.append(_mark(job, when))
        plan = _plan_if_readable(job)
        if plan is not None and owner.key_of(plan) not in marks.owners.get(job.submission_id, ()):
            lost.append(_owner_mark(job, plan))
    return lost


def mark_again(lost: Iterable[Path]) -> int:
    """Make lost marks; returns how many could be made."""
    made_again = 0
    for path in lost:
        with contextlib.suppress(OSError):
            path.touch()
            made_again += 1
    return made_again


def _needs_mark(attempt: JobDir, when: float) -> bool:
    return attempt.attempt > 1 or abs(_time_in(attempt.submission_id) - when) > _LAG


def _mark(attempt: JobDir, when: float) -> Path:
    return attempt.root.jobs / f"{_MARK}{int(when)}-{attempt.submission_id}"


def _owner_mark(attempt: JobDir, plan: Mapping[str, Any]) -> Path:
    return attempt.root.jobs / f"{_OWNED}{owner.key_of(plan)}-{attempt.submission_id}"


@dataclass(frozen=True)
class Listed:
    """What one listing of `jobs/` says: the ids of all jobs, in no order, and what the marks say of them, of which any may be missing
    or wrong: when its newest attempt was made (seconds), and the keys of its owners.

    With thousands of jobs, a listing is many calls of a remote file system.
    """

    ids: list[str]
    made: dict[str, float]
    owners: dict[str, set[str]]

    @classmethod
    def of(cls, root: SharedRoot) -> Listed:
        """All of them; no job is read."""
        listed = cls([], {}, {})
        with contextlib.suppress(FileNotFoundError), os.scandir(root.jobs) as found:
            for entry in found:
                # No id begins with a dot, but a server's own directories do (.snapshot).
                if entry.name[0] != ".":
                    if _is_directory(entry):
                        listed.ids.append(entry.name)
                elif (mark := _ANY_MARK.fullmatch(entry.name)) is not None:
                    listed._add(*mark.groups())
        return listed

    def _add(self, kind: str, said: str, submission_id: str) -> None:
        if kind == _OWNED:
            self.owners.setdefault(submission_id, set()).add(said)
        elif said.isdecimal():
            self.made[submission_id] = max(self.made.get(submission_id, 0.0), float(said))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """A name of which the server cannot say what it is counts as one: it was a job's."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return True


def id_in(name: str) -> str:
    """The submission id that a name in `jobs/` is about: a job's directory or a mark."""
    mark = _ANY_MARK.fullmatch(name)
    return name if mark is None else mark[3]


def is_news(name: str) -> bool:
    """Does a new name in `jobs/` say that its job is new or goes on? A mark of the owner may be one that was lost."""
    return not name.startswith(_OWNED)


def marks_of_none(root: SharedRoot) -> list[Path]:
    """The marks in `jobs/` whose job is gone."""
    names = set(ids_of(root))
    marks = (path for path in sorted(root.jobs.glob(".*")) if _ANY_MARK.fullmatch(path.name))
    return [path for path in marks if id_in(path.name) not in names and path.is_file() and not path.is_symlink()]


def _at_latest(submission_id: str, marked: Mapping[str, float]) -> float:
    """When its newest attempt was made, at the latest."""
    known = max(_time_in(submission_id), marked.get(submission_id, -math.inf))
    return math.inf if known == -math.inf else known + _LAG


def _time_in(submission_id: str) -> float:
    """The time in an id that `ids.make` made, in seconds; minus infinity in any other."""
    found = _MADE_ID.search(submission_id)
    try:
        return calendar.timegm(time.strptime(found[1], "%Y%m%dT%H%M%SZ")) if found is not None else -math.inf
    except ValueError:  # the 99th of a month
        return -math.inf


def made(job: JobDir) -> float:
    """When its directory was reserved (seconds): the time of its config, which is written once and unaffected by runs.

    Raises OSError if the job is gone.
    """
    first, last = _YEARS_1_TO_9999
    return min(max(first, _time_of(job)), last)


def _time_of(job: JobDir) -> float:
    for path in (job.config, job.path):
        with contextlib.suppress(OSError):  # it has none, or is another user's
            return path.stat().st_mtime
    return job.first.path.stat().st_mtime


def asked_for(args: argparse.Namespace) -> JobDir:
    """The job that a command line names (`add_job`); `latest` means the caller's. Raises BadInput."""
    return find(SharedRoot(args.shared_root), args.job, args.owner)


def find(root: SharedRoot, asked: str, caller: Owner | None = None) -> JobDir:
    """The newest attempt of the job with that id, or of the latest job; `<id>.aN` is that attempt. Raises BadInput.

    The latest job is `caller`'s own (of all jobs if the caller is not known), and none of a session or a search.
    """
    if asked == "latest":
        return _latest(root, caller)
    named = ids.ATTEMPT.fullmatch(asked)
    job = JobDir(root.jobs / ids.check(named["submission_id"] if named else asked, "JOB"))
    # A submission never makes a link, which may lead anywhere.
    if not job.path.is_dir() or job.path.is_symlink() or _has_other_case(job.path):
        known = ", ".join(printable(other.submission_id) for other in islice(newest(root), 5))
        cure = (
            f"name one of the latest ({known}) or another"
            if known
            else "it has no job yet, submit one with 'make submit'"
        )
        raise BadInput(f"JOB={asked} is not under {root.jobs}: {cure}.")
    attempts = _attempts(job)
    if named is None:
        return attempts[-1]
    if job.numbered(int(named["number"])) not in attempts:
        raise BadInput(
            f"JOB={asked} is not an attempt of {job.submission_id}: it has {len(attempts)}, the first is .a1."
        )
    return job.numbered(int(named["number"]))


def _has_other_case(path: Path) -> bool:
    """Does it have another name, which only differs in upper and lower case? Then the file system folds case."""
    try:
        is_folded = path.with_name(path.name.swapcase()).samefile(path) and path.name.swapcase() != path.name
    except OSError:
        return False
    # With thousands of jobs, a listing is many calls of a remote file system.
    return is_folded and path.name not in os.listdir(path.parent)  # noqa: PTH208 (a name each, and nothing else)


def _latest(root: SharedRoot, caller: Owner | None) -> JobDir:
    listed = Listed.of(root)
    for job in newest(root, listed, None if caller is None else _may_be_of(listed, caller)):
        if not _is_of_session(job) and (caller is None or _is_of(caller, job)):
            return job
    theirs = next(newest(root, listed), None)
    if theirs is None:
        raise BadInput(f"JOB=latest but {root.jobs} has no job yet: submit one with 'make submit'.")
    raise BadInput(
        f"JOB=latest but no job under {root.jobs} is yours and outside a session: the latest of all is {theirs.submission_id} of "
        f"{owner.described(_plan_if_readable(theirs))}; name it with JOB={theirs.submission_id}, or submit one."
    )


def _is_of_session(job: JobDir) -> bool:
    """Did `make verify` or `make bisect` submit it? Its id ends with the name of their directory."""
    found = _OF_SESSION.search(job.submission_id)
    homes = (job.root.sessions, job.root.bisections)
    return found is not None and any((home / found[1]).is_dir() for home in homes)


def _is_of(caller: Owner, job: JobDir) -> bool:
    """A plan alone may name any owner."""
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        return caller.has(_plan_if_readable(job)) and owner.is_trusted(job.first.path.lstat().st_uid)
    return False


def _may_be_of(listed: Listed, caller: Owner) -> list[str]:
    """Those jobs that have a mark of this owner, or of none: older versions made none, and one may be lost.

    A mark that another user made for a job that has none hides it until `make gc` makes its own: to see that here, every job
    of others would have to be asked for its owner.
    """
    owners = listed.owners
    return [name for name in listed.ids if name not in owners or caller.key in owners[name]]


def _plan_if_readable(job: JobDir) -> dict[str, Any] | None:
    """`config/resolved.json`, or None for a job that has none, or that another user closed."""
    try:
        return job.read_config("resolved.json")
    except Unreadable:
        return None


def _attempts(job: JobDir) -> list[JobDir]:
    """All of the job, oldest first. Raises Unreadable."""
    try:
        with os.scandir(job.path):
            pass
        return job.list_attempts()
    except OSError as error:
        raise unreadable(Path(error.filename or job.path), error) from error


def of_ray_id(root: SharedRoot, ray_id: str) -> JobDir:
    """The attempt that Ray knows by that id, whether it exists or not."""
    named = ids.ATTEMPT.fullmatch(ray_id)
    return (
        JobDir(root.jobs / named["submission_id"]).numbered(int(named["number"]))
        if named
        else JobDir(root.jobs / ray_id)
    )


def plan_of(job: JobDir, owners: Collection[int] | None = None) -> dict[str, Any]:
    """`config/resolved.json`. Raises BadInput if the submitter died before writing it; with `owners`, as `files.need_owner` does."""
    plan = job.read_config("resolved.json", owners)
    if plan is None:
        raise BadInput(
            f"{job.ray_id} was never submitted, because its submitter ended before {job.config}/resolved.json was written: submit it "
            "again, with another id."
        )
    return plan


def text_of(plan: Mapping[str, Any], key: str) -> str | None:
    """A text of a plan; None if it has none, because it was written by hand."""
    value = plan.get(key)
    return value if isinstance(value, str) else None


def api_of(job: JobDir) -> RayApi:
    """The Ray at the address in this job's plan. Raises BadInput, Unreadable."""
    plan = plan_of(job)
    file, address = job.config / "resolved.json", plan.get("address")
    records.need(file, plan, "address")
    if urlsplit(str(address)).scheme not in ("http", "https"):
        raise records.not_as_written(file, f"address must be a URL, not {shown(str(address), 40)}")
    return RayApi(str(address))


def run_where(args: argparse.Namespace) -> int:
    """Print the directory of a job's newest attempt."""
    print(asked_for(args).path)
    return 0
