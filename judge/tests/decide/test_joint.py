"""The one test of all metrics that do not decide: its error over all looks of a session, what it shows, and from how many pairs on."""

import dataclasses

import numpy as np
import pytest
from verdict_runs import generator

from verl_verdict.decide import joint
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.read.records import Run

STEPS = range(1, 10)


def run(name, values):
    """A run with these courses: a row for each metric, a column for each step."""
    series = {f"mine/{at}": dict(zip(STEPS, map(float, course), strict=True)) for at, course in enumerate(values)}
    return Run(name=name, series=series, workload="grpo")


def smooth(rng, metrics):
    return rng.normal(size=(metrics, 1)) + rng.normal(size=(metrics, len(STEPS)))


def correlated(rng, metrics):
    return np.linspace(-1, 1, 3 * metrics).reshape(metrics, 3) @ rng.normal(size=(3, len(STEPS))) + smooth(rng, metrics)


def heavy(rng, metrics):
    return rng.standard_t(2, size=(metrics, 1)) + rng.standard_t(2, size=(metrics, len(STEPS)))


def rare(rng, metrics):
    return rng.binomial(1, 0.02, size=(metrics, len(STEPS))) * rng.random((metrics, len(STEPS)))


def session(rng, noise, metrics=40, shift=None):
    """Eight pairs whose seeds move A and B alike; B's first metric gets `shift`, a function of the steps."""
    pairs = []
    for seed in range(LOOKS[-1]):
        moved = rng.normal(size=(metrics, 1))
        a, b = (noise(rng, metrics) + moved for _ in "ab")
        b[0] += shift(np.array(STEPS)) if shift else 0.0
        pairs.append(Pair(str(seed), (run(f"a{seed}", a),), (run(f"b{seed}", b),)))
    return joint.columns(pairs, [], {}, is_repeatable=False)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [smooth, correlated, heavy, rare])
def test_equal_code_differs_at_no_look_of_a_session_more_often_than_declared(noise):
    declared = sum(joint.ALPHA.values())
    rng, sessions = generator(1), 60
    alarms = sum(
        any(found.look(pairs).apart for pairs in LOOKS) for found in (session(rng, noise) for _ in range(sessions))
    )
    assert declared < 0.04
    assert alarms <= sessions * declared  # it is far below: what differs must be beyond three standard deviations, too


@pytest.mark.parametrize("shift", [lambda _: 12.0, lambda step: 4.0 * (step - 1), lambda step: 15.0 * (step > 4)])
def test_a_level_or_a_drift_of_one_metric_is_shown_from_six_pairs_on(shift):
    rng = generator(2)
    for _ in range(10):
        found = session(rng, smooth, shift=shift)
        assert [bool(found.look(pairs).apart) for pairs in (3, 4)] == [False, False]
        for pairs in (6, 8):
            look = found.look(pairs)
            assert look.metrics == 40
            assert look.apart[0].metric == "mine/0"


def test_at_three_and_four_pairs_such_a_metric_is_a_hint_so_nothing_is_the_same():
    rng = generator(3)
    hinted = [session(rng, smooth, shift=lambda _: 12.0).look(pairs).hinted for _ in range(20) for pairs in (3, 4)]
    assert all("mine/0" in {each.metric for each in found} for found in hinted)


def edited(pair, side, change):
    [one] = getattr(pair, side)
    return dataclasses.replace(pair, **{side: (dataclasses.replace(one, series=change(dict(one.series))),)})


def test_a_metric_that_runs_record_now_and_then_counts_by_its_share_of_steps():
    rng = generator(4)

    def recorded(share):
        def change(series):
            values = {step: 0.1 for step in STEPS if rng.random() < share}
            return series | ({"exit/limit": values} if values else {})

        return change

    pairs = [Pair(str(at), (run("a", smooth(rng, 5)),), (run("b", smooth(rng, 5)),)) for at in range(6)]
    for share, names in ((0.3, set()), (0.95, {"exit/limit"})):
        found = [edited(edited(pair, "a", recorded(0.3)), "b", recorded(share)) for pair in pairs]
        look = joint.columns(found, [], {}, is_repeatable=False).look(6)
        assert {each.metric for each in look.apart} == names


def test_times_and_decisive_metrics_are_not_in_it():
    pair = Pair("1", (run("a", smooth(generator(5), 3)),), (run("b", smooth(generator(6), 3)),))
    timed = edited(edited(pair, "a", lambda series: series | {"timing_s/step": {1: 1.0}}), "b", lambda series: series)
    assert joint.columns([timed] * 3, [], {"mine/1": 0.0}, is_repeatable=False).look(3).metrics == 2


@pytest.mark.parametrize(
    ("metric", "by", "rise", "is_left"),
    [
        ("critic/score/min", 0.5, 0.3, False),  # it rises with the score
        ("critic/score/min", 0.5, 0.0, True),  # the score does not rise
        ("critic/values/mean", 1000.0, 0.3, True),  # far more than the score
        ("critic/returns/mean", -0.5, 0.3, True),
        ("mine/score", 0.5, 0.3, True),
    ],
)
def test_more_of_what_follows_a_better_score_is_no_fault(metric, by, rise, is_left):
    rng = generator(7)

    def with_metric(pair, side, add):
        return edited(pair, side, lambda series: series | {metric: {step: 0.01 * rng.random() + add for step in STEPS}})

    pairs = [Pair(str(at), (run("a", smooth(rng, 5)),), (run("b", smooth(rng, 5)),)) for at in range(6)]
    found = [with_metric(with_metric(pair, "a", 0.0), "b", by) for pair in pairs]
    look = joint.columns(found, [], {}, is_repeatable=False).look(6)
    assert {each.metric for each in look.apart} == {metric}
    assert bool(look.without_what_follows(rise).apart) == is_left
