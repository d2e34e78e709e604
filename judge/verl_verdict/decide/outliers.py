"""Values of B outside what A's runs do, at any step: no summary over a run may average them away.

A metric is an outlier in a run of B in two cases. *Far*: it leaves the range of A's runs over all steps by more than ten times the size of the
metric. That needs one run of A, and applies to every metric. *Outside*: a decisive metric leaves A's band (band.py), which needs three.

Measured over all recorded pairs of A against A in noise (maintain/calibration.md): the farthest value left the range of one run of A by 4.2
times the size of the metric, that of three or more by 1.4 times.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verl_verdict.decide import band
from verl_verdict.decide.band import Band
from verl_verdict.decide.joint import FOLLOW_THE_SCORE
from verl_verdict.decide.sampled import later
from verl_verdict.decide.statistics import FEWEST, LOOKS, Array, taken
from verl_verdict.read import metrics
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run

_FAR = 10.0  # times the metric's size
_LEAST_SIZE = 1e-6  # below it a value is what rounding leaves of 0
_MORE_IS_BETTER = (*FOLLOW_THE_SCORE, "val-core/", "val-aux/")  # so it is no regression, though it does not decide
_UNBOUNDED = "critic/vf_explained_var"  # its denominator is the variance of the returns, which may be near 0


@dataclass(frozen=True)
class Outlier:
    """A metric that some runs of B have outside what A does.

    Of the first of these runs: `step` is the first step outside, `b` the value there, `steps` how many steps are outside, `low` and `high`
    what A keeps to: at all steps if `is_far`, else its band at this step. `side`: +1 if it is on the metric's good side, -1 on its bad
    side, 0 if it has none.
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
    side: int

    def decides(self, *, is_exact: bool) -> bool:
        """Do enough runs show it? In few, only what is far; where A does not repeat itself, not in one or two."""
        enough = self.of >= FEWEST or (self.is_far and (is_exact or self.of >= LOOKS[0]))
        return self.is_in_most and enough

    @property
    def is_bad(self) -> bool:
        """Is it wrong on any side of the metric, or on its bad side?"""
        return self.is_far or self.side < 0

    @property
    def is_in_most(self) -> bool:
        """More than half of B's runs show it."""
        return 2 * len(self.runs) > self.of

    def __str__(self) -> str:
        runs = f"{len(self.runs)} of {self.of} runs" if self.of > 1 else "the run"
        many = f" and at {self.steps - 1} more" if self.steps > 1 else ""
        low, high, b = (f"{value:.4g}" for value in (self.low, self.high, self.b))
        kept = f"stays between {low} and {high}" if low != high else f"is {low}"
        what, when = ("far outside all that A does", "at all steps") if self.is_far else ("outside A's band", "there")
        return f"in {runs} of B {self.metric} is {what}: {b} at step {self.step} of '{self.runs[0]}'{many}, where A {kept} {when}"


def find(
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    workload: str,
    chosen: Sequence[Decisive],
    *,
    deterministic: bool = False,
) -> list[Outlier]:
    """The outliers of B, those in most of its runs first and those on a good side last, then by their first step and in causal order.

    `deterministic` as for band.bands().
    """
    names = {name for run in runs_a for name in run.series if not metrics.is_time(name)} - {_UNBOUNDED}
    decisive = [(name, later(each, runs_a)) for name, each in metrics.decisive_of(workload, names, chosen)]
    bands, about = band.bands(runs_a, decisive, deterministic=deterministic), dict(decisive)
    found = []
    for name in names:
        of_a = [run for run in runs_a if name in run.series]
        of_b = [
            run for run in runs_b if name in run.series and not metrics.is_redefined(name, runs_a[0].series, run.series)
        ]
        if of_b:
            other = Decisive(name, int(name.startswith(_MORE_IS_BETTER)))
            outlier = _outlier(name, of_a, of_b, bands.get(name), about.get(name, other))
            found += [outlier] if outlier else []
    return sorted(
        found, key=lambda each: (not each.is_in_most, each.side > 0, each.step, metrics.causal_rank(each.metric))
    )


def _outlier(
    name: str, runs_a: Sequence[Run], runs_b: Sequence[Run], known: Band | None, about: Decisive
) -> Outlier | None:
    """What leaves the band, or what is far if no more runs leave the band or if most runs are far."""
    steps = sorted({step for run in runs_b for step in run.series[name]})
    values = band.table(name, runs_b, steps)
    limits, margin = _range(name, runs_a, steps, about)
    found, _ = _beyond(values, limits, margin, about.good)
    is_far, side, far = True, -abs(about.good), found.any(axis=1).sum()
    if known is not None and 2 * far <= len(runs_b):
        bad, good = _beyond(values, _aligned(known, steps), 0.0, about.good)
        outside = bad if bad.any() else good
        if outside.any(axis=1).sum() > far:
            limits, found, is_far, side = _aligned(known, steps), outside, False, side if bad.any() else 1
    runs = np.flatnonzero(found.any(axis=1)).tolist()
    if not runs:
        return None
    at = int(found[runs[0]].argmax())
    step, b = steps[at], float(values[runs[0], at])
    low, high = (float(limit[at]) for limit in limits)
    a = [run.series[name][step] for run in runs_a if step in run.series[name]]
    return Outlier(
        metric=name,
        runs=tuple(runs_b[each].name for each in runs),
        of=len(runs_b),
        step=step,
        steps=int(found[runs[0]].sum()),
        a=float(np.mean(a)) if a else min(max(b, low), high),
        b=b,
        low=low,
        high=high,
        is_far=is_far,
        side=side,
    )


_Limits = tuple[Array, Array]  # at each step the least and the most


def _beyond(values: Array, limits: _Limits, margin: float, good: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where the runs (rows) are beyond the limits on a side that is bad, or is none; and where on the good side."""
    below, above = values < limits[0] - margin, values > limits[1] + margin
    if good:
        return (below, above) if good > 0 else (above, below)
    return below | above, np.zeros_like(below)


def _range(name: str, runs: Sequence[Run], steps: Sequence[int], about: Decisive) -> tuple[_Limits, float]:
    """What A's runs do over all steps, and how much beyond that is far: infinite if A's metric is always 0."""
    values = [value for run in runs for value in run.series[name].values()]
    size = max(metrics.scale_of(name, run.series) for run in runs)
    far = _FAR * max(size, about.floor_of(size), _LEAST_SIZE) if size > 0 else np.inf
    return (np.full(len(steps), min(values)), np.full(len(steps), max(values))), far


def _aligned(known: Band, steps: Sequence[int]) -> _Limits:
    """The limits of a band at these steps; none where it has none."""
    limits = {step: (low, high) for step, low, high in zip(known.steps, known.low, known.high, strict=True)}
    low, high = zip(*(limits.get(step, (-np.inf, np.inf)) for step in steps), strict=True)
    return taken(low), taken(high)
