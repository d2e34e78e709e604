"""What makes a run worth nothing although its trainer ended well: one table of conditions on its training steps.

The metrics are verl's own; read in 0.7.1 to 0.9.1 (trainer/ppo/metric_utils.py, trainer/sft_trainer_ray.py, workers/engine_workers.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_regress.base.layout import JobDir
from verl_regress.jobs import progress
from verl_regress.jobs.progress import Step

Steps = Sequence[Step]
Facts = Mapping[str, Any]
"""What the plan of the job says about its prompts and tools: `sampling` of config/resolved.json."""

_LEARNING = ("actor/", "critic/", "train/")  # begin the names of losses, gradients and rewards
_LOSSES = ("actor/pg_loss", "train/loss")
_GRADIENTS = ("actor/grad_norm", "train/grad_norm")


def _is_always(steps: Steps, names: Sequence[str], value: float) -> bool:
    """Was one of these metrics recorded, and did each that was have this value at every step?"""
    found = [step.metrics[name] for step in steps for name in names if name in step.metrics]
    return bool(found) and all(each == value for each in found)


def _at_all(steps: Steps) -> str:
    return f"at all {len(steps)} steps" if len(steps) > 1 else "at its only step"


def _nan(steps: Steps, _facts: Facts) -> str | None:
    last = steps[-1].metrics
    is_bad = any(value is None for name, value in last.items() if name.startswith(_LEARNING))
    return progress.not_finite(steps) if is_bad else None


def _zero_grad(steps: Steps, _facts: Facts) -> str | None:
    is_zero = _is_always(steps, _LOSSES, 0) and _is_always(steps, _GRADIENTS, 0)
    return f"loss and gradient are 0 {_at_all(steps)}" if is_zero else None


def _zero_reward(steps: Steps, _facts: Facts) -> str | None:
    is_zero = _is_always(steps, ("critic/score/min", "critic/score/max"), 0)
    return f"every reward is 0 {_at_all(steps)}" if is_zero else None


def _cut_prompts(steps: Steps, facts: Facts) -> str | None:
    # verl's own prompt_length/clip_ratio is 1 for prompts of equal length, too.
    most = facts.get("max_prompt_length")
    is_cut = most is not None and _is_always(steps, ("prompt_length/min",), most)
    return f"every prompt is cut to data.max_prompt_length={most} {_at_all(steps)}" if is_cut else None


def _no_tool_calls(steps: Steps, facts: Facts) -> str | None:
    # A question and an answer are two turns.
    is_unused = facts.get("tools") and _is_always(steps, ("num_turns/max",), 2)
    return f"no answer calls a tool {_at_all(steps)}, although {facts['tools']} is set" if is_unused else None


CONDITIONS: Mapping[str, Callable[[Steps, Facts], str | None]] = {
    "nan": _nan,
    "zero_grad": _zero_grad,
    "zero_reward": _zero_reward,
    "cut_prompts": _cut_prompts,
    "no_tool_calls": _no_tool_calls,
}
"""By the names that FAIL_ON takes: what is wrong with these steps, of which there is at least one; None: nothing."""


def of_steps(steps: Steps, facts: Facts) -> dict[str, str]:
    """The conditions that training steps meet, each with its words."""
    found = {name: check(steps, facts) for name, check in CONDITIONS.items()} if steps else {}
    return {name: words for name, words in found.items() if words is not None}


def of_job(job: JobDir) -> dict[str, str]:
    """The conditions that the recorded steps of an attempt meet. Raises OSError and Unreadable."""
    facts = (job.read_config("resolved.json") or {}).get("sampling") or {}
    return of_steps(progress.training(progress.rows(job)), facts)
