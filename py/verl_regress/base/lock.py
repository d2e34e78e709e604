"""Locks on the shared root, all of them `flock(2)`, released when the process ends: shared for readers, exclusive for
`make gc`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def held(directory: Path, how: int) -> Iterator[bool]:
    """Hold `flock(2)` on `directory`, `how` as fcntl names it; the lock ends with the process.

    Yields False if there is no lock: another process holds it (LOCK_NB), no locks on the file system, no such
    directory.
    """
    descriptor = None
    try:
        descriptor = os.open(directory, os.O_RDONLY)
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

    Two processes that ask with LOCK_SH do not see each other.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
