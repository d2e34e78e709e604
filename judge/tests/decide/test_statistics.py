"""The verdict where A does not repeat itself: error rates over simulated sessions, and what keeps it from a silent "same"."""

import dataclasses

import numpy as np
import pytest
from verdict_runs import edit, generator, noisy, session

from verl_verdict.decide import judge, sampled, statistics
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.decide.verdicts import Finding, Word
from verl_verdict.read.metrics import Decisive

SESSIONS = 400


def simulated(seed, summaries, shift=0.0, *, by_seed=1.0, scatter=1.0, repeats=0, shared=0.3, sessions=SESSIONS):
    """The share of sessions that end with each finding. A is repeated with so many of its seeds.

    `shift` of B's first summary is in standard deviations of the difference between two runs of A with one seed. `by_seed` is how much
    a seed moves A and B together, `scatter` how much more B's runs vary than A's.
    """
    rng = generator(seed)
    shape = (sessions, LOOKS[-1], summaries)
    of_seed = by_seed * rng.normal(size=shape)
    a, b = (
        np.sqrt(shared) * rng.normal(size=(*shape[:2], 1)) + np.sqrt(1 - shared) * rng.normal(size=shape) for _ in "ab"
    )
    of_repeats = np.sqrt(2) * rng.normal(size=(sessions, repeats, summaries)) if repeats else None
    a, b = a + of_seed, scatter * b + of_seed
    b[..., 0] += shift * np.sqrt(2)
    found = np.full(sessions, "inconclusive", dtype=object)
    for look in LOOKS:
        result = statistics.look_at(a[:, :look], b[:, :look], np.zeros(summaries), statistics.Alone(of_repeats))
        undecided = found == "inconclusive"
        found[undecided & result.differs.any(axis=-1)] = "differs"
        undecided = found == "inconclusive"
        found[undecided & result.same.all(axis=-1)] = "same"
    return {finding: float((found == finding).mean()) for finding in ("differs", "same", "inconclusive")}


@pytest.mark.parametrize("summaries", [4, 16])
@pytest.mark.slow
def test_equal_code_is_seldom_said_to_differ(summaries):
    """At most 5 % declared. The bound below is that of 400 sessions: 0.05 + 3 standard errors would be 0.083."""
    assert simulated(1, summaries)["differs"] <= 0.05


@pytest.mark.parametrize("summaries", [4, 16])
def test_equal_code_is_mostly_shown_to_be_the_same(summaries):
    assert simulated(2, summaries)["same"] >= 0.85


@pytest.mark.parametrize(("shift", "caught"), [(5, 0.95), (8, 0.99)])
@pytest.mark.parametrize("summaries", [4, 16])
@pytest.mark.parametrize("by_seed", [1, 20])
def test_a_shift_beyond_the_margin_is_found(summaries, shift, caught, by_seed):
    """Also if seeds move A and B much more than noise does."""
    rates = simulated(3, summaries, shift, by_seed=by_seed)
    assert rates["differs"] >= caught
    assert rates["same"] <= 0.01


def test_a_shift_of_exactly_the_margin_is_seldom_said_to_be_the_same():
    """0.05 declared; the margin itself is estimated from few runs, so it is more in fact."""
    assert simulated(4, 8, 3)["same"] <= 0.12


@pytest.mark.parametrize(("by_seed", "repeats"), [(1, 0), (10, 3), (100, 3)])
def test_a_b_that_scatters_much_more_than_a_is_seldom_said_to_be_the_same(by_seed, repeats):
    """Its own differences measure noise, too, but no more than A's runs with other seeds, and than its repeats leave possible."""
    assert simulated(9, 4, scatter=20, by_seed=by_seed, repeats=repeats)["same"] <= 0.02


def test_repeats_without_a_difference_leave_no_noise_if_there_are_enough():
    """One or two may be chance: of 60 noisy pairs of GRPO, half had the same mean score in the last third."""
    a, difference = generator(8).normal(size=(2, 6, 1))
    assert statistics.noise(a, difference, statistics.Alone(np.zeros((3, 1))))[0] == 0
    assert statistics.noise(a, difference, statistics.Alone(np.zeros((2, 1))))[0] > 0.5


@pytest.mark.parametrize(("floor", "same"), [(0.1, False), (5.0, True)])
def test_differences_of_one_sign_are_not_the_same_though_as_large_as_noise(floor, same):
    """So does a KL of 0 in B: the difference is then A's own KL, which is another one for each seed."""
    a = 10 * generator(13).normal(size=(6, 2))
    difference = np.column_stack([[-0.3, -2.0, -3.2, -0.9, -2.5, -0.2], [0.1, -0.2, 0.3, -0.1, -0.1, 0.0]])
    look = statistics.look_at(a, a + difference, np.full(2, floor))
    assert list(look.within) == [True, True]
    assert list(look.same) == [same, True]


def test_the_sign_flip_test_keeps_its_alpha_without_margins():
    """All flips, all summaries at once: p <= 1/32 in at most 1/32 of the sessions, and 3 standard errors."""
    rng = generator(5)
    a, b = rng.normal(size=(2, 2000, 6, 12)) * np.geomspace(0.01, 100, 12)
    p = statistics.sign_flip(b - a, statistics.scale(b - a, np.ones(12)), np.ones(12)).min(axis=-1)
    assert (p <= 2 / 64 + 1e-9).mean() <= 1 / 32 + 3 * np.sqrt(1 / 32 / 2000)


def test_no_sign_of_a_difference_changes_the_scale():
    difference = generator(6).normal(size=(6, 3))
    flips = np.where(generator(7).normal(size=(6, 1)) > 0, 1, -1)
    assert np.array_equal(statistics.scale(difference, np.ones(3)), statistics.scale(flips * difference, np.ones(3)))


def test_the_step_down_names_every_summary_that_differs():
    """One summary differs much more than the other: both are found."""
    rng = generator(7)
    a, b = rng.normal(size=(2, 6, 5))
    b[:, 0] += 100
    b[:, 1] += 15
    look = statistics.look_at(a, b, np.full(5, 0.1))
    assert list(look.differs) == [True, True, False, False, False]


def test_a_summary_below_its_floor_hides_no_other():
    """Differences of one size line up with some signs, as a real one does: below the floor that must not be the largest of all flips."""
    difference = np.column_stack([[0.02, -0.02] * 3, 0.2 + 0.01 * generator(8).normal(size=6)])
    a = generator(9).normal(size=(6, 2))
    assert list(statistics.look_at(a, a + difference, np.array([0.1, 0.1])).differs) == [False, True]


def test_noise_within_its_floor_is_no_rival_of_a_difference():
    """Twenty summaries of noise: with some signs one of them lines up better than the difference does."""
    difference = np.column_stack([[1.9, 0.8, 1.2, 0.3, 0.5, 0.4], generator(10).normal(size=(6, 20))])
    p = [
        statistics.sign_flip(difference, statistics.scale(difference, floor), floor)[0]
        for floor in (np.zeros(21), np.append(0.5, np.full(20, 2.0)))
    ]
    assert p[0] > 0.03125 == p[1]


@pytest.mark.parametrize("pairs", [3, 4, 6, 8])
def test_the_smallest_p_of_a_look(pairs):
    a = np.zeros((pairs, 1))
    b = np.linspace(10, 11, pairs)[:, None]
    assert statistics.sign_flip(b - a, statistics.scale(b - a, np.zeros(1)), np.zeros(1))[0] == 2.0 ** (1 - pairs)


def test_the_looks_spend_no_more_than_they_declare():
    assert sum(statistics.DIFFERENCE_ALPHA.values()) <= 0.05
    assert sum(statistics.SAMENESS_ALPHA.values()) <= 0.05
    assert tuple(statistics.DIFFERENCE_ALPHA) == tuple(statistics.SAMENESS_ALPHA) == LOOKS


def test_differences_without_variance_show_no_sameness():
    """Six equal reference values must not give a tolerance of zero, nor a test that always passes."""
    constant = np.full((4, 1), 0.25)
    assert statistics.tost(constant, np.array([1.0]))[0] == 1.0
    assert statistics.tost(np.zeros((4, 1)), np.array([1.0]))[0] == 0.0


def test_noise_is_that_of_the_pairs_and_of_the_repeats_with_one_seed():
    """Whatever B's shift is, and at most that of A's runs with other seeds."""
    rng = generator(8)
    a = 100 * rng.normal(size=(6, 1))
    difference = np.array([[1.0], [-1.0], [1.0], [-1.0], [1.0], [-1.0]])
    assert statistics.noise(a, difference)[0] == pytest.approx(np.sqrt(6 / 5))
    assert statistics.noise(a, difference + 50)[0] == pytest.approx(np.sqrt(6 / 5))
    assert statistics.noise(a, difference, statistics.Alone(np.array([[4.0]])))[0] == pytest.approx(
        np.sqrt((6 + 16) / 6)
    )
    assert statistics.noise(a, 1e6 * difference)[0] == pytest.approx(np.sqrt(2) * a.std(ddof=1))
    others = np.array([[300.0], [-300.0]])
    assert statistics.noise(a, 1e6 * difference, statistics.Alone(others=others))[0] == pytest.approx(
        np.sqrt(2) * np.vstack([a, others]).std(ddof=1)
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("pairs", LOOKS)
def test_a_summary_that_is_not_finite_shows_nothing_and_hides_nothing(pairs, value):
    a = generator(14).normal(size=(pairs, 2))
    b = a + 0.01 * generator(15).normal(size=(pairs, 2)) + [0.0, 1.0]
    b[1, 0] = value
    with np.errstate(invalid="ignore"):
        look = statistics.look_at(a, b, np.full(2, 0.1))
    assert list(look.differs) == [False, pairs >= 6]
    assert list(look.same) == [False, False]


# ---- whole sessions


def verdict_of(seed, pairs, shift=None, **more):
    return judge.case(*session(generator(seed), pairs, shift, **more))


def test_equal_code_is_the_same():
    verdict = verdict_of(1, 8)
    assert (verdict.word, verdict.first) == (Word.SAME, None)
    assert verdict.reason == "B is within A's margin in all 18 values of the decisive metrics"
    assert {row.finding for row in verdict.rows} == {"same"}


def test_a_lower_reward_is_a_regression():
    verdict = verdict_of(2, 6, {"critic/score/mean": -0.3})
    assert verdict.word is Word.REGRESSED
    said = "critic/score/mean, mean of the last third: A 0.4996, B 0.1977, beyond the margin of 0.0708 (p 0.031)"
    assert verdict.reason == said
    assert verdict.how == "6 pairs of runs, by statistics"
    assert (verdict.first.step, verdict.first.metric) == (1, "critic/score/mean")


BETTER, OTHER, WORSE = {"critic/score/mean": 0.3}, {"actor/entropy": 0.3}, {"training/rollout_probs_diff_mean": 0.01}


@pytest.mark.parametrize(
    ("shift", "constant", "word"),
    [
        (BETTER, (), Word.IMPROVED),
        (OTHER, (), Word.CHANGED),  # no side of it is the good one
        (BETTER | OTHER, (), Word.CHANGED),
        (BETTER | OTHER | WORSE, (), Word.REGRESSED),
        (WORSE, ("actor/entropy",), Word.REGRESSED),  # a constant one hides nothing
    ],
)
def test_worse_counts_more_than_changed_and_changed_more_than_improved(shift, constant, word):
    assert verdict_of(5, 6, shift, constant=constant).word is word


CLIPPED = "actor/pg_clipfrac"
SCORE = "critic/score/mean"


def test_a_small_difference_that_lasts_is_found_within_the_margins():
    verdict = verdict_of(3, 8, {SCORE: -0.03}, steps=30)
    assert (verdict.word, verdict.first.metric) == (Word.REGRESSED, SCORE)
    assert [row.summary for row in verdict.rows if row.finding is Finding.WORSE] == [f"{SCORE}, mean of all steps"]
    assert verdict.reason.startswith(f"{SCORE}, mean of all steps: A 0.5008, B 0.4701, beyond the margin of 0.02")


def test_a_difference_that_six_pairs_show_overrules_that_four_were_the_same():
    """The first update and the last third are equal."""
    a, b = session(generator(1), 8, steps=30)
    b = [edit(run, SCORE, lambda step, value: value - 0.06 * (2 <= step <= 20)) for run in b]
    decisive = [Decisive(SCORE, +1, floor=0.02)]
    assert judge.case(a[:4], b[:4], decisive=decisive).word is Word.SAME
    verdict = judge.case(a, b, decisive=decisive)
    assert (verdict.word, verdict.how) == (Word.REGRESSED, "6 pairs of runs, by statistics")
    assert verdict.first.step in (2, 3)


def test_a_drift_needs_the_same_steps_in_all_runs():
    a, b = session(generator(3), 6)
    names = [each.metric for each in sampled.drifts([*a, *b], "ppo", ())]
    assert "critic/score/mean" in names
    b[0] = edit(b[0], "critic/score/mean", {99: 0.5})
    assert [each.metric for each in sampled.drifts([*a, *b], "ppo", ())] == [
        name for name in names if name != "critic/score/mean"
    ]


@pytest.mark.parametrize(("pairs", "needed", "more"), [(4, 2, "2 more pairs"), (5, 1, "1 more pair")])
def test_a_difference_needs_six_pairs_and_a_fifth_one_is_not_judged(pairs, needed, more):
    verdict = verdict_of(2, pairs, {SCORE: -0.3})
    found = (verdict.word, verdict.how, verdict.pairs_needed)
    assert found == (Word.INCONCLUSIVE, "4 pairs of runs, by statistics", needed)
    said = "after 4 pairs it is not known whether B differs from A in 3 of 18 values, such as "
    assert verdict.reason.startswith(said)
    assert verdict.reason.endswith(f"/mean, first update: run {more}")


@pytest.mark.parametrize("pairs", [1, 2])
def test_fewer_than_three_pairs_are_never_the_same(pairs):
    verdict = verdict_of(7, pairs)
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.pairs_needed == 3 - pairs


def test_more_pairs_do_not_change_a_decision():
    """Otherwise one could run until it is green."""
    a, b = session(generator(2), 8, {"critic/score/mean": -0.3})
    for at in (6, 7):  # two more pairs that would hide it
        b[at] = edit(b[at], "critic/score/mean", lambda step, value: value + 3.0)
    verdict = judge.case(a, b)
    assert (verdict.word, verdict.how) == (Word.REGRESSED, "6 pairs of runs, by statistics")
    assert verdict.notes[-1] == "decided at 6 pairs, as declared: the other 2 do not change it"


@pytest.mark.parametrize(("metric", "value"), [(SCORE, "0.5"), ("actor/entropy", "0.6")])
def test_a_constant_metric_is_never_the_same(metric, value):
    verdict = verdict_of(1, 8, constant=(metric,))
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason == (
        f"{metric}, first update is {value} in every run of A, so it cannot show that B is the same: "
        "choose another decisive metric, or a case in which it varies"
    )


@pytest.mark.parametrize(("share", "word"), [(0.0, Word.SAME), (0.03, Word.CHANGED)])
def test_a_share_of_clipped_tokens_may_be_0_in_all_runs(share, word):
    a, b = session(generator(2), 6)
    a, b = (
        [edit(run, CLIPPED, dict.fromkeys(run.steps, value)) for run in runs] for runs, value in ((a, 0.0), (b, share))
    )
    verdict = judge.case(a, b)
    assert (verdict.word, share == 0 or verdict.first.metric == CLIPPED) == (word, True)


def lacks(run, metric, steps=range(1, 13)):
    values = {step: value for step, value in run.series[metric].items() if step not in steps}
    rest = {name: each for name, each in run.series.items() if name != metric}
    return dataclasses.replace(run, series=rest | ({metric: values} if values else {}))


LACKS = "the decisive metrics are the same, but {} is not in B"


@pytest.mark.parametrize(
    ("change", "word", "reason"),
    [
        (lambda run: lacks(run, SCORE), Word.INCONCLUSIVE, f"'b1' has no {SCORE}, which decides this case"),
        (lambda run: lacks(run, "response_length/mean"), Word.CHANGED, LACKS.format("response_length/mean")),
        (
            lambda run: lacks(run, "actor/entropy", [4]) if run.name == "b6" else run,
            Word.CHANGED,
            f"{LACKS.format('actor/entropy')} at step 4",
        ),
    ],
)
def test_a_decisive_metric_that_b_lacks_or_a_step_of_it_is_never_the_same(change, word, reason):
    a, b = session(generator(1), 8)
    verdict = judge.case(a, list(map(change, b)))
    assert (verdict.word, verdict.reason) == (word, reason)


def test_runs_are_paired_by_seed():
    """The order in which the runs are given does not matter."""
    a, b = session(generator(9), 6, {"critic/score/mean": -0.3})
    in_order = judge.case(a, b)
    assert in_order.word is Word.REGRESSED
    assert judge.case(a, b[::-1]).rows == in_order.rows
    unknown = [[dataclasses.replace(run, seed=None) for run in side] for side in (a, b[::-1])]
    assert judge.case(*unknown).rows != in_order.rows


def test_runs_without_a_partner_are_listed_and_no_common_seed_is_inconclusive():
    a, b = session(generator(1), 4)
    b[3] = dataclasses.replace(b[3], seed="9")
    verdict = judge.case(a, b)
    assert verdict.pairs == 3
    assert "without a partner of the same seed: a4, b4" in verdict.notes
    verdict = judge.case(a[:3], b[3:])
    said = "no run of B has the seed of a run of A: run B with the seeds of A"
    assert (verdict.word, verdict.reason) == (Word.INCONCLUSIVE, said)


@pytest.mark.parametrize(
    ("seed", "note"),
    [
        ("verl's default seeds", "the runs have 1 seed: the verdict is about no other"),
        (None, "the records do not tell their seeds: the runs are paired in the given order"),
    ],
)
@pytest.mark.parametrize(("shift", "word"), [(0.0, Word.SAME), (-0.3, Word.REGRESSED)])
def test_runs_with_one_seed_or_that_do_not_tell_theirs_are_pairs_too(seed, note, shift, word):
    """A GPU job that was simply run eight times with A and with B."""
    a, b = session(generator(1), 8, {SCORE: shift})
    verdict = judge.case(*([dataclasses.replace(run, seed=seed) for run in side] for side in (a, b)))
    assert (verdict.word, note in verdict.notes) == (word, True)
    assert seed is None or verdict.deterministic is False


def test_what_a_seed_moves_in_both_sides_hides_no_regression():
    """Runs with one seed differ less than runs with other seeds. Here seeds move the reward by more than B does."""
    rng = generator(10)
    a, b = [], []
    for seed in range(1, 7):
        moved = rng.normal() * 0.3
        a.append(noisy(rng, f"a{seed}", str(seed), {"critic/score/mean": moved}))
        b.append(noisy(rng, f"b{seed}", str(seed), {"critic/score/mean": moved - 0.2}))
    verdict = judge.case(a, b)
    assert verdict.word is Word.REGRESSED
    assert verdict.reason.startswith("critic/score/mean, mean of the last third: A ")
    shuffled = [dataclasses.replace(run, seed=str(1 + at % 6)) for at, run in enumerate(b, start=1)]
    assert judge.case(a, shuffled).word is not Word.REGRESSED  # the seeds' own differences, without their pairs


@pytest.mark.parametrize("repeats", [1, 2])
def test_repeats_of_a_tell_its_noise(repeats):
    """Six pairs that happen to agree give a narrow margin; what A's repeats do widens it."""
    rng = generator(12)
    a, b = session(rng, 6)
    apart = [noisy(rng, f"again{at}", "1", {"actor/entropy": 0.5 * at}) for at in range(1, repeats + 1)]
    margins = [
        next(row.margin for row in judge.case(side, b, deterministic=False).rows if row.summary.startswith("actor/entropy, first"))
        for side in (a, [*a, *apart])
    ]  # fmt: skip
    assert margins[1] > margins[0]


def test_a_margin_that_hides_much_is_noted():
    rng = generator(11)
    a, b = session(rng, 8)
    a, b = (
        [
            edit(run, "critic/score/mean", lambda step, value, by=by: value + by)
            for run, by in zip(side, rng.normal(size=8), strict=True)
        ]
        for side in (a, b)
    )
    notes = "\n".join(judge.case(a, b).notes)
    said = (
        "A varies so much that a smaller difference than the margin cannot be seen in critic/score/mean, first update ("
    )
    assert said in notes


def test_a_case_may_have_its_own_decisive_metrics():
    a, b = session(generator(2), 6, {"critic/score/mean": -0.3})
    verdict = judge.case(a, b, decisive=[Decisive("actor/entropy", 0, relative_floor=0.5)])
    assert {row.summary.partition(",")[0] for row in verdict.rows} == {"actor/entropy"}
    assert (verdict.word, verdict.rule) == (Word.CHANGED, "others-apart")  # the others count, too
    assert (
        judge.case(a, b, decisive=[Decisive("actor/entropy", 0, relative_floor=0.5)], ignore=[SCORE]).word is Word.SAME
    )


def test_without_a_common_decisive_metric_nothing_is_shown():
    a, b = session(generator(2), 6)
    verdict = judge.case(a, b, decisive=[Decisive("val-core/", 1)])
    assert (verdict.word, verdict.reason) == (Word.INCONCLUSIVE, "the runs have no decisive metric in common")


def test_forty_sessions_of_equal_code_raise_no_alarm():
    """The whole judge, not only its tests: equal code, other seeds."""
    words = [verdict_of(seed, 8).word for seed in range(100, 140)]
    assert set(words) <= {Word.SAME, Word.INCONCLUSIVE}
    assert words.count(Word.SAME) >= 30


@pytest.mark.parametrize("name", ["critic/score/mean", "actor/entropy"])
def test_an_ignored_metric_decides_nothing(name):
    """Whether it must decide (the score) or not."""
    a, b = session(generator(1), 6, {name: -0.3})
    assert judge.case(a, b).word in (Word.REGRESSED, Word.CHANGED)
    verdict = judge.case(a, b, ignore=[name])
    assert verdict.word in (Word.SAME, Word.INCONCLUSIVE)
    assert name not in {row.summary.partition(",")[0] for row in verdict.rows}
