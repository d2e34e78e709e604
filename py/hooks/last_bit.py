"""Changes the last bit of each gradient right before each update: jobs that `make verify` submits to measure rounding noise.

The bit is bfloat16's last one, because verl computes gradients in bfloat16 where it adds them up in float32.
"""

from typing import Any

from on_import import on_import


def install() -> None:
    """Watch for torch's import."""
    on_import("torch.optim.optimizer", lambda module: module.register_optimizer_step_pre_hook(_flip))


def _flip(optimizer: Any, *_arguments: object) -> None:
    import torch

    # The integers of the same size, and the bit to change in them.
    bits = {torch.float32: (torch.int32, 1 << 16), torch.bfloat16: (torch.int16, 1), torch.float16: (torch.int16, 1)}
    for weight in (each for group in optimizer.param_groups for each in group["params"]):
        gradient = weight.grad
        if hasattr(gradient, "to_local"):  # FSDP2: the part of this process
            gradient = gradient.to_local()
        if gradient is not None and gradient.dtype in bits:
            integers, bit = bits[gradient.dtype]
            flipped = (gradient != 0).to(integers).mul_(bit)  # a sum of nothing is 0 in any order
            gradient.view(integers).bitwise_xor_(flipped)
