"""Tells verl from 0.9.1 on that its platform is the CPU.

Touches ``verl.plugin.platform.platform_manager.set_platform`` and implements ``PlatformBase``, both read in verl 0.9.1
and main at 1dda039b. Without an accelerator verl falls back to its platform "nvidia", whose calls need CUDA. Placement
groups request the platform's resource from Ray, whatever ``trainer.device`` says: here the workers' resource ``cpu``.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

from verl_rehearsal.symbols import require, unknown_verl

NAME = "cpu"
# What the methods of PlatformBase return for a machine without an accelerator.
_ANSWERS = {
    "is_available": False,  # no accelerator is
    "is_platform_available": True,
    "current_device": NAME,
    "device_count": 0,
    "set_device": None,
    "synchronize": None,
    "set_allocator_settings": None,
    "empty_cache": None,
    "get_device_capability": (None, None),
    "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES",
    "nvtx_range": nullcontext(),
    "profiler_start": None,
    "profiler_stop": None,
    "ray_resource_name": NAME,
    "ray_noset_envvars": [],
    "ray_resource_options": {},  # the placement group's bundle already reserves it
    "is_ipc_supported": False,
    "cudart": None,
}


def apply(module: ModuleType) -> None:
    """Make "cpu" the platform of this process; ``module`` is ``verl.plugin.platform.platform_manager``."""
    require(module, "set_platform", "platform", hook="cpu_platform")
    base = import_module("verl.plugin.platform.platform_base")
    require(base, "PlatformBase", hook="cpu_platform")
    members: dict[str, Any] = {name: _returning(answer) for name, answer in _ANSWERS.items()}
    members |= {"device_name": NAME, "vendor_name": NAME, "manual_seed": _manual_seed, "manual_seed_all": _manual_seed}
    members["device_module"] = property(lambda _self: import_module("torch.cpu"))
    platform_class = type("PlatformCPU", (base.PlatformBase,), members)
    unanswered = sorted(platform_class.__abstractmethods__)  # type: ignore[attr-defined]
    if unanswered:
        raise unknown_verl(f"no PlatformBase without {', '.join(unanswered)}, as", "cpu_platform")
    module.set_platform(platform_class())


def _returning(answer: object) -> Callable[..., object]:
    return lambda *_args, **_kwargs: copy.copy(answer)


def _manual_seed(_self: object, seed: int) -> None:
    import torch

    torch.manual_seed(seed)
