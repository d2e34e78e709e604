"""What A's runs do with each decisive metric, step by step, as a band that a run of the same code stays in.

At each step the band has the mean of A's runs in its middle. Its unit is their standard deviation about that mean, over the neighbouring
steps or over all steps, whichever is larger, and at least a third of the metric's floor. How many units wide it is, A's runs tell
themselves: each is compared with the band's middle and unit that the *others* would give, at every step of every metric. The band is three
times as wide as the farthest of them strays. One number covers all metrics and steps together, so more of them make no more alarms.
Few runs give a wider band, because two or three others tell little about the one that was left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verl_verdict.decide.statistics import NOISE_FACTOR, Array, taken
from verl_verdict.read import metrics
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run

FEWEST_RUNS = 3  # of A: fewer do not show what it does
_NEIGHBOURS = 0.1  # of the steps, on each side of a step
_FEWEST_NEIGHBOURS = 2
_LEAST_UNIT = 1e-9  # where A's runs are equal and the metric has no floor

_Course = tuple[list[int], Array, float]  # of a metric: its steps, the values as (runs, steps), and its floor


@dataclass(frozen=True)
class Band:
    """What A does with one metric: `low[i]` to `high[i]` at `steps[i]`. It has each step of any run of A, ascending."""

    metric: str
    steps: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def bands(
    runs_a: Sequence[Run], decisive: Sequence[tuple[str, Decisive]], *, deterministic: bool = False
) -> dict[str, Band]:
    """The bands of these metrics, by name; those of metrics.decisive_of() are meant to be given together.

    `deterministic`: A repeats itself, so one run of each seed counts. A metric that fewer than three runs have gets no band. Values
    that are not finite are left out.
    """
    runs = _one_of_each_seed(runs_a) if deterministic else list(runs_a)
    courses = {name: course for name, about in decisive if (course := _course(name, about, runs))}
    with np.errstate(all="ignore"):  # what no float can hold makes a band without limits
        strays = max((_farthest(values, floor) for _, values, floor in courses.values()), default=0.0)
        return {name: _band(name, *course, strays) for name, course in courses.items()}


def _course(name: str, about: Decisive, runs: Sequence[Run]) -> _Course | None:
    """The steps of a metric, its values run by run, and its floor; None if too few runs have it."""
    mine = [run for run in runs if name in run.series]
    if len(mine) < FEWEST_RUNS:
        return None
    steps = sorted({step for run in mine for step in run.series[name]})
    values = table(name, mine, steps)
    size = max(metrics.scale_of(name, run.series) for run in mine)
    return steps, np.where(np.isfinite(values), values, np.nan), about.floor_of(size)


def outside(band: Band, run: Run) -> list[tuple[int, float]]:
    """The steps at which the run is outside the band, and its values there. NaN is outside."""
    values = run.series.get(band.metric, {})
    limits = zip(band.steps, band.low, band.high, strict=True)
    return [(step, values[step]) for step, low, high in limits if step in values and not low <= values[step] <= high]


def table(metric: str, runs: Sequence[Run], steps: Sequence[int]) -> Array:
    """The values of a metric that all these runs have: a row for each run, a column for each step. NaN where a run lacks a step."""
    return taken([[run.series[metric].get(step, math.nan) for step in steps] for run in runs])


def _one_of_each_seed(runs: Sequence[Run]) -> list[Run]:
    """The first run of each seed. Where A repeats itself and the seeds are not known, all runs had the same one."""
    return list({run.seed: run for run in reversed(runs)}.values())


def _band(name: str, steps: Sequence[int], values: Array, floor: float, strays: float) -> Band:
    middle, unit = _middle_and_unit(values, floor)
    width = np.maximum(NOISE_FACTOR * strays * unit, floor)
    low, high = (
        np.where(np.isfinite(limit), limit, limitless)
        for limit, limitless in ((middle - width, -np.inf), (middle + width, np.inf))
    )
    return Band(name, tuple(steps), tuple(low.tolist()), tuple(high.tolist()))


def _farthest(values: Array, floor: float) -> float:
    """How many units the farthest run is from the middle of the others."""
    found = 0.0
    for at, course in enumerate(values):
        middle, unit = _middle_and_unit(np.delete(values, at, axis=0), floor)
        found = max(found, float(np.fmax.reduce(np.abs(course - middle) / unit, initial=0.0)))
    return found


def _middle_and_unit(values: Array, floor: float) -> tuple[Array, Array]:
    """At each step the mean of the runs (rows), and the standard deviation of one more run about it."""
    runs = np.isfinite(values).sum(axis=0)
    middle = np.nansum(values, axis=0) / runs
    squares = np.nansum((values - middle) ** 2, axis=0)
    degrees = np.maximum(runs - 1, 0)
    near = _sum_of_neighbours(squares) / np.maximum(_sum_of_neighbours(degrees), 1)
    everywhere = squares.sum() / max(degrees.sum(), 1)
    spread = np.sqrt(np.maximum(near, everywhere))
    return middle, np.maximum(spread, max(floor / NOISE_FACTOR, _LEAST_UNIT)) * np.sqrt(1 + 1 / runs)


def _sum_of_neighbours(values: Array) -> Array:
    """The sum of the values at each step and its neighbours."""
    reach = max(_FEWEST_NEIGHBOURS, math.ceil(_NEIGHBOURS * len(values)))
    until = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    found: Array = until[np.minimum(at + reach + 1, len(values))] - until[np.maximum(at - reach, 0)]
    return found
