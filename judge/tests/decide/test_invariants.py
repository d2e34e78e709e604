"""Must runs of one code agree with each other: on recorded runs of the rehearsal, of which some are edited."""

import dataclasses

import pytest
from verdict_runs import edit, recorded

from verl_verdict.decide import judge
from verl_verdict.decide.invariants import Member
from verl_verdict.decide.verdicts import Word
from verl_verdict.errors import CannotJudge
from verl_verdict.read.records import TOKENS

GRADIENT, LOSS, MICRO = "critic/grad_norm", "critic/vf_loss", "critic.ppo_micro_batch_size_per_gpu=1"


def times(factor):
    return lambda step, value: value * factor


@pytest.fixture
def run(tmp_path):
    return recorded(tmp_path, "ppo-0.9.1-v1-1")[0]


def named(run, name, *changes):
    """The run under another name. Each of `changes` is a metric and a factor."""
    for metric, factor in changes:
        run = edit(run, metric, times(factor))
    return dataclasses.replace(run, name=name, fingerprint=name)


def verdict(run, a=(), b=(), *, plain_b=(), **more):
    """The verdict on a group of two: what `a` and `b` change is in the second member's runs, and `plain_b` in both of B's."""
    first = Member("", named(run, "a"), named(run, "b", *plain_b))
    return judge.invariants(
        [first, Member(MICRO, named(run, "a1", *a), named(run, "b1", *plain_b, *b))], name="micro", **more
    )


def test_a_code_that_holds_what_the_other_one_holds_is_the_same(run):
    found = verdict(run, a=[(LOSS, 1.002)], b=[(GRADIENT, 1.003)], plain_b=[(GRADIENT, 9.0)])
    assert (found.word, found.case, found.workload, found.pairs) == (Word.SAME, "micro", "ppo", 1)
    assert found.reason.startswith("all 2 configs agree in ")
    assert found.reason.endswith(" metrics, with A and with B (B's by 0.003 of a metric's size)")


def test_b_that_breaks_what_a_holds_is_regressed_with_metric_and_factor(run):
    value = run.series[GRADIENT][1]
    found = verdict(run, b=[(GRADIENT, 4.0), (LOSS, 1.1)])  # the metric that is off most is named
    assert found.word is Word.REGRESSED
    assert found.reason.startswith(f"B breaks what A holds: {GRADIENT} is 4 times as large with {MICRO} (")
    assert (found.first.step, found.first.metric, found.first.others) == (1, GRADIENT, (LOSS,))
    assert (found.first.a, found.first.b) == (value, 4 * value)


def test_what_a_breaks_too_is_not_the_fault_of_b(run):
    found = verdict(run, a=[(GRADIENT, 4.0)], b=[(GRADIENT, 4.1)])
    assert found.word is Word.INCONCLUSIVE
    assert found.reason.startswith(
        f"A breaks it too, so B is not to blame: {GRADIENT} is 4.1 times as large with {MICRO} ("
    )
    assert found.notes[-1].startswith(f"A and B break it: {GRADIENT} is 4.1 times")
    assert verdict(run, a=[(GRADIENT, 4.0)], b=[(GRADIENT, 4.0), (LOSS, 2.0)]).reason.startswith(
        f"B breaks what A holds: {LOSS}"
    )
    assert verdict(run, a=[(GRADIENT, 1.02)], b=[(GRADIENT, 4.0)]).word is Word.REGRESSED


def test_what_is_hardly_less_off_in_one_code_than_in_the_other_is_the_fault_of_none(run):
    for a, b in ((1.0095, 1.0105), (1.0105, 1.0095)):
        found = verdict(run, a=[(GRADIENT, a)], b=[(GRADIENT, b)])
        assert (found.word, found.reason[:19]) == (Word.INCONCLUSIVE, "A breaks it too, so")


@pytest.mark.parametrize(
    ("metric", "value", "word"),
    [
        ("critic/vf_clipfrac", 0.009, Word.SAME),
        ("critic/vf_clipfrac", 0.02, Word.REGRESSED),
        ("critic/vf_loss", 9e-7, Word.SAME),
        ("critic/vf_loss", 2e-6, Word.REGRESSED),
    ],
)
def test_a_metric_that_is_0_may_differ_by_little(run, metric, value, word):
    zero = edit(run, metric, {1: 0.0})
    b = named(edit(zero, metric, {1: value}), "b1")
    group = [Member("", named(zero, "a"), named(zero, "b")), Member(MICRO, named(zero, "a1"), b)]
    assert judge.invariants(group, name="micro").word is word


def test_b_that_holds_what_a_breaks_is_improved(run):
    found = verdict(run, a=[(GRADIENT, 4.0)])
    assert (found.word, found.first) == (Word.IMPROVED, None)
    assert found.reason.startswith(f"B holds what A breaks: {GRADIENT} is 4 times as large with {MICRO} (")


def test_only_the_first_update_counts(run):
    later = dataclasses.replace(run, series={**run.series, GRADIENT: {**run.series[GRADIENT], 2: 99.0}})
    group = [Member("", named(run, "a"), named(run, "b")), Member(MICRO, named(run, "a1"), named(later, "b1"))]
    assert judge.invariants(group, name="micro").word is Word.SAME


def test_a_metric_that_is_to_be_ignored_is_not_compared(run):
    found = verdict(run, b=[(GRADIENT, 4.0)], ignore=[GRADIENT])
    assert (found.word, found.notes) == (Word.SAME, (f"not compared, as asked: {GRADIENT}",))


def test_how_many_tokens_each_rank_has_is_not_compared(run):
    assert verdict(run, b=[("global_seqlen/mean", 2.0)]).word is Word.SAME


def test_the_policy_loss_may_differ_within_its_band_round_0(run):
    assert verdict(run, b=[("actor/pg_loss", 1.5)]).word is Word.SAME


def test_runs_that_sampled_other_tokens_or_do_not_train_prove_nothing(run):
    sampled = dataclasses.replace(run, hashes={TOKENS: "1"})
    other = Member(MICRO, named(sampled, "a1"), dataclasses.replace(named(sampled, "b1"), hashes={TOKENS: "2"}))
    found = judge.invariants([Member("", named(sampled, "a"), named(sampled, "b")), other], name="micro")
    assert found.word is Word.INCONCLUSIVE
    assert found.reason == f"the runs of B cannot be compared, because with {MICRO} other tokens were sampled"
    still = named(run, "x", (GRADIENT, 0.0), ("actor/grad_norm", 0.0))
    assert verdict(still).reason.endswith("the gradient is 0, so nothing trains")


def test_a_run_that_fails_or_was_asked_for_something_else_is_judged_as_in_every_case(run):
    def member(**of_b):
        return Member(MICRO, named(run, "a1"), dataclasses.replace(named(run, "b1"), **of_b))

    first = Member("", named(run, "a"), named(run, "b"))
    failed = judge.invariants([first, member(failure="KeyError: no")], name="micro")
    assert (failed.word, failed.case) == (Word.REGRESSED, "micro")
    assert "KeyError: no" in failed.reason
    assert judge.invariants([first, member(facts={"override x": "x=1"})], name="micro").word is Word.INCOMPARABLE
    with pytest.raises(CannotJudge, match="are copies of one record"):
        judge.invariants([first, Member(MICRO, first.a, first.b)], name="micro")
