"""Gives each generation request its own seed, so that two runs of the same code draw the same samples.

Touches ``verl.experimental.agent_loop.agent_loop.AgentLoopWorker._run_agent_loop``, read in verl 0.7.1, 0.8.0, 0.9.1
and main at 1dda039b. Only this method knows which sample a request is for: step, dataset index, n-th rollout of that
prompt, validation or not. A seed made of these does not depend on the replica that serves the request. It travels as
``seed`` in the sampling parameters, as vLLM calls it. The run's own seed is ``data.seed`` (0 when null).

verl's V1 trainer (0.9.1) gives all rollouts of a prompt the same trajectory, n-th rollout 0, and counts them in
``session_id``, so the seed uses that instead. With one seed for a whole group, its answers would be equal, their
advantages zero, and nothing would be trained.

The n-th rollout is counted per agent loop worker: with ``agent.num_workers`` above 1 a prompt's rollouts must not be
split between workers, or they would share seeds.
"""

import hashlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from verl_rehearsal.symbols import require

# Engines with this word among their sampling parameters; SGLang refuses it.
_TAKE_SEED = ("vllm", "hf_cpu")


def install() -> None:
    """Do this alone, without the rest of a rehearsal: with ``full_determinism`` verl 0.9.1 gives all vLLM requests of a replica one seed,
    but takes one that is in the sampling parameters (``vllm_async_server.py``).
    """
    import wrapt  # Ray's own dependency smart_open brings it

    wrapt.register_post_import_hook(apply, "verl.experimental.agent_loop.agent_loop")


def apply(module: ModuleType) -> None:
    """Replace ``_run_agent_loop``; ``module`` is ``verl.experimental.agent_loop.agent_loop``."""
    require(module, "AgentLoopWorker._run_agent_loop", "sampling_params", "trajectory", hook="request_seed")
    run_agent_loop = module.AgentLoopWorker._run_agent_loop

    # A plain function: Ray unwraps the methods of an actor class, and would call the original behind ``__wrapped__``.
    async def run_with_seed(
        worker: Any, sampling_params: Mapping[str, object], trajectory: Mapping[str, object], **rest: object
    ) -> object:
        if worker.config.actor_rollout_ref.rollout.name not in _TAKE_SEED:
            return await run_agent_loop(worker, sampling_params, trajectory, **rest)
        rollout_n = rest.get("session_id", trajectory["rollout_n"])
        seed = request_seed(worker.config.data.get("seed") or 0, {**trajectory, "rollout_n": rollout_n})
        return await run_agent_loop(worker, {**sampling_params, "seed": seed}, trajectory, **rest)

    module.AgentLoopWorker._run_agent_loop = run_with_seed


def request_seed(run_seed: int, trajectory: Mapping[str, object]) -> int:
    """Return the request's seed, 0 <= seed < 2**63, from the run's seed and verl's trajectory info."""
    identity = [run_seed, *(trajectory[key] for key in ("step", "sample_index", "rollout_n", "validate"))]
    digest = hashlib.sha256(repr([str(part) for part in identity]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
