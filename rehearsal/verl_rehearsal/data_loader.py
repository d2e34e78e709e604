"""Loads data in the process that asks for it.

Touches ``torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader.__init__``, read in torchdata 0.11.
verl's SFT trainer (0.7.1 to 0.9.1 and main at 1dda039b) asks for 8 worker processes, whatever its config says. They are
forked from a driver in which Ray's threads hold locks: on a busy machine one of them never came up, and the job waited
for it forever. A rehearsal's rows load in no time.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import wrapt


def apply(module: ModuleType) -> None:
    """Make every loader run without workers; ``module`` is ``torchdata.stateful_dataloader.stateful_dataloader``."""
    wrapt.wrap_function_wrapper(module, "StatefulDataLoader.__init__", _without_workers)


def _without_workers(
    init: Callable[..., None], _loader: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    init(*args, **{**kwargs, "num_workers": 0})
