"""Locks on the shared root, all of them `flock(2)`, released when the process ends: shared for readers, exclusive for
`make gc`.

On NFS only a lock on a file reaches other machines, not one on a directory; a shared one needs a descriptor that reads,
an exclusive one a descriptor that writes (flock(2), Linux 2.6.12 and later). docs/shared-root.md lists what we rely on.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verl_regress.base.errors import RegressError

_LOOK_EVERY = 0.1  # seconds between two attempts at a lock


def take(descriptor: int, how: int) -> None:
    """Lock an open file until the last copy of `descriptor` is closed, `how` as fcntl names it. Raises OSError."""
    fcntl.flock(descriptor, how)


def take_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file exclusively, waiting at most `seconds` for whoever holds it; False if that was not enough. Raises OSError."""
    end = time.monotonic() + seconds
    while True:
        try:
            take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        with suppress(OSError):  # it is no group of ours
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
    """Does another process hold a lock on `path` that conflicts with `how`? Raises OSError (no such file, no locks on
    the file system).

    Two processes that ask with LOCK_SH do not see each other. LOCK_EX needs a file that this user may write.
    """
    descriptor = os.open(path, (os.O_RDWR if how == fcntl.LOCK_EX else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        take(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def owning(file: Path) -> Iterator[None]:
    """Hold `file`, which is made where it is missing, alone; wait as long as it takes. Raises OSError."""
    with file.open("w") as opened:
        take(opened.fileno(), fcntl.LOCK_EX)
        yield


@contextmanager
def alone(directory: Path, seconds: float) -> Iterator[None]:
    """Hold `directory` exclusively, waiting at most `seconds` for those who share it. Raises RegressError."""
    end = time.monotonic() + seconds
    while True:
        with held(directory, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_held:
            if is_held:
                yield
                return
        if time.monotonic() > end:
            raise RegressError(
                f"{directory} could not be locked within {seconds:.0f} s (a submission holds it, or its file system has no "
                "locks): run it again when no submission is under way."
            )
        time.sleep(_LOOK_EVERY)
