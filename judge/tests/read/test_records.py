"""A record is read strictly: whatever is wrong with it is a problem of the run, or bad input; nothing is dropped."""

import itertools
import json
import math

import pytest
from verdict_runs import recorded, unpack

from verl_verdict.errors import CannotJudge
from verl_verdict.read import records
from verl_verdict.read.records import Damage


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
    assert problems(run) == [(Damage.NOT_FINITE, f"train/loss is {shown} at step 2")]
    assert not math.isfinite(run.series["train/loss"][2])


@pytest.mark.parametrize("value", ["high", True, [1.0]])
def test_a_value_that_is_no_number_is_a_problem(tmp_path, value):
    run = read(tmp_path, line(1, other=value))
    assert problems(run) == [(Damage.NOT_A_NUMBER, f"other is {str(value)!r} at step 1, which is not a number")]


def test_a_last_line_that_is_cut_off_is_a_problem(tmp_path):
    run = read(tmp_path, line(1), line(2), line(3)[:20], end="")
    assert problems(run) == [(Damage.TRUNCATED, "the record is cut off after step 2, in line 3")]
    assert run.last_step == 2


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((1, 2, 4), "the record has no step 3, but later ones"),
        ((1, 5), "the record has no step 2 to 4, but later ones"),
    ],
)
def test_a_missing_step_is_a_problem(tmp_path, steps, text):
    assert problems(read(tmp_path, *map(line, steps))) == [(Damage.GAP, text)]


class TestAttempts:
    """A plain file is of one attempt; in a job directory it is known where each attempt begins."""

    def test_a_file_is_read_if_and_only_if_its_steps_go_up(self, tmp_path):
        for steps in itertools.chain.from_iterable(itertools.product((1, 2, 4), repeat=length) for length in (1, 2, 3)):
            if all(before < after for before, after in itertools.pairwise(steps)):
                assert read(tmp_path, *map(line, steps)).steps == list(steps)
            else:
                with pytest.raises(CannotJudge):
                    read(tmp_path, *map(line, steps))

    @pytest.mark.parametrize(
        ("steps", "sentence"),
        [
            ((9, 10, 11, 12, 9, 10), "The record '{0}' goes back from step 12 to step 9: it has two attempts, or two runs; give the steps of the last one."),
            ((1, 2, 2), "In the record '{0}' train/loss was recorded twice for step 2: two attempts or two runs wrote it; give the steps of the last one."),
        ],
    )  # fmt: skip
    def test_a_file_of_two_attempts_is_refused(self, tmp_path, steps, sentence):
        with pytest.raises(CannotJudge) as refused:
            read(tmp_path, *map(line, steps))
        assert str(refused.value) == sentence.format(tmp_path / "metrics.jsonl")

    def test_two_runs_that_validate_before_training_are_two_runs(self, tmp_path):
        one = ('{"step": 0, "data": {"val/loss": 1.0}}', line(1), line(2))
        assert read(tmp_path, *one).steps == [0, 1, 2]
        with pytest.raises(CannotJudge, match="goes back from step 2 to step 1"):
            read(tmp_path, *one, *one)

    @pytest.mark.parametrize("late", ["val/loss", "val-core/sums/reward/mean@1", "timing_s/testing"])
    def test_a_validation_that_is_written_late_is_no_second_attempt(self, tmp_path, late):
        run = read(tmp_path, line(1), line(2), json.dumps({"step": 1, "data": {late: 1.0}}), line(3))
        assert (run.problems, run.series[late]) == ((), {1: 1.0})

    def test_a_cut_off_line_does_not_hide_a_restart(self, tmp_path):
        with pytest.raises(CannotJudge, match="goes back from step 3 to step 2"):
            read(tmp_path, line(1), line(3), line(2), line(3)[:20], end="")

    def test_a_step_that_a_job_recorded_twice_is_a_problem(self):
        run = records.parse(["\n".join(map(line, (1, 2, 2, 1)))], "b", "b")
        said = [f"train/loss was recorded twice for step {step}" for step in (2, 1)]
        assert problems(run) == [(Damage.DUPLICATE, text) for text in said]

    def test_the_attempts_of_a_job_are_one_record(self):
        texts = ["\n".join(map(line, steps)) for steps in ((1, 2, 3, 4), (3, 4, 5))]
        run = records.parse(texts, "b", "b", starts=[2])
        assert (run.steps, run.problems) == ([1, 2, 3, 4, 5], ())


def test_a_step_of_validation_alone_is_no_step_of_training(tmp_path):
    run = read(
        tmp_path, '{"step": 0, "data": {"val-core/x": 1.0, "val/loss": 1.0}}', line(1), line(2, **{"val/loss": 1.0})
    )
    assert (run.steps, run.trained) == ([0, 1, 2], {1, 2})
    assert run.without(["train/loss"]).trained == frozenset()


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
