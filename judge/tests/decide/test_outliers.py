"""The verdict on values of B outside all that A does: never the same, and regressed or changed if most runs of B have them."""

import dataclasses

import pytest
from verdict_runs import edit, generator, session

from verl_verdict.decide import judge, outliers
from verl_verdict.decide.verdicts import Word
from verl_verdict.read.comparable import REPLAY
from verl_verdict.read.metrics import WORKLOADS
from verl_verdict.read.records import Run

SCORE, GRADIENT, ENTROPY = "critic/score/mean", "actor/grad_norm", "actor/entropy"
MISMATCH = "training/rollout_probs_diff_mean"


def judged(pairs=8, edits=(), of=None, **known):
    """The verdict on runs without a shift; the first `of` runs of B (all) get `edits`: a metric, the steps, and their value."""
    a, b = session(generator(1), pairs, steps=30)
    for metric, steps, value in edits:
        b[:of] = [edit(run, metric, dict.fromkeys(steps, value)) for run in b[:of]]
    return judge.case(a, b, **known)


def test_a_and_b_without_a_difference_are_the_same():
    assert judged().word is Word.SAME


COLLAPSE = ((GRADIENT, (12, 13, 14), 4e4), (SCORE, (12, 13, 14), 0.01))
COURSES = {  # edits of B; the step and the metric that are named, and the verdict if all runs of B have them
    "a collapse that recovers": (COLLAPSE, 12, SCORE, Word.REGRESSED),
    "one step late": (((GRADIENT, (29,), 5e3),), 29, GRADIENT, Word.REGRESSED),
    "one step early": (((GRADIENT, (2,), 5e3),), 2, GRADIENT, Word.REGRESSED),
    "advantages without a bound": ((("critic/advantages/min", (9,), -79308.0),), 9, "critic/advantages/min", Word.REGRESSED),
    "no reward for a third of the run": (((SCORE, range(11, 19), 0.02),), 11, SCORE, Word.REGRESSED),
    "entropy at its bound": (((ENTROPY, range(8, 12), 0.0),), 8, ENTROPY, Word.CHANGED),
    "opposite sides": (((SCORE, (15, 16, 17), 0.9), (GRADIENT, (16,), 1e3)), 16, GRADIENT, Word.REGRESSED),
    "one step without a reward": (((SCORE, (20,), 0.0),), 20, SCORE, Word.REGRESSED),
    "a better reward for one step": (((SCORE, (20,), 1.0),), 20, SCORE, Word.CHANGED),
}  # fmt: skip


@pytest.mark.parametrize("name", COURSES)
def test_a_course_that_the_summaries_of_a_run_do_not_show(name):
    """One run of eight is enough for inconclusive."""
    edits, step, metric, word = COURSES[name]
    verdict = judged(edits=edits)
    assert (verdict.word, verdict.first.step, verdict.first.metric) == (word, step, metric)
    assert any(each.startswith(f"in 8 of 8 runs of B {metric} is ") for each in (verdict.reason, *verdict.notes))
    verdict = judged(edits=edits, of=1)
    assert (verdict.word, verdict.first.step, verdict.first.metric) == (Word.INCONCLUSIVE, step, metric)
    assert verdict.reason.startswith(f"in 1 of 8 runs of B {metric} ")
    assert f" at step {step} of 'b1'" in verdict.reason
    assert verdict.pairs_needed is None


def test_in_four_pairs_only_a_far_value_is_a_regression():
    assert judged(4, COLLAPSE[:1]).word is Word.REGRESSED
    outside = judged(4, COLLAPSE[1:])
    assert (outside.word, outside.pairs_needed) == (Word.INCONCLUSIVE, 2)


def test_one_pair_of_runs_that_do_not_repeat_themselves_decides_nothing():
    verdict = judged(1, COLLAPSE, deterministic=False)
    assert verdict.word is Word.INCONCLUSIVE
    assert f"in the run of B {GRADIENT} is far outside all that A does" in verdict.notes[0]


@pytest.mark.parametrize(("facts", "side", "word"), [({}, -1, Word.REGRESSED), ({REPLAY: "True"}, 0, Word.CHANGED)])
def test_with_replay_a_mismatch_has_no_bad_side_after_the_first_update(facts, side, word):
    """As for the statistics: later B's weights are not those that sampled."""
    a, b = ([dataclasses.replace(run, facts=facts) for run in runs] for runs in session(generator(1), 6, steps=30))
    b = [edit(run, MISMATCH, {12: 5.0}) for run in b]
    (found,) = outliers.find(a, b, "ppo", WORKLOADS["ppo"].decisive)
    assert (found.metric, found.step, found.is_far, found.side) == (MISMATCH, 12, False, side)
    assert judge.case(a, b).word is word


def test_better_values_make_nothing_worse():
    """The score rises twentyfold, and what follows it does, too."""
    a, b = session(generator(2), 6, steps=30)
    rng = generator(3)
    for name in (SCORE, "critic/rewards/mean"):
        a = [edit(run, name, lambda step, _: 0.02 + rng.normal() * 1e-3) for run in a]
        b = [edit(run, name, lambda step, _: 0.4 + rng.normal() * 1e-3) for run in b]
    assert [(each.metric, each.side) for each in outliers.find(a, b, "ppo", WORKLOADS["ppo"].decisive)] == [(SCORE, 1)]
    assert judge.case(a, b).word is Word.IMPROVED
    assert [(each.metric, each.side) for each in outliers.find(b, a, "ppo", WORKLOADS["ppo"].decisive)] == [(SCORE, -1)]


@pytest.mark.parametrize(("value", "word"), [(20.0, Word.REGRESSED), (3.0, Word.CHANGED)])
def test_where_a_repeats_itself_such_a_size_is_a_regression(value, word):
    (a,), _ = session(generator(3), 1)
    again = dataclasses.replace(a, name="again", fingerprint="again")
    b = edit(dataclasses.replace(a, name="b"), GRADIENT, lambda step, mine: mine * value if step == 7 else mine)
    verdict = judge.case([a, again], [edit(b, ENTROPY, {3: 0.61})])
    assert (verdict.word, verdict.first.step, verdict.first.metric) == (word, 3, ENTROPY)


def found_in(*values, of_a=((1.0, 1.1, 0.9),), metric="actor/lr"):
    """The outliers of a run of B with these values against runs of A with those."""
    a, b = ([Run("r", {metric: dict(enumerate(each, start=1))}) for each in side] for side in (of_a, [values]))
    return outliers.find(a, b, "ppo", WORKLOADS["ppo"].decisive)


def test_what_is_no_outlier():
    assert found_in(1.0, 9.0, -9.0) == []  # within ten times its size
    assert found_in(3e-6, 1e-6, 0.0, of_a=[[1e-8, 2e-8]]) == []  # what rounding leaves of 0
    assert found_in(0.5, 0.5, 0.5, of_a=[[0.0, 0.0]]) == []  # A's metric has no size
    assert found_in(99.0, metric="timing_s/step") == []
    assert found_in(-1e4, metric="critic/vf_explained_var") == []
    assert (
        found_in(0.1, 0.1, 0.1, metric=SCORE, of_a=[[0.5, 0.52, 0.48]] * 2) == []
    )  # two runs of A do not show their range


def test_runs_of_other_lengths_and_a_metric_in_half_of_the_runs():
    assert [each.step for each in found_in(1.0, 1.0, 1.0, 1.0, 99.0)] == [5]
    a = [Run("a1", {GRADIENT: {1: 1.0}, "actor/lr": {1: 1.0}}), Run("a2", {GRADIENT: {1: 1.2}})]
    b = [Run("b1", {GRADIENT: {1: 1.1}, "actor/lr": {1: 99.0}}), Run("b2", {GRADIENT: {1: 1.1}})]
    (only,) = outliers.find(a, b, "ppo", WORKLOADS["ppo"].decisive)
    assert (only.metric, only.runs, only.of, only.is_in_most) == ("actor/lr", ("b1",), 1, True)
