"""Hashes of weights, of a whole model and of the shards that one rank trains; reports how each model's change while it trains.

Touches ``verl.workers.engine.fsdp.transformer_impl.FSDPEngine.optimizer_step``, read in verl 0.7.1, 0.8.0, 0.9.1
and main at 1dda039b: the one method in which actor, critic and SFT model take a step.
"""

import hashlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from verl_rehearsal import report
from verl_rehearsal.symbols import require

if TYPE_CHECKING:
    import torch


def sha256_of(weights: "Mapping[str, torch.Tensor]") -> str:
    """Return the hex sha256 over name, shape and float32 bytes of every tensor, in name order.

    Tensors of a narrower type are widened first, which is exact: a bfloat16 actor and the float32 rollout that loaded
    it have the same hash.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name].detach().cpu().float().contiguous()
        digest.update(f"{name} {tuple(values.shape)}\n".encode())
        digest.update(values.numpy().data)
    return digest.hexdigest()


def sha256_of_shards(model: "torch.nn.Module") -> str:
    """Return the same hash over this rank's own part of every parameter; FSDP2 keeps it in a DTensor."""
    return sha256_of({name: getattr(value, "_local_tensor", value) for name, value in model.named_parameters()})


def apply(module: ModuleType) -> None:
    """Wrap ``optimizer_step``; ``module`` is ``verl.workers.engine.fsdp.transformer_impl``."""
    require(module, "FSDPEngine.optimizer_step", hook="weights")
    optimizer_step = module.FSDPEngine.optimizer_step
    seen: dict[str, list[str]] = {}

    def step_and_report(engine: Any) -> Any:
        model = "critic" if "Value" in type(engine).__name__ else "actor"
        if model not in seen:  # before the first step: a job of one step must change them, too
            seen[model] = [sha256_of_shards(engine.module)]
        grad_norm = optimizer_step(engine)
        seen[model].append(sha256_of_shards(engine.module))
        counted = {
            name: {"optimizer_steps": len(hashes) - 1, "distinct": len(set(hashes)) - 1}
            for name, hashes in seen.items()
        }
        report.write("trained_weights", {"models": counted})
        return grad_norm

    module.FSDPEngine.optimizer_step = step_and_report
