"""Keeps verl's garbage collections short.

Hooks the import of ``verl.workers.engine_workers``, because by then a training worker has loaded nearly all its code,
and touches no symbol of verl. ``verl.workers.engine.fsdp.transformer_impl.FSDPEngine.to`` and
``verl.utils.memory_utils.aggressive_empty_cache``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b, call
``gc.collect()`` many times a step. Each call walks every object of torch, transformers and verl: with a tiny model that
took two thirds of a training worker's time.
"""

import gc
from types import ModuleType


def apply(_module: ModuleType) -> None:
    """Exempt what has been loaded so far from garbage collection."""
    gc.collect()
    gc.freeze()
