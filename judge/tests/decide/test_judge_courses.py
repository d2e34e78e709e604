"""Courses of B's metrics where runs do not repeat themselves: the verdict, and the step and metric that it names."""

import dataclasses
import json

import pytest
from verdict_runs import edit, generator, session

from verl_verdict.decide import judge
from verl_verdict.decide.verdicts import Word
from verl_verdict.read import records
from verl_verdict.read.records import Run

SCORE, ENTROPY, GRADIENT, LENGTH = "critic/score/mean", "actor/entropy", "actor/grad_norm", "response_length/mean"


def shifted(metric, by):
    """Every run of B, with `by(step)` added to a metric."""
    return lambda b: [edit(run, metric, lambda step, value: value + by(step)) for run in b]


def one_of_eight(b):
    return [*b[:-1], *shifted(ENTROPY, lambda step: 0.5 * (step > 14))(b[-1:])]


def opposite(b):
    return shifted(LENGTH, lambda step: 40.0 * (step in (9, 10)))(
        shifted(SCORE, lambda step: -0.45 * (step in (9, 10)))(b)
    )


def early_and_late(b):
    return shifted(SCORE, lambda step: -0.4 * (step == 2))(b[:3]) + shifted(SCORE, lambda step: -0.4 * (step == 29))(
        b[3:]
    )


def without_a_step(b):
    return [recorded(b[0], lambda step, data: None if step == 17 else data), *b[1:]]


def recorded(run, change):
    """The run as a record of it is read, with each line as `change` of its step and data; without a line where that is None."""
    rows = {step: {name: each[step] for name, each in run.series.items()} for step in run.steps}
    lines = [json.dumps({"step": step, "data": new}) for step, data in rows.items() if (new := change(step, data))]
    return dataclasses.replace(records.parse(["\n".join(lines)], run.name, run.name), seed=run.seed, is_job=True)


COURSES = {
    "slow drift": (shifted(ENTROPY, lambda step: -0.004 * step), Word.CHANGED, 14, ENTROPY, "mean of the last third"),
    "one seed of eight": (one_of_eight, Word.INCONCLUSIVE, 15, ENTROPY, "in 1 of 8 runs of B"),
    "a collapse that recovers": (shifted(SCORE, lambda step: -0.48 * (12 <= step <= 14)), Word.REGRESSED, 12, SCORE, "in 8 of 8 runs of B"),
    "two metrics of opposite sign": (opposite, Word.REGRESSED, 9, SCORE, f"in 8 of 8 runs of B {LENGTH}"),
    "early in some and late in others": (early_and_late, Word.REGRESSED, 2, SCORE, "in 8 of 8 runs of B"),
    "a step lost": (without_a_step, Word.REGRESSED, None, None, "no step 17"),
}  # fmt: skip


@pytest.mark.parametrize("name", COURSES)
def test_a_course_is_reported_with_its_step_and_metric(name):
    change, word, step, metric, said = COURSES[name]
    a, b = session(generator(1), 8, steps=30)
    assert judge.case(a, b).word is Word.SAME
    verdict = judge.case(a, change(b))
    assert verdict.word is word, verdict.reason
    if step is not None:
        assert (verdict.first.step, verdict.first.metric) == (step, metric)
    assert any(said in each for each in (verdict.reason, *verdict.notes))


def test_other_lengths_half_of_a_metric_and_nan_in_a_are_never_the_same():
    a, b = session(generator(1), 8, steps=30)

    def cut(run: Run, change) -> Run:
        return dataclasses.replace(run, series={name: change(name, each) for name, each in run.series.items()})

    short = [cut(run, lambda _, each: {step: value for step, value in each.items() if step <= 20}) for run in b]
    half = [cut(run, lambda name, each: {} if name == ENTROPY else each) for run in b[:4]]
    half = [dataclasses.replace(run, series={name: each for name, each in run.series.items() if each}) for run in half]
    nan = recorded(a[0], lambda step, data: data | {GRADIENT: None} if step == 7 else data)
    sides = ((a, short), (a, [*half, *b[4:]]), ([nan, *a[1:]], b))
    assert [judge.case(*each).word for each in sides] == [Word.REGRESSED, Word.CHANGED, Word.INCOMPARABLE]


def test_two_seeds_show_no_band_and_only_what_is_far():
    a, b = session(generator(1), 2, steps=30)
    assert judge.case(a, shifted(SCORE, lambda step: -0.48 * (step == 9))(b)).first.step != 9
    far = judge.case(a, shifted(GRADIENT, lambda step: 1e3 * (step == 9))(b))
    assert far.word is Word.INCONCLUSIVE
    assert f"in 2 of 2 runs of B {GRADIENT} is far outside" in far.notes[0]
