"""Runs for the tests of the judge: recorded ones (tests/recorded/verdict/), copies of them that were changed, and simulated ones."""

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np

from verl_regress.jobs import recorded_run
from verl_verdict.read.records import Run

RECORDED = Path(__file__).parents[2] / "tests" / "recorded" / "verdict"


def unpack(directory, name, to=None):
    """The recorded job directory `name`, in `directory`."""
    job = directory / (to or name)
    for path, text in json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes())).items():
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text(text, encoding="utf-8")
    return job


def recorded(directory, *names):
    """The runs of these recorded job directories."""
    return [recorded_run.read(unpack(directory, name)) for name in names]


def rows_of(job):
    return [json.loads(line) for line in (job / "logs/metrics.jsonl").read_text().splitlines()]


def rewrite(job, change):
    """Each line of the record after `change(step, data)`, which edits `data`. Times change always: no run repeats them."""
    rows = rows_of(job)
    for row in rows:
        for name in row["data"]:
            if name.startswith(("timing_", "perf/time", "train/mfu")):
                row["data"][name] *= 1.01
        change(row["step"], row["data"])
    (job / "logs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return job


def changed(directory, name, change=lambda step, data: None, to="b"):
    """The run of a copy of the recorded job directory `name` whose lines were edited."""
    return recorded_run.read(rewrite(unpack(directory, name, to), change))


def edit(run, metric, values):
    """The run with these values of a metric: a function of step and value, or a mapping from step to value."""
    series = {name: dict(each) for name, each in run.series.items()}
    mine = series.setdefault(metric, {})
    for step in run.steps if callable(values) else values:
        mine[step] = values(step, mine.get(step, 0.0)) if callable(values) else values[step]
    return dataclasses.replace(run, series=series, fingerprint=f"{run.fingerprint} edited")


# Means, spreads between runs (which last over a run) and within a run of a noisy PPO run; like those of a small GPU run.
NOISY = {
    "critic/score/mean": (0.5, 0.01, 0.02),
    "training/rollout_probs_diff_mean": (0.002, 1e-5, 5e-5),
    "response_length/mean": (120.0, 1.0, 2.0),
    "actor/entropy": (0.6, 0.004, 0.01),
    "actor/pg_loss": (0.0, 0.001, 0.002),
    "actor/grad_norm": (1.2, 0.02, 0.05),
    "critic/advantages/max": (2.0, 0.02, 0.05),
    "critic/advantages/min": (-1.5, 0.02, 0.05),
    "critic/values/mean": (0.4, 0.01, 0.02),
    "critic/vf_loss": (0.1, 0.001, 0.002),
    "timing_s/step": (10.0, 0.1, 0.3),
}


def noisy(rng, name, seed=None, shift=None, steps=12, constant=(), without=()):
    """A simulated PPO run of a profile that does not repeat itself; `shift` is added to metrics, from the first update on."""
    series = {}
    for metric, (mean, between, within) in NOISY.items():
        if metric in without:
            continue
        values = mean + rng.normal() * between + rng.normal(size=steps) * within + (shift or {}).get(metric, 0.0)
        series[metric] = {step + 1: float(mean if metric in constant else values[step]) for step in range(steps)}
    return Run(name=name, series=series, workload="ppo", seed=seed, fingerprint=name, is_job=True)


def session(rng, pairs, shift=None, **more):
    """Runs of A and of B with seeds 1, 2, ..."""
    a = [noisy(rng, f"a{at}", str(at), **more) for at in range(1, pairs + 1)]
    b = [noisy(rng, f"b{at}", str(at), shift, **more) for at in range(1, pairs + 1)]
    return a, b


def generator(seed):
    return np.random.default_rng(seed)
