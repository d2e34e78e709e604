"""Registers verl's FSDP engines for the device "cpu".

Touches ``verl.workers.engine.base.EngineRegistry.register``, read in verl 0.7.1 to 0.9.1 (from which on it also takes a
vendor) and main at 1dda039b. verl registers its fsdp/fsdp2 engines for ["cuda", "npu"] only, though FSDP2 runs on CPUs,
and then fails with "Unknown device: cpu".
"""

from collections.abc import Callable
from types import ModuleType

from verl_rehearsal.symbols import require

FSDP_BACKENDS = {"fsdp", "fsdp2"}


def apply(module: ModuleType) -> None:
    """Register every FSDP engine for "cpu" too; ``module`` is ``verl.workers.engine.base``."""
    require(module, "EngineRegistry.register", hook="engine", parameters=("model_type", "backend", "device"))
    register = module.EngineRegistry.register

    def register_with_cpu(
        model_type: str, backend: list[str] | str, device: list[str] | str = "cuda", **vendor: object
    ) -> Callable[[type], type]:
        backends = {backend} if isinstance(backend, str) else set(backend)
        devices = [device] if isinstance(device, str) else list(device)
        added = ["cpu"] if backends & FSDP_BACKENDS and "cpu" not in devices else []
        return register(model_type, backend, devices + added, **vendor)  # type: ignore[no-any-return]

    module.EngineRegistry.register = register_with_cpu
