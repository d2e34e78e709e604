"""Every process of a job reports which verl modules it has loaded, and the sha256 of each module's file.

What a report proves: each module named `verl` or `verl.…` (and the main module, if that is one of verl's) was found at that path, where
the source had those bytes when the process loaded it, or up to a second later; Python had checked that its bytecode is of that source.
A thread writes it, because Ray ends actors with SIGKILL. Every Ray actor reports, so one without a report has proved nothing. If the thread
fails, the report says so (`died`), because it may lack modules.
"""

import atexit
import functools
import hashlib
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import job_report
from on_import import on_import

_LOOK_EVERY = 0.2  # seconds


def install() -> None:
    """Report as soon as Ray or verl is imported; does nothing outside a job."""
    if job_report.job_dir() is not None:
        on_import("ray", lambda _: _start())
        on_import("verl", lambda _: _start())


@functools.cache
def _start() -> None:
    reporter = Reporter()

    def keep_reporting() -> None:
        try:
            while True:
                reporter.report()
                time.sleep(_LOOK_EVERY)
        except Exception as error:
            reporter.died(error)
            raise

    atexit.register(reporter.report)
    threading.Thread(target=keep_reporting, name="verl-regress-identity", daemon=True).start()


class Reporter:
    """Keeps this process's identity report up to date."""

    def __init__(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._files: dict[str, dict[str, str | None]] = {}
        self._ids: dict[str, str | None] = {"job_id": None, "actor_id": None}
        self._reported: dict[str, object] | None = None
        self._died: str | None = None

    def died(self, error: Exception) -> None:
        """Report that nobody looks for further modules, and why."""
        with self._lock:
            self._died = f"{type(error).__name__}: {error}"
            self._write()

    def report(self) -> None:
        """Write the report, unless it has not changed or this process is a fork of the one it describes."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            for name, module in _imported().items():
                real_name = str(getattr(module.__spec__, "name", name)) if name == "__main__" else name
                if real_name not in self._files and f"{real_name}.".startswith("verl."):
                    self._files[real_name] = _file_of(module)
            self._ids |= _ids()
            self._write()

    def _write(self) -> None:
        command, modules = " ".join(sys.orig_argv)[:200], dict(sorted(self._files.items()))
        report: dict[str, object] = {"command": command, **self._ids, "modules": modules}
        report |= {"died": self._died} if self._died else {}
        if (self._files or self._ids["actor_id"]) and report != self._reported:
            job_report.write("identity", report)
            self._reported = report


def _imported() -> dict[str, ModuleType]:
    """A copy of sys.modules. Another thread may import meanwhile, which a loop over it does not survive, and rarely a copy."""
    while True:
        with suppress(RuntimeError):
            return sys.modules.copy()


def _file_of(module: ModuleType) -> dict[str, str | None]:
    """The module's file and its sha256; each is None if there is none."""
    file = getattr(getattr(module, "__spec__", None), "origin", None) or getattr(module, "__file__", None)
    with suppress(OSError):
        return {"file": file, "sha256": hashlib.sha256(Path(file or "").read_bytes()).hexdigest()}
    return {"file": file, "sha256": None}


def _ids() -> dict[str, str]:
    """The hex ids by which Ray knows this process; none before Ray is initialised or after its shutdown."""
    ray: Any = sys.modules.get("ray")
    if not getattr(ray, "is_initialized", bool)():  # missing while another thread is importing Ray
        return {}
    context = ray.get_runtime_context()
    ids = {"job_id": context.get_job_id(), "actor_id": context.get_actor_id()}
    return {name: value for name, value in ids.items() if value is not None}
