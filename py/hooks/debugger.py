"""Records where a process of a job waits for Ray's debugger, and decides where debugpy listens: jobs submitted with DEBUGGER.

Each thread that waits has a file ``<job dir>/state/breakpoints/<node>-<pid>-<thread>.json``, `.attached.json` under a debugger, because
Ray 2.60 keeps neither file nor line. The process holds a lock (flock) on it, so the record of a process that is gone counts for nothing.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import job_report
import ray_private
from on_import import on_import

_LOOK_EVERY = 1.0  # seconds between two checks whether the debugger is still attached
_address: tuple[str, int] | None = None  # where debugpy listens in this process


def install() -> None:
    """Change what Ray's debugger does when it waits; does nothing outside a job."""
    if (job := job_report.job_dir()) is not None:
        on_import("debugpy", _narrow)
        ray_private.around_pause(lambda: _waiting(job))


def _narrow(debugpy: ModuleType) -> None:
    """Make debugpy listen on VERL_REGRESS_DEBUGGER_HOST if that is set, else on the node's address; it asks for no password."""
    listen: Callable[..., tuple[str, int]] = debugpy.listen

    def narrowed(address: tuple[str, int], **options: Any) -> tuple[str, int]:
        global _address
        host, port = address
        _address = listen((os.environ.get("VERL_REGRESS_DEBUGGER_HOST") or host, port), **options)
        return _address

    debugpy.listen = narrowed  # type: ignore[attr-defined]


@contextlib.contextmanager
def _waiting(job: Path) -> Iterator[None]:
    """Ray enters this context while it waits for a debugger, and leaves it when one is attached."""
    waits = job / "state" / "breakpoints" / f"{job_report.process()}-{threading.get_ident()}.json"
    attached = waits.with_suffix(".attached.json")
    with contextlib.ExitStack() as record:
        with suppress(Exception):  # without its file, the thread waits all the same
            waits.parent.mkdir(parents=True, exist_ok=True)
            stream = record.enter_context(waits.with_suffix(".young").open("w", encoding="utf-8"))
            since, (host, port) = datetime.now(timezone.utc).isoformat(timespec="seconds"), _address or ("", 0)
            who = {"task": ray_private.process_title(), "node": os.environ.get("VERL_REGRESS_NODE"), "pid": os.getpid()}
            content = {"since": since, **who, "host": host, "port": port, **_where()}
            print(json.dumps(content), file=stream, flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
            Path(stream.name).replace(waits)
            for file in (waits, attached):
                record.callback(_remove, file)
        yield
        with suppress(OSError):
            waits.replace(attached)
        kept = record.pop_all()

    def until_detached() -> None:
        with kept:
            while sys.modules["debugpy"].is_client_connected():
                time.sleep(_LOOK_EVERY)

    watcher = threading.Thread(target=until_detached, name="verl-regress-debugger", daemon=True)
    # The debugger must not stop the thread that watches it: what pydevd 3.4 asks its own threads (debugpy 1.8).
    watcher.pydev_do_not_trace = True  # type: ignore[attr-defined]
    watcher.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    watcher.start()


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


def _where() -> dict[str, Any]:
    """File, line and function of the last frame that is neither Ray's nor ours; after an exception, where that was raised."""
    ray = str(Path(sys.modules["ray"].__file__ or "").parent) + os.sep
    frames = traceback.extract_stack()
    is_post_mortem = any(one.name == ray_private.POST_MORTEM and one.filename.startswith(ray) for one in frames)
    error = sys.exc_info()[1] if is_post_mortem else None
    if error is not None:
        frames += traceback.extract_tb(error.__traceback__)
    ours = (ray, __file__, str(ray_private.__file__), contextlib.__file__)
    outside = [(one.filename, one.lineno, one.name) for one in frames if not one.filename.startswith(ours)]
    file, line, function = outside[-1] if outside else ("", 0, "")
    return {"file": file, "line": line, "function": function, "exception": type(error).__name__ if error else None}
