"""Names gloo as the collective backend.

Touches ``verl.utils.device.get_nccl_backend``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b: without an NPU it
always returns "nccl", which a torch without CUDA cannot initialise. The module's other functions already work on CPUs,
because ``torch.cpu.current_device()`` returns "cpu".
"""

from types import ModuleType

from verl_rehearsal.symbols import require


def apply(module: ModuleType) -> None:
    """Replace ``get_nccl_backend``; ``module`` is ``verl.utils.device``."""
    require(module, "get_nccl_backend", hook="device")
    module.get_nccl_backend = lambda: "gloo"  # type: ignore[attr-defined]
