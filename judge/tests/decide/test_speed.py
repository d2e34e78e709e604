"""Is B slower? Per-run medians of the step without its warm-up, paired, with floors of 25 % on CPUs and 10 % on GPUs."""

import dataclasses

import pytest
from verdict_runs import edit, generator, recorded, session

from verl_verdict.decide import cost, judge, speed
from verl_verdict.decide.verdicts import Word


def timed(factor, pairs=6, seed=1, steps=12):
    a, b = session(generator(seed), pairs, steps=steps)
    return a, [edit(run, speed.STEP, lambda step, value: value * factor) for run in b]


@pytest.mark.parametrize(
    ("factor", "profile", "word"),
    [
        (2.0, "cpu", Word.REGRESSED),
        (1.2, "cpu", Word.SAME),
        (1.2, "gpu", Word.REGRESSED),
        (1.0, "gpu", Word.SAME),
        (0.5, "cpu", Word.IMPROVED),
    ],
)
def test_the_floor_depends_on_the_profile(factor, profile, word):
    assert judge.speed(*timed(factor), profile=profile).word is word


def test_the_reason_says_both_times_and_the_margin():
    verdict = judge.speed(*timed(2.0), profile="cpu")
    assert verdict.reason == "a step takes 10 s with A and 20.2 s with B (2.01 times; the margin is 25%)"
    assert (verdict.case, verdict.how) == ("speed", "6 pairs, medians of timing_s/step without the warm-up")


def test_the_first_step_is_warm_up():
    a, b = timed(1.0)
    b = [edit(run, speed.STEP, {1: 1000.0}) for run in b]
    assert judge.speed(a, b, profile="gpu").word is Word.SAME


@pytest.mark.parametrize(
    ("pairs", "needed", "said"),
    [(1, 2, ", in 1 pair: run 2 more"), (2, 1, ", in 2 pairs: run 1 more"), (4, 2, ": run 2 more pairs")],
)
def test_fewer_than_six_pairs_show_no_slowdown(pairs, needed, said):
    """pyperf calls one run against one "significant"."""
    verdict = judge.speed(*timed(5.0, pairs), profile="cpu")
    assert (verdict.word, verdict.pairs_needed) == (Word.INCONCLUSIVE, needed)
    assert verdict.reason.endswith(said)


def test_noise_that_would_hide_a_slowdown_is_never_the_same():
    """Steps whose seconds vary by half between runs: then 30 % more cannot be seen, and must not pass."""
    rng = generator(3)
    a, b = timed(1.3)
    varying = [rng.uniform(0.5, 1.5, size=6) for _ in "ab"]
    a, b = (
        [edit(run, speed.STEP, lambda step, value, by=by: value * by) for run, by in zip(side, factors, strict=True)]
        for side, factors in zip((a, b), varying, strict=True)
    )
    verdict = judge.speed(a, b, profile="gpu")
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason.endswith(": A's own steps vary too much to see 10%; use a quieter machine, or longer runs")


def test_repeats_with_one_seed_are_pairs_for_times():
    a, b = timed(2.0)
    a, b = ([dataclasses.replace(run, seed="1") for run in side] for side in (a, b))
    assert judge.speed(a, b, profile="cpu").word is Word.REGRESSED


def test_sft_records_no_step_time(tmp_path):
    verdict = judge.speed(recorded(tmp_path, "sft-0.9.1-1"), recorded(tmp_path, "sft-0.9.1-2"))
    assert verdict.word is Word.INCONCLUSIVE
    said = "'sft-0.9.1-1' has no timing_s/step after its first step: verl's SFT trainer records none, and a run needs two steps"
    assert verdict.reason == said


def test_the_phases_of_a_real_run(tmp_path):
    phases = speed.phases(recorded(tmp_path, "ppo-0.9.1-v0"), recorded(tmp_path, "ppo-0.8.0"))
    assert [phase.name for phase in phases][:2] == ["timing_s/step", "timing_s/update_critic"]
    assert "timing_s/stop_profile" not in [phase.name for phase in phases]
    assert all(phase.a > 0 and phase.b > 0 for phase in phases)


def test_the_profile_is_read_from_the_job_or_from_the_memory_of_gpus(tmp_path):
    (run,) = recorded(tmp_path, "ppo-0.8.0")
    assert cost.profile_of([run]) == "cpu"
    assert cost.profile_of([dataclasses.replace(run, facts={"profile": "rocm"})]) == "gpu"
    unknown = dataclasses.replace(run, facts={})
    assert cost.profile_of([unknown]) == "cpu"
    assert cost.profile_of([edit(unknown, "actor/perf/max_memory_allocated_gb", {1: 40.0})]) == "gpu"
