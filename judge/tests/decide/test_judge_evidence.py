"""In noise no evidence in the records is *same* or *improved*: B differs in the named values alone, and it says how many pairs show it."""

import dataclasses
import math

import pytest
from verdict_runs import edit, generator, noisy, session

from verl_verdict.decide import judge
from verl_verdict.decide.verdicts import Word
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run

RATE, SCORE, MISMATCH = "actor/lr", "critic/score/mean", "training/rollout_probs_diff_mean"
GOOD = (Word.SAME, Word.IMPROVED, Word.IDENTICAL)


def runs(pairs, seed=1, **more):
    """Noisy pairs with a rate, prompts, turns and a success rate of one's own."""
    rng = generator(seed)
    a, b = session(rng, pairs, **more)

    def enriched(run):
        run = edit(run, RATE, lambda step, _: 1e-6 * min(1, step / 4))
        run = edit(run, "prompt_length/mean", lambda step, _: 102.0)
        run = edit(run, "num_turns/mean", lambda step, _: 5 + 0.1 * rng.normal())
        run = edit(run, "response/aborted_ratio", lambda step, _: 0.0)
        return edit(run, "mine/success", lambda step, _: 0.9 + 0.02 * rng.normal())

    return list(map(enriched, a)), list(map(enriched, b))


def edited(b, name, values):
    return [edit(run, name, values) for run in b]


CERTAIN = {
    "rate halved": (RATE, lambda step, value: value / 2, Word.CHANGED),
    "rate without warm-up": (RATE, lambda step, value: 1e-6, Word.CHANGED),
    "rate 0": (RATE, lambda step, value: 0.0, Word.REGRESSED),
    "mismatch exactly 0": (MISMATCH, lambda step, value: 0.0, Word.CHANGED),
}
BY_PAIRS = {
    "turns": ("num_turns/mean", lambda step, value: value - 3),
    "aborted": ("response/aborted_ratio", lambda step, value: 0.4),
    "success": ("mine/success", lambda step, value: value - 0.8),
    "success, later and later": ("mine/success", lambda step, value: value - 0.08 * step),
    "mismatch lower": (MISMATCH, lambda step, value: value / 4),
}


@pytest.mark.parametrize("pairs", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("name", CERTAIN)
def test_what_noise_cannot_change_needs_one_pair(name, pairs):
    metric, values, word = CERTAIN[name]
    a, b = runs(pairs)
    verdict = judge.case(a, edited(b, metric, values))
    assert (verdict.word, verdict.first.metric) == (word, metric)


@pytest.mark.parametrize("name", BY_PAIRS)
def test_any_other_metric_needs_six_pairs_and_is_never_the_same_before(name):
    metric, values = BY_PAIRS[name]
    for pairs in (1, 2, 3, 4, 6, 8):
        a, b = runs(pairs)
        verdict = judge.case(a, edited(b, metric, values))
        assert verdict.word is (Word.CHANGED if pairs >= 6 else Word.INCONCLUSIVE), verdict.reason
        assert pairs >= 6 or verdict.pairs_needed
        assert pairs < 6 or metric in verdict.reason


@pytest.mark.parametrize("pairs", [2, 3, 6])
def test_longer_prompts_are_changed_where_two_runs_of_a_agree(pairs):
    a, b = runs(pairs)
    verdict = judge.case(a, edited(b, "prompt_length/mean", lambda step, value: value + 1))
    assert (verdict.word, verdict.rule) == (Word.CHANGED, "law-broken")


def test_a_reward_below_its_floor_that_falls_in_all_runs_is_a_regression():
    rng = generator(3)
    a, b = runs(8)
    a = edited(a, SCORE, lambda step, _: 0.0127 + 0.001 * rng.normal())
    lower, equal = (
        edited(b, SCORE, lambda step, _, mean=mean: mean + 0.001 * rng.normal()) for mean in (0.0037, 0.0127)
    )
    assert judge.case(a, lower).word is Word.REGRESSED
    same = judge.case(a, equal)
    assert same.word is Word.SAME
    assert [note for note in same.notes if note.startswith(f"the floor of 0.02 of {SCORE} is larger")]


def test_a_floor_of_a_suite_that_hides_what_a_shows_is_named():
    rng = generator(4)
    a, b = ([edit(run, SCORE, lambda step, _: 0.5 + 0.001 * rng.normal()) for run in side] for side in runs(8))
    verdict = judge.case(a, b, decisive=[Decisive(SCORE, +1, floor=0.1, required=True)])
    assert verdict.word is Word.SAME
    assert any("set a smaller one" in note for note in verdict.notes)


def sft(rng, name, seed, of_loss, first=0.0):
    """A noisy SFT run; `first` is added to the noise of the first loss, and `of_loss` is a factor."""
    loss = {step: of_loss * (5.8 - 0.2 * step + (0.02 * rng.normal() if step > 1 else first)) for step in range(1, 11)}
    series = {"train/loss": loss, "val/loss": {10: of_loss * (4.0 + 0.01 * rng.normal())}}
    series["train/grad_norm"] = {step: 1 + 0.1 * rng.normal() for step in loss}
    return Run(name=name, series=series, workload="sft", seed=seed, fingerprint=name, is_job=True)


def sft_session(of_b, pairs=8, same_first=False):
    rng = generator(5)
    sides = (("a", 1.0), ("b", of_b))
    return [
        [sft(rng, f"{side}{at}", str(at), factor, 0.0 if same_first else 0.02 * rng.normal()) for at in range(pairs)]
        for side, factor in sides
    ]


def test_where_the_first_loss_is_one_number_in_all_runs_the_rest_can_be_the_same():
    assert judge.case(*sft_session(1.0, same_first=True)).word is Word.SAME


@pytest.mark.parametrize("same_first", [False, True])
def test_a_lower_loss_at_the_first_update_is_no_improvement(same_first):
    assert judge.case(*sft_session(0.8, same_first=same_first)).word is Word.CHANGED


def test_a_lower_loss_after_updates_on_equal_data_is_one():
    a, b = sft_session(1.0)
    b = [edit(run, "train/loss", lambda step, value: value - 0.4 * (step > 1)) for run in b]
    assert judge.case(a, [edit(run, "val/loss", {10: 3.6}) for run in b]).word is Word.IMPROVED


def sporadic(run, rng, share=0.3):
    steps = {step: 0.1 * rng.random() for step in run.steps if rng.random() < share}
    return edit(run, "exit/limit", steps) if steps else run


@pytest.mark.parametrize("seed", range(4))
def test_metrics_that_come_and_go_in_a_are_no_reason(seed):
    rng = generator(seed)
    a, b = ([sporadic(run, rng) for run in side] for side in runs(8, seed))
    verdict = judge.case(a, b)
    assert verdict.word in (Word.SAME, Word.INCONCLUSIVE)
    assert any("exit/limit" in note for note in verdict.notes)


def test_an_event_of_one_run_of_b_is_no_reason():
    a, b = runs(8)
    verdict = judge.case(a, [edit(b[0], "exit/crashed", {7: 0.03}), *b[1:]])
    assert verdict.word is Word.SAME


def test_a_metric_that_all_runs_of_b_lack_is_one():
    a, b = runs(8)
    verdict = judge.case(a, [run.without(["mine/success"]) for run in b])
    assert (verdict.word, verdict.rule) == (Word.CHANGED, "one-sided-by-pairs")


def test_an_open_case_asks_for_pairs_until_a_look_that_can_decide():
    for seed in range(12):
        for pairs in (3, 4):
            verdict = judge.case(*runs(pairs, seed))
            assert not verdict.is_open or verdict.pairs + verdict.pairs_needed in (4, 6)


@pytest.mark.parametrize("metric", [SCORE, "mine/success"])
@pytest.mark.parametrize("pairs", [3, 6])
def test_values_that_no_sum_can_hold_are_never_the_same(metric, pairs):
    a, b = runs(pairs)
    huge = edited(b, metric, lambda step, _: 1.7e308 * (-1) ** (step // 3))
    assert judge.case(a, huge).word not in GOOD
    assert judge.case(edited(a, metric, lambda step, _: 1.7e308), huge).word not in GOOD


@pytest.mark.slow
def test_some_rule_decides_whatever_differs():
    rng = generator(6)
    names = [*noisy(rng, "x").series, "mine/success"]
    for _ in range(120):
        pairs = int(rng.choice([1, 2, 3, 4, 6, 8]))
        a, b = runs(pairs, int(rng.integers(1000)))
        for name in rng.choice(names, size=2):
            size = float(rng.choice([0.01, 0.3, 5.0])) * rng.normal()
            b = edited(b, str(name), lambda step, value, size=size: value + size)
        if rng.random() < 0.3:
            a = [*a, dataclasses.replace(runs(1, 7)[0][0], name="again", fingerprint="again")]
        verdict = judge.case(a, b)
        assert verdict.rule
        assert not math.isnan(verdict.pairs)
