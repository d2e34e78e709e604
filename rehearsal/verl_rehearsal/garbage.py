"""Keeps garbage collections few and short.

``collect_seldom`` acts on the whole process: to import torch, transformers and verl takes 5 s of a core in each of a
job's twelve processes, and with Python's default threshold a seventh of that goes into collections that free nothing. At its
end Python 3.11 collects several times while it takes all modules apart: a second, in which the job waits for its driver. So what
is still referred to then is not finalised, which Python does not promise either; files that are still open are flushed.

``apply`` hooks the import of ``verl.workers.engine_workers``, because by then a training worker has loaded nearly all its code,
and touches no symbol of verl. ``verl.workers.engine.fsdp.transformer_impl.FSDPEngine.to`` and
``verl.utils.memory_utils.aggressive_empty_cache``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b, call
``gc.collect()`` many times a step. Each call walks every object of torch, transformers and verl: with a tiny model that
took two thirds of a training worker's time.
"""

import atexit
import contextlib
import gc
import io
from types import ModuleType

_NEW_OBJECTS = 20_000  # before a collection of the youngest generation; Python's default is 700


def collect_seldom() -> None:
    """Let this process allocate more objects between two collections, and collect only once at its end."""
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(_end)


def apply(_module: ModuleType) -> None:
    """Free what nothing refers to any more, and never walk the rest again."""
    gc.collect()
    gc.freeze()


def _end() -> None:
    tracked = gc.get_objects()
    for kind in (io.TextIOWrapper, io.BufferedWriter):  # texts first, then the bytes below them
        for file in tracked:
            if issubclass(type(file), kind):  # isinstance asks each object for its __class__, of which torch warns
                with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed, or detached
                    file.flush()
    del tracked
    gc.collect()
    gc.freeze()
