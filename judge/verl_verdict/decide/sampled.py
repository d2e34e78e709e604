"""What seed-paired runs show where A does not repeat itself: the decisive metrics, by statistics, at each declared look.

These are facts: which metrics are worse, better, apart or the same, and at which look. The rules of table.py say what follows.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from verl_verdict.decide import diagnosis, joint, statistics
from verl_verdict.decide.diagnosis import Place, listed, number
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.statistics import LOOKS, Alone, Array
from verl_verdict.decide.verdicts import DIFFERENT, Finding, Row
from verl_verdict.read import comparable, metrics
from verl_verdict.read.metrics import Decisive, Improves
from verl_verdict.read.records import Run

_WIDE = 5.0  # floors: a larger margin is noted, because "same" then says little
_FEWEST_STEPS = 3  # of a run, that show how far its steps vary


@dataclass(frozen=True)
class Summary:
    """One value per run: a metric at the first update, or its mean over the last third of its steps, or over all.

    The mean over all steps shows a small difference that lasts (`is_drift`); it is no part of sameness. `most` is the most that the
    metric's floor may be.
    """

    metric: str
    decisive: Decisive
    last_third: bool
    is_drift: bool = False
    most: float = math.inf

    @property
    def name(self) -> str:
        """As the report shows it."""
        part = "mean of all steps" if self.is_drift else "mean of the last third" if self.last_third else "first update"
        return f"{self.metric}, {part}"

    @property
    def is_at_first(self) -> bool:
        """Is it the value at the first update?"""
        return not (self.last_third or self.is_drift)

    def value(self, run: Run) -> float:
        """The value of this run."""
        steps = sorted(run.series[self.metric].items())
        if self.is_at_first:
            return steps[0][1]
        last = steps if self.is_drift else steps[-math.ceil(len(steps) / 3) :]
        return statistics.mean([value for _, value in last])

    def first_step(self, run: Run) -> int:
        """The first step that it covers."""
        steps = sorted(run.series[self.metric])
        return steps[-math.ceil(len(steps) / 3)] if self.last_third else steps[0]

    def floor_of(self, size: float) -> float:
        """The difference that does not matter, for a metric of this size."""
        return min(self.decisive.floor_of(size), self.most)

    def finding(self, difference: float) -> Finding:
        """What a difference means that is beyond its margin."""
        good = self.decisive.good * difference
        if good < 0:
            return Finding.WORSE
        improves = {Improves.ALWAYS: True, Improves.LATER: not self.is_at_first, Improves.NEVER: False}
        return Finding.BETTER if good > 0 and improves[self.decisive.improves] else Finding.APART


def summaries(runs: Sequence[Run], workload: str, chosen: Sequence[Decisive]) -> list[Summary]:
    """The summaries of the decisive metrics that all runs have. A metric that was recorded once has one summary.

    So has one whose first value says nothing.
    """
    common = set.intersection(*(set(run.series) for run in runs))
    found = []
    for name, decisive in metrics.decisive_of(workload, common, chosen):
        if decisive.at_first and max(len(run.series[name]) for run in runs) > 1:
            found.append(Summary(name, decisive, last_third=False))
        found.append(Summary(name, later(decisive, runs), last_third=True))
    return found


def later(decisive: Decisive, runs: Sequence[Run]) -> Decisive:
    """What it says after the first update. With replay B's weights are then no longer those that sampled: no mismatch is worse."""
    is_apart = decisive.path_free and comparable.REPLAY in runs[0].facts and len(runs[0].steps) > 1
    return replace(decisive, good=0, path_free=False) if is_apart else decisive


def drifts(runs: Sequence[Run], workload: str, chosen: Sequence[Decisive]) -> list[Summary]:
    """The means over all steps of the decisive metrics that all runs have at the same steps, and at more than one."""
    common = set.intersection(*(set(run.series) for run in runs))
    lasting = [
        name for name in common if len(steps := {frozenset(run.series[name]) for run in runs}) == 1 < len(steps.pop())
    ]
    return [
        Summary(name, later(each, runs), last_third=False, is_drift=True)
        for name, each in metrics.decisive_of(workload, lasting, chosen)
    ]


def worse_alone(a: Run, b: Run, workload: str, chosen: Sequence[Decisive]) -> str | None:
    """Why one pair is enough to say that B is worse: a metric that hardly depends on the path of training is beyond its floor."""
    for summary in summaries([a, b], workload, chosen):
        decisive = summary.decisive
        mine, other = summary.value(a), summary.value(b)
        if decisive.path_free and decisive.good * (other - mine) < -decisive.floor_of(mine):
            return f"{summary.name} is worse: {diagnosis.a_and_b(mine, other)}"
    return None


@dataclass(frozen=True)
class Large:
    """An absolute floor that is larger than what A's own steps vary by: it would hide a difference that they show.

    If it is larger than the metric itself, it says nothing, and that spread counts instead (`is_capped`).
    """

    metric: str
    floor: float
    spread: float
    is_capped: bool

    def __str__(self) -> str:
        what = f"the floor of {number(self.floor)} of {self.metric} is larger than A's own steps vary by ({self.spread:.2g})"
        cure = "so that counts instead" if self.is_capped else "so it hides smaller differences: set a smaller one"
        return f"{what}, {cure}"


def large_floors(runs_a: Sequence[Run], found: Sequence[Summary]) -> dict[str, Large]:
    """The absolute floors that are too large, by metric. Relative ones, and those of sums near 0, are none."""
    large = {}
    for metric, decisive in {each.metric: each.decisive for each in found}.items():
        courses = [values for run in runs_a if len(values := run.series.get(metric, {})) >= _FEWEST_STEPS]
        if not courses or decisive.relative_floor or decisive.is_sum_near_0 or decisive.may_be_constant:
            continue
        with np.errstate(all="ignore"):
            spread = math.sqrt(np.mean([np.var(list(values.values()), ddof=1) for values in courses]))
            level = abs(float(np.mean([np.mean(list(values.values())) for values in courses])))
        if decisive.floor > spread:
            is_capped = decisive.is_capped and decisive.floor > level
            large[metric] = Large(metric, decisive.floor, spread, is_capped)
    return large


@dataclass(frozen=True)
class SampledLook:
    """What this many pairs show of the decisive metrics (`rows`), and of all others together (`others`)."""

    pairs: int
    summaries: tuple[Summary, ...]  # of `every`
    every: tuple[Row, ...]
    steady: tuple[
        Row, ...
    ]  # that have one value in all runs of A and at all times, so they cannot show that B is the same
    hidden: tuple[str, ...]  # of which A varies so much that a difference is not seen
    others: joint.Joint
    needed: int | None  # pairs to add until a look that may decide

    @property
    def rows(self) -> list[Row]:
        """What a report shows: not the means over all steps that tell nothing."""
        shown = zip(self.summaries, self.every, strict=True)
        return [row for each, row in shown if not each.is_drift or row.finding in DIFFERENT]

    def found(self, *findings: Finding) -> list[Row]:
        """The rows with these findings."""
        return [row for row in self.rows if row.finding in findings]

    def farthest(self, finding: Finding) -> Row | None:
        """The row with this finding that is beyond its margin by the largest factor; a mean over all steps only if there is no other."""
        found = [pair for pair in zip(self.summaries, self.every, strict=True) if pair[1].finding is finding]
        _, row = max(found, key=lambda pair: (not pair[0].is_drift, _factor(pair[1])), default=(None, None))
        return row

    @property
    def differs(self) -> bool:
        """Does anything differ?"""
        return bool(self.found(*DIFFERENT) or self.others.apart)

    @property
    def is_same(self) -> bool:
        """Is sameness shown, and nothing that hints at a difference?"""
        return not (self.steady or self.others.hinted) and all(row.finding is Finding.SAME for row in self.rows)


def deciding(looks: Sequence[SampledLook]) -> SampledLook:
    """The look that decides: the first that shows a difference, else the first that shows sameness, else the last one."""
    different = (look for look in looks if look.differs)
    same = (look for look in looks if look.is_same)
    return next(different, None) or next(same, None) or looks[-1]


@dataclass(frozen=True)
class Samples:
    """The pairs of a case, and what statistics say of them. `alone` are runs of A with further seeds: they tell more about A against A.

    `is_repeatable`: A repeats itself, so its repeats would tell that it has no noise at all.
    """

    pairs: Sequence[Pair]
    alone: Sequence[Run]
    workload: str
    chosen: Sequence[Decisive]
    is_repeatable: bool

    @cached_property
    def runs(self) -> list[Run]:
        """A and B of each pair in turn."""
        return [run for pair in self.pairs for run in (pair.a[0], pair.b[0])]

    @property
    def lacking(self) -> tuple[str, str] | None:
        """A run and the metric that must decide and that it lacks."""
        for decisive in self.chosen or metrics.of_workload(self.workload).decisive:
            lacking = [run.name for run in self.runs if not any(map(decisive.matches, run.series))]
            if decisive.required and lacking:
                return lacking[0], decisive.pattern
        return None

    @cached_property
    def summaries(self) -> list[Summary]:
        """What decides; empty if the runs have no decisive metric in common."""
        found = summaries(self.runs, self.workload, self.chosen)
        found += drifts(self.runs, self.workload, self.chosen) if found else []
        large = {name: each.spread for name, each in self.large_floors.items() if each.is_capped}
        return [replace(each, most=large.get(each.metric, math.inf)) for each in found]

    @cached_property
    def large_floors(self) -> dict[str, Large]:
        """Floors that are too large for these runs."""
        runs_a = [*(run for pair in self.pairs for run in pair.a), *self.alone]
        return large_floors(runs_a, summaries(self.runs, self.workload, self.chosen))

    @cached_property
    def looks(self) -> list[SampledLook]:
        """Each declared look that there are pairs for."""
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what no float can hold is infinite or NaN, and so never the same
            return [self._look(pairs) for pairs in LOOKS if pairs <= len(self.pairs)]

    @cached_property
    def look(self) -> SampledLook:
        """The one that decides."""
        return deciding(self.looks)

    @cached_property
    def _table(self) -> Array:
        return statistics.taken([[summary.value(run) for summary in self.summaries] for run in self.runs])

    @cached_property
    def _others(self) -> Array | None:
        complete = [run for run in self.alone if all(each.metric in run.series for each in self.summaries)]
        return (
            statistics.taken([[each.value(run) for each in self.summaries] for run in complete]) if complete else None
        )

    @cached_property
    def _repeats(self) -> Array | None:
        """Differences between runs of A with one seed."""
        rows = [
            [each.value(other) - each.value(one) for each in self.summaries]
            for pair in self.pairs
            for one, other in itertools.combinations(pair.a, 2)
            if all(each.metric in run.series for each in self.summaries for run in (one, other))
        ]
        return statistics.taken(rows) if rows and not self.is_repeatable else None

    @cached_property
    def _joint(self) -> joint.Columns:
        floors = {each.metric: min(each.decisive.floor, each.most) for each in self.summaries}
        return joint.columns(self.pairs, self.alone, floors, self.is_repeatable)

    def _look(self, pairs: int) -> SampledLook:
        a, b = self._table[0 : 2 * pairs : 2], self._table[1 : 2 * pairs : 2]
        found = self.summaries
        sizes = ((a + b) / 2).mean(axis=0)  # of both sides alike, so that exchanging A and B in a pair changes no floor
        floors = statistics.taken([each.floor_of(size) for each, size in zip(found, sizes, strict=True)])
        is_drift = np.array([each.is_drift for each in found])
        look = statistics.look_at(a, b, floors, Alone(self._repeats, self._others), is_drift)
        every = [_row(each, a[:, at].mean(), b[:, at].mean(), look, at) for at, each in enumerate(found)]
        varying = {each.metric for each in found if each.decisive.may_be_constant or self._varies(each.metric)}
        lasting = [at for at, each in enumerate(found) if not each.is_drift]
        return SampledLook(
            pairs=pairs,
            summaries=tuple(found),
            every=tuple(every),
            steady=tuple(every[at] for at in lasting if found[at].metric not in varying),
            hidden=tuple(
                f"{every[at].summary} ({every[at].margin:.4g})"
                for at in lasting
                if every[at].margin > _WIDE * floors[at]
            ),
            others=self._joint.look(pairs).without_what_follows(_rise(found, every)),
            needed=statistics.pairs_needed((b - a)[:, lasting], look.margin[lasting], len(self.pairs)),
        )

    def _varies(self, metric: str) -> bool:
        """Does it have more than one value in all runs of A together?"""
        return len({value for pair in self.pairs for value in pair.a[0].series[metric].values()}) > 1

    def first(self, config: Sequence[comparable.Difference]) -> diagnosis.Diagnosis | None:
        """The first of what differs at the deciding look, and then in causal order. The values are means over the pairs."""
        beyond = []
        for summary, row in zip(self.look.summaries, self.look.every, strict=True):
            if row.finding in DIFFERENT:
                at = (summary.first_step(self.pairs[0].a[0]), row.a, row.b)
                step, a, b = self._since(summary.metric, row) if summary.is_drift else at
                beyond.append((step, metrics.causal_rank(summary.metric), a, b, summary.metric))
        if not beyond:
            return self._first_of_others(config)
        step, _, a, b, metric = min(beyond)
        return diagnosis.at(Place(step, metric, a, b), config)

    def _first_of_others(self, config: Sequence[comparable.Difference]) -> diagnosis.Diagnosis | None:
        """Where the farthest of the metrics that do not decide leaves A; None if the runs do not have it at the same steps."""
        if not self.look.others.apart:
            return None
        far, *others = self.look.others.apart
        if len({frozenset(run.series.get(far.metric, {})) for run in self.runs}) > 1:
            return None
        step, a, b = self._since(far.metric, far)
        names = dict.fromkeys(each.metric for each in others if each.metric != far.metric)
        return diagnosis.at(Place(step, far.metric, a, b), config, list(names))

    def _since(self, metric: str, row: Row | joint.Apart) -> tuple[int, float, float]:
        """The first step at which B is half as far from A as at the worst step, and the means there: a drift begins in noise."""
        pairs = self.pairs[: self.look.pairs]
        a, b = (
            [run.series[metric] for run in side]
            for side in zip(*((pair.a[0], pair.b[0]) for pair in pairs), strict=True)
        )
        means = [
            (step, statistics.mean([run[step] for run in a]), statistics.mean([run[step] for run in b]))
            for step in sorted(a[0])
        ]
        sign = 1 if row.b > row.a else -1
        apart = [sign * (other - mine) for _, mine, other in means]
        return next(each for each, far in zip(means, apart, strict=True) if 2 * far >= max(apart))


def _rise(found: Sequence[Summary], rows: Sequence[Row]) -> float:
    """By how much the score rises; 0 if it is not shown to."""
    rises = [
        row.b - row.a
        for each, row in zip(found, rows, strict=True)
        if each.metric == metrics.SCORE and row.finding is Finding.BETTER
    ]
    return max(rises, default=0.0)


def _factor(row: Row) -> float:
    return abs(row.b - row.a) / row.margin if row.margin else math.inf


def shown_hidden(hidden: Sequence[str]) -> list[str]:
    """The note on what A's own noise hides."""
    what = "A varies so much that a smaller difference than the margin cannot be seen in"
    return [f"{what} {listed(list(hidden), 1)}"] if hidden else []


def _row(summary: Summary, a: float, b: float, look: statistics.Look, at: int) -> Row:
    finding = Finding.SAME if look.same[at] else Finding.OPEN
    if look.differs[at]:
        finding = summary.finding(float(look.mean[at]))
    return Row(
        summary.name, float(a), float(b), float(look.margin[at]), float(look.p[at]), float(look.sameness_p[at]), finding
    )
