"""Tells verl from 0.9.1 on that its platform is the CPU.

Touches ``verl.plugin.platform.platform_manager.set_platform`` and implements ``PlatformBase``, both read in verl 0.9.1
and main at 1dda039b. Without an accelerator verl falls back to its platform "nvidia", whose calls need CUDA. Placement
groups request the platform's resource from Ray, whatever ``trainer.device`` says: here the workers' resource ``cpu``.
"""

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

from verl_rehearsal.symbols import require, unknown_verl

NAME = "cpu"


def apply(module: ModuleType) -> None:
    """Make "cpu" the platform of this process; ``module`` is ``verl.plugin.platform.platform_manager``."""
    require(module, "set_platform", hook="cpu_platform", parameters=("platform",))
    base = import_module("verl.plugin.platform.platform_base")
    require(base, "PlatformBase", hook="cpu_platform")
    platform_class = type("PlatformCPU", (_PlatformCPU, base.PlatformBase), {})
    unanswered = sorted(platform_class.__abstractmethods__)  # type: ignore[attr-defined]
    if unanswered:
        raise unknown_verl(f"no PlatformBase without {', '.join(unanswered)}, as", "cpu_platform")
    module.set_platform(platform_class())


class _PlatformCPU:
    """The methods of ``PlatformBase`` for a machine without an accelerator."""

    device_name = NAME
    vendor_name = NAME

    @property
    def device_module(self) -> ModuleType:
        return import_module("torch.cpu")

    def is_available(self) -> bool:
        return False  # no accelerator is

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> str:
        return NAME

    def device_count(self) -> int:
        return 0

    def set_device(self, device_index: int) -> None:
        return

    def synchronize(self, device_index: int | None = None) -> None:
        return

    def manual_seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        return

    def empty_cache(self) -> None:
        return

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def profiler_start(self) -> None:
        return

    def profiler_stop(self) -> None:
        return

    def ray_resource_name(self) -> str:
        return NAME

    def ray_noset_envvars(self) -> list[str]:
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {}  # the placement group's bundle already reserves it

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
