"""Runs two CPU-bound functions at once: one in a child process, the other here.

Not with concurrent.futures: its pool takes 5 ms longer, its child prints a traceback at Ctrl-C, and it does not say how
a child died.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

from verl_regress.base.errors import RegressError

_Result = TypeVar("_Result")


def in_child(work: Callable[[], _Result], meanwhile: Callable[[], object]) -> _Result:
    """Return or raise the result of `work`, run in a forked child while `meanwhile` runs here; both are over on return.

    Result and error come through a pipe, so they must be picklable. Raises RegressError if the child died without
    either.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, writer)
    os.close(writer)
    try:
        meanwhile()
        with open(reader, "rb", closefd=False) as pipe:  # a descriptor
            said = pipe.read()
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
    if not said:
        raise RegressError(f"The process that plans the job died (wait status {status}): run it again.")
    result, error = pickle.loads(said)  # written by our own child
    if error is not None:
        raise error
    answer: _Result = result
    return answer


def _answer(work: Callable[[], _Result], writer: int) -> None:
    """Run `work` in the child, write its result, and exit at once, so that nothing of the parent's is cleaned up twice."""
    gc.disable()  # it lives for half a second
    status = 1
    try:
        try:
            said = pickle.dumps((work(), None))
        except Exception as error:  # the parent raises it
            said = pickle.dumps((None, error))
        with open(writer, "wb") as pipe:  # a descriptor
            pipe.write(said)
        status = 0
    finally:
        os._exit(status)
