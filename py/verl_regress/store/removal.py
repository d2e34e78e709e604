"""How `make gc` removes what `retention` found, while others submit.

A submission shares the lock on `jobs/` from its first read of a snapshot until Ray has the job. gc takes it alone, and briefly: once to
list the jobs there are, before anything is read, and then for a few things at a time. With the lock it reads what was submitted since,
checks each thing again, and renames it aside; it deletes what it renamed after it let the lock go. So a submitter waits
for renames, not for the survey or for the deletion of a checkpoint.

What was renamed has a name that nothing looks for (`.NAME.NUMBER.gone`). If gc is killed, the next one finishes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from secrets import token_hex

from verl_regress.base import lock
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import find
from verl_regress.store import snapshot, uses
from verl_regress.store.sessions import Session

_GONE = ".gone"  # ends the name of what was renamed aside
_LOCK_SECONDS = 30.0  # a submission holds the lock for one or two
_NEWEST = 20  # jobs among which those are looked for that are being submitted, for a message
_HOLD = 0.2  # seconds after which gc begins nothing more with the lock
_PAUSE = 0.3  # … without it at least: who waits for it asks every 0.1
_RENAMES = 64  # of one thing with the lock: a snapshot is one, a job may have a thousand checkpoints


@dataclass(frozen=True)
class Waste:
    """One thing to remove: its paths, and the bytes on disk that this frees once everything before it is gone."""

    what: str
    paths: tuple[Path, ...]
    bytes: int
    job: JobDir | None = None  # the job of these checkpoints
    attempts: int = 0  # how many it had

    def __str__(self) -> str:
        """`snapshot codeB: 1.2 MiB`."""
        return f"{self.what}: {human(self.bytes)}"

    def record(self) -> None:
        """In the state of the job whose checkpoints these are. Raises OSError."""
        if self.job is not None:
            content = {"checkpoints": [path.name for path in self.paths], "bytes": self.bytes}
            self.job.write_state("collected", content)


def human(size: int) -> str:
    """`512 bytes`, `1.5 KiB`, `3.2 GiB`."""
    amount, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"


def is_leftover(path: Path) -> bool:
    """Was it renamed aside by a gc, which is deleting it now or was killed?"""
    return path.name.startswith(".") and path.suffix == _GONE


def are_objects_free(root: SharedRoot) -> bool:
    """Does no version 1.1, which shares this lock, work with the objects? Yes if there are none."""
    with lock.held_itself(root.objects, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
        return is_free


class Removal:
    """Removes waste of one shared root. Make it before anything is read: what is there then is what was read."""

    def __init__(self, root: SharedRoot) -> None:
        """Raises RegressError without the lock."""
        self._root = root
        with self._lock():
            self._known = _attempts(root)
        self._sessions = _names(root.sessions)
        self._snapshots = _names(root.snapshots)  # whose bytecode the survey has considered
        self._new: set[str] = set()  # ids of jobs that were made, or got an attempt, since
        self._plans: list[str] = []  # theirs
        self._is_unknown = False  # … some of which cannot be read
        self._began: list[Session] = []
        self._codes: set[str] = set()  # theirs
        self._used: dict[Path, set[str]] = {}  # names that the plans have under a directory
        self._unrecorded: list[Waste] = []  # checkpoints that were set aside and not recorded yet

    def remove(self, wastes: Sequence[Waste]) -> Iterator[tuple[Waste, bool]]:
        """Each of them, once it is gone, and whether it is: it stays if it is in use by now. Raises RegressError, OSError."""
        rest = deque(wastes)
        begun, gone = 0, False  # of the first one: how many of its paths were tried, and whether one went
        while rest:
            over: list[tuple[Waste, bool]] = []
            aside: list[Path] = []
            with self._lock():
                end = time.monotonic() + _HOLD
                self._read_new()
                while rest and (not (over or aside) or time.monotonic() < end):
                    renamed = self._set_aside(rest[0], rest[0].paths[begun : begun + _RENAMES], is_first=begun == 0)
                    aside += renamed
                    begun, gone = begun + _RENAMES, gone or bool(renamed)
                    if begun >= len(rest[0].paths):
                        over.append((rest.popleft(), gone))
                        begun, gone = 0, False
            released = time.monotonic()
            for path in aside:
                _delete(path)
            for waste in self._unrecorded:
                waste.record()
            self._unrecorded.clear()
            yield from over
            if rest:
                time.sleep(max(0.0, released + _PAUSE - time.monotonic()))

    def _lock(self) -> AbstractContextManager[None]:
        return lock.alone(self._root.jobs, "gc", _LOCK_SECONDS, lambda: _submitters(self._root))

    def _read_new(self) -> None:
        """Read what was submitted since the last time: with the lock, each submission is whole."""
        attempts = _attempts(self._root)
        new = {find.of_ray_id(self._root, ray_id).submission_id for ray_id in attempts - self._known}
        self._known = attempts
        self._new |= new
        jobs = [JobDir(self._root.jobs / name) for name in new]
        readable = [job for job in jobs if uses.is_readable(job)]
        if jobs:
            self._plans += uses.plans(readable)
            self._used.clear()
        self._began = [Session(self._root.sessions / name) for name in _names(self._root.sessions) - self._sessions]
        codes = [session.codes_if_readable() for session in self._began]
        self._codes = set().union(*codes)
        # A session that began has no lock, and may have recorded nothing yet.
        self._is_unknown = self._is_unknown or len(readable) < len(jobs) or not all(codes)

    def _set_aside(self, waste: Waste, paths: Sequence[Path], *, is_first: bool) -> list[Path]:
        """Rename them, if the waste is waste still; returns their new paths. The job's state records it before: gc may be killed."""
        with lock.held_itself(self._root.objects, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
            if paths[0].parent == self._root.objects and not is_free:
                return []
            usable = [path for path in paths if self._is_waste(waste, path)]
            # A snapshot that stays needs its bytecode, too.
            self._snapshots -= {path.name for path in paths if path not in usable}
            if is_first and usable:
                try:
                    waste.record()
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    self._unrecorded.append(waste)  # on a full disk, there is space once they are deleted
            return [aside for path in usable if (aside := _rename(path)) is not None]

    def _is_waste(self, waste: Waste, path: Path) -> bool:
        """Nothing that was submitted or begun since uses it, and it is what it was."""
        if is_leftover(path):
            return True
        if waste.job is not None:
            return self._is_over(waste.job, waste.attempts) and not any(map(_may_compare, self._began))
        if self._is_unknown:
            return False
        if path.parent == self._root.objects:
            made = [self._root.snapshots / name for name in _names(self._root.snapshots) - self._snapshots]
            return path.name not in uses.linked_bytecode(each for each in made if not is_leftover(each))
        return path.name not in self._used_under(path.parent) | self._codes and not _is_remade(path)

    def _is_over(self, attempt: JobDir, attempts: int) -> bool:
        """Is the job over still, and read by none of the new ones?"""
        job = attempt.first
        if job.submission_id in self._new | self._used_under(self._root.jobs):
            return False
        return len(job.attempts()) == attempts and not any(map(uses.is_held, job.attempts()))

    def _used_under(self, home: Path) -> set[str]:
        if home not in self._used:
            self._used[home] = uses.names_under(home, self._plans)
        return self._used[home]


def _submitters(root: SharedRoot) -> list[str]:
    """Who is submitting one of the newest jobs, as they recorded it."""
    newest = islice(find.newest(root), _NEWEST)
    return [who for job in newest if (who := lock.holder_in(job.submitting)) is not None]


def _attempts(root: SharedRoot) -> set[str]:
    """The newest attempt of each job."""
    return {job.ray_id for job in find.newest(root)}


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))  # noqa: PTH208 (a name each, and nothing else)
    except FileNotFoundError:
        return set()


def _may_compare(session: Session) -> bool:
    """A session of this user compares all jobs of theirs; another's, those that it recorded, which it reads by then."""
    return uses.is_mine(session.path) or not uses.is_readable_session(session) or bool(session.job_ids())


def _is_remade(path: Path) -> bool:
    """Was a snapshot of that name made again a moment ago? A helper has no record."""
    with suppress(OSError):
        return (path / snapshot.RECORD_FILE).stat().st_mtime > time.time() - 3600
    return False


def _rename(path: Path) -> Path | None:
    """Rename it to what nothing looks for; None if it is gone already."""
    aside = path if is_leftover(path) else path.with_name(f".{path.name}.{token_hex(4)}{_GONE}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return None
    return aside


def _delete(path: Path) -> None:
    """Delete what was renamed; another gc may delete it at the same time."""
    while path.is_symlink() or path.exists():
        with suppress(FileNotFoundError):
            if path.is_symlink() or not path.is_dir():
                path.unlink()
                return
            for folder, _, _ in os.walk(path):
                Path(folder).chmod(0o755)
            shutil.rmtree(path)
