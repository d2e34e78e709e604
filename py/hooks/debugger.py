"""Records where a process of a job waits for Ray's debugger, and decides where debugpy listens: jobs submitted with DEBUGGER.

Ray 2.60 counts the paused threads of a worker and keeps its port, but neither file nor line (``ray.util.debugpy``). So each
thread that waits, or that a debugger is attached to, has a file ``<job dir>/state/breakpoints/<hostname>-<pid>-<thread>.json``.
The process holds a lock (flock) on it: the record of a process that is gone counts for nothing (verl_regress.jobs.breakpoints).

debugpy listens on the node's address (Ray 2.60), or on VERL_REGRESS_DEBUGGER_HOST if that is set. Its port asks for no password.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import job_report
import ray_private
from on_import import on_import

HOST_VARIABLE = "VERL_REGRESS_DEBUGGER_HOST"
_LOOK_EVERY = 1.0  # seconds between two checks whether the debugger is still attached

_address: tuple[str, int] | None = None  # where debugpy listens in this process


def install() -> None:
    """Change what Ray's debugger does when it waits; does nothing outside a job."""
    if os.environ.get(job_report.JOB_DIR_VARIABLE):
        on_import("debugpy", _narrow)
        ray_private.around_pause(_waiting)


def _narrow(debugpy: ModuleType) -> None:
    """debugpy's own ``listen``, on our address; it returns where it listens."""
    listen: Callable[..., tuple[str, int]] = debugpy.listen

    def narrowed(address: tuple[str, int], **options: Any) -> tuple[str, int]:
        global _address
        host, port = address
        _address = listen((os.environ.get(HOST_VARIABLE) or host, port), **options)
        return _address

    debugpy.listen = narrowed  # type: ignore[attr-defined]


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """Ray enters this context while it waits for a debugger, and leaves it when one is attached."""
    record = _Record(_address)
    with suppress(OSError):  # it waits all the same
        record.write(attached=False)
    try:
        yield
    except BaseException:
        record.remove()
        raise
    _watch(record)


def _watch(record: "_Record") -> None:
    """A debugger is attached; keep the record until it leaves. The debugger must not stop the thread that watches."""
    with suppress(OSError):
        record.write(attached=True)
    watcher = threading.Thread(target=_until_detached, args=(record,), name="verl-regress-debugger", daemon=True)
    watcher.pydev_do_not_trace = True  # type: ignore[attr-defined]  # what pydevd 3.4 asks its own threads (debugpy 1.8)
    watcher.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    watcher.start()


def _until_detached(record: "_Record") -> None:
    is_connected = sys.modules["debugpy"].is_client_connected
    while is_connected():
        time.sleep(_LOOK_EVERY)
    record.remove()


class _Record:
    """The file of the thread that calls this, which waits at the line outside Ray that it came from."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        name = f"{job_report.hostname()}-{os.getpid()}-{threading.get_ident()}"
        self._file = Path(os.environ[job_report.JOB_DIR_VARIABLE]) / "state" / "breakpoints" / f"{name}.json"
        self._descriptor: int | None = None
        host, port = address or ("", 0)
        self._content = {
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "task": _task(),
            "node": os.environ.get("VERL_REGRESS_NODE"),
            "host": host,
            "port": port,
            "pid": os.getpid(),
            **_where(sys._getframe(1)),
        }

    def write(self, *, attached: bool) -> None:
        """Write it; the lock is taken before the file has its name. Raises OSError."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        young = self._file.with_suffix(".young")
        descriptor = os.open(young, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.write(descriptor, json.dumps({**self._content, "attached": attached}).encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        young.replace(self._file)
        self._close()
        self._descriptor = descriptor

    def remove(self) -> None:
        """Remove it: the process goes on."""
        with suppress(OSError):
            self._file.unlink()
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _task() -> str:
    """What Ray calls this process, or the name of its program."""
    with suppress(Exception):
        return ray_private.process_title()
    return Path(sys.argv[0]).name


def _where(frame: FrameType | None) -> dict[str, Any]:
    """File, line and function of the first frame that is neither Ray's nor ours; after an exception, where that was raised."""
    ray = str(Path(sys.modules["ray"].__file__ or "").parent) + os.sep
    error = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(ray):
            if frame.f_code.co_name == ray_private.POST_MORTEM:
                error = sys.exc_info()[1]
        elif file not in (__file__, ray_private.__file__, contextlib.__file__):
            break
        frame = frame.f_back
    at = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame is not None else ("", 0, "")
    traceback = error.__traceback__ if error is not None else None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(ray):
            at = (code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return {"file": at[0], "line": at[1], "function": at[2], "exception": type(error).__name__ if error else None}
