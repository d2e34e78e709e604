"""Locks on the shared root: `flock(2)` on a file, released when the process ends, however it ends.

On NFS only a lock on a file reaches other machines, not one on a directory; a shared one needs a descriptor that reads, an exclusive one
a descriptor that writes. docs/shared-root.md lists what we rely on.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verl_regress.base import say
from verl_regress.base.errors import RegressError, cure_of, shown
from verl_regress.base.files import now

_ASK_EVERY = 0.1  # seconds between two attempts at a lock
_CURE = "its directory must exist and be yours to write, on a file system that has locks (a local disk, NFS 4)"
_PATIENCE = 1.0  # seconds after which a line says who has it


@contextmanager
def held(file: Path, who: str, seconds: float, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of `file` until the block ends: alone, or `shared` with all who share it. The file is made where it is missing.

    `who` is recorded in the file, for the messages of those who wait. After a second, a line says whom this one waits for. Raises
    RegressError if that takes longer than `seconds`, or if the file cannot be locked.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = None
    try:
        try:
            descriptor = _opened(file)
            is_held = take_within(descriptor, min(seconds, _PATIENCE), how)
            if not is_held and seconds > _PATIENCE:
                say.info(f"waiting for {holder(descriptor)}, which has locked {file}")
                is_held = take_within(descriptor, seconds - _PATIENCE, how)
        except OSError as error:
            raise RegressError(f"{file} cannot be locked ({error.strerror}): {cure_of(error, _CURE)}.") from error
        if not is_held:
            raise RegressError(
                f"{file} has been locked for {seconds:.0f} s by {holder(descriptor)}: wait until that process ends, or stop it on that "
                "machine, then run this again."
            )
        with suppress(OSError):  # a full disk costs only the name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{who} (pid {os.getpid()} on {os.uname().nodename}, since {now()})\n".encode(), 0)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def take_within(descriptor: int, seconds: float, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file until its descriptor is closed; False if another process had it for so long. Raises OSError."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_ASK_EVERY)
        else:
            return True


def holder(descriptor: int) -> str:
    """Who recorded itself last in an open file that another process has locked. Raises OSError."""
    return shown(os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip()) or "another process"


def is_held(path: Path, how: int = fcntl.LOCK_SH) -> bool:
    """Does another process hold a lock on `path` that conflicts with `how`? Raises OSError (no such file, no locks on the file system).

    Two processes that ask with LOCK_SH do not see each other. LOCK_EX needs a file that this user may write.
    """
    how_opened = os.O_RDWR if how == fcntl.LOCK_EX else os.O_RDONLY
    # A pipe in its place must not make us wait for its writer.
    descriptor = os.open(path, how_opened | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return not take_within(descriptor, -1, how)
    finally:
        os.close(descriptor)


def _opened(file: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # O_CREAT only if it is missing: Linux may refuse it for another user's file in a sticky directory (fs.protected_regular).
        return os.open(file, flags)
    except FileNotFoundError:
        return os.open(file, flags | os.O_CREAT, 0o666)
    except PermissionError:  # enough to share the lock
        return os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
