"""Records the exceptions that end the driver, or a task of Ray in any process of the job, at the moment they are raised.

They go into ``state/reports/exceptions-<node>-<pid>.json``, the newest last. Each has its `chain`, the root first: `frames` has file
and line, the deepest last, `link` how the one before led to it (cause, context or none); with `came_from_ray`, type and message come from
the exception in another process. Hydra lets a driver's exception through, because HYDRA_FULL_ERROR is set in every job.
"""

import os
import sys
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

import job_report
import job_secrets
import proof
import ray_private
from redaction import Redactor

_MOST = 20  # a reward function may fail for each answer of a run that goes on
_MOST_LINES = 200
_recorded: list[dict[str, Any]] = []


def install() -> None:
    """Watch the tasks of this process, and the process itself if it is the driver; does nothing outside a job."""
    if job_report.job_dir() is not None:
        ray_private.on_task_error(lambda error: _record(error, is_driver=False))
        if proof.VARIABLE in os.environ:
            sys.excepthook = _at_the_end


def _at_the_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _record(error, is_driver=True)
    sys.__excepthook__(kind, error, trace)


def _record(error: BaseException, *, is_driver: bool) -> None:
    """Never raises: the exception itself matters more."""
    with suppress(Exception):
        # Each text as it is: its lines, and what JSON escapes, no longer have a secret of several lines, or of a repr.
        redact = Redactor(job_secrets.held).text
        chain = [{**one, "message": redact(one["message"])} for one in _chain(error)]
        lines = redact("".join(traceback.format_exception(error))).splitlines()[-_MOST_LINES:]
        messages = [one["message"] for one in chain]
        others = [each for each in _recorded if [one["message"] for one in each["chain"]] != messages]
        others.append({"time": time.time(), "is_driver": is_driver, "chain": chain, "lines": lines})
        _recorded[:] = others[-_MOST:]
        job_report.write("exceptions", {"exceptions": _recorded})


def _chain(error: BaseException | None) -> list[dict[str, Any]]:
    chain: list[dict[str, Any]] = []
    while error is not None and len(chain) < _MOST:
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        link = "cause" if error.__cause__ else "context" if earlier else None
        chain.insert(0, {**_described(error), "link": link})
        error = earlier
    return chain


def _described(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    ray: Any = sys.modules.get("ray.exceptions")
    came_from_ray = ray is not None and isinstance(error, ray.RayTaskError)
    one: BaseException = error.cause if came_from_ray else error  # type: ignore[attr-defined]
    kind, message, places = type(one), str(one), [(frame.filename, frame.lineno) for frame in frames]
    if not message and frames and not came_from_ray:
        message = frames[-1].line or ""  # the code that raised it
    if isinstance(one, SyntaxError):
        message, places = one.msg, [*places, (one.filename or "", one.lineno)]
    package = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return {"type": package + kind.__qualname__, "message": message, "frames": places, "came_from_ray": came_from_ray}
