"""The judge fails closed: whatever cannot be judged is never the same. Comparable first, then the records, then the values."""

import dataclasses
import json

import pytest
from verdict_runs import changed, edit, recorded, rewrite, unpack

from verl_regress.jobs import recorded_run
from verl_verdict import judge
from verl_verdict.errors import CannotJudge
from verl_verdict.metrics import Decisive
from verl_verdict.verdicts import Word

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


# ---- workloads


def test_runs_of_different_workloads_are_refused(tmp_path):
    ppo, sft = recorded(tmp_path, "ppo-0.7.1", "sft-0.7.1")
    with pytest.raises(CannotJudge) as refused:
        judge.case([ppo], [sft])
    said = (
        "The runs are of different workloads ('ppo-0.7.1' is ppo and 'sft-0.7.1' is sft): compare runs of one workload."
    )
    assert str(refused.value) == said


def test_a_record_of_something_else_is_refused(tmp_path):
    (run,) = recorded(tmp_path, "sft-0.7.1")
    other = dataclasses.replace(run, workload="", series={"speed": {1: 1.0}}, name="car")
    with pytest.raises(CannotJudge) as refused:
        judge.case([other], [dataclasses.replace(other, fingerprint="b")])
    said = "'car' has no metric of PPO, GRPO or SFT (critic/score/mean, train/loss): give a metrics.jsonl of verl."
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("name", "cure"),
    [("critic/score/maen", "did you mean critic/score/mean?"), ("x", "name one that is recorded")],
)
def test_a_decisive_metric_that_no_run_has_is_never_the_same(tmp_path, name, cure):
    a, b = recorded(tmp_path, *A), [changed(tmp_path, A[0])]
    assert judge.case(a, b).word is Word.IDENTICAL
    decisive = [Decisive("critic/score/mean", +1, required=True), Decisive(name, +1, required=True)]
    verdict = judge.case(a, b, decisive=decisive)
    assert (verdict.word, verdict.pairs, verdict.pairs_needed) == (Word.INCONCLUSIVE, 0, None)
    assert verdict.reason == f"no run of A or B has {name}, which decides this case: {cure}"


def test_a_regression_on_its_face_counts_more_than_a_misspelt_metric(tmp_path):
    a, b = pair(tmp_path, fails)
    assert judge.case(a, b, decisive=[Decisive("x", +1, required=True)]).word is Word.REGRESSED


def test_a_metric_that_is_ignored_and_that_no_run_has_is_named(tmp_path):
    a, b = recorded(tmp_path, *A), [changed(tmp_path, A[0])]
    verdict = judge.case(a, b, ignore=["actor/entropy", "actor/entorpy"])
    assert verdict.word is Word.IDENTICAL
    assert "no run has actor/entorpy, which is not to be compared" in verdict.notes


def test_if_no_metric_is_compared_nothing_is_shown(tmp_path):
    a, b = recorded(tmp_path, *A), [changed(tmp_path, A[0])]
    every = [name for name in a[0].series if name != "critic/score/mean"]
    constant = [edit(run, "critic/score/mean", lambda step, value: 0.5) for run in (*a, *b)]
    verdict = judge.case(constant[:2], constant[2:], ignore=every)
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason == "every metric is constant over all steps, which shows nothing: train more steps"
    names = [Decisive("other", +1)]  # decides, and is in no record
    verdict = judge.case(a, b, decisive=names, ignore=list(a[0].series))
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason == "A and B have no metric in common that is compared, which shows nothing"


def test_if_every_metric_that_decides_is_ignored_nothing_is_decided(tmp_path):
    a, b = recorded(tmp_path, *A), [changed(tmp_path, A[0])]
    names = ["actor/entropy", "actor/kl_loss"]
    verdict = judge.case(a, b, decisive=[Decisive(name, 0) for name in names], ignore=names)
    said = "every metric that decides is ignored (actor/entropy, actor/kl_loss): compare one of them"
    assert (verdict.word, verdict.reason) == (Word.INCONCLUSIVE, said)


def test_runs_of_a_that_differ_count_more_than_the_word_that_a_repeats_itself(tmp_path):
    """Else their difference would be A's noise, and hide that of B."""
    a = recorded(tmp_path, A[0])[0]
    other, b = (
        dataclasses.replace(
            edit(a, "actor/entropy", lambda step, value, by=by: value * by), name=name, fingerprint=name
        )
        for name, by in (("other", 1.1), ("b", 1.25))
    )
    verdict = judge.case([a, other], [b], deterministic=True)
    assert (verdict.word, verdict.deterministic) == (Word.INCONCLUSIVE, False)
    differs = "actor/entropy at step 1 is 0.59375 in 'grpo-0.9.1-v1-1' and 0.653125 in 'other', which have one seed"
    assert f"runs of A with one seed were said to be equal, and are not: {differs}" in verdict.notes
    lacking = dataclasses.replace(other, series={**a.series, "actor/entropy": {1: a.series["actor/entropy"][1]}})
    verdict = judge.case([a, lacking], [b], deterministic=True)
    assert (verdict.word, verdict.deterministic) == (Word.INCONCLUSIVE, False)
    differs = "only one of 'grpo-0.9.1-v1-1' and 'other', which have one seed, has actor/entropy at step 2"
    assert f"runs of A with one seed were said to be equal, and are not: {differs}" in verdict.notes


def test_a_fact_that_is_accepted_and_that_no_run_has_is_named(tmp_path):
    a, b = recorded(tmp_path, *A), [changed(tmp_path, A[0])]
    verdict = judge.case(a, b, accept=["profile", "profil"])
    assert verdict.word is Word.IDENTICAL
    assert "no run has recorded profil, which may differ" in verdict.notes


# ---- comparable


def differing(tmp_path, **facts):
    a = recorded(tmp_path, *A)
    b = changed(tmp_path, A[0])
    return a, [dataclasses.replace(b, facts={**b.facts, **facts})]


@pytest.mark.parametrize(
    ("name", "of_a", "of_b"),
    [
        *((name, None, "other") for name in ("profile", "model", "dataset", "devices", "nodes")),
        *((name, "1", "2") for name in ("model sha256", "data sha256", "image", "packages")),  # a session records these
        ("override data.shuffle", None, "data.shuffle=False"),
        ("variable OMP_NUM_THREADS", None, "8"),
    ],
)
def test_what_must_be_equal(tmp_path, name, of_a, of_b):
    a, b = differing(tmp_path, **{name: of_b})
    if of_a:
        a = [dataclasses.replace(run, facts={**run.facts, name: of_a}) for run in a]
    verdict = judge.case(a, b)
    said = f"{name}: A {a[0].facts.get(name, 'without it')}, B {of_b}"
    assert (verdict.word, [each.name for each in verdict.differs]) == (Word.INCOMPARABLE, [name])
    assert verdict.reason == f"'{A[0]}' and 'b' differ in more than their code: {said}"


def test_many_differences_are_counted(tmp_path):
    a, b = differing(tmp_path, devices="1", model="2", nodes="3", profile="4", dataset="5")
    assert judge.case(a, b).reason.endswith(" and 2 more")


def test_runs_of_a_must_be_comparable_with_each_other(tmp_path):
    a, b = differing(tmp_path)
    a[1] = dataclasses.replace(a[1], facts={**a[1].facts, "profile": "gpu"})
    assert judge.case(a, b).word is Word.INCOMPARABLE


def test_an_accepted_difference_is_a_second_cause(tmp_path):
    a, b = differing(tmp_path, packages="2")
    a = [dataclasses.replace(run, facts={**run.facts, "packages": "1"}) for run in a]
    verdict = judge.case(a, b, accept=["packages"])
    assert verdict.word is Word.IDENTICAL
    assert "packages also differ: the code is not the only possible cause" in verdict.notes
    assert [str(each) for each in verdict.differs] == ["packages: A 1, B 2"]


def test_what_was_not_recorded_is_listed(tmp_path):
    verdict = judge.case(*differing(tmp_path))
    assert "not compared, because it is not in the records: model sha256, data sha256, image, packages" in verdict.notes
