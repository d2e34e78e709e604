"""The verdict where A repeats itself: recorded runs of the rehearsal, and copies of them with a planted difference."""

import dataclasses
import math

import pytest
from verdict_runs import changed, edit, generator, recorded, session

from verl_verdict.decide import judge
from verl_verdict.decide.verdicts import Word
from verl_verdict.errors import CannotJudge
from verl_verdict.read.records import TOKENS, WEIGHTS

PPO = ("ppo-0.9.1-v1-1", "ppo-0.9.1-v1-2")
GRPO = ("grpo-0.9.1-v1-1", "grpo-0.9.1-v1-2")
SFT = ("sft-0.9.1-1", "sft-0.9.1-2")


def by(metric, factor):
    """Multiplies a metric in each line that has it."""

    def change(step, data):
        if metric in data:
            data[metric] *= factor

    return change


def to(values):
    """Sets these metrics in each line."""
    return lambda step, data: data.update(values)


def at(metric, sizes):
    """Multiplies a metric by 1 and these sizes, by step."""

    def change(step, data):
        data[metric] *= 1 + sizes.get(step, 0.0)

    return change


def without(metric, steps=(1, 2, 3, 4)):
    """Removes a metric from the lines of these steps."""
    return lambda step, data: data.pop(metric) if step in steps else None


def both(*changes):
    def change(step, data):
        for each in changes:
            each(step, data)

    return change


ENTROPY = {1: 1e-7, 2: 2e-6, 3: 1e-4, 4: 0.005}
LESS = {step: 0.9 * size for step, size in ENTROPY.items()}
grows = at("actor/entropy", ENTROPY)


def hashed(runs, *said, of=TOKENS):
    """The runs with these hashes."""
    return [dataclasses.replace(run, hashes={of: each}) for run, each in zip(runs, said, strict=True)]


def against(tmp_path, a, change, original=None):
    """The verdict on a copy of A's first run (or of `original`) whose lines were edited."""
    return judge.case(recorded(tmp_path, *a), [changed(tmp_path, original or a[0], change)])


@pytest.mark.parametrize("names", [PPO, GRPO, SFT])
def test_equal_records_are_identical_whatever_their_times(tmp_path, names):
    verdict = against(tmp_path, names, to({"timing_s/gen": 1000.0, "perf/throughput": 1e-3} if names is GRPO else {}))
    assert (verdict.word, verdict.reason, verdict.first) == (Word.IDENTICAL, "B is bit-equal to A", None)


def test_one_pair_is_enough_if_it_is_bit_equal(tmp_path):
    verdict = against(tmp_path, GRPO[:1], lambda step, data: None)
    assert (verdict.word, verdict.how) == (Word.IDENTICAL, "77 metrics over 4 steps of 1 pair, value by value")


@pytest.mark.parametrize("b", ["ppo-main-v1", "ppo-0.9.1-v1-2"])
def test_another_order_of_summation_is_the_same(tmp_path, b):
    """Equal runs of the rehearsal differ by 5e-7: samples come back in another order. verl's main trains as 0.9.1 does."""
    a = recorded(tmp_path, "ppo-0.9.1-v1-1", *(["ppo-0.9.1-v1-2"] if b == "ppo-main-v1" else []))
    verdict = judge.case(a, recorded(tmp_path, b), deterministic=True)
    assert verdict.word is Word.SAME
    assert verdict.reason.startswith("B differs from A only by rounding (at most ")
    assert verdict.deterministic is True


def test_a_real_change_between_releases(tmp_path):
    """verl 0.8.0 computes another gradient norm for SFT than 0.7.1, with equal losses."""
    verdict = judge.case(recorded(tmp_path, *SFT), recorded(tmp_path, "sft-0.7.1"))
    assert verdict.word is Word.CHANGED
    assert (
        verdict.reason
        == "runs of A with one seed are equal, and B differs from step 1 on (train/grad_norm: A 8.823, B 8.814)"
    )
    assert str(verdict.first) == "step 1, train/grad_norm: A 8.823, B 8.814"
    assert verdict.first.others == ()


def test_v0_against_v1_says_what_is_not_comparable(tmp_path):
    """They define clip ratios in another way, and V1 logs more; both are listed, and are not the first difference."""
    b = dataclasses.replace(recorded(tmp_path, "ppo-0.9.1-v0")[0], facts={})
    verdict = judge.case(recorded(tmp_path, *PPO), [b])
    assert (verdict.word, verdict.first.metric) == (Word.CHANGED, "training/rollout_probs_diff_max")
    said = "one side ran verl's V0 trainer and the other one V1: they define */clip_ratio in another way, so it is not compared"
    assert said in verdict.notes
    assert "training/num_turns/max is not in B (only the V1 trainer writes it)" in "\n".join(verdict.notes)


def test_what_only_0_9_1_writes_when_it_validates_is_no_change(tmp_path):
    success_only = "val-aux/openai/gsm8k/acc_success_only/mean@1"
    (b,) = recorded(tmp_path, "ppo-0.9.1-v1-resumed")
    a = dataclasses.replace(
        b, series={name: each for name, each in b.series.items() if name != success_only}, fingerprint="without"
    )
    assert success_only in b.series
    verdict = judge.case([a], [b])
    assert verdict.word is Word.IDENTICAL
    why = "only the V1 trainer of verl 0.9.1 and later writes it"
    assert f"{success_only} is not in A ({why})" in "\n".join(verdict.notes)


# ---- planted regressions; each changes what the real one changes first


def opposite_advantages(step, data):
    data["critic/advantages/max"], data["critic/advantages/min"] = (
        -data["critic/advantages/min"],
        -data["critic/advantages/max"],
    )
    data["critic/advantages/mean"] *= -1
    data["actor/ppo_kl"] *= -1.2
    data["actor/pg_loss"] *= -1.1


@pytest.mark.parametrize(
    ("names", "original"), [(PPO, "ppo-0.9.1-v1-1"), (PPO, "ppo-main-v1"), (GRPO, "grpo-0.9.1-v1-3")]
)
@pytest.mark.parametrize("runs_of_a", [1, 2])
def test_the_opposite_sign_of_the_advantages_is_a_regression(tmp_path, names, original, runs_of_a):
    verdict = against(tmp_path, names[:runs_of_a], opposite_advantages, original)
    assert verdict.word is Word.REGRESSED
    said = "with equal rewards, critic/advantages has the opposite sign in B at step 1: B trains away from what A trains towards"
    assert verdict.reason == said
    assert verdict.first.step == 1
    assert verdict.first.metric.startswith("critic/advantages/")
    assert names is GRPO or "actor/pg_loss" in verdict.first.others


@pytest.mark.parametrize(("high", "low"), [(0.866, -0.9), (1.3, -1.5), (1.2, -0.8660238), (1.49999702, -1.2)])
def test_other_advantages_that_are_not_mirrored_are_a_change(tmp_path, high, low):
    """A has 0.866 and -1.5 at step 1."""
    verdict = against(tmp_path, GRPO, to({"critic/advantages/max": high, "critic/advantages/min": low}))
    assert (verdict.word, verdict.first.step) == (Word.CHANGED, 1)
    assert verdict.first.metric.startswith("critic/advantages/")


def test_symmetric_advantages_that_differ_a_little_are_a_change(tmp_path):
    """Mirrored, they are themselves: that says nothing about the sign."""

    def symmetric(size):
        return lambda step, data: data.update({"critic/advantages/max": size, "critic/advantages/min": -size})

    a = [changed(tmp_path, name, symmetric(1.0), to=f"a{at}") for at, name in enumerate(GRPO)]
    verdict = judge.case(a, [changed(tmp_path, GRPO[0], symmetric(1.0005))])
    assert (verdict.word, verdict.first.metric) == (Word.CHANGED, "critic/advantages/max")


def test_the_mean_of_symmetric_advantages_shows_their_opposite_sign(tmp_path):
    def mean(value):
        return lambda step, data: data.update({HIGH: 1.5, LOW: -1.5, "critic/advantages/mean": value})

    a = [changed(tmp_path, name, mean(0.02), to=f"a{at}") for at, name in enumerate(GRPO)]
    for value, word in ((-0.02, Word.REGRESSED), (0.01, Word.CHANGED)):
        assert judge.case(a, [changed(tmp_path, GRPO[0], mean(value))]).word is word
    a = [changed(tmp_path, name, mean(1e-8), to=f"a{at}") for at, name in enumerate(GRPO)]
    assert judge.case(a, [changed(tmp_path, GRPO[0], mean(-1e-8))]).word is Word.SAME  # what rounding leaves of 0


HIGH, LOW = "critic/advantages/max", "critic/advantages/min"
NO_ADVANTAGE = to({HIGH: 0.0, LOW: 0.0, "critic/advantages/mean": 0.0})


def test_advantages_of_0_at_all_steps_show_nothing_and_in_b_alone_are_a_regression(tmp_path):
    a = [changed(tmp_path, name, NO_ADVANTAGE, to=f"a{at}") for at, name in enumerate(GRPO)]
    b = changed(tmp_path, "grpo-0.9.1-v1-3", NO_ADVANTAGE)
    nothing = judge.case(a, [b])
    assert (nothing.word, nothing.reason.split(",")[0]) == (
        Word.INCONCLUSIVE,
        "the advantages are 0 at every step of A and of B",
    )
    alone = judge.case(recorded(tmp_path, *GRPO), [b])
    assert (alone.word, alone.reason) == (
        Word.REGRESSED,
        "critic/advantages/max is 0 at every step of B: its rewards train nothing",
    )


@pytest.mark.parametrize("size", [4.0, 1e5, 1.01])
def test_a_metric_times_a_constant_while_all_else_is_equal_is_only_logged_otherwise(tmp_path, size):
    a = hashed(recorded(tmp_path, *SFT), "equal", "equal", of=WEIGHTS)
    (b,) = hashed([changed(tmp_path, SFT[0], by("train/loss", size))], "equal", of=WEIGHTS)
    verdict = judge.case(a, [b])
    assert (verdict.word, verdict.first.metric) == (Word.CHANGED, "train/loss")
    assert verdict.reason == (
        f"only what is logged changed, by one factor at every step: train/loss (times {size:.4g}); "
        "equal are the gradients, final weights and all else"
    )


@pytest.mark.parametrize(
    ("change", "hash"),
    [
        (by("train/loss", 4), "other"),
        (both(by("train/loss", 4), by("train/grad_norm", 4)), "equal"),
        (by("val/loss", 4), "equal"),  # one value
        (lambda step, data: data.update({"train/loss": data["train/loss"] * (4 + 0.01 * step)} if "train/loss" in data else {}), "equal"),
    ],
)  # fmt: skip
def test_it_is_more_than_logging_if_anything_else_differs(tmp_path, change, hash):
    a = hashed(recorded(tmp_path, *SFT), "equal", "equal", of=WEIGHTS)
    (b,) = hashed([changed(tmp_path, SFT[0], change)], hash, of=WEIGHTS)
    verdict = judge.case(a, [b])
    assert verdict.word is Word.REGRESSED
    assert "logged" not in verdict.reason


OPPOSITE = "with equal advantages, actor/pg_loss has the opposite sign in B at step 1: B trains away from what A trains towards"
FROZEN = "B's actor never leaves its reference, so it does not train, or the reference is the actor itself"


@pytest.mark.parametrize(
    ("names", "plant", "reason"),
    [
        (PPO, both(by("actor/pg_loss", -1), by("actor/loss", -1)), OPPOSITE),
        (
            SFT,
            both(by("train/loss", 1.05), by("train/grad_norm", 1.2)),
            "train/loss, first update is worse: A 5.891, B 6.185",
        ),
        (GRPO, to({"actor/grad_norm": 0.0}), "actor/grad_norm is 0 at every step of B: B does not train"),
        # Measured on two real ones: a frozen actor, and a reference whose log-probs come from the actor.
        (GRPO, to({"actor/kl_loss": 0.0}), f"actor/kl_loss is 0 at every step of B: {FROZEN}"),
    ],
)
def test_what_shows_on_its_face_is_a_regression(tmp_path, names, plant, reason):
    verdict = against(tmp_path, names, plant)
    assert (verdict.word, verdict.reason) == (Word.REGRESSED, reason)


@pytest.mark.parametrize(
    ("size", "runs_of_a", "word"),
    [(9e-5, 1, Word.INCONCLUSIVE), (9e-5, 2, Word.REGRESSED), (0.0101, 1, Word.REGRESSED)],
)
def test_the_opposite_sign_of_a_loss_near_0_is_noise_unless_a_repeats_itself(tmp_path, size, runs_of_a, word):
    """GRPO's loss is what rounding leaves of a sum of 0: two of 60 pairs of equal code had 9.015e-5 and -9.015e-5, and the like."""

    def loss_of(size):
        return lambda step, data: data.update({"actor/pg_loss": size})

    a = [changed(tmp_path, name, loss_of(size), to=f"a{at}") for at, name in enumerate(GRPO[:runs_of_a])]
    verdict = judge.case(a, [changed(tmp_path, GRPO[0], loss_of(-size))])
    assert (verdict.word, verdict.first.metric) == (word, "actor/pg_loss")


@pytest.mark.parametrize("original", ["ppo-0.9.1-v1-1", "ppo-main-v1"])
def test_stale_rollout_weights_are_a_regression(tmp_path, original):
    """Measured on a real one: 0.0020 becomes 0.0106 at step 2."""

    def plant(step, data):
        if step > 1:
            data["training/rollout_probs_diff_mean"] = 0.0106
            data["critic/score/mean"] += 0.0625

    verdict = against(tmp_path, PPO, plant)
    assert verdict.word is Word.REGRESSED
    assert verdict.reason == "training/rollout_probs_diff_mean, mean of the last third is worse: A 0.002038, B 0.0106"
    assert str(verdict.first) == "step 2, training/rollout_probs_diff_mean: A 0.002228, B 0.0106"


@pytest.mark.parametrize(
    ("names", "metric", "factor"),
    [(PPO, "training/rollout_probs_diff_mean", 0.1), (SFT, "train/loss", 0.95), (GRPO, "critic/score/mean", 0.8)],
)
def test_a_smaller_mismatch_a_lower_loss_and_a_lower_reward_of_one_pair_are_a_change(tmp_path, names, metric, factor):
    """One seed cannot tell a worse reward from an unlucky one."""
    verdict = against(tmp_path, names, by(metric, factor))
    assert (verdict.word, verdict.first.metric) == (Word.CHANGED, metric)


def test_a_lower_reward_over_six_exact_seeds_is_a_regression():
    """A repeats itself with each seed; statistics over the seeds decide whether B is worse."""
    rng = generator(3)

    def again(run):
        return dataclasses.replace(
            edit(run, "actor/entropy", lambda step, value: value * (1 + 1e-8)), name=f"{run.name} again"
        )

    def seeds(number):
        a, b = session(rng, number, {"critic/score/mean": -0.3})
        return [*a, *map(again, a)], b

    assert judge.case(*seeds(3)).word is Word.CHANGED
    verdict = judge.case(*seeds(6))
    assert (verdict.word, verdict.deterministic) == (Word.REGRESSED, True)
    assert verdict.reason.startswith("critic/score/mean, mean of the last third: A 0.")


def test_a_dropped_kl_loss_is_a_change(tmp_path):
    """Measured on a real one: actor/loss differs in its fourth digit from step 2 on. The metric of the term is gone."""

    def plant(step, data):
        del data["actor/kl_loss"], data["actor/kl_coef"]
        data["actor/loss"] = data["actor/pg_loss"]

    verdict = against(tmp_path, GRPO, plant)
    assert verdict.word is Word.CHANGED
    assert (verdict.first.step, verdict.first.metric) == (2, "actor/loss")
    assert verdict.first.means.startswith("the loss of the same samples differs: a term, a coefficient, the clip range")


ROUNDED = at("rollout_corr/kl", {1: 1e-7})


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (both(without("actor/kl_coef"), ROUNDED), "equal but for rounding, but actor/kl_coef is not in B"),
        (without("actor/kl_loss", [3]), "bit-equal, but actor/kl_loss is not in B at step 3"),
        (to({"actor/new_loss": 1.0}), "bit-equal, but actor/new_loss is not in A"),
    ],
)
def test_a_metric_that_only_one_side_has_is_never_the_same(tmp_path, plant, reason):
    verdict = against(tmp_path, GRPO, plant)
    assert (verdict.word, verdict.reason) == (Word.CHANGED, f"the metrics that both record are {reason}")


def test_one_value_of_one_step_is_found(tmp_path):
    """Megatron-LM #3097: 179 of 200 steps did not match, and the test passed."""
    verdict = against(tmp_path, PPO, at("actor/lr", {4: 1e-3}))
    assert (verdict.word, str(verdict.first)) == (Word.CHANGED, "step 4, actor/lr: A 0.0001, B 0.0001001")


def test_a_jump_after_rounding_is_a_change(tmp_path):
    """The first update differs by rounding, the second one by far more than rounding becomes in a step."""
    verdict = against(tmp_path, PPO, at("actor/loss", {1: 1e-7, 2: 1e-3, 3: 1e-3, 4: 1e-3}))
    assert (verdict.word, verdict.first.step, verdict.first.metric) == (Word.CHANGED, 2, "actor/loss")


ROUNDING = by("actor/grad_norm", 1 + 1e-7)


@pytest.mark.parametrize(
    ("of_a", "of_b", "word"),
    [
        (by("rollout_corr/kl", 1 + 1e-7), by("rollout_corr/kl", 1 + 1e-7), Word.CHANGED),  # which changes no token
        (lambda step, data: None, ROUNDING, Word.INCONCLUSIVE),
        # A's repeat differs as much after the first update, and samples the same tokens all the same.
        (ROUNDING, ROUNDING, Word.CHANGED),
    ],
)
def test_other_tokens_are_a_change_unless_rounding_of_an_update_explains_them(tmp_path, of_a, of_b, word):
    def plant(step, data):
        of_b(step, data)
        if step > 1:
            data["response_length/mean"] += 1

    a = [*recorded(tmp_path, PPO[0]), changed(tmp_path, PPO[0], of_a, to="a2")]
    verdict = judge.case(a, [changed(tmp_path, PPO[0], plant)])
    assert (verdict.word, verdict.first.step, verdict.first.metric) == (word, 2, "response_length/mean")


# ---- rounding, and what is more than that


def test_rounding_that_grows_beyond_rounding_is_inconclusive(tmp_path):
    verdict = against(tmp_path, PPO, grows)
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason.startswith("the difference begins as rounding and grows beyond it (step 3, actor/entropy: A ")
    assert verdict.reason.endswith("): run A with a perturbed last bit to measure the noise, or run more seeds")
    assert verdict.needs_perturbed


def test_rounding_that_grows_excuses_no_missing_metric(tmp_path):
    verdict = against(tmp_path, PPO, both(grows, without("actor/pg_clipfrac_lower")))
    assert (verdict.word, verdict.reason) == (Word.CHANGED, "B differs from A, and actor/pg_clipfrac_lower is not in B")


def test_a_run_of_a_that_lacks_a_metric_repeats_nothing(tmp_path):
    a = [*recorded(tmp_path, GRPO[0]), changed(tmp_path, GRPO[1], without("actor/entropy"), to="a2")]
    verdict = judge.case(a, [changed(tmp_path, GRPO[0], grows)])
    assert (verdict.word, verdict.deterministic) == (Word.INCONCLUSIVE, False)


def test_what_a_perturbed_run_of_a_does_is_noise(tmp_path):
    perturbed = changed(tmp_path, PPO[0], grows, to="perturbed")
    half = changed(tmp_path, PPO[0], at("actor/entropy", {1: 1e-7, 2: 2e-6, 3: 6e-5, 4: 0.005}))
    verdict = judge.case(recorded(tmp_path, *PPO), [half], perturbed=[perturbed])
    assert (verdict.word, verdict.reason) == (
        Word.SAME,
        "B differs from A by no more than rounding grows to (up to 0.004 of a metric's size), as A with perturbed last bits shows",
    )


@pytest.mark.parametrize(
    ("metric", "sizes", "word"),
    [
        ("actor/entropy", {1: 1e-7, 2: 2e-6, 3: 2.5e-4}, Word.SAME),
        ("actor/entropy", {1: 1e-7, 2: 1e-5, 3: 4e-4}, Word.INCONCLUSIVE),
        ("actor/loss", {1: 1e-7, 2: 2e-6, 3: 2e-4}, Word.SAME),  # of the same stage, relative to its own scale
        ("critic/vf_loss", {1: 1e-7, 2: 2e-6, 3: 1e-4}, Word.INCONCLUSIVE),  # the critic is another stage
        ("actor/entropy", {1: 1e-6, 2: 6e-5}, Word.INCONCLUSIVE),  # a step before A's perturbed run
    ],
)
def test_what_is_within_three_times_the_perturbed_run_is_the_same(tmp_path, metric, sizes, word):
    perturbed = changed(tmp_path, PPO[0], at("actor/entropy", ENTROPY), to="perturbed")
    b = changed(tmp_path, PPO[0], at(metric, sizes))
    verdict = judge.case(recorded(tmp_path, *PPO), [b], perturbed=[perturbed])
    assert (verdict.word, verdict.needs_perturbed) == (word, False)
    if word is Word.INCONCLUSIVE:
        begin = "the difference begins as rounding and grows beyond what A with perturbed last bits does (step "
        assert (verdict.reason.startswith(begin), verdict.reason.endswith("): run more seeds")) == (True, True)
        assert verdict.pairs_needed == 2


def test_a_metric_that_is_0_without_the_perturbation_excuses_and_hides_no_other(tmp_path):
    """It has no scale: `training/epoch` is 0 in every run."""
    perturb = both(to({"training/epoch": 0.1}), at("prompt_length/max", {3: 1e-4}))
    perturbed = changed(tmp_path, PPO[0], perturb, to="perturbed")
    for size, word in ((1.5e-4, Word.SAME), (4e-4, Word.CHANGED)):
        b = changed(tmp_path, PPO[0], at("prompt_length/mean", {1: 1e-7, 2: 1e-5, 3: size}), to=str(size))
        assert judge.case(recorded(tmp_path, *PPO), [b], perturbed=[perturbed]).word is word


@pytest.mark.parametrize("size", [0.05, 0.3])
def test_from_which_step_on_noise_hides_a_change_is_said(tmp_path, size):
    perturbed = changed(tmp_path, PPO[0], at("actor/entropy", {1: 1e-7, 3: 0.09 * size, 4: size}), to="perturbed")
    b = changed(tmp_path, PPO[0], at("actor/entropy", LESS))
    verdict = judge.case(recorded(tmp_path, *PPO), [b], perturbed=[perturbed])
    assert verdict.word is Word.SAME
    note = "from step 4 on, perturbed last bits change some of A's metrics by more than 10% of their size: a change that begins there is not seen"
    assert (note in verdict.notes) == (size > 0.1)


@pytest.mark.parametrize(
    ("edited", "why"),
    [
        ({}, "it is bit-equal to 'ppo-0.9.1-v1-1'"),
        ({"failure": "KeyError: no"}, "the job failed after step 4 (KeyError: no)"),
        ({"unfinished": "the job was stopped"}, "the job was stopped"),
        ({"facts": {"profile": "gpu"}}, "it differs from 'ppo-0.9.1-v1-1' in more than its last bits: profile"),
    ],
)  # fmt: skip
def test_a_perturbed_run_that_measures_nothing_is_no_measurement(tmp_path, edited, why):
    change = grows if edited else (lambda step, data: None)
    perturbed = changed(tmp_path, PPO[0], change, to="perturbed")
    perturbed = dataclasses.replace(perturbed, **{**edited, "facts": {**perturbed.facts, **edited.get("facts", {})}})
    verdict = judge.case(
        recorded(tmp_path, *PPO), [changed(tmp_path, PPO[0], at("actor/entropy", LESS))], perturbed=[perturbed]
    )
    said = f"the perturbed run 'perturbed' measures nothing, because {why}"
    assert (verdict.word, verdict.needs_perturbed) == (Word.INCONCLUSIVE, False)
    assert verdict.reason.endswith(f"), and {said}: run more seeds")
    assert said in verdict.notes


@pytest.mark.parametrize(
    ("noise", "sizes", "tokens", "word"),
    [
        (grows, LESS, "of a", Word.INCONCLUSIVE),
        (grows, LESS, "of its own", Word.SAME),
        (at("actor/entropy", {3: 1e-6}), {3: 2e-6}, "of a", Word.CHANGED),  # rounding has not grown
    ],
)
def test_tokens_that_rounding_may_have_changed_are_no_change(tmp_path, noise, sizes, tokens, word):
    perturbed = changed(tmp_path, PPO[0], noise, to="perturbed")
    a, b = recorded(tmp_path, *PPO), changed(tmp_path, PPO[0], at("actor/entropy", sizes))
    *a, b, perturbed = hashed([*a, b, perturbed], "of a", "of a", "of b", tokens)
    verdict = judge.case(a, [b], perturbed=[perturbed])
    assert verdict.word is word
    if word is Word.INCONCLUSIVE:
        said = "the difference begins as rounding and grows beyond what A with perturbed last bits does (the sampled tokens): run more seeds"
        assert verdict.reason == said


def test_other_final_weights_of_a_perturbed_run_excuse_none_of_b(tmp_path):
    perturbed = changed(tmp_path, PPO[0], grows, to="perturbed")
    runs = [*recorded(tmp_path, *PPO), perturbed, changed(tmp_path, PPO[1])]
    a, again, perturbed, b = hashed(runs, "of a", "of a", "others", "of b", of=WEIGHTS)
    b = dataclasses.replace(b, series=a.series)
    verdict = judge.case([a, again], [b], perturbed=[perturbed])
    assert (verdict.word, verdict.reason) == (Word.CHANGED, "all metrics are bit-equal, but the final weights are not")


@pytest.mark.parametrize("begins_as_rounding", [True, False])
def test_a_change_after_rounding_asks_for_a_perturbed_run_which_may_excuse_it(tmp_path, begins_as_rounding):
    """A gradient in bfloat16 that was equal may jump, because rounding reached it."""
    jumps = both(at("actor/grad_norm", {3: 0.01}), at("actor/entropy", {2: 1e-6 if begins_as_rounding else 0.0}))
    a, b = recorded(tmp_path, *PPO), changed(tmp_path, PPO[0], jumps)
    verdict = judge.case(a, [b])
    assert (verdict.word, verdict.needs_perturbed) == (Word.CHANGED, begins_as_rounding)
    perturbed = [changed(tmp_path, PPO[0], at("actor/grad_norm", {3: size}), to=str(size)) for size in (0.009, 0.001)]
    assert judge.case(a, [b], perturbed=perturbed[:1]).word is Word.SAME
    verdict = judge.case(a, [b], perturbed=perturbed[1:])
    assert (verdict.word, verdict.needs_perturbed) == (Word.CHANGED, False)


@pytest.mark.parametrize(
    ("perturb", "metric", "factor"),
    [
        (grows, "critic/vf_loss", 1.01),  # of another metric
        (grows, "actor/entropy", 1.005),  # of a later step
        (to({"actor/entropy": math.inf}), "actor/entropy", 1.1),
    ],
)
def test_noise_that_is_of_something_else_or_not_finite_excuses_nothing(tmp_path, perturb, metric, factor):
    perturbed = changed(tmp_path, PPO[0], perturb, to="perturbed")
    verdict = judge.case(
        recorded(tmp_path, *PPO), [changed(tmp_path, PPO[0], by(metric, factor))], perturbed=[perturbed]
    )
    assert (verdict.word, verdict.first.step) == (Word.CHANGED, 1)


def test_a_perturbed_run_of_another_seed_is_refused(tmp_path):
    perturbed = dataclasses.replace(changed(tmp_path, PPO[0], grows, to="perturbed"), seed="data.seed=9")
    with pytest.raises(CannotJudge) as refused:
        judge.case(recorded(tmp_path, *PPO), [changed(tmp_path, PPO[0])], perturbed=[perturbed])
    said = "The perturbed run 'perturbed' has the seed of no run of A (data.seed=9): perturb a run of A."
    assert str(refused.value) == said


def test_one_run_of_a_does_not_tell_what_is_noise_unless_the_caller_knows(tmp_path):
    a, b = recorded(tmp_path, PPO[0]), [changed(tmp_path, PPO[0], by("actor/entropy", 1.1))]
    verdict = judge.case(a, b)
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason.startswith("B differs from A (first at step 1, actor/entropy: A ")
    assert verdict.reason.endswith(
        "), and one run of A does not tell what is noise: run A once more with the same seed, or run 2 more pairs with other seeds"
    )
    assert verdict.pairs_needed == 2
    assert judge.case(a, b, deterministic=True).word is Word.CHANGED
    verdict = judge.case(a, b, perturbed=[changed(tmp_path, PPO[0], grows, to="perturbed")])
    assert verdict.word is Word.INCONCLUSIVE
    said = "the perturbed runs were not used, because no two runs of A show that one seed gives equal runs: run A twice with one seed"
    assert said in verdict.notes


def test_a_that_does_not_repeat_itself_needs_statistics(tmp_path):
    a = [*recorded(tmp_path, PPO[0]), changed(tmp_path, PPO[1], grows, to="a2")]
    verdict = judge.case(a, [changed(tmp_path, PPO[0], to({"actor/entropy": 0.5}))])
    assert verdict.word is Word.INCONCLUSIVE
    said = "runs of A with one seed differ, so 1 pair of runs cannot tell noise from a change: run 2 more pairs with other seeds"
    assert verdict.reason == said


def test_the_pair_that_differs_decides(tmp_path):
    """With two seeds, one pair is bit-equal and the other one is not."""
    a1, a2 = recorded(tmp_path, *GRPO)
    b1 = changed(tmp_path, GRPO[0], to="b1")
    b2 = changed(tmp_path, GRPO[1], by("actor/entropy", 1.1), to="b2")
    seeds = [dataclasses.replace(run, seed=seed) for run, seed in ((a1, "1"), (a2, "2"), (b1, "1"), (b2, "2"))]
    verdict = judge.case(seeds[:2], seeds[2:], deterministic=True)
    assert (verdict.word, verdict.first.metric) == (Word.CHANGED, "actor/entropy")


# ---- what the metrics do not show


def test_other_tokens_are_a_change_even_if_all_metrics_agree_but_for_rounding(tmp_path):
    a = hashed(recorded(tmp_path, *PPO), "1", "1")
    b = recorded(tmp_path, "ppo-main-v1")
    assert judge.case(a, hashed(b, "1")).word is Word.SAME
    other = judge.case(a, hashed(b, "4"))
    said = "all metrics are equal but for rounding, but the sampled tokens are not"
    assert (other.word, other.reason) == (Word.CHANGED, said)
    assert judge.case(hashed(a, "1", "2"), hashed(b, "3")).word is Word.SAME  # A's own runs differ


def test_the_hashes_of_every_pair_are_compared(tmp_path):
    b = [changed(tmp_path, name, to=f"b{at}") for at, name in enumerate(GRPO)]
    runs = hashed([*recorded(tmp_path, *GRPO), *b], "x", "y", "x", "z", of=WEIGHTS)
    seeds = [dataclasses.replace(run, seed=seed) for run, seed in zip(runs, "1212", strict=True)]
    assert judge.case(seeds[:2], seeds[2:]).reason == "all metrics are bit-equal, but the final weights are not"


def test_runs_in_which_nothing_varies_show_nothing(tmp_path):
    def still(run):
        series = {
            name: dict.fromkeys(steps, 0.5)
            for name, steps in run.series.items()
            if name.startswith(("critic", "actor"))
        }
        return dataclasses.replace(run, series=series)

    verdict = judge.case(list(map(still, recorded(tmp_path, *GRPO))), [still(changed(tmp_path, GRPO[0]))])
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason == "every metric is constant over all steps, which shows nothing: train more steps"


def test_equal_runs_that_do_not_train_show_nothing(tmp_path):
    """verl 0.9's GRPO with one seed for all answers of a prompt: exit status 0, and no gradient."""
    runs = [
        edit(run, "actor/grad_norm", lambda step, value: 0.0)
        for run in (*recorded(tmp_path, *GRPO), changed(tmp_path, GRPO[0]))
    ]
    verdict = judge.case(runs[:2], runs[2:])
    assert verdict.word is Word.INCONCLUSIVE
    said = "the gradient of A is 0 at every step, so nothing trains and nothing is shown: change the case"
    assert verdict.reason == said


def test_b_that_does_not_repeat_itself_is_noted(tmp_path):
    b = [changed(tmp_path, GRPO[0], to="b1"), changed(tmp_path, GRPO[0], grows, to="b2")]
    verdict = judge.case(recorded(tmp_path, *GRPO), b)
    assert verdict.word is not Word.IDENTICAL
    assert "runs of B with seed verl's default seeds differ" in verdict.notes


def test_a_changed_default_is_named_with_what_it_explains(tmp_path):
    a = recorded(tmp_path, *PPO)
    b = changed(tmp_path, PPO[0], by("actor/grad_norm", 1.5))
    b = dataclasses.replace(
        b, config={**b.config, "actor_rollout_ref.actor.optim.weight_decay": "0.1", "trainer.balance_batch": "false"}
    )
    verdict = judge.case(a, [b])
    assert [str(each) for each in verdict.first.config] == ["actor_rollout_ref.actor.optim.weight_decay: A 0.01, B 0.1"]
    assert [each.name for each in verdict.config] == [
        "actor_rollout_ref.actor.optim.weight_decay",
        "trainer.balance_batch",
    ]


def test_an_ignored_metric_is_not_compared_and_the_verdict_says_so(tmp_path):
    b = changed(tmp_path, GRPO[0], to({"actor/entropy": 9.0}))
    verdict = judge.case(recorded(tmp_path, *GRPO), [b], ignore=["actor/entropy"])
    assert verdict.word is Word.IDENTICAL
    assert "not compared, as asked: actor/entropy" in verdict.notes


# Worse, whatever path the training takes; and B does not train.
@pytest.mark.parametrize(("name", "factor"), [("training/rollout_probs_diff_mean", 20.0), ("critic/grad_norm", 0.0)])
def test_a_metric_that_shows_a_regression_alone_does_not_if_it_is_ignored(tmp_path, name, factor):
    change = both(by(name, factor), by("actor/entropy", 1.01))
    a, b = recorded(tmp_path, *PPO), [changed(tmp_path, PPO[0], change)]
    assert judge.case(a, b).word is Word.REGRESSED
    verdict = judge.case(a, b, ignore=[name])
    assert (verdict.word, verdict.first.metric) == (Word.CHANGED, "actor/entropy")
