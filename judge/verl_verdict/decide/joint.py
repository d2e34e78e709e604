"""All metrics but the decisive ones, in one test: also those that nobody knows by name.

Each run gives values per metric: its level (the mean over its steps), its drift (the mean of the last third less that of the first), and
where runs do not record it at the same steps, the share of the steps at which it was recorded. All sign flips of the pairs are tried
jointly for all of them (largest statistic, step-down), so that their number makes no more alarms. What differs must also be beyond three
standard deviations of A against A.

The statistic is the mean difference in a unit that no flip changes: the differences themselves, how far the pairs are apart from each
other, and how far steps vary within a run. So a metric that hardly varies in one of few pairs does not hide the others.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verl_verdict.decide import statistics
from verl_verdict.decide.diagnosis import a_and_b
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.statistics import Alone, Array
from verl_verdict.read import metrics
from verl_verdict.read.records import Run

# What the test spends at each look: 0.039 in all, beside the 0.047 of the decisive metrics. Fewer pairs cannot show a difference.
ALPHA = {6: 2 / 64, 8: 2 / 256}
FEWEST = min(ALPHA)
_HINT = 4.0  # times A's noise: a difference that is a hint where pairs are too few to show it
_ROUNDING = 2e-5  # of a metric's size, as in exact.py
_DRIFT = "mean of the last third less that of the first"
_FEWEST_STEPS = 4  # of a run that has a drift

_FOLLOWS = 3.0  # times the rise of the score, by which what follows it may rise
_TWINS = {"critic/rewards/mean": "critic/score/mean"}  # they have the floor of the decisive metric
FOLLOW_THE_SCORE = ("critic/score/", "critic/rewards/", "critic/returns/", "critic/values/")  # if it rises, so do these


@dataclass(frozen=True)
class Apart:
    """A metric that differs; `part` says what of it. The values are means over the pairs."""

    metric: str
    part: str
    step: int  # the first one that it covers
    a: float
    b: float
    margin: float
    p: float

    def follows(self, rise: float) -> bool:
        """Is it more of what rises with a score that rises by so much?"""
        return self.metric.startswith(FOLLOW_THE_SCORE) and 0 < self.b - self.a <= _FOLLOWS * rise

    @property
    def factor(self) -> float:
        """How many margins it is apart."""
        return abs(self.b - self.a) / self.margin if self.margin else math.inf

    def __str__(self) -> str:
        return f"{self.metric}, {self.part}: {a_and_b(self.a, self.b)}"


@dataclass(frozen=True)
class Joint:
    """What a look shows: what differs, what only hints at a difference, and how many metrics were tested. The farthest come first."""

    metrics: int
    apart: tuple[Apart, ...] = ()
    hinted: tuple[Apart, ...] = ()

    def without_what_follows(self, rise: float) -> "Joint":
        """The same without what only follows a score that rises by so much."""
        apart, hinted = (tuple(each for each in found if not each.follows(rise)) for found in (self.apart, self.hinted))
        return Joint(self.metrics, apart, hinted)


@dataclass(frozen=True)
class _Column:
    metric: str
    part: str
    value: Callable[[Mapping[int, float]], float]
    steps: int  # how many the value is a mean of
    least: int  # steps that a run must have for it
    means: int = 0  # of how many means of so many steps it is made

    def can_read(self, run: Run) -> bool:
        """Does the run have enough steps?"""
        return len(run.series.get(self.metric, {})) >= self.least


@dataclass(frozen=True)
class Columns:
    """The values of all runs: a column for each metric and part."""

    columns: tuple[_Column, ...]
    a: Array
    b: Array
    within: Array  # the variance that a run's own steps leave in each value
    size: Array  # of each metric
    floor: Array  # the difference that does not matter
    repeats: Array | None
    alone: Array | None
    first: Mapping[str, int]

    def look(self, pairs: int) -> Joint:
        """What this many pairs show."""
        number = len({each.metric for each in self.columns})
        if not self.columns:
            return Joint(number)
        a, b, difference = self.a[:pairs], self.b[:pairs], (self.b - self.a)[:pairs]
        floor = np.maximum(_ROUNDING * self.size, self.floor)
        noise = statistics.noise(a, difference, Alone(self.repeats, self.alone))
        margin = statistics.margins(floor, noise)
        p = statistics.sign_flip(difference, self._unit(a, b, pairs), floor)
        is_far: NDArray[np.bool_] = np.abs(difference.mean(axis=0)) > margin
        is_shown = is_far & (p <= ALPHA.get(pairs, 0.0) * (1 + 1e-9))
        if pairs in ALPHA:
            is_hint = is_far & (p <= statistics.HINT * (1 + 1e-9))
        else:  # no p of so few pairs is small
            is_hint = np.abs(difference.mean(axis=0)) > np.maximum(floor, _HINT * self._noise(noise, pairs))
        found = [
            Apart(
                each.metric,
                each.part,
                self.first[each.metric],
                float(a[:, at].mean()),
                float(b[:, at].mean()),
                float(margin[at]),
                float(p[at]),
            )
            for at, each in enumerate(self.columns)
        ]
        shown, hinted = (
            [each for each, at in zip(found, which, strict=True) if at] for which in (is_shown, is_hint & ~is_shown)
        )
        return Joint(number, _farthest_first(shown), _farthest_first(hinted))

    def _noise(self, spread: Array, pairs: int) -> Array:
        """The noise of each value, at least what the steps of A's runs leave in it: in few pairs a metric may hardly vary by chance.

        That is `within`, enlarged as it is for the median of all metrics, because steps depend on each other.
        """
        within = np.sqrt(2 * self.within[: 2 * pairs : 2].mean(axis=0))
        varying = np.isfinite(spread) & np.isfinite(within) & (within > 0)
        enlarged = np.median(spread[varying] / within[varying]) if varying.any() else 1.0
        larger: Array = np.maximum(spread, float(enlarged) * within)
        return larger

    def _unit(self, a: Array, b: Array, pairs: int) -> Array:
        difference, middle = b - a, (a + b) / 2
        between = 4 * middle.var(axis=0, ddof=1)
        within = 2 * self.within[: 2 * pairs].mean(axis=0)
        squares: Array = (difference**2).mean(axis=0) + between + within + (_ROUNDING * self.size) ** 2
        return np.where(squares > 0, np.sqrt(squares), 1.0)


def _farthest_first(found: Iterable[Apart]) -> tuple[Apart, ...]:
    return tuple(sorted(found, key=lambda each: (-each.factor, metrics.causal_rank(each.metric))))


def columns(pairs: Sequence[Pair], alone: Sequence[Run], floors: Mapping[str, float], is_repeatable: bool) -> Columns:
    """The columns of all metrics that are compared and not decisive, which have these absolute `floors`. `alone` and `is_repeatable` as for sampled.Samples."""
    runs = [run for pair in pairs for run in (pair.a[0], pair.b[0])]
    found = tuple(itertools.chain.from_iterable(_columns_of(name, runs) for name in _names(runs, floors)))
    repeats = [
        _values(found, [other])[0] - _values(found, [one])[0]
        for pair in pairs
        for one, other in itertools.combinations(pair.a, 2)
        if not is_repeatable and all(each.can_read(one) and each.can_read(other) for each in found)
    ]
    more = [run for run in alone if all(each.can_read(run) for each in found)]
    return Columns(
        columns=found,
        a=_values(found, [pair.a[0] for pair in pairs]),
        b=_values(found, [pair.b[0] for pair in pairs]),
        within=statistics.taken([[_within(each, run) for each in found] for run in runs]),
        size=statistics.taken([_size(each, runs) for each in found]),
        floor=statistics.taken([floors.get(_TWINS.get(each.metric, ""), 0.0) for each in found]),
        repeats=statistics.taken(repeats) if repeats and found else None,
        alone=_values(found, more) if more and found else None,
        first={each.metric: min(min(run.series.get(each.metric, {0: 0.0})) for run in runs) for each in found},
    )


def _names(runs: Sequence[Run], decisive: Collection[str]) -> list[str]:
    names = {name for run in runs for name in run.series if name not in decisive and not metrics.is_time(name)}
    is_mixed = len({metrics.is_v1(run.series) for run in runs}) > 1
    return sorted(name for name in names if not (is_mixed and metrics.is_redefined_by_v1(name)))


def _columns_of(name: str, runs: Sequence[Run]) -> list[_Column]:
    having = [run.series[name] for run in runs if name in run.series]
    found = []
    if len(having) == len(runs):
        fewest = min(map(len, having))
        found.append(
            _Column(
                name,
                "mean of all steps",
                lambda values: statistics.mean(list(values.values())),
                fewest,
                least=1,
                means=1,
            )
        )
        if fewest >= _FEWEST_STEPS:
            found.append(_Column(name, _DRIFT, _drift, math.ceil(fewest / 3), least=_FEWEST_STEPS, means=2))
    if len({frozenset(run.series.get(name, {})) for run in runs}) > 1 and metrics.why_one_sided(name) is None:
        steps = len({step for run in runs for step in run.steps})
        found.append(
            _Column(name, "share of the steps that have it", lambda values: len(values) / steps, steps, least=0)
        )
    return found


def _drift(values: Mapping[int, float]) -> float:
    ordered = [value for _, value in sorted(values.items())]
    third = math.ceil(len(ordered) / 3)
    return statistics.mean(ordered[-third:]) - statistics.mean(ordered[:third])


def _values(found: Sequence[_Column], runs: Sequence[Run]) -> Array:
    return statistics.taken([[each.value(run.series.get(each.metric, {})) for each in found] for run in runs])


def _within(column: _Column, run: Run) -> float:
    values = run.series.get(column.metric, {}).values()
    if len(values) < 2 or not column.means:
        return 0.0
    with np.errstate(all="ignore"):
        return column.means * float(np.var(list(values))) / column.steps


def _size(column: _Column, runs: Sequence[Run]) -> float:
    return max((abs(value) for run in runs for value in run.series.get(column.metric, {}).values()), default=0.0)
