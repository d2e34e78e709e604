"""Locks on the shared root, all of them `flock(2)`, released when the process ends: shared for readers, exclusive for `make gc`.

On NFS only a lock on a file reaches other machines, not one on a directory; a shared one needs a descriptor that reads,
an exclusive one a descriptor that writes (flock(2), Linux 2.6.12 and later). docs/shared-root.md lists what we rely on.

Each wait has a deadline, and then names who holds the lock. For that, who holds something alone records itself in the file that it locks.
The record is only for messages; the next holder overwrites what a killed process left.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verl_regress.base import processes
from verl_regress.base.errors import RegressError, cure_of, first, shown
from verl_regress.base.files import now

_LOOK_EVERY = 0.1  # seconds between two attempts at a lock
_CURE = "wait until that process ends, or stop it on that machine, then run this again"


def take(descriptor: int, how: int) -> None:
    """Lock an open file until the last copy of `descriptor` is closed, `how` as fcntl names it. Raises OSError."""
    fcntl.flock(descriptor, how)


def take_within(descriptor: int, seconds: float, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file, waiting at most `seconds` for whoever holds it; False if that was not enough. Raises OSError."""
    end = time.monotonic() + seconds
    while True:
        try:
            take(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_EVERY)
        else:
            return True


def file_of(directory: Path) -> Path:
    """The file whose lock is that of the directory."""
    return directory / ".lock"


@contextmanager
def held(directory: Path, how: int) -> Iterator[bool]:
    """Hold the lock of `directory`, `how` as fcntl names it; the lock ends with the process. It is that of a
    file in it (`file_of`), which is made where it is missing.

    Yields False if there is no lock: another process holds it (LOCK_NB), no locks on the file system, no such
    directory.
    """
    with _holding(lambda: _lock_file(directory), how) as is_held:
        yield is_held


@contextmanager
def held_itself(directory: Path, how: int) -> Iterator[bool]:
    """The same with the directory's own lock, as version 1.1 takes it: on NFS other machines do not see it."""
    with _holding(lambda: os.open(directory, os.O_RDONLY | os.O_CLOEXEC), how) as is_held:
        yield is_held


def _lock_file(directory: Path) -> int:
    """Whoever may write in the directory may lock it exclusively, whoever made the file. Raises OSError."""
    file, flags = file_of(directory), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # O_CREAT only if it is missing: Linux may refuse it for a file of another user in a sticky directory (fs.protected_regular).
        descriptor = os.open(file, flags)
    except PermissionError:
        return os.open(file, flags & ~os.O_RDWR)
    except FileNotFoundError:
        if directory.is_symlink():  # it may lead out of the shared root
            raise
        with suppress(FileExistsError):
            os.close(os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o600))
        descriptor = os.open(file, flags)
    found, place = os.fstat(descriptor), directory.stat()
    group, mode = place.st_gid, place.st_mode & 0o666
    if found.st_uid == os.geteuid() and (found.st_gid, stat.S_IMODE(found.st_mode)) != (group, mode):
        with suppress(OSError):  # it is not a group of ours
            os.fchown(descriptor, -1, group)
        os.fchmod(descriptor, mode)
    return descriptor


@contextmanager
def _holding(opened: Callable[[], int], how: int) -> Iterator[bool]:
    descriptor = None
    try:
        descriptor = opened()
        take(descriptor, how)
        is_held = True
    except OSError:
        is_held = False
    try:
        yield is_held
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_held(path: Path, how: int = fcntl.LOCK_SH) -> bool:
    """Does another process hold a lock on `path` that conflicts with `how`? Raises OSError (no such file, no locks on the file system).

    Two processes that ask with LOCK_SH do not see each other. LOCK_EX needs a file that this user may write.
    """
    # O_NONBLOCK: a pipe in the file's place must not make us wait for its writer.
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | (os.O_RDWR if how == fcntl.LOCK_EX else os.O_RDONLY))
    try:
        take(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def owning(file: Path, who: str, seconds: float) -> Iterator[None]:
    """Hold `file`, which is made where it is missing, alone, and record `who` does in it.

    Raises RegressError if another process has it for so long, OSError.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not take_within(descriptor, seconds):
            raise _locked(file, seconds, [_text(descriptor)])
        _sign(descriptor, who)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def sharing(directory: Path, seconds: float) -> Iterator[bool]:
    """Share the lock of `directory` (`file_of`) with all but the one that holds it alone; it ends with the process.

    Yields False if there is no lock: no locks on the file system, no such directory. Raises RegressError if another process
    has it alone for so long.
    """
    descriptor, has_locks, is_ours = None, True, False
    try:
        try:
            descriptor = _lock_file(directory)
            is_ours = take_within(descriptor, seconds, fcntl.LOCK_SH)
        except OSError:
            has_locks = False
        if descriptor is not None and has_locks and not is_ours:
            raise _locked(directory, seconds, _known(directory, [_text(descriptor)]))
        yield is_ours
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def alone(directory: Path, who: str, seconds: float, sharers: Callable[[], list[str]] = list) -> Iterator[None]:
    """Hold the lock of `directory` (`file_of`) exclusively, waiting at most so long for those who share it, and record `who` does.

    `sharers` finds them, as far as they recorded themselves in files of their own. Raises RegressError.
    """
    descriptor = None
    try:
        try:
            descriptor = _lock_file(directory)
            is_ours = take_within(descriptor, seconds)
        except OSError as error:
            raise RegressError(f"{directory} cannot be locked ({error.strerror}): {_cure_of(error)}.") from error
        if not is_ours:
            if is_shared := take_within(descriptor, 0, fcntl.LOCK_SH):  # then what is written there is old
                take(descriptor, fcntl.LOCK_UN)
            raise _locked(directory, seconds, _known(directory, sharers() if is_shared else [_text(descriptor)]))
        _sign(descriptor, who)
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def holder_in(file: Path) -> str | None:
    """What the process that has `file` recorded in it; None if no process has it, or that cannot be asked."""
    with suppress(OSError):
        if is_held(file):
            return _clean(file.read_text(encoding="utf-8", errors="replace")) or None
    return None


def _locked(path: Path, seconds: float, holders: list[str]) -> RegressError:
    return RegressError(
        f"{path} has been locked for {seconds:.0f} s by {first(holders) or 'another process'}: {_CURE}."
    )


def _cure_of(error: OSError) -> str:
    """For a directory whose lock cannot even be asked for."""
    if isinstance(error, PermissionError):
        return "ask its owner to let you write there"
    return cure_of(error, "it must exist, on a file system that has locks (a local disk, NFS 4)")


def _known(directory: Path, recorded: list[str]) -> list[str]:
    """Those who recorded themselves; if nobody did, those whom this machine's kernel knows."""
    return [holder for holder in recorded if holder] or [
        f"{shown(command, 80)} (pid {pid} on {os.uname().nodename})"
        for pid, command in processes.with_lock(file_of(directory)).items()
    ]


def _sign(descriptor: int, who: str) -> None:
    """Write who holds the lock into the locked file, if that is possible."""
    with suppress(OSError):  # the disk is full
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{who} (pid {os.getpid()} on {os.uname().nodename}, since {now()})\n".encode(), 0)


def _text(descriptor: int) -> str:
    return _clean(os.pread(descriptor, 4096, 0).decode("utf-8", "replace"))


def _clean(text: str) -> str:
    return shown(text.strip())
