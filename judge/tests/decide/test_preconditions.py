"""What is decided before any value is compared: a run that failed, ended early or recorded nonsense."""

import dataclasses
import json

import pytest
from verdict_runs import changed, recorded, rewrite, unpack

from verl_regress.jobs import recorded_run
from verl_verdict.decide import judge
from verl_verdict.decide.verdicts import Word

A = ("grpo-0.9.1-v1-1", "grpo-0.9.1-v1-2")


def pair(tmp_path, prepare):
    """Runs of A, and a run of B whose job directory was prepared; also the other way round."""
    job = rewrite(unpack(tmp_path, A[0], "b"), lambda step, data: None)
    prepare(job)
    return recorded(tmp_path, *A), [recorded_run.read(job)]


def record_of(job):
    return job / "logs/metrics.jsonl"


def lines(job, change):
    record_of(job).write_text("".join(change(record_of(job).read_text().splitlines(keepends=True))))


def data_of_step(job, step, **data):
    rewrite(job, lambda at, old: old.update(data) if at == step else None)


def ended(job, **state):
    (job / "state/ended").write_text(json.dumps(state))


NOT_TO_THE_END = "A trains to the end, and in B's 'b' "
NOT_EACH_STEP = "A records each step once, and in B's 'b' "
NO_PROOF = "B's record proves nothing, because in 'b' "


def cut_off(job):
    lines(job, lambda all: [*all[:3], all[3][:500]])


def begins_late(job):
    lines(job, lambda all: all[1:])


def fails(job):
    ended(job, exit_code=1, cause="ValueError: no")


def is_stopped(job):
    ended(job, exit_code=143, told_to_stop=True)


def is_stopped_at_step_3(job):
    lines(job, lambda all: all[:3])
    is_stopped(job)


@pytest.mark.parametrize(
    ("prepare", "said", "problem"),
    [
        (cut_off, NOT_TO_THE_END, "the record is cut off after step 3, in line 4"),
        (lambda job: lines(job, lambda all: all[:3]), NOT_TO_THE_END, "the record ends at step 3 of 4"),
        (lambda job: data_of_step(job, 2, **{"actor/pg_loss": float("nan")}), NOT_TO_THE_END, "actor/pg_loss is nan at step 2"),
        (lambda job: data_of_step(job, 2, **{"actor/pg_loss": None}), NOT_TO_THE_END, "actor/pg_loss is NaN or infinite (null in the record) at step 2"),
        (lambda job: data_of_step(job, 3, **{"critic/score/max": float("inf")}), NOT_TO_THE_END, "critic/score/max is inf at step 3"),
        (fails, NOT_TO_THE_END, "the job failed after step 4 (ValueError: no)"),
        (lambda job: (record_of(job).unlink(), ended(job, exit_code=1, cause="ImportError: no verl")), NOT_TO_THE_END, "the job failed before its first step (ImportError: no verl)"),
        (is_stopped, NO_PROOF, "the job was stopped"),
        (is_stopped_at_step_3, NO_PROOF, "the job was stopped"),
        (lambda job: (job / "state/ended").unlink(), NO_PROOF, "the job recorded no end: it is running, or was lost"),
        (lambda job: lines(job, lambda all: [*all[:1], *all[2:]]), NOT_EACH_STEP, "the record has no step 2, but later ones"),
        (begins_late, NO_PROOF, "the record begins at step 2, not at step 1"),
        (lambda job: lines(job, lambda all: [*all, all[-1]]), NOT_EACH_STEP, "global_seqlen/min was recorded twice for step 4"),
        (lambda job: data_of_step(job, 2, **{"actor/pg_loss": "low"}), NO_PROOF, "actor/pg_loss is 'low' at step 2, which is not a number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_b_and_that_a_run_with_a_problem_is_no_baseline(tmp_path, prepare, said, problem):
    a, b = pair(tmp_path, prepare)
    verdict = judge.case(a, b)
    word = Word.INCONCLUSIVE if said == NO_PROOF else Word.REGRESSED
    assert (verdict.word, verdict.reason) == (word, said + problem)
    if prepare is not begins_late:  # see test_a_b_that_begins_earlier_is_no_fault_of_a
        verdict = judge.case(b, a)
        said = f"A cannot be the baseline, because in 'b' {problem}"
        assert (verdict.word, verdict.reason) == (Word.INCOMPARABLE, said)


def test_the_first_value_that_is_not_finite_is_the_first_in_causal_order(tmp_path):
    """A record has the losses before the advantages that they are made of."""
    nan = dict.fromkeys(("critic/vf_loss", "actor/pg_loss", "critic/advantages/mean"))
    a, b = pair(
        tmp_path, lambda job: data_of_step(job, 2, **nan) or data_of_step(job, 3, **{"critic/score/mean": None})
    )
    assert b[0].problems[0].metric == "actor/pg_loss"
    verdict = judge.case(a, b)
    assert verdict.reason == NOT_TO_THE_END + "critic/advantages/mean is NaN or infinite (null in the record) at step 2"
    assert (verdict.first.step, verdict.first.metric) == (2, "critic/advantages/mean")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_what_is_not_finite_on_both_sides_is_never_the_same(tmp_path, value):
    """`isclose(inf, inf)` is true."""
    runs = []
    for name in ("a", "b"):
        job = unpack(tmp_path, A[0], name)
        rewrite(job, lambda step, data: data.update({"critic/score/mean": value}))
        runs.append(recorded_run.read(job))
    runs[1] = dataclasses.replace(runs[1], fingerprint="other times")
    assert judge.case(runs[:1], runs[1:]).word is Word.INCOMPARABLE


def test_of_several_runs_of_a_one_that_begins_late_is_no_baseline(tmp_path):
    a, late = pair(tmp_path, begins_late)
    verdict = judge.case([*a, *late], [changed(tmp_path, A[1], to="c")])
    said = "A cannot be the baseline, because in 'b' the record begins at step 2, not at step 1"
    assert (verdict.word, verdict.reason) == (Word.INCOMPARABLE, said)


def test_a_b_that_begins_earlier_is_no_fault_of_a(tmp_path):
    """As if B had ignored the checkpoint from which A resumed."""
    whole, late = pair(tmp_path, begins_late)
    assert judge.case(late, whole[:1]).word is Word.CHANGED


@pytest.mark.parametrize("are_turned", [False, True])
@pytest.mark.parametrize("at", [0, 1])  # before the first step of all, or of a resumed run
def test_a_validation_before_training_is_no_step_that_the_other_side_lacks(tmp_path, at, are_turned):
    def validates_first(job):
        validation = json.dumps({"step": at, "data": {"val-core/sums/reward/mean@1": 0.5}}) + "\n"
        lines(job, lambda all: [validation, *all[at:]])

    a, b = pair(tmp_path, validates_first)
    if at:
        a = [recorded_run.read(job) for job in map(tmp_path.joinpath, A) if not lines(job, lambda all: all[at:])]
    verdict = judge.case(b, a) if are_turned else judge.case(a, b)
    assert verdict.word is not Word.INCOMPARABLE
    assert "begins at step" not in verdict.reason


def test_both_cut_off_at_the_same_step_are_never_the_same(tmp_path):
    a, b = pair(tmp_path, cut_off)
    job = unpack(tmp_path, A[0], "a")
    cut_off(job)
    assert a[0].steps == [1, 2, 3, 4]
    assert judge.case([recorded_run.read(job)], b).word is Word.INCOMPARABLE


def test_a_failed_run_of_b_among_good_ones_decides(tmp_path):
    a, b = pair(tmp_path, fails)
    good = changed(tmp_path, A[1], to="b2")
    assert judge.case(a, [good, *b]).word is Word.REGRESSED


def test_a_failure_counts_more_than_a_damaged_record(tmp_path):
    a, b = pair(tmp_path, fails)
    job = unpack(tmp_path, A[1], "b2")
    lines(job, lambda all: [*all[:1], *all[2:]])
    assert judge.case(a, [recorded_run.read(job), *b]).word is Word.REGRESSED


def test_a_time_that_is_not_finite_is_no_problem(tmp_path):
    a, b = pair(tmp_path, lambda job: data_of_step(job, 2, **{"perf/mfu/actor": None}))
    assert judge.case(a, b).word is Word.IDENTICAL


def test_the_first_value_that_is_not_finite_is_the_diagnosis(tmp_path):
    a, b = pair(tmp_path, lambda job: data_of_step(job, 2, **{"actor/pg_loss": float("nan")}))
    verdict = judge.case(a, b)
    assert str(verdict.first) == "step 2, actor/pg_loss: A -0.01553, B nan"
    assert verdict.first.means.startswith("the loss of the same samples differs")
