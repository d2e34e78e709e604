"""What makes a run worth nothing: each condition, and a run that only looks like it."""

import pytest

from verl_regress.jobs import conditions
from verl_regress.jobs.progress import Step

FACTS = {"max_prompt_length": 64, "tools": "actor_rollout_ref.rollout.multi_turn.tool_config_path"}


def steps(*rows):
    return [Step(number, row) for number, row in enumerate(rows, start=1)]


@pytest.mark.parametrize(
    ("name", "bad", "good", "words"),
    [
        ("nan", {"actor/pg_loss": None}, {"actor/pg_loss": 0.5}, "1 metric is not finite since step 1"),
        ("nan", {"train/loss": None}, {"train/loss": 0.5}, "1 metric is not finite since step 1"),
        (
            "zero_grad",
            {"actor/pg_loss": 0.0, "actor/grad_norm": 0.0},
            {"actor/pg_loss": 0.0, "actor/grad_norm": 0.1},
            "loss and gradient are 0 at all 2 steps",
        ),
        (
            "zero_grad",
            {"train/loss": 0.0, "train/grad_norm": 0.0},
            {"train/loss": 0.1, "train/grad_norm": 0.0},
            "loss and gradient are 0 at all 2 steps",
        ),
        (
            "zero_reward",
            {"critic/score/min": 0.0, "critic/score/max": 0.0},
            {"critic/score/min": -1.0, "critic/score/max": 1.0},
            "every reward is 0 at all 2 steps",
        ),
        (
            "cut_prompts",
            {"prompt_length/min": 64.0, "prompt_length/clip_ratio": 1.0},
            {"prompt_length/min": 50.0, "prompt_length/clip_ratio": 1.0},  # prompts of equal length
            "every prompt is cut to data.max_prompt_length=64 at all 2 steps",
        ),
        (
            "no_tool_calls",
            {"num_turns/max": 2.0},
            {"num_turns/max": 4.0},
            "no answer calls a tool at all 2 steps, although actor_rollout_ref.rollout.multi_turn.tool_config_path is set",
        ),
    ],
)
def test_a_condition_holds_to_the_end_or_at_every_step(name, bad, good, words):
    assert conditions.of_steps(steps(bad, bad), FACTS) == {name: words}
    assert conditions.of_steps(steps(bad, good), FACTS) == {}
    assert conditions.of_steps(steps(good, good), FACTS) == {}
    assert conditions.of_steps(steps({"timing_s/step": 1.0}), FACTS) == {}


def test_what_the_plan_does_not_say_is_no_condition():
    assert conditions.of_steps(steps({"num_turns/max": 2.0, "prompt_length/min": 64.0}), {}) == {}
    assert conditions.of_steps([], FACTS) == {}
