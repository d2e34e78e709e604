"""Which steps of runs are compared: plain files and jobs, and what the end of a record proves."""

import dataclasses
import itertools
import json
import math

import pytest

from verl_verdict.decide import grid, preconditions
from verl_verdict.decide.rules import first_of
from verl_verdict.decide.table import RECORDS
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.errors import CannotJudge
from verl_verdict.read import records

GRIDS = [each for size in (1, 2, 3) for each in itertools.combinations((1, 2, 3), size)]


def record(name, steps, *, is_job=False, cut_off=False, validated=(), **more):
    """The run of a record that has a loss for each of these steps."""
    data = {step: {"train/loss": 1.0 / step} for step in steps}
    for step in validated:
        data.setdefault(step, {})["val/loss"] = 1.0
    lines = [json.dumps({"step": step, "data": each}) for step, each in sorted(data.items())]
    run = records.parse(["\n".join([*lines, *(['{"step"'] if cut_off else [])])], name, name)
    return dataclasses.replace(run, is_job=is_job, **more)


def with_value(run, value, step):
    """The run as it is read from a record that has this value for a step."""
    rows = [{"step": at, "data": {"train/loss": value if at == step else 1.0}} for at in sorted(run.trained)]
    read = records.parse(["\n".join(map(json.dumps, rows))], run.name, run.name)
    return dataclasses.replace(run, series=read.series, problems=read.problems)


def by_records(a, b, accept=()):
    """The word and the rule, if the records alone decide."""
    undecided = Verdict("sft", Word.INCONCLUSIVE, "")
    found = first_of(RECORDS, preconditions.Records(undecided, a, b, accept))
    return (found.word, found.rule) if found else None


def on_one_grid(a, b, perturbed=(), common=False):
    return grid.on_one_grid(a, b, perturbed, common=common)


def steps_of(runs):
    return [tuple(run.steps) for run in runs]


class TestPlain:
    """A plain file may still be written, so where it ends and which steps it lacks is no sign of a failure."""

    def test_no_step_that_it_lacks_decides(self):
        for of_a, of_b, cut_off in itertools.product(GRIDS, GRIDS, (False, True)):
            a, b = record("a", of_a), record("b", of_b, cut_off=cut_off)
            assert by_records([a], [b]) is None
            assert by_records([b], [a]) is None

    def test_runs_of_other_steps_are_refused_and_others_are_compared(self):
        for grids in itertools.product(GRIDS, repeat=3):
            a, b, perturbed = ([record(name, grid, cut_off=True)] for name, grid in zip("abp", grids, strict=True))
            if len(set(grids)) > 1:
                with pytest.raises(CannotJudge):
                    on_one_grid(a, b, perturbed)
            else:
                *found, notes = on_one_grid(a, b, perturbed)
                assert (steps_of(run for side in found for run in side), notes) == ([*grids], [])
                assert not any(run.problems for side in found for run in side)

    def test_the_common_steps_of_all_are_judged_if_asked(self):
        for grids in itertools.product(GRIDS, repeat=3):
            a, b, perturbed = ([record(name, grid)] for name, grid in zip("abp", grids, strict=True))
            shared = sorted(set.intersection(*map(set, grids)))
            if not shared:
                with pytest.raises(CannotJudge):
                    on_one_grid(a, b, perturbed, common=True)
            else:
                *found, notes = on_one_grid(a, b, perturbed, common=True)
                assert steps_of(run for side in found for run in side) == [tuple(shared)] * 3
                assert len(notes) == 1

    @pytest.mark.parametrize("is_job", [False, True])
    def test_equal_grids_are_compared_whatever_they_are(self, is_job):
        for steps in (range(5, 31, 5), range(101, 131), (1, 2, 7)):
            a, b = (record(name, steps, is_job=is_job) for name in "ab")
            assert by_records([a], [b]) is None
            *found, _ = on_one_grid([a], [b])
            assert not any(run.problems for side in found for run in side)

    @pytest.mark.parametrize(
        ("of_a", "of_b", "sentence"),
        [
            (range(1, 31), range(1, 19), "'b' has the steps 1 to 18 and 'a' the steps 1 to 30: it may still be written, or have failed. Give whole records, or --steps common judges the 18 steps that all have."),
            (range(1, 2), range(1, 31), "'a' has the step 1 and 'b' the steps 1 to 30: it may still be written, or have failed. Give whole records, or --steps common judges the 1 step that all have."),
            (range(1, 31), [*range(1, 13), *range(14, 31)], "'b' has the steps 1 to 12, 14 to 30 and 'a' the steps 1 to 30: values of other steps cannot be compared. Give records of the same steps, or --steps common judges the 29 steps that all have."),
            (range(1, 31), range(5, 31, 5), "'b' has 6 steps from 5 to 30 and 'a' the steps 1 to 30: values of other steps cannot be compared. Give records of the same steps, or --steps common judges the 6 steps that all have."),
            (range(1, 31), range(101, 131), "'a' has the steps 1 to 30 and 'b' the steps 101 to 130: values of other steps cannot be compared. Give records of the same steps."),
            (range(1, 31), (), "'b' has no step of training and 'a' the steps 1 to 30: it may still be written, or have failed. Give whole records."),
        ],
    )  # fmt: skip
    def test_what_is_said_of_runs_of_other_steps(self, of_a, of_b, sentence):
        with pytest.raises(CannotJudge) as refused:
            on_one_grid([record("a", of_a)], [record("b", of_b, validated=[0])])
        assert str(refused.value) == sentence

    def test_common_steps_leave_nothing_of_the_others(self):
        """Nor the validation after the last step of the shorter run, what was wrong later, or hashes of whole runs."""
        hashes = {records.TOKENS: "x"}
        long = with_value(record("a", range(1, 31), hashes=hashes), None, 25)
        long = dataclasses.replace(long, series={**long.series, "val/loss": {0: 2.0, 5: 1.0, 10: 1.0, 20: 1.0}})
        short = record("b", range(1, 19), validated=(0, 5, 10, 18), hashes=hashes)
        [a], [b], [], notes = on_one_grid([long], [short], common=True)
        assert notes == ["judged over the 18 steps that all runs have (--steps common)"]
        assert [run.series["val/loss"].keys() for run in (a, b)] == [{0, 5, 10}] * 2
        assert [run.trained for run in (a, b)] == [{*range(1, 19)}] * 2
        assert [(run.problems, run.hashes) for run in (a, b)] == [((), {})] * 2

    def test_common_steps_keep_all_of_whole_runs(self):
        runs = [record(name, (1, 2), validated=(0, 2), hashes={records.TOKENS: "x"}) for name in "ab"]
        [a], [b], *_ = on_one_grid(runs[:1], runs[1:], common=True)
        assert [a, b] == runs

    def test_a_metric_of_later_steps_alone_is_in_no_run(self):
        long, short = (record(name, range(1, last + 1)) for name, last in (("a", 4), ("b", 2)))
        long = dataclasses.replace(long, series={**long.series, "actor/late": {4: 1.0}})
        [a], *_ = on_one_grid([long], [short], common=True)
        assert a.series.keys() == {"train/loss"}

    @pytest.mark.parametrize("value", [None, math.nan, math.inf])
    @pytest.mark.parametrize("last", [5, 10])
    def test_a_value_that_is_not_finite_counts_before_the_steps_do(self, value, last):
        whole = record("a", range(1, 11))
        broken = with_value(record("b", range(1, last + 1)), value, last)
        assert by_records([whole], [broken]) == (Word.REGRESSED, "b-not-finite")
        assert by_records([broken], [whole]) == (Word.INCOMPARABLE, "unusable-baseline")

    def test_a_failure_that_a_reader_knows_counts(self):
        a, b = (record(name, (1, 2)) for name in "ab")
        failed = dataclasses.replace(b, failure="ValueError: no")
        assert by_records([a], [failed]) == (Word.REGRESSED, "b-failed")
        assert by_records([failed], [a]) == (Word.INCOMPARABLE, "unusable-baseline")


class TestJobs:
    """How a job ended is known, so a step that it lacks and another run has counts."""

    def test_a_step_that_another_run_has_counts(self):
        for of_a, of_b in itertools.product(GRIDS, repeat=2):
            expected = None
            if max(of_a) < max(of_b) or self.skips(of_a, of_b):
                expected = Word.INCOMPARABLE, "unusable-baseline"
            elif max(of_b) < max(of_a):
                expected = Word.REGRESSED, "b-failed"
            elif self.skips(of_b, of_a):
                expected = Word.REGRESSED, "b-lost-steps"
            elif min(of_b) > min(of_a):
                expected = Word.INCONCLUSIVE, "b-proves-nothing"
            assert by_records([record("a", of_a, is_job=True)], [record("b", of_b, is_job=True)]) == expected

    def skips(self, mine, other):
        return any(min(mine) < step < max(mine) and step not in mine for step in other)

    def test_jobs_of_other_steps_are_never_refused(self):
        for grids in itertools.product(GRIDS, repeat=3):
            runs = [record(name, grid, is_job=True) for name, grid in zip("abp", grids, strict=True)]
            *found, notes = on_one_grid(*([run] for run in runs))
            assert ([run.series for side in found for run in side], notes) == ([run.series for run in runs], [])

    def test_a_step_that_was_recorded_twice_counts(self):
        a = record("a", (1, 2), is_job=True)
        line = '{"step": 1, "data": {"train/loss": 1.0}}'
        twice = dataclasses.replace(records.parse([f"{line}\n{line}"], "b", "b"), is_job=True)
        assert by_records([record("a", (1,), is_job=True)], [twice]) == (Word.REGRESSED, "b-lost-steps")
        assert by_records([twice], [a]) == (Word.INCOMPARABLE, "unusable-baseline")

    def test_beside_a_plain_record_of_other_steps_it_is_as_one(self):
        job, plain = record("job", (1, 2), is_job=True), record("plain", (1, 2, 3))
        for a, b in (([job], [plain]), ([plain], [job]), ([job, plain], [job])):
            assert by_records(a, b) is None
            with pytest.raises(CannotJudge, match="values of other steps cannot be compared"):
                on_one_grid(a, b)
        same = record("plain", (1, 2), cut_off=True)
        assert by_records([job], [same]) is None
        assert by_records([same], [dataclasses.replace(same, is_job=True)]) == (Word.REGRESSED, "b-failed")

    def test_a_perturbed_job_that_failed_is_no_reason_to_refuse_the_others(self):
        a, b = (record(name, (1, 2)) for name in "ab")
        failed = record("p", (1,), is_job=True, failure="ValueError: no")
        perturbed = on_one_grid([a], [b], [failed])[2][0]
        assert preconditions.why_unusable(perturbed, 2) == "the job failed after step 1 (ValueError: no)"
        assert on_one_grid([a], [b], [failed], common=True)[0][0].steps == [1, 2]


def test_of_several_broken_runs_of_b_the_first_decides():
    a = record("a", (1, 2), is_job=True)
    nan = with_value(record("nan", (1, 2), is_job=True), None, 2)
    failed = record("failed", (1, 2), is_job=True, failure="ValueError: no")
    both = dataclasses.replace(nan, failure="ValueError: no")
    stopped = dataclasses.replace(nan, unfinished="the job was stopped")
    for runs, rule in (
        ([nan, failed], "b-not-finite"),
        ([failed, nan], "b-failed"),
        ([both], "b-failed"),
        ([stopped, nan], "b-not-finite"),
    ):
        assert by_records([a], runs) == (Word.REGRESSED, rule)
    assert by_records([a], [stopped]) == (Word.INCONCLUSIVE, "b-proves-nothing")


def test_settings_that_differ_are_accepted_by_name():
    a, b = (record(name, (1, 2), facts={"model": name}) for name in "ab")
    assert by_records([a], [b]) == (Word.INCOMPARABLE, "settings-differ")
    assert by_records([a], [b], accept=["model"]) is None


def test_a_plain_record_may_lack_steps_where_nothing_is_compared_step_by_step():
    """As in a history."""
    plain, job = (record("a", (5, 10, 15), is_job=is_job) for is_job in (False, True))
    assert preconditions.why_unusable(plain, 15) is None
    assert preconditions.why_unusable(plain, 20) == "the record ends at step 15 of 20"
    assert preconditions.why_unusable(job, 15) == "the record has no step 6 to 9, but later ones"
