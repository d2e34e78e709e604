"""A record is read strictly: whatever is wrong with it is a problem of the run, or bad input; nothing is dropped."""

import json
import math

import pytest
from verdict_runs import recorded, unpack

from verl_verdict.errors import CannotJudge
from verl_verdict.read import records
from verl_verdict.read.records import Kind


def read(tmp_path, *lines, end="\n"):
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + end)
    return records.read(path)


def line(step, **data):
    return json.dumps({"step": step, "data": {"train/loss": 1.0, **data}})


def problems(run):
    return [(each.kind, each.text) for each in run.problems]


@pytest.mark.parametrize(
    ("name", "workload", "metrics"),
    [
        ("ppo-0.7.1", "ppo", 109),
        ("ppo-0.8.0", "ppo", 119),
        ("ppo-0.9.1-v1-1", "ppo", 109),
        ("grpo-0.9.1-v1-1", "grpo", 95),
        ("sft-0.9.1-1", "sft", 10),
    ],
)
def test_a_real_record_has_no_problem(tmp_path, name, workload, metrics):
    run = records.read(unpack(tmp_path, name) / "logs/metrics.jsonl")
    assert (run.problems, run.workload, run.steps) == ((), workload, [1, 2, 3, 4])
    assert len(run.series) == metrics


def test_the_two_lines_that_the_sft_trainer_writes_for_a_step_are_no_duplicate(tmp_path):
    (run,) = recorded(tmp_path, "sft-0.9.1-1")
    assert run.series["val/loss"] == {4: 5.04296875}
    assert run.series["train/loss"][4] == 5.46875
    assert run.problems == ()


@pytest.mark.parametrize(
    ("value", "shown"),
    [("NaN", "nan"), ("-Infinity", "-inf"), ("null", "NaN or infinite (null in the record)")],
)
def test_a_value_that_is_not_finite_is_a_problem(tmp_path, value, shown):
    """verl's file logger writes NaN and infinity as null."""
    run = read(tmp_path, line(1), f'{{"step": 2, "data": {{"train/loss": {value}}}}}')
    assert problems(run) == [(Kind.NOT_FINITE, f"train/loss is {shown} at step 2")]
    assert not math.isfinite(run.series["train/loss"][2])


@pytest.mark.parametrize("value", ["high", True, [1.0]])
def test_a_value_that_is_no_number_is_a_problem(tmp_path, value):
    run = read(tmp_path, line(1, other=value))
    assert problems(run) == [(Kind.NOT_A_NUMBER, f"other is {str(value)!r} at step 1, which is not a number")]


def test_a_last_line_that_is_cut_off_is_a_problem(tmp_path):
    run = read(tmp_path, line(1), line(2), line(3)[:20], end="")
    assert problems(run) == [(Kind.TRUNCATED, "the record is cut off after step 2, in line 3")]
    assert run.last_step == 2


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((1, 2, 4), "the record has no step 3, but later ones"),
        ((1, 5), "the record has no step 2 to 4, but later ones"),
    ],
)
def test_a_missing_step_is_a_problem(tmp_path, steps, text):
    assert problems(read(tmp_path, *map(line, steps))) == [(Kind.GAP, text)]


def test_a_step_that_was_recorded_twice_is_a_problem(tmp_path):
    run = read(tmp_path, line(1), line(2), line(2))
    assert problems(run) == [(Kind.DUPLICATE, "train/loss was recorded twice for step 2")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "The record '{0}' has no complete step: the run ended before its first step, or is not a run."),
        ("step:1 - loss:2", "Line 1 of '{0}' is not JSON ('step:1 - loss:2'): give a metrics.jsonl of verl's file logger."),
        ('{"step": 1, "data": {}}\nno\n{"step": 2, "data": {}}', "Line 2 of '{0}' is not JSON ('no'): give a metrics.jsonl of verl's file logger."),
        ('{"step": 1, "data": {}}\n{"step": 2, "data": {"a": 99, "a": 1}}', "Line 2 of '{0}' has the key 'a' twice, and which value is right is not known: give the metrics.jsonl as verl's file logger wrote it."),
        ('{"step": 1, "step": 2, "data": {"a": 1}}', "Line 1 of '{0}' has the key 'step' twice, and which value is right is not known: give the metrics.jsonl as verl's file logger wrote it."),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path, text, sentence):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(CannotJudge) as refused:
        records.read(path)
    assert str(refused.value) == sentence.format(path)
