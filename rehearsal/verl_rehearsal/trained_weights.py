"""Reports how each model's weights change while it trains.

Touches ``verl.workers.engine.fsdp.transformer_impl.FSDPEngine.optimizer_step``, read in verl 0.7.1, 0.8.0, 0.9.1
and main at 1dda039b: the one method in which actor, critic and SFT model take a step.
"""

from types import ModuleType
from typing import Any

from verl_rehearsal import report
from verl_rehearsal.symbols import require


def apply(module: ModuleType) -> None:
    """Wrap ``optimizer_step``; ``module`` is ``verl.workers.engine.fsdp.transformer_impl``."""
    require(module, "FSDPEngine.optimizer_step", hook="trained_weights")
    optimizer_step = module.FSDPEngine.optimizer_step
    taken: dict[str, list[str]] = {}

    def step_and_report(engine: Any) -> Any:
        from verl_rehearsal.weights import sha256_of_shards  # loads torch

        model = "critic" if "Value" in type(engine).__name__ else "actor"
        if model not in taken:
            taken[model] = [
                sha256_of_shards(engine.module)
            ]  # before the first step: a job of one step must change them, too
        grad_norm = optimizer_step(engine)
        taken[model].append(sha256_of_shards(engine.module))
        report.write(
            "trained_weights",
            {
                "models": {
                    name: {"optimizer_steps": len(hashes) - 1, "distinct": len(set(hashes)) - 1}
                    for name, hashes in taken.items()
                }
            },
        )
        return grad_norm

    module.FSDPEngine.optimizer_step = step_and_report
