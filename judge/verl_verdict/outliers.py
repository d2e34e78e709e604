"""Values of B that are far outside all that A's runs do, at any step: no summary over a run may average them away.

A metric is an outlier in a run of B in two cases. *Far*: it leaves A's range by more than ten times the size of the metric, at one step
or more. *Long*: for a tenth of its steps, and at least three, a decisive metric leaves A's range by more than twice what A does from
one step to the next, or from seed to seed. That takes three runs of A: fewer do not show their range.

Measured over all recorded pairs of A against A in noise (maintain/calibration.md): the farthest value left the range of one run of A by 4.2
times the size of the metric, that of three or more by 1.4 times. No metric of 2,600 runs was outside for so long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from verl_verdict import diagnosis, metrics
from verl_verdict.metrics import Decisive
from verl_verdict.records import Run
from verl_verdict.statistics import Array, taken

_FAR = 10.0  # times the metric's size
_LEAST_SIZE = 1e-6  # below it a value is what rounding leaves of 0
_LONG = 0.1  # of the steps
_LONG_OUT = 2.0  # times what A does from step to step, and from seed to seed
_LEAST_STEPS = 3
_LEAST_RUNS = 3
# More of it is no regression, although it is not decisive: if the score rises, so do these.
_MORE_IS_BETTER = ("critic/score/", "critic/rewards/", "critic/returns/", "critic/values/", "val-core/", "val-aux/")
_UNBOUNDED = "critic/vf_explained_var"  # its denominator is the variance of the returns, which may be near 0


@dataclass(frozen=True)
class Outlier:
    """A metric that leaves A's range in some runs of B.

    Of the first of these runs: `step` is the first step outside, `b` the value there, `steps` how many steps are outside. `a` is the mean of
    A's runs at that step. `is_far` is the first of the two cases; `good` as in Decisive.
    """

    metric: str
    runs: tuple[str, ...]
    of: int
    step: int
    steps: int
    a: float
    b: float
    low: float
    high: float
    is_far: bool
    good: int

    @property
    def is_in_most(self) -> bool:
        """More than half of B's runs show it."""
        return 2 * len(self.runs) > self.of

    def __str__(self) -> str:
        runs = f"{len(self.runs)} of {self.of} runs" if self.of > 1 else "the run"
        many = f" and at {self.steps - 1} more" if self.steps > 1 else ""
        low, high = diagnosis.number(self.low), diagnosis.number(self.high)
        kept = f"stays between {low} and {high}" if low != high else f"is {low}"
        return f"in {runs} of B {self.metric} is far outside all that A does: {diagnosis.number(self.b)} at step {self.step} of '{self.runs[0]}'{many}, where A {kept} at all steps"


@dataclass(frozen=True)
class _Range:
    """What A's runs do with a metric, over all steps."""

    low: float
    high: float
    far: float  # outside by more than this is far; infinite if A's metric is always 0
    long: float  # outside by more than this counts if it lasts; infinite if nobody can tell

    def outside(self, values: Array) -> Array:
        return np.maximum(np.maximum(self.low - values, values - self.high), 0.0)


def find(runs_a: Sequence[Run], runs_b: Sequence[Run], workload: str, chosen: Sequence[Decisive]) -> list[Outlier]:
    """The outliers of B, those in most of its runs first, then by their first step and in causal order."""
    names = {name for run in runs_a for name in run.series} - {_UNBOUNDED}
    decisive = dict(metrics.decisive_of(workload, names, chosen))
    found = []
    for name in names:
        of_b = [run for run in runs_b if name in run.series and not _is_redefined(name, runs_a, run)]
        if of_b and not metrics.is_time(name):
            of_a = [run for run in runs_a if name in run.series]
            outlier = _outlier(name, of_a, of_b, decisive.get(name))
            found += [outlier] if outlier else []
    return sorted(found, key=lambda each: (not each.is_in_most, each.step, metrics.causal_rank(each.metric)))


def _is_redefined(name: str, runs_a: Sequence[Run], b: Run) -> bool:
    return metrics.is_redefined(name, runs_a[0].series, b.series)


def _outlier(name: str, runs_a: Sequence[Run], runs_b: Sequence[Run], decisive: Decisive | None) -> Outlier | None:
    known = _range(name, runs_a, decisive)
    good = decisive.good if decisive else int(name.startswith(_MORE_IS_BETTER))
    seen = []
    for run in runs_b:
        steps, values = _course(run.series[name])
        outside = known.outside(values)
        if good:  # only the bad side
            outside = np.where(values > known.high if good > 0 else values < known.low, 0.0, outside)
        is_far = outside > known.far
        is_long = outside > known.long
        if is_long.sum() < max(_LEAST_STEPS, _LONG * len(values)):
            is_long[:] = False
        if (which := is_far | is_long).any():
            seen.append((run.name, steps[which], values[which], bool(is_far.any())))
    if not seen:
        return None
    _, steps, values, _ = seen[0]
    step, b = int(steps[0]), float(values[0])
    a = [run.series[name][step] for run in runs_a if step in run.series[name]]
    return Outlier(
        metric=name,
        runs=tuple(run for run, *_ in seen),
        of=len(runs_b),
        step=step,
        steps=len(steps),
        a=float(np.mean(a)) if a else min(max(b, known.low), known.high),
        b=b,
        low=known.low,
        high=known.high,
        is_far=any(far for *_, far in seen),
        good=good,
    )


def _range(name: str, runs: Sequence[Run], decisive: Decisive | None) -> _Range:
    courses = [_course(run.series[name])[1] for run in runs]
    together = np.concatenate(courses)
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for step, value in run.series[name].items():
            by_step.setdefault(step, []).append(value)
    size = max(metrics.scale_of(name, run.series) for run in runs)
    floor = max(decisive.floor, decisive.relative_floor * size) if decisive else 0.0
    jump = max((float(np.abs(np.diff(values)).max()) for values in courses if len(values) > 1), default=0.0)
    spread = max(max(values) - min(values) for values in by_step.values())
    tells = decisive is not None and len(runs) >= _LEAST_RUNS and jump > 0
    return _Range(
        low=float(together.min()),
        high=float(together.max()),
        far=_FAR * max(size, floor, _LEAST_SIZE) if size > 0 else np.inf,
        long=_LONG_OUT * max(jump, spread, floor) if tells else np.inf,
    )


def _course(values: Mapping[int, float]) -> tuple[Array, Array]:
    steps = sorted(values)
    return taken(steps), taken([values[step] for step in steps])
