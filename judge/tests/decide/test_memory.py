"""Does B need more memory? Peaks and growth of the sum over a run's processes, paired, with floors of 25 % on CPUs and 10 % on GPUs."""

import dataclasses

import pytest
from verdict_runs import edit, generator, session

from verl_verdict.decide import judge, memory
from verl_verdict.decide.verdicts import Finding, Word
from verl_verdict.read.records import Memory, ProcessMemory

GB, MB = 1e9, 1e6
STEPS, SECONDS = 12, 10.0  # of a step, as verdict_runs.NOISY has it
START = 60.0  # seconds until the first step


def remember(run, rng, factor=1.0, leak=0.0, noise=0.01):
    """The run with records of two processes: they load for a minute, then train 12 steps; `leak` is in bytes per step."""
    level = factor * (1 + noise * rng.normal())
    times = [1e6 + 2.0 * at for at in range(int((START + STEPS * SECONDS) / 2) + 2)]

    def size(time, most, leaks):
        loaded = min(1.0, (time - times[0]) / START)
        steps = max(0.0, (time - times[0] - START) / SECONDS)
        return most * level * loaded * (1 + 0.02 * rng.uniform()) + leaks * steps

    processes = [
        ProcessMemory(name, tuple(times), tuple(size(time, most, leaks) for time in times))
        for name, most, leaks in (("WorkerDict", 4 * GB, 0.0), ("TaskRunner", 1 * GB, leak))
    ]
    return dataclasses.replace(run, memory=Memory((tuple(processes),)))


def remembered(pairs=6, seed=1, leak_a=0.0, **of_b):
    rng = generator(seed)
    a, b = session(rng, pairs)
    return [remember(run, rng, leak=leak_a) for run in a], [remember(run, rng, **of_b) for run in b]


def constant(run, *sizes):
    """The run with one process that has each of these sizes for ten seconds."""
    times = tuple(1e6 + at for at in range(10 * len(sizes)))
    return dataclasses.replace(
        run, memory=Memory(((ProcessMemory("x", times, tuple(sizes[at // 10] for at in range(len(times)))),),))
    )


@pytest.mark.parametrize(
    ("factor", "profile", "word"),
    [
        (1.0, "cpu", Word.SAME),
        (1.0, "gpu", Word.SAME),
        (1.15, "cpu", Word.SAME),
        (1.2, "gpu", Word.REGRESSED),
        (1.5, "cpu", Word.REGRESSED),
        (0.6, "cpu", Word.IMPROVED),
    ],
)
def test_the_floor_depends_on_the_profile(factor, profile, word):
    assert judge.memory(*remembered(factor=factor), profile=profile).word is word


def test_the_reason_says_both_peaks_and_the_margin():
    verdict = judge.memory(*remembered(factor=1.5), profile="cpu")
    assert (verdict.word, verdict.case, verdict.pairs) == (Word.REGRESSED, "memory", 6)
    assert verdict.reason == (
        "all processes together need at most 5.11 GB with A and 7.65 GB with B (1.50 times; the margin is 25%)"
    )
    assert verdict.how == "6 pairs, the largest sum over a run's processes, and its slope after the first third"
    assert [(row.summary, row.finding) for row in verdict.rows] == [
        ("memory of all processes, peak in GB", Finding.WORSE),
        ("memory of all processes, growth in MB per step", Finding.SAME),
    ]
    assert verdict.notes == (
        "WorkerDict: at most 4.09 GB with A, 6.13 GB with B",
        "TaskRunner: at most 1.02 GB with A, 1.53 GB with B",
    )


def test_a_steady_growth_that_a_does_not_have_is_a_regression_though_the_peak_is_not():
    """64 MiB a step are 0.8 GB in 12 steps: 15 % of the peak, and as much again in each further 12 steps."""
    verdict = judge.memory(*remembered(leak=64 * 2**20), profile="cpu")
    assert verdict.word is Word.REGRESSED
    said = "the memory of all processes grows by 0.423 MB a step with A and by 67.8 MB with B (the margin is 12.8 MB)"
    assert verdict.reason == said
    assert [row.finding for row in verdict.rows] == [Finding.SAME, Finding.WORSE]


@pytest.mark.parametrize(("leak", "leak_a", "word"), [(64, 64, Word.SAME), (0, 128, Word.IMPROVED)])
def test_growth_that_a_has_too_is_no_regression_and_that_b_no_longer_has_is_better(leak, leak_a, word):
    assert judge.memory(*remembered(leak_a=leak_a * 2**20, leak=leak * 2**20), profile="cpu").word is word


def test_a_slower_b_with_the_growth_of_a_is_no_regression():
    """Growth is counted in steps, so its steps may take longer."""
    a, b = remembered(leak_a=64 * 2**20, leak=64 * 2**20)
    b = [
        dataclasses.replace(
            edit(run, "timing_s/step", lambda step, value: value * 2),
            memory=Memory((tuple(dataclasses.replace(p, times=tuple(2 * t - 1e6 for t in p.times)) for p in run.memory.attempts[0]),)),
        )
        for run in b
    ]  # fmt: skip
    assert judge.memory(a, b, profile="cpu").word is Word.SAME


def test_without_times_of_steps_growth_is_counted_in_minutes():
    """verl's SFT trainer records none."""
    a, b = remembered(leak=64 * 2**20)
    a, b = (
        [dataclasses.replace(run, series={k: v for k, v in run.series.items() if k != "timing_s/step"}) for run in side]
        for side in (a, b)
    )
    verdict = judge.memory(a, b, profile="cpu")
    assert verdict.word is Word.REGRESSED
    reason = "the memory of all processes grows by 2.7 MB a minute with A and by 403 MB with B (the margin is 23.8 MB)"
    assert verdict.reason == reason


def test_memory_of_gpus_is_judged_beside_where_verl_recorded_it():
    a, b = remembered()
    rng = generator(5)
    a, b = (
        [edit(run, "perf/max_memory_allocated_gb", lambda step, value, by=by: by * (1 + 0.01 * rng.normal())) for run in side]
        for side, by in ((a, 40.0), (b, 50.0))
    )  # fmt: skip
    verdict = judge.memory(a, b)
    assert verdict.word is Word.REGRESSED
    assert verdict.reason.startswith("torch allocates on a GPU at most 40.")
    assert [row.finding for row in verdict.rows[:3]] == [Finding.SAME, Finding.SAME, Finding.WORSE]


def on_a_gpu(by, pairs=6, steps=30):
    """Plain records in which the memory on a GPU grows by so many GB a step with B."""
    a, b = session(generator(6), pairs, steps=steps)
    return [
        [edit(run, "actor/perf/max_memory_allocated_gb", lambda step, _, grows=grows: 40.0 + 0.01 * (step % 2) + grows * step) for run in side]
        for side, grows in ((a, 0.0), (b, by))
    ]  # fmt: skip


def test_of_plain_records_the_memory_on_a_gpu_is_judged():
    assert judge.memory(*on_a_gpu(0.0)).word is Word.SAME
    verdict = judge.memory(*on_a_gpu(0.1))
    assert verdict.word is Word.REGRESSED
    assert [row.summary for row in verdict.rows] == [
        "perf/max_memory_allocated_gb, peak in GB",
        "memory on a GPU, growth in MB per step",
    ]
    assert (
        "the memory on a GPU grows by 0 MB a step with A and by 100 MB with B (the margin is 40 MB)" in verdict.reason
    )


@pytest.mark.parametrize(("by", "is_noted"), [(0.1, True), (0.03, False), (-0.1, False)])
def test_growth_on_a_gpu_is_noted_where_memory_is_not_judged(by, is_noted):
    said = "the memory on a GPU grows by 0 MB a step with A and by 100 MB with B: judge it with --memory"
    assert (said in judge.case(*on_a_gpu(by)).notes) is is_noted


@pytest.mark.parametrize(
    ("pairs", "needed", "said"),
    [(1, 2, ", in 1 pair: run 2 more"), (2, 1, ", in 2 pairs: run 1 more"), (4, 2, ": run 2 more pairs")],
)
def test_fewer_than_six_pairs_show_no_larger_peak(pairs, needed, said):
    verdict = judge.memory(*remembered(pairs, factor=3.0), profile="cpu")
    assert (verdict.word, verdict.pairs_needed) == (Word.INCONCLUSIVE, needed)
    assert verdict.reason.endswith(said)


def test_noise_that_would_hide_a_larger_peak_is_never_the_same():
    rng = generator(3)
    a, b = session(rng, 6)
    a, b = ([remember(run, rng, noise=0.15) for run in side] for side in (a, b))
    verdict = judge.memory(a, b, profile="gpu")
    assert verdict.word is Word.INCONCLUSIVE
    assert verdict.reason.endswith(": A's own memory varies too much to see 10%; use longer runs")


def test_no_common_seed_is_inconclusive():
    a, b = remembered()
    verdict = judge.memory(a, [dataclasses.replace(run, seed="9") for run in b])
    assert (verdict.word, verdict.reason) == (
        Word.INCONCLUSIVE, "no run of B has the seed of a run of A: run B with the seeds of A",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"memory": Memory()},
            "'b3' has no records of its processes' memory: a metrics.jsonl alone has none",
        ),
        (
            {
                "memory": Memory(
                    ((ProcessMemory("x", (1.0, 99.0), (5.0, 5.0)),),), ("process 7 on n1 (python3)", "process 8")
                )
            },
            "'b3' has no record of the memory of process 7 on n1 (python3) and 1 more",
        ),
        (
            {"memory": Memory(((ProcessMemory("x", (1.0, 2.0), (5.0, 5.0)),),))},
            "'b3' has less than 10 s of memory records after its warm-up, too few to see growth: train more steps",
        ),
        (
            {"failure": "the trainer exited with status 1"},
            "'b3' did not run to its end (the trainer exited with status 1), so its memory shows nothing",
        ),
        (
            {"series": {"timing_s/step": {1: 10.0, 2: 10.0, 3: 10.0}}},
            "'a1' has 12 steps and 'b3' 3: only runs of equal length need comparable memory",
        ),
    ],
)
def test_a_run_that_shows_nothing_is_never_the_same(change, reason):
    a, b = remembered()
    b[2] = dataclasses.replace(b[2], **change)
    verdict = judge.memory(a, b, profile="cpu")
    assert (verdict.word, verdict.reason, verdict.pairs, verdict.rows) == (Word.INCONCLUSIVE, reason, 0, ())


def test_the_peak_is_the_largest_sum_at_one_time_not_the_sum_of_peaks(tmp_path):
    (run,) = session(generator(1), 1)[0]
    times = tuple(1e6 + at for at in range(60))
    first = ProcessMemory("first", times, tuple(3 * GB if at < 30 else GB for at in range(60)))
    then = ProcessMemory("then", times[30:], (2 * GB,) * 30)
    assert memory.peak(dataclasses.replace(run, memory=Memory(((first, then),)))) == 3 * GB


def test_a_process_that_ended_no_longer_counts_and_no_startup_is_growth():
    (run,) = session(generator(1), 1)[0]
    run = dataclasses.replace(run, series={})
    assert memory.growth(constant(run, GB, 4 * GB, 4 * GB, 4 * GB)) == 0
    times = tuple(1e6 + at for at in range(60))
    ended = ProcessMemory("ended", times[:5], (9 * GB,) * 5)
    lived = ProcessMemory("lived", times, (GB,) * 60)
    both = dataclasses.replace(run, memory=Memory(((ended, lived),)))
    assert (memory.peak(both), memory.growth(both)) == (10 * GB, 0)


def test_processes_that_end_one_after_the_other_are_no_shrinking():
    """Ray ends actors when the driver has ended; their last records are up to an interval apart."""
    (run,) = session(generator(1), 1)[0]
    processes = tuple(
        ProcessMemory(str(at), tuple(1e6 + 16.0 * n + at for n in range(20)), (GB,) * 20) for at in range(0, 16, 3)
    )
    assert memory.growth(dataclasses.replace(run, series={}, memory=Memory((processes,)))) == 0
