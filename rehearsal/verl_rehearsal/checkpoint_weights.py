"""Reports which weights each checkpoint was saved with, and which ones a trainer has right after it loaded one.

Touches ``verl.workers.engine.fsdp.transformer_impl.FSDPEngine.save_checkpoint`` and ``load_checkpoint``, read in verl
0.7.1, 0.8.0 and 0.9.1: the methods through which actor, critic and SFT model all come. Both times the engine's own
parameters are hashed, not the files: a checkpoint that was written or read wrongly gives two hashes.

Only rehearsals have it: to copy the weights of a large model from its GPUs and hash them would take minutes.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from verl_rehearsal import report
from verl_rehearsal.symbols import require
from verl_rehearsal.weights import sha256_of_shards


def apply(module: ModuleType) -> None:
    """Wrap both methods; ``module`` is ``verl.workers.engine.fsdp.transformer_impl``."""
    hashes: dict[str, dict[str, str]] = {"saved": {}, "loaded": {}}
    for method, kind in (("save_checkpoint", "saved"), ("load_checkpoint", "loaded")):
        require(module, f"FSDPEngine.{method}", "local_path", hook="checkpoint_weights")
        setattr(module.FSDPEngine, method, _reporting(getattr(module.FSDPEngine, method), kind, hashes))


def _reporting(method: Callable[..., Any], kind: str, hashes: dict[str, dict[str, str]]) -> Callable[..., Any]:
    def call_and_report(engine: Any, local_path: str | None, *arguments: Any, **named: Any) -> Any:
        answer = method(engine, local_path, *arguments, **named)
        if local_path is not None:  # verl asks for None if there is nothing to load
            hashes[kind][f"{Path(local_path).absolute()} rank {engine.rank}"] = sha256_of_shards(engine.module)
            report.write("checkpoint_weights", hashes)
        return answer

    return call_and_report
