"""What hooks use of Ray that Ray does not document. Read in Ray 2.60.

verl_regress/cluster/ray_internals.py has what the helper uses: check a new release of Ray in both.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from on_import import on_import

POST_MORTEM = "_post_mortem"  # the function of ray.util.debugpy that waits after an exception


def is_worker() -> bool:
    """Did Ray start this process? Not a job's driver."""
    return "RAY_RAYLET_PID" in os.environ


def on_supervisor(then: Callable[[], None]) -> None:
    """Call `then` if this process becomes a job's supervisor, which passes its environment on to a shell."""
    on_import("ray.dashboard.modules.job.job_supervisor", lambda _: then())


def on_log(then: Callable[[Any], None]) -> None:
    """Call `then` with each file that Ray opens on the node for what this process prints."""

    def change(utils: ModuleType) -> None:
        open_log: Callable[..., Any] = utils.open_log

        def opened(*args: Any, **kwargs: Any) -> Any:
            stream = open_log(*args, **kwargs)
            then(stream)
            return stream

        utils.open_log = opened  # type: ignore[attr-defined]

    on_import("ray._private.utils", change)


def around_pause(waiting: Callable[[], AbstractContextManager[None]]) -> None:
    """Be in `waiting` while Ray waits for a debugger; it leaves it when one is attached."""

    def change(worker: ModuleType) -> None:
        paused: Callable[[Any], AbstractContextManager[None]] = worker.Worker.worker_paused_by_debugger

        @contextmanager
        def recorded(self: Any) -> Iterator[None]:
            with waiting(), paused(self):
                yield

        worker.Worker.worker_paused_by_debugger = recorded

    on_import("ray._private.worker", change)


def on_task_error(then: Callable[[BaseException], None]) -> None:
    """Call `then` with each exception that ends a task of Ray in this process: Ray makes a RayTaskError of it."""

    def change(exceptions: ModuleType) -> None:
        begin: Callable[..., None] = exceptions.RayTaskError.__init__

        def recorded(self: Any, function_name: str, traceback_str: str, cause: Any, *more: Any, **options: Any) -> None:
            begin(self, function_name, traceback_str, cause, *more, **options)
            if getattr(cause, "__traceback__", None) is not None:  # one that came from another process has none
                then(cause)

        exceptions.RayTaskError.__init__ = recorded

    on_import("ray.exceptions", change)


def process_title() -> str:
    """What Ray calls this process, such as ``ray::AgentLoopWorker.generate_sequences``."""
    return str(sys.modules["ray._raylet"].getproctitle())
