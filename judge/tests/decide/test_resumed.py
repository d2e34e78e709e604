"""Does a resumed run go on where its checkpoint was: against the straight run that saved it, on recorded runs of the rehearsal."""

import dataclasses
import re

import pytest
from verdict_runs import edit, recorded

from verl_verdict.decide import judge
from verl_verdict.decide.resumed import Resumed
from verl_verdict.decide.verdicts import Word

LOSS, SCORE = "critic/vf_loss", "critic/score/mean"
EXACT = "{} goes on where its checkpoint was: steps 3 to 4 of its resumed and its straight run are bit-equal"


def times(factor):
    return lambda step, value: value * factor


@pytest.fixture
def straight(tmp_path):
    return recorded(tmp_path, "ppo-0.9.1-v1-1")[0]


def after(run, step, name):
    """The run as one that was resumed after that step records it."""
    series = {metric: {at: value for at, value in values.items() if at > step} for metric, values in run.series.items()}
    return dataclasses.replace(run, name=name, series=series, fingerprint=name)


def named(run, name):
    return dataclasses.replace(run, name=name, fingerprint=name)


def verdict(straight, a=None, b=None, b_straight=None, repeats=None, source_repeats=None, **more):
    """The verdict on runs that are resumed after step 2. `a` and `b` edit the resumed runs, `b_straight` all of B's training.

    Without an edit, they go on as the straight run did.
    """
    trained = {"A": straight, "B": edit(straight, *b_straight) if b_straight else named(straight, "b")}
    further = {side: after(run, 2, f"{side}-resumed") for side, run in trained.items()}
    further = {side: edit(run, *how) if how else run for (side, run), how in zip(further.items(), (a, b), strict=True)}
    source = judge.case([trained["A"]], [trained["B"]], name="ppo", deterministic=source_repeats)
    found = judge.case([further["A"]], [further["B"]], name="resume", deterministic=repeats)
    pairs = {side: [Resumed(further[side], trained[side])] for side in "AB"}
    return judge.resumed(found, pairs["A"], pairs["B"], source, **more)


def test_runs_that_go_on_exactly_are_said_to(straight):
    found = verdict(straight)
    assert (found.word, found.reason) == (Word.IDENTICAL, "B is bit-equal to A")
    assert found.notes[:2] == (EXACT.format("A"), EXACT.format("B"))


def test_b_that_does_not_go_on_where_a_does_is_regressed_with_one_pair(straight):
    """Without knowing whether A repeats itself: that it goes on exactly shows it."""
    found = verdict(straight, b=(LOSS, times(1.5)))
    assert found.word is Word.REGRESSED
    a, b = straight.series[LOSS][3], 1.5 * straight.series[LOSS][3]
    assert found.reason == (
        f"B does not go on where its checkpoint was, and A does: at step 3, {LOSS} is {b:.6g} in B's resumed run and {a:.6g} in its straight run"
    )
    assert (found.first.step, found.first.metric, found.first.a, found.first.b) == (3, LOSS, a, b)
    assert found.first.means.startswith("B saves or loads something else than A does: ")
    assert found.how == "steps 3 to 4 of each resumed run against those of its straight run, value by value"
    assert found.notes[0] == EXACT.format("A")
    assert found.pairs_needed is None


def test_b_is_compared_with_its_own_straight_run(straight):
    """B trains otherwise than A; both resume well. What B loses is seen all the same."""
    trains_otherwise = (SCORE, times(2))
    found = verdict(straight, b_straight=trains_otherwise, source_repeats=True)
    assert (found.word, found.first, found.pairs_needed) == (Word.SAME, None, None)
    assert found.how == "steps 3 to 4 of each resumed run against those of its straight run, value by value"
    assert found.reason == (
        "A and B each go on where their checkpoints were, from runs of ppo that differ already (changed): see there"
    )
    for known in (True, None):  # A goes on exactly, so it repeats itself
        lost = verdict(straight, b=(LOSS, times(1.5)), b_straight=trains_otherwise, source_repeats=known)
        assert (lost.word, lost.first.metric, lost.first.step) == (Word.REGRESSED, LOSS, 3)
        assert lost.first.a == straight.series[LOSS][3]
    off = verdict(straight, a=(LOSS, times(1.5)), b_straight=trains_otherwise, source_repeats=True)
    assert (off.word, off.notes[1]) == (Word.INCONCLUSIVE, EXACT.format("B"))


@pytest.mark.parametrize(
    ("lacking", "word"), [("actor/entropy", Word.INCONCLUSIVE), ("timing_s/step", Word.SAME), (LOSS, Word.SAME)]
)
def test_a_resumed_run_that_lacks_a_metric_is_not_called_the_same(straight, lacking, word):
    """Unless it is a time, or ignored."""
    trained = {"A": straight, "B": edit(straight, SCORE, times(2))}
    further = {side: after(run, 2, f"{side}-resumed") for side, run in trained.items()}
    series = {**further["B"].series, lacking: {4: straight.series[lacking][4]}}
    further["B"] = dataclasses.replace(further["B"], series=series)
    source = judge.case([straight], [named(trained["B"], "b")], name="ppo", deterministic=True)
    found = judge.case([further["A"]], [further["B"]], name="resume", deterministic=True, ignore=[LOSS])
    a, b = ([Resumed(further[side], trained[side])] for side in "AB")
    assert judge.resumed(found, a, b, source, ignore=[LOSS]).word is word


def test_the_pair_of_runs_that_is_off_decides(straight):
    """It is the second of two, and the values shown are those of its seed."""
    seeds = {
        seed: dataclasses.replace(named(edit(straight, LOSS, times(int(seed))), f"a{seed}"), seed=seed) for seed in "12"
    }
    further = {side: [after(run, 2, f"{side}{seed}") for seed, run in seeds.items()] for side in "ab"}
    further["b"][1] = edit(edit(further["b"][1], LOSS, times(1.5)), SCORE, times(1 + 1e-7))
    source = judge.case(list(seeds.values()), [named(run, f"b{seed}") for seed, run in seeds.items()], name="ppo")
    a, b = ([Resumed(run, seeds[run.seed]) for run in further[side]] for side in "ab")
    found = judge.resumed(judge.case(further["a"], further["b"], name="resume"), a, b, source)
    assert (found.word, found.first.a) == (Word.REGRESSED, 2 * straight.series[LOSS][3])
    assert found.first.b == 3 * straight.series[LOSS][3]
    assert "; 1 of 8" in found.notes[1]  # rounding does not count


def test_rounding_does_not_matter(straight):
    found = verdict(straight, b=(LOSS, times(1 + 1e-6)), repeats=True)
    assert found.word is Word.SAME
    assert found.notes[1].startswith("B goes on where its checkpoint was: steps 3 to 4 of its resumed and its straight")
    assert " run are equal but for rounding (at most " in found.notes[1]


OFF = "A does not go on where its checkpoint was: at step 3, critic/vf_loss is "


@pytest.mark.parametrize(
    ("b", "word", "reason"),
    [
        # As far off as A is.
        ((LOSS, times(1.5)), Word.IDENTICAL, "B is bit-equal to A"),
        # Further, or in another metric.
        ((LOSS, times(9)), Word.REGRESSED, "B is further off than A is: at step 3, critic/vf_loss is "),
        ((SCORE, times(2)), Word.REGRESSED, "B is further off than A is: at step 3, critic/score/mean is "),
        # B is right again.
        (None, Word.IMPROVED, "B goes on where its checkpoint was, and A does not: at step 3, critic/vf_loss is "),
    ],
)  # fmt: skip
def test_where_a_itself_does_not_go_on_b_is_judged_against_how_far_a_is_off(straight, b, word, reason):
    found = verdict(straight, a=(LOSS, times(1.5)), b=b)
    assert found.word is word
    assert found.reason.startswith(reason)
    assert found.pairs_needed is None
    assert found.notes[0].startswith(OFF)
    assert re.search(
        r" in its straight run \(by 0\.\d+ of the metric's size; 1 of 8\d metrics differ\)$", found.notes[0]
    )


@pytest.mark.parametrize("known", [{"repeats": False}, {"source_repeats": False}])
def test_where_a_does_not_repeat_itself_nothing_is_compared_exactly(straight, known):
    found = verdict(straight, b=(LOSS, times(1.5)), **known)
    assert found.word is Word.INCONCLUSIVE
    assert found.notes[0] == "not compared with the straight runs: runs of A with one seed differ"


def test_nothing_is_decided_where_a_is_off_and_may_not_repeat_itself(straight):
    found = verdict(straight, a=(LOSS, times(1.5)), b=(LOSS, times(9)), b_straight=(SCORE, times(1 + 1e-9)))
    assert (found.word, found.pairs) == (Word.INCONCLUSIVE, 0)
    assert found.reason.endswith("continue from runs of ppo that differ already (inconclusive): see there")
    assert found.notes[0].startswith(OFF)


def test_rounding_that_grows_decides_nothing(straight):
    grows = ("actor/entropy", lambda step, value: value * (1 + (1e-5 if step == 3 else 5e-4)))
    found = verdict(straight, b=grows, b_straight=(SCORE, times(2)), source_repeats=True)
    assert found.word is Word.INCONCLUSIVE
    assert found.reason == "A and B both resume, but continue from runs of ppo that differ already (changed): see there"
    assert " of the metric's size and begins as rounding; 1 of 8" in found.notes[1]


def test_metrics_that_are_ignored_decide_nothing(straight):
    assert verdict(straight, b=(LOSS, times(1.5)), ignore=[LOSS]).word is not Word.REGRESSED


def test_without_a_straight_run_the_resumed_ones_are_compared_only_with_each_other(straight):
    short = dataclasses.replace(after(straight, 0, "short"), series={"critic/score/mean": {1: 0.5, 2: 0.25}})
    base = judge.case([after(straight, 2, "a")], [after(straight, 2, "b")], name="resume")
    source = judge.case([short], [named(short, "b")], name="ppo")
    pairs = [Resumed(after(straight, 2, "a"), short)]
    for a, b in ((pairs, pairs), ([], []), ([Resumed(after(straight, 2, "a"), straight)], [])):
        found = judge.resumed(base, a, b, source)
        assert (found.word, found.notes[0]) == (
            Word.IDENTICAL,
            "not compared with the straight runs: the runs of ppo did not train the steps after the checkpoint",
        )


def test_what_failed_is_not_compared(straight):
    broken = dataclasses.replace(after(straight, 2, "b"), failure="KeyError: no")
    a = [Resumed(after(straight, 2, "a"), straight)]
    found = judge.case([a[0].run], [broken], name="resume")
    source = judge.case([straight], [named(straight, "b")])
    assert judge.resumed(found, a, [Resumed(broken, straight)], source) == found
    failed = judge.case([straight], [dataclasses.replace(named(straight, "b"), failure="KeyError: no")], name="ppo")
    base = judge.case([a[0].run], [after(straight, 2, "b")], name="resume")
    noted = judge.resumed(base, a, [Resumed(after(straight, 2, "b"), straight)], failed)
    assert (noted.word, noted.notes[0]) == (Word.IDENTICAL, "not compared with the straight runs: see ppo")
