"""Is a job's launcher alive? Any node can ask the file system; neither clocks nor Ray are involved.

The launcher holds a lock on `state/launcher` until its process is gone, for any reason.
"""

import enum
import fcntl
import json
import os

from verl_regress.base import lock
from verl_regress.base.errors import RegressError
from verl_regress.base.files import now
from verl_regress.base.layout import JobDir

ENDED_IN_RAY = ("SUCCEEDED", "FAILED", "STOPPED")  # Ray's statuses of a job that is over (2.60)


class Launcher(enum.Enum):
    """What the lock says of a job's launcher."""

    NOT_YET = "not yet"
    ALIVE = "alive"
    GONE = "gone"


class LaunchedBefore(RegressError):
    """The job has, or had, a launcher."""


def hold(job: JobDir) -> int:
    """Become the launcher of `job`; returns the descriptor that holds the lock, which must stay open.

    Raises LaunchedBefore, and RegressError if the file system has no locks.
    """
    try:
        descriptor = os.open(job.launcher, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise LaunchedBefore(
            f"{job.launcher} exists, so {job.ray_id} was launched before, and a job directory is never used twice: submit "
            "it again with 'make submit'."
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        os.close(descriptor)
        raise RegressError(
            f"{job.state} is on a file system without locks ({error.strerror}), which the queue needs: put SHARED_ROOT on one that "
            "has them (a local disk, NFS 4)."
        ) from error
    os.write(descriptor, json.dumps({"time": now(), "hostname": os.uname().nodename, "pid": os.getpid()}).encode())
    return descriptor


def launcher_of(job: JobDir) -> Launcher:
    """Whether the launcher of `job` is alive."""
    try:
        return Launcher.ALIVE if lock.is_held(job.launcher) else Launcher.GONE
    except FileNotFoundError:
        return Launcher.NOT_YET
