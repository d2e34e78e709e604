"""The rollout half of a replayed case: B's own first step against A's."""

import dataclasses

import pytest
from verdict_runs import edit, recorded

from verl_verdict.decide import judge
from verl_verdict.decide.verdicts import Word
from verl_verdict.read import comparable
from verl_verdict.read.records import TOKENS


@pytest.fixture
def run(tmp_path):
    """A recorded run of GRPO, under another name, with these sampled tokens; its metrics are multiplied at the first step."""
    (original,) = recorded(tmp_path, "grpo-0.9.1-v1-1")

    def run(name, tokens="t", facts=None, **factors):
        made = dataclasses.replace(
            original, name=name, hashes={TOKENS: tokens}, facts={**original.facts, **(facts or {})}
        )
        for metric, factor in factors.items():
            made = edit(made, metric, {1: made.series[metric][1] * factor})
        return made

    return run


LENGTH, MISMATCH, LOSS = "response_length/mean", "training/rollout_probs_diff_mean", "actor/pg_loss"
SCORE = "critic/score/mean"


def judged(a, b):
    return judge.rollout(a, b, name="grpo rollout")


def test_the_first_step_of_a_longer_replayed_run_is_comparable(run):
    a = run("a", facts={comparable.REPLAY: "True"})
    b = run("b", facts={"override trainer.total_training_steps": "trainer.total_training_steps=1"})
    found = judged([a], b)
    assert (found.case, found.word, found.pairs) == ("grpo rollout", Word.IDENTICAL, 1)
    assert judged([a], run("b", facts={"override data.seed": "data.x=1"})).word is Word.INCOMPARABLE


def test_a_replayed_run_does_not_say_how_old_its_rollouts_are_and_its_own_ones_do(run):
    first, again = run("a", facts={comparable.REPLAY: "1"}), run("again", "other")
    age = [name for name in again.series if name.startswith("training/off_policy/")]
    assert age
    first = first.without(age)
    assert judged([first, again], run("b", "third")).deterministic is False  # the tokens
    found = judged([first, run("again")], run("b", "other", **{LENGTH: 1.02}))
    assert (found.word, found.deterministic) == (Word.CHANGED, True)


def test_the_first_step_is_the_first_one_that_trained(run):
    validated = edit(run("b", "other"), "val-core/x/reward/mean@1", {0: 0.5})
    found = judged([run("a"), run("again")], validated)
    assert (found.word, found.reason[:27]) == (Word.CHANGED, "B samples other tokens than")


def test_only_what_was_sampled_counts(run):
    assert judged([run("a")], run("b", **{LOSS: 2.0})).word is Word.IDENTICAL
    later = edit(run("b"), LENGTH, {2: 99.0})
    assert judged([run("a")], later).word is Word.IDENTICAL
    assert judged([run("a")], run("b", **{LENGTH: 1 + 1e-6})).word is Word.SAME


def test_other_tokens_ask_for_a_second_run_of_a_and_then_are_a_change(run):
    found = judged([run("a")], run("b", "other", **{LENGTH: 1.2}))
    assert (found.word, found.deterministic, found.first.metric) == (Word.INCONCLUSIVE, None, LENGTH)
    found = judged([run("a"), run("again")], run("b", "other", **{LENGTH: 1.2}))
    assert (found.word, found.first.step) == (Word.CHANGED, 1)
    assert found.reason == "B samples other tokens than A, and A's own runs sample the same"


def test_equal_tokens_with_other_log_probs_are_a_change(run):
    found = judged([run("a"), run("again")], run("b", **{MISMATCH: 1.3}))
    assert (found.word, found.reason[:35]) == (Word.CHANGED, "B samples A's tokens with other log")


def test_other_log_probs_are_no_change_where_the_trainer_of_a_does_not_repeat_itself(run):
    def noisy(b):
        return judge.rollout([run("a"), run("again")], b, name="x", is_noisy=True)

    found = noisy(run("b", **{MISMATCH: 1.01}))
    assert (found.word, found.reason[:36]) == (Word.SAME, "A's trainer computes other log-probs")
    for changed in run("b", "other", **{LENGTH: 1.2}), run("b", **{SCORE: 1.2}):
        assert noisy(changed).word is Word.CHANGED


def test_a_rollout_that_disagrees_more_with_the_actor_is_regressed(run):
    assert judged([run("a")], run("b", "other", **{MISMATCH: 2.0})).word is Word.REGRESSED


@pytest.mark.parametrize(("length", "word"), [(1.04, Word.SAME), (1.06, Word.SAME), (1.2, Word.INCONCLUSIVE)])
def test_where_a_samples_other_tokens_in_each_run(run, length, word):
    a = [run("a"), run("again", "t2", **{LENGTH: 1.03})]
    found = judged(a, run("b", "t3", **{LENGTH: length}))
    assert (found.word, found.deterministic) == (word, False)


def test_without_tokens_nothing_is_shown(run):
    b = dataclasses.replace(run("b"), hashes={})
    assert judged([run("a")], b).word is Word.INCONCLUSIVE


def test_a_b_that_failed_is_regressed(run):
    b = dataclasses.replace(run("b"), failure="KeyError: no")
    assert judged([run("a")], b).word is Word.REGRESSED
