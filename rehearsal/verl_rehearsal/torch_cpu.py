"""Gives ``torch.cpu`` the functions that verl calls on whatever ``verl.utils.device.get_torch_device()`` returns.

Touches ``torch.cpu``, and only where torch itself has no such function. The callers were read in verl 0.7.1 to 0.9.1
and main at 1dda039b: memory logging (``verl.utils.profiler.performance``, ``verl.utils.memory_utils``), random states
(``verl.utils.checkpoint``, ``verl.workers``) and cache emptying. There is no accelerator memory: all amounts are 0 bytes.
"""

from collections.abc import Callable
from types import ModuleType

AMOUNTS = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
ACTIONS = ("empty_cache", "ipc_collect", "reset_peak_memory_stats")


def apply(module: ModuleType) -> None:
    """Add what is missing; ``module`` is ``torch``."""
    stand_ins: dict[str, Callable[..., object]] = {
        **dict.fromkeys(AMOUNTS, lambda *_args, **_kwargs: 0),
        **dict.fromkeys(ACTIONS, lambda *_args, **_kwargs: None),
        "mem_get_info": lambda *_args, **_kwargs: (0, 0),
        "get_device_name": lambda *_args, **_kwargs: "cpu",
        "manual_seed": module.manual_seed,
        "manual_seed_all": module.manual_seed,
        "get_rng_state": lambda *_args, **_kwargs: module.get_rng_state(),
        "set_rng_state": lambda state, *_args, **_kwargs: module.set_rng_state(state),
    }
    for name, function in stand_ins.items():
        if not hasattr(module.cpu, name):
            setattr(module.cpu, name, function)
