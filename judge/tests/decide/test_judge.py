"""The judge fails closed: whatever cannot be judged is never the same."""

import dataclasses
import re

import pytest
from verdict_runs import changed, edit, generator, recorded

from verl_verdict.decide import judge
from verl_verdict.decide.verdicts import Word
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable, metrics
from verl_verdict.read.metrics import Decisive
from verl_verdict.show import curves

A = ("grpo-0.9.1-v1-1", "grpo-0.9.1-v1-2")


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


def test_a_decisive_metric_that_no_run_has_is_never_the_same(tmp_path):
    a, b = recorded(tmp_path, *A), [changed(tmp_path, A[0])]
    assert judge.case(a, b).word is Word.IDENTICAL
    decisive = [Decisive("critic/score/mean", +1, required=True), Decisive("critic/score/maen", +1, required=True)]
    verdict = judge.case(a, b, decisive=decisive)
    assert (verdict.word, verdict.pairs, verdict.pairs_needed) == (Word.INCONCLUSIVE, 0, None)
    assert (
        verdict.reason == "no run of A or B has critic/score/maen, which decides this case: name one that is recorded"
    )


def test_a_regression_on_its_face_counts_more_than_a_misspelt_metric(tmp_path):
    a, b = recorded(tmp_path, *A), dataclasses.replace(changed(tmp_path, A[0]), failure="ValueError: no")
    assert judge.case(a, [b], decisive=[Decisive("x", +1, required=True)]).word is Word.REGRESSED


@pytest.mark.parametrize(
    ("said", "note"),
    [
        ({"ignore": ["actor/entropy", "actor/entorpy"]}, "no run has actor/entorpy, which is not to be compared"),
        ({"accept": ["profile", "profil"]}, "no run has recorded profil, which may differ"),
    ],
)
def test_a_metric_or_a_fact_that_is_said_and_that_no_run_has_is_named(tmp_path, said, note):
    verdict = judge.case(recorded(tmp_path, *A), [changed(tmp_path, A[0])], **said)
    assert verdict.word is Word.IDENTICAL
    assert note in verdict.notes


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
    assert "runs of A with one seed were said to be equal, and are not" in verdict.notes


def replayed(tmp_path, noise=1.0, of_b=1.0):
    """A's first run, its repeat and B's on one set of rollouts: the gradients of the repeat and of B are A's times `noise`, B's also times
    `of_b`.
    """
    (a,) = recorded(tmp_path, "grpo-0.9.1-v1-1")
    a = dataclasses.replace(a, facts={**a.facts, comparable.REPLAY: "True"})

    def times(name, factor):
        made = edit(a, "actor/grad_norm", lambda step, value: value * (factor if step > 1 else 1.0))
        return dataclasses.replace(made, name=name, fingerprint=name)

    return [a, times("again", noise)], [times("b", noise * of_b)]


@pytest.mark.parametrize(
    ("of_b", "word", "reason"),
    [
        (1.0, Word.IDENTICAL, "B is bit-equal to A"),
        (1.02, Word.SAME, "as A does from itself"),  # A's repeat does up to 0.01, three times of which is noise
        (3.0, Word.CHANGED, "on A's rollouts B differs from A by more than A's repeat does from step 2 on"),
    ],
)
def test_on_replayed_rollouts_one_pair_is_enough_where_a_does_not_repeat_itself(tmp_path, of_b, word, reason):
    a, b = replayed(tmp_path, 1.01, of_b)
    found = judge.case(a, b)
    assert (found.word, found.deterministic, found.pairs) == (word, False, 1)
    assert reason in found.reason
    said = "this is about the trainer: all runs trained on the rollouts and rewards of A's first run"
    assert [note for note in found.notes if note.startswith(said)]
    own = [
        [dataclasses.replace(run, facts={**run.facts, comparable.OWN_REWARDS: "True"}) for run in runs]
        for runs in (a, b)
    ]
    assert any("of A's first run with rewards of their own" in note for note in judge.case(*own).notes)
    assert judge.case(a[:1], b).deterministic is None  # then a second run of A is asked for
    without = [[dataclasses.replace(run, facts={}) for run in runs] for runs in (a, b)]
    assert judge.case(*without).word is Word.INCONCLUSIVE


def test_replayed_runs_of_a_gpu_differ_from_the_recorded_one_and_not_from_each_other(tmp_path):
    first, again, b = recorded(tmp_path, *(f"grpo-0.9.1-h100-{name}" for name in ("a", "again", "b")))
    found = judge.case([first, again], [b])
    assert (found.word, found.deterministic) == (Word.IDENTICAL, False)
    larger = edit(b, "actor/grad_norm", lambda step, value: 4 * value)
    assert judge.case([first, again], [larger]).word is Word.INCONCLUSIVE  # the order of the batch moves it by half
    third = dataclasses.replace(again, name="third", fingerprint="third")
    for factor in 4, 1.001:
        slightly = edit(b, "actor/grad_norm", lambda step, value, factor=factor: factor * value)
        assert judge.case([first, again, third], [slightly]).word is Word.CHANGED
    # A perturbed run is compared with a run that replays, too, and so are the page's curves.
    grows = edit(b, "actor/grad_norm", lambda step, value: value * (1.05 if step > 1 else 1 + 1e-6))
    perturbed = dataclasses.replace(
        edit(again, "actor/grad_norm", lambda step, value: value * (1 + 1e-6)), name="p", fingerprint="p"
    )
    assert judge.case([first, again, third], [grows], perturbed=[perturbed]).word is Word.CHANGED
    assert {each.mark for each in curves.case_curves("grpo", curves.Sides([first, again, third], [b], True))} == {None}


@pytest.mark.parametrize(
    ("noise", "since", "word"),
    [(1.0, 1, Word.REGRESSED), (1.0, 2, Word.CHANGED), (1.01, 1, Word.REGRESSED), (1.01, 2, Word.INCONCLUSIVE)],
)
def test_on_replayed_rollouts_only_the_first_mismatch_of_rollout_and_actor_is_worse(tmp_path, noise, since, word):
    """Later B's weights are no longer those that sampled."""
    a, [b] = replayed(tmp_path, noise)
    b = edit(b, "training/rollout_probs_diff_mean", lambda step, value: value * (3 if step >= since else 1))
    assert judge.case(a, [b]).word is word


@pytest.mark.parametrize(
    ("share", "word"),
    [(2e-4, Word.SAME), (0.01, Word.INCONCLUSIVE), (0.05, Word.CHANGED)],
)
def test_on_replayed_rollouts_a_policy_loss_is_as_large_as_its_terms(tmp_path, share, word):
    """The loss is near 0: another order of the batch moves it by more than its own size, and a turned sign is no noise."""
    a, [b] = replayed(tmp_path, 1.002)
    largest = max(metrics.scale_of("critic/advantages/max", a[0].series), 1e-9)
    ratios = "actor/ppo_kl"  # of the same stage: what the repeat does there is the noise
    a[1] = edit(a[1], ratios, lambda step, value: value + (3e-4 if step > 1 else 0.0))
    b = edit(b, "actor/pg_loss", lambda step, value: value + (share * largest if step > 1 else 0.0))
    assert judge.case(a, [b]).word is word


def test_a_repeat_that_is_close_by_chance_is_no_reason_to_call_b_changed(tmp_path):
    """A's gradients repeat at step 2, and differ at step 3: B's may differ by as much at step 2. Nor do 8 units of bfloat16 in 1000 count."""
    a, [b] = replayed(tmp_path)
    grad, entropy = "actor/grad_norm", "actor/entropy"
    a[1] = edit(a[1], grad, lambda step, value: value * (1.05 if step > 2 else 1.0))
    apart = edit(b, grad, lambda step, value: value * (1.05 if step > 1 else 1.0))
    found = judge.case(a, [apart])
    assert (found.word, found.pairs_needed) == (Word.INCONCLUSIVE, 2)
    rounded = edit(b, entropy, lambda step, value: value * (1.008 if step > 1 else 1.0))
    assert judge.case(a, [rounded]).word is Word.INCONCLUSIVE


@pytest.mark.parametrize(
    ("metric", "since", "word"),
    [
        ("critic/advantages/max", 1, Word.CHANGED),  # no update came before it
        ("critic/advantages/max", 2, Word.INCONCLUSIVE),
        ("actor/entropy", 1, Word.INCONCLUSIVE),
    ],
)
def test_what_follows_an_update_may_differ_as_much_as_updates_of_a_do(tmp_path, metric, since, word):
    """Another order of the batch changes whole updates, so the repeat's advantages may be equal by chance."""
    a, [b] = replayed(tmp_path, 1.05)
    assert judge.case(a, [edit(b, metric, lambda step, value: value * (1.3 if step >= since else 1.0))]).word is word


def test_on_replayed_rollouts_one_step_after_an_update_decides_nothing(tmp_path):
    a, [b] = replayed(tmp_path, 1.002)
    verdicts = [
        judge.case(a, [edit(b, "critic/advantages/max", lambda step, value, until=until: value * (3.0 if 2 <= step <= until else 1.0))])
        for until in (2, 3)
    ]  # fmt: skip
    assert [each.word for each in verdicts] == [Word.INCONCLUSIVE, Word.CHANGED]


def test_a_noise_that_hides_a_tenth_of_a_metric_is_named_with_its_size(tmp_path):
    """From the third step on a note says so. If it hides the first step, too, nothing is shown."""
    a, b = replayed(tmp_path, 1.3, 1.02)
    found = judge.case(a, b)
    assert (found.word, found.rule) == (Word.SAME, "same-on-replay")
    [note] = [note for note in found.notes if note.startswith("from step 3 on, ")]
    assert re.search(r"not seen, of up to \d+% of actor/grad_norm$", note)
    a[1] = edit(a[1], "actor/grad_norm", lambda step, value: value * (5.0 if step == 1 else 1.0))
    found = judge.case(a, b)
    assert (found.word, found.rule, found.pairs_needed) == (Word.INCONCLUSIVE, "hidden-by-replay", 2)
    assert re.search(r"could hide a change of up to \d+% of actor/grad_norm: run 2 more pairs", found.reason)


def kernels(rng, run, name, grows=1.0):
    """A replayed run with independent noise in each metric that the trainer computes; that of the actor's gradients `grows` by a factor."""
    series = {}
    for metric, values in run.series.items():
        is_computed = (
            metrics.stage_of(metric) in metrics.STAGES[2:] and "score" not in metric and "reward" not in metric
        )
        size = 1e-4 * metrics.scale_of(metric, run.series) if is_computed and not metric.endswith("/lr") else 0.0
        factor = grows if metric == "actor/grad_norm" else 1.0
        series[metric] = {step: value * factor + size * rng.normal() for step, value in values.items()}
    facts = {**run.facts, comparable.REPLAY: "True"}
    return dataclasses.replace(run, name=name, fingerprint=name, series=series, facts=facts)


def test_kernels_that_differ_by_chance_are_hardly_ever_a_change_of_one_pair(tmp_path):
    (run,) = recorded(tmp_path, "ppo-0.9.1-v1-1")
    found = {1.0: [], 4.0: []}
    for seed in range(40):
        for grows, verdicts in found.items():
            rng = generator(seed)
            a = [kernels(rng, run, name) for name in ("a", "again")]
            verdicts.append(judge.case(a, [kernels(rng, run, "b", grows)]))
    equal, planted = ([each.word for each in verdicts] for verdicts in found.values())
    assert equal.count(Word.SAME) >= 20
    assert equal.count(Word.SAME) + equal.count(Word.INCONCLUSIVE) >= 39
    assert all(each.pairs_needed for each in found[1.0] if each.word is Word.INCONCLUSIVE)
    assert planted == [Word.CHANGED] * 40
    assert {each.first.metric for each in found[4.0]} == {"actor/grad_norm"}
