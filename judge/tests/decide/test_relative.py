"""Runs on other devices: `--accept devices --relative 0.02`, with records of a GRPO rehearsal as if they were a GPU's and an NPU's."""

import dataclasses

import pytest
from verdict_runs import edit, recorded

from verl_verdict import command
from verl_verdict.decide import judge, relative
from verl_verdict.decide.verdicts import Word

A = ("grpo-0.9.1-v1-1", "grpo-0.9.1-v1-2")
REWARD, LOSS = "critic/rewards/mean", "actor/pg_loss"
OF_A = {
    "profile": "gpu", "devices": "8 x GPU", "nodes": "2 x CPU 64, GPU 4", "image": "verlai", "packages": "torch 2.11.0",
    "override trainer.device": None,
}  # fmt: skip
OF_B = {
    "profile": "npu", "devices": "8 x NPU", "nodes": "2 x CPU 64, NPU 4", "image": "ascend", "packages": "torch 2.10.0",
    "override trainer.device": "trainer.device=npu",
    "override actor_rollout_ref.actor.use_torch_compile": "actor_rollout_ref.actor.use_torch_compile=False",
}  # fmt: skip


def on(run, facts):
    merged = {**run.facts, **facts}
    return dataclasses.replace(run, facts={name: value for name, value in merged.items() if value is not None})


@pytest.fixture
def runs(tmp_path):
    """Runs of A on a GPU, and one of B on an NPU with a reward and a loss that are so many times A's, in every other step."""
    a = [on(run, OF_A) for run in recorded(tmp_path, *A)]
    a = [edit(edit(run, REWARD, lambda step, _: 0.5), LOSS, lambda step, _: 0.1 * step) for run in a]

    def runs(reward=1.0, loss=1.0):
        b = on(a[0], OF_B)
        b = edit(b, REWARD, lambda step, value: value * (reward if step % 2 else 1))
        return a, [edit(b, LOSS, lambda step, value: value * loss)]

    return runs


def verdict(a, b, limit=0.02, accept=("devices",)):
    return judge.case(a, b, accept=accept, relative_limit=limit)


def test_an_error_within_the_limit_is_the_same(runs):
    a, b = runs(reward=1.03, loss=0.99)  # the reward in half of the steps: 1.5 % on average
    found = verdict(a, b)
    assert (found.word, found.reason) == (
        Word.SAME,
        "the mean relative error of critic/rewards/mean, actor/pg_loss is at most 2.00%",
    )
    steps = len(a[0].steps)
    assert f"mean relative error: critic/rewards/mean 1.50% over {steps} steps, at most 3.00% at step 1" in found.notes
    assert (
        "A against A with the same seed: critic/rewards/mean 0.00% over 4 steps, at most 0.00% at step 1" in found.notes
    )
    assert "not compared: all other metrics, the times and what was sampled" in found.notes


@pytest.mark.parametrize(("changed", "metric"), [({"reward": 1.05}, REWARD), ({"loss": 1.021}, LOSS)])
def test_an_error_above_the_limit_is_a_change(runs, changed, metric):
    found = verdict(*runs(**changed))
    assert (found.word, found.reason) == (Word.CHANGED, f"the mean relative error of {metric} is above 2.00%")
    assert verdict(*runs(**changed), limit=0.03).word is Word.SAME


def test_a_step_in_which_a_is_0_does_not_decide_alone(runs):
    a, b = runs()
    a = [edit(run, LOSS, {1: 0.0}) for run in a]
    b = [edit(run, LOSS, {1: 0.001}) for run in b]
    assert verdict(a, b).word is Word.SAME


def test_a_metric_that_is_0_or_of_one_side_is_not_compared(runs):
    a, b = ([edit(run, REWARD, lambda step, _: 0.0) for run in side] for side in runs())
    b = [run.without([LOSS]) for run in b]
    found = verdict(a, b)
    assert found.word is Word.INCONCLUSIVE
    assert found.notes[-1].endswith(
        "critic/rewards/mean (not in both records, or 0), actor/pg_loss (not in both records, or 0)"
    )


def test_without_the_reward_nothing_is_the_same_unless_the_user_leaves_it_out(runs):
    """Before: the same, with the reward in a note."""
    a, [b] = runs()
    lacking = [b.without([REWARD])]
    found = verdict(a, lacking)
    assert (found.word, found.reason) == (
        Word.INCONCLUSIVE,
        "no step of both sides has critic/rewards/mean with a value that is not 0: compare records that have",
    )
    assert judge.case(a, lacking, accept=["devices"], relative_limit=0.02, ignore=[REWARD]).word is Word.SAME
    assert verdict(a, [b.without([LOSS])]).word is Word.SAME


def test_a_reward_that_is_0_in_a_alone_is_a_change(runs):
    a, b = runs()
    a = [edit(run, REWARD, lambda step, _: 0.0) for run in a]
    found = verdict(a, b)
    assert found.word is Word.CHANGED
    steps = len(b[0].steps)
    assert f"mean relative error: critic/rewards/mean is 0 at all {steps} steps of A, and not of B" in found.notes


def test_several_runs_of_a_side_count_as_their_mean(runs):
    a, [b] = runs()
    higher, lower = (edit(b, REWARD, lambda step, value, by=by: value * by) for by in (1.1, 0.9))
    assert relative.error(REWARD, a, [higher]).mean == pytest.approx(0.1)
    assert relative.error(REWARD, a, [higher, lower]).mean == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("facts", "name"),
    [({"devices": "16 x NPU"}, "devices"), ({"model": "/other"}, "model"), ({"override data.seed": "data.seed=3"}, "override data.seed")],
)  # fmt: skip
def test_other_devices_bring_neither_another_number_nor_another_model(runs, facts, name):
    a, [b] = runs()
    found = verdict(a, [on(b, facts)])
    assert (found.word, [each.name for each in found.differs]) == (Word.INCOMPARABLE, [name])
    assert verdict(a, [b], accept=()).word is Word.INCOMPARABLE


@pytest.mark.parametrize("text", ["2%", "2", "0", "nan"])
def test_the_limit_is_a_share(text, tmp_path, capsys):
    assert command.main([str(tmp_path), "--against", str(tmp_path), f"--relative={text}"]) == 2
    sentence = f"--relative={text} is no share between 0 and 1: give the largest error, such as 0.02 for 2 %."
    assert capsys.readouterr().err == f"error   {sentence}\n"
