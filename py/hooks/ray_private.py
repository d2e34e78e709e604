"""What hooks use of Ray 2.60 that Ray does not document; verl_regress/cluster/ray_internals.py has what the helper uses."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from on_import import on_import

WORKER_VARIABLE = "RAY_RAYLET_PID"  # is in the environment of each process that Ray started, so not of a job's driver
SUPERVISOR = "ray.dashboard.modules.job.job_supervisor"  # the module of the process that starts the driver with a shell
POST_MORTEM = "_post_mortem"  # the function of ray.util.debugpy that waits after an exception


def on_log(then: Callable[[Any], None]) -> None:
    """Call `then` with each file that Ray opens on the node for what this process prints."""

    def opened(open_log: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        stream = open_log(*args, **kwargs)
        then(stream)
        return stream

    _wrap("ray._private.utils", None, "open_log", opened)


def around_pause(waiting: Callable[[], AbstractContextManager[None]]) -> None:
    """Be in `waiting` while Ray waits for a debugger; it leaves it when one is attached."""

    @contextmanager
    def recorded(paused: Callable[[Any], AbstractContextManager[None]], worker: Any) -> Iterator[None]:
        with waiting(), paused(worker):
            yield

    _wrap("ray._private.worker", "Worker", "worker_paused_by_debugger", recorded)


def on_task_error(then: Callable[[BaseException], None]) -> None:
    """Call `then` with each exception that ends a task of Ray in this process: Ray makes a RayTaskError of it."""

    def recorded(begin: Callable[..., None], *args: Any, **named: Any) -> None:
        begin(*args, **named)
        cause = named["cause"] if "cause" in named else args[3]  # after self, function_name and traceback_str
        if getattr(cause, "__traceback__", None) is not None:  # one that came from another process has none
            then(cause)

    _wrap("ray.exceptions", "RayTaskError", "__init__", recorded)


def _wrap(module: str, owner: str | None, name: str, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper`, which gets what it replaces as its first argument, in the place of a function, or of the method of a class."""

    def change(found: ModuleType) -> None:
        place = getattr(found, owner) if owner else found
        original = getattr(place, name)
        setattr(place, name, lambda *args, **options: wrapper(original, *args, **options))

    on_import(module, change)


def process_title() -> str:
    """What Ray calls this process, such as ``ray::AgentLoopWorker.generate_sequences``."""
    return str(sys.modules["ray._raylet"].getproctitle())
