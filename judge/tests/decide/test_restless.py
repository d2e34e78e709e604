"""Metrics that vary with the clock although their names do not say so."""

import dataclasses

import pytest
from verdict_runs import edit, generator, noisy

from verl_verdict.decide import judge, restless
from verl_verdict.decide.verdicts import Word

LATENCY = "latency/mean_tool_s"


def runs(*latencies, seed=None):
    """Equal runs but for their latency, which varies by a tenth about these means."""
    rng = generator(2)
    one = noisy(generator(1), "a", seed)
    timed = (edit(one, LATENCY, lambda step, _, mean=mean: mean + 0.1 * rng.random()) for mean in latencies)
    return [dataclasses.replace(run, name=str(at), fingerprint=str(at)) for at, run in enumerate(timed)]


@pytest.mark.parametrize("seed", [None, "42"])
def test_where_a_differs_in_it_alone_the_rest_is_exact(seed):
    a, again, b = runs(1.0, 1.0, 1.0, seed=seed)
    verdict = judge.case([a, again], [b])
    assert verdict.word is Word.IDENTICAL
    [note] = [each for each in verdict.notes if LATENCY in each]
    assert f"--ignore {LATENCY}" in note
    other = edit(b, "actor/entropy", lambda step, value: value * 1.01)
    assert judge.case([a, again], [other]).word is Word.CHANGED


def test_it_is_judged_by_what_a_does():
    a, again, b, slow = runs(1.0, 1.0, 1.03, 3.0)
    assert judge.case([a, again], [b]).word is Word.IDENTICAL
    verdict = judge.case([a, again], [slow])
    assert (verdict.word, verdict.rule) == (Word.CHANGED, "restless-apart")
    assert LATENCY in verdict.reason
    verdict = judge.case([a, again], [b.without([LATENCY])])
    assert (verdict.word, verdict.rule) == (Word.CHANGED, "restless-apart")


def test_a_metric_of_verl_that_varies_is_noise_of_training():
    a, again, b = runs(1.0, 1.0, 1.0)
    again = edit(again, "actor/entropy", lambda step, value: value * 1.01)
    assert restless.find([a, again]) == []
    assert judge.case([a, again], [b]).word is Word.INCONCLUSIVE


def test_runs_of_other_seeds_tell_nothing():
    one, other = runs(1.0, 1.0, seed="1")
    assert restless.find([one, dataclasses.replace(other, seed="2")]) == []
