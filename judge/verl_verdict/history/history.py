"""Runs of many sessions in the order of time: which of them are comparable, the values of each metric, and where they change.

Runs that may be compared are a group. In it, the runs of one source, of A and of B alike, are a series; only where the code of a series
changes can its metrics have a change point.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import median_low
from typing import TypeVar

from verl_verdict.decide import cost, diagnosis, exact, preconditions, speed
from verl_verdict.decide.sampled import Summary, later
from verl_verdict.decide.verdicts import DIFFERING
from verl_verdict.history import changes
from verl_verdict.read import comparable, metrics
from verl_verdict.read.comparable import Difference
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run

_T = TypeVar("_T")


@dataclass(frozen=True)
class Point:
    """A run of a session's case. `tree` is equal for equal code; `source` is the branch, path or release it came from, if that is known."""

    run: Run
    case: str
    side: str  # A or B
    name: str  # of the run in its session
    session: str
    time: str  # of its session
    code: str
    tree: str
    source: str = ""
    revision: str = ""  # of the source
    log: str = ""  # relative to the page
    decisive: tuple[Decisive, ...] = ()
    ignore: tuple[str, ...] = ()
    failed_checks: int = 0  # of its session

    @property
    def series(self) -> str:
        """What it shares with the other runs of its series: the source, or else the code id."""
        return self.source or self.code

    @property
    def doubt(self) -> str:
        """Why it may not be about the code that was asked for; empty if its session's checks say that it is."""
        return diagnosis.doubt_of_checks(self.failed_checks)

    @property
    def compared(self) -> Run:
        """The run without the metrics that its case ignores."""
        return self.run.without(self.ignore)

    def __str__(self) -> str:
        return f"{self.name} of {self.session} ({self.code})"


@dataclass(frozen=True)
class Left:
    """What was left out, and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class Ended:
    """A session that is over: its verdict, empty without an answer, and what its report says of it. It may have no run that can be drawn."""

    session: str
    time: str
    code: str  # of B
    word: str
    said: str

    @property
    def is_change(self) -> bool:
        """B did not train as A does."""
        return self.word in DIFFERING

    def __str__(self) -> str:
        return f"{self.session} ({self.code}): {self.said}"


@dataclass(frozen=True)
class Change:
    """A metric of one series is different from the run `last` to the run `first`, which have other code; `p` is None where runs repeat themselves."""

    case: str
    metric: str
    last: Point
    first: Point
    before: float
    after: float
    p: float | None
    good: int = 0
    doubt: str = ""  # as of a point, from all runs that show the change

    @property
    def word(self) -> str:
        """Better or worse; changed if the metric has no bad side."""
        side = self.good * (self.after - self.before)
        return "better" if side > 0 else "worse" if side < 0 else "changed"

    @property
    def rank(self) -> tuple[int, float]:
        """The worst change is the smallest: first by its word, then by its size relative to the values."""
        size = abs(self.after - self.before) / max(abs(self.after), abs(self.before))
        return ("worse", "changed", "better").index(self.word), -size if math.isfinite(size) else -math.inf

    @property
    def how(self) -> str:
        """How sure it is."""
        sure = "runs with one seed are equal" if self.p is None else f"p {self.p:.2g}"
        return f"{sure}; {self.doubt}" if self.doubt else sure


@dataclass(frozen=True)
class Trend:
    """One metric: a value per run that has it, and its change points."""

    metric: str
    values: Sequence[tuple[Point, float]]
    changes: Sequence[Change] = ()

    def values_of(self, series: str) -> list[tuple[Point, float]]:
        """The values of one series."""
        return [(point, value) for point, value in self.values if point.series == series]


@dataclass(frozen=True)
class Group:
    """The runs of a case that may be compared, in the order of time. `differs` says what sets them apart from the first such runs."""

    case: str
    number: int
    points: Sequence[Point]
    differs: Sequence[Difference] = ()
    repeats: bool | None = None
    trends: Sequence[Trend] = ()
    left: Sequence[Left] = ()

    @property
    def name(self) -> str:
        """The case's name, with a number from the second group on."""
        return self.case if self.number == 1 else f"{self.case} ({self.number})"

    @cached_property
    def sessions(self) -> dict[str, int]:
        """The number of each session, from 1, in the order of time."""
        return {name: at for at, name in enumerate(dict.fromkeys(point.session for point in self.points), start=1)}

    @cached_property
    def series(self) -> Mapping[str, int]:
        """The series in the order of their first runs, and in how many sessions each has runs."""
        return Counter(series for series, _ in dict.fromkeys((point.series, point.session) for point in self.points))


def change_points(groups: Iterable[Group]) -> list[list[Change]]:
    """What each change of code has changed in all groups, the worst first; the change points are in the order of time."""
    found = [change for group in groups for trend in group.trends for change in trend.changes]
    points = _grouped(found, lambda change: (change.first.series, change.first.tree))
    worst_first = [sorted(each, key=lambda change: change.rank) for each in points]
    return sorted(worst_first, key=lambda each: each[0].first.time)


def groups_of(points: Iterable[Point]) -> list[Group]:
    """The groups of these runs, which are in the order of time."""
    found: list[_Found] = []
    for point in points:
        fitting = next((group for group in found if group.takes(point)), None)
        if fitting is None:
            fitting = _Found()
            found.append(fitting)
        fitting.add(point)
    groups = []
    for case in dict.fromkeys(group.points[0].case for group in found):
        same = [group for group in found if group.points[0].case == case]
        groups += [_judged(group.points, number, same[0].points[0]) for number, group in enumerate(same, start=1)]
    return groups


@dataclass
class _Found:
    """A group that is being collected; `distinct` has one run for each set of facts, because most runs have equal ones."""

    points: list[Point] = field(default_factory=list)
    distinct: list[Run] = field(default_factory=list)

    def takes(self, point: Point) -> bool:
        mine = self.points[0]
        # One that continues another begins later.
        starts = {min(each.run.steps) for each in (*self.points, point) if each.run.steps}
        is_like = (point.case, point.run.workload) == (mine.case, mine.run.workload) and len(starts) < 2
        return is_like and not any(comparable.facts(run, point.run) for run in self.distinct)

    def add(self, point: Point) -> None:
        self.points.append(point)
        if all(run.facts != point.run.facts for run in self.distinct):
            self.distinct.append(point.run)


def _judged(points: Sequence[Point], number: int, first: Point) -> Group:
    ended = [point.run.last_step for point in points if not (point.run.failure or point.run.unfinished)]
    last = median_low(ended) if ended else 0
    why = [preconditions.why_unusable(point.compared, last) for point in points]
    left = [Left(str(point), reason) for point, reason in zip(points, why, strict=True) if reason]
    usable = [point for point, reason in zip(points, why, strict=True) if not reason]
    repeating = repeats(usable)
    return Group(
        case=first.case,
        number=number,
        points=usable,
        differs=comparable.facts(first.run, points[0].run),
        repeats=repeating,
        trends=_trends(usable, repeating is True),
        left=left,
    )


def repeats(points: Sequence[Point]) -> bool | None:
    """Do runs with one seed repeat each other? True needs two runs that do, of any code; False two runs of one code that do not."""
    is_shown = None
    for same in _grouped(points, lambda point: (point.run.seed, point.tree)):
        is_equal = exact.repeats([point.compared for point in same])
        if is_equal is False:
            return False
        is_shown = is_shown or is_equal
    for same in _grouped(points, lambda point: point.run.seed) if not is_shown else []:
        is_shown = is_shown or any(exact.repeats([a.compared, b.compared]) for a, b in pairwise(same)) or None
    return is_shown


def _grouped(these: Iterable[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    found: dict[object, list[_T]] = {}
    for each in these:
        found.setdefault(key(each), []).append(each)
    return list(found.values())


def _trends(points: Sequence[Point], is_exact: bool) -> list[Trend]:
    if not points:
        return []
    workload, chosen = points[-1].run.workload, points[-1].decisive
    names = sorted({name for point in points for name in point.compared.series})
    differing = _differing(points) if is_exact else []
    found = []
    for name, each in metrics.decisive_of(workload, names, chosen):
        summary = Summary(name, later(each, [point.run for point in points]), last_third=True)
        values = [(point, summary.value(point.run)) for point in points if point.run.series.get(name)]
        if is_exact:
            found.append(Trend(name, values, _exact(name, values, differing, summary.decisive.good)))
        else:
            found.append(Trend(name, values, _sampled(name, values, summary.decisive.floor_of, summary.decisive.good)))
    return [*found, *_seconds(points)]


def _seconds(points: Sequence[Point]) -> list[Trend]:
    """How long a step took, if any run recorded that."""
    took = [(point, seconds) for point in points if (seconds := speed.seconds(point.run)) is not None]
    if not took:
        return []
    floor = cost.FLOORS[cost.profile_of([point.run for point, _ in took])]
    return [Trend(speed.STEP, took, _sampled(speed.STEP, took, lambda mean: floor * mean, -1))]


def _differing(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """The last run before and the first one after a change of code, of one series and one seed, that differ by more than rounding grows to."""
    known = exact.noise(
        [point.compared for point in same] for same in _grouped(points, lambda point: (point.run.seed, point.tree))
    )
    pairs = []
    for same in _grouped(points, lambda point: (point.series, point.run.seed)):
        for before, (first, *_) in pairwise(_grouped(same, lambda point: point.tree)):
            pairs.append(([each for each in before if each.time <= first.time][-1], first))
    return [(a, b) for a, b in pairs if exact.compare(a.compared, b.compared, known).outcome is exact.Outcome.DIFFERS]


def _exact(
    name: str, values: Sequence[tuple[Point, float]], differing: Iterable[tuple[Point, Point]], good: int
) -> list[Change]:
    """Runs that repeat themselves: any difference is a change. Several seeds show the same one, which is kept once."""
    known = {id(point): value for point, value in values}
    found: dict[tuple[str, str], Change] = {}
    for last, first in differing:
        is_redefined = metrics.is_redefined(name, last.run.series, first.run.series)
        if is_redefined or not {id(last), id(first)} <= known.keys():
            continue
        before, after = known[id(last)], known[id(first)]
        if abs(after - before) > exact.ROUNDING * metrics.scale_of(name, last.run.series):
            change = Change(first.case, name, last, first, before, after, None, good, _doubt([last, first]))
            found.setdefault((first.series, first.tree), change)
    return list(found.values())


def _sampled(
    name: str, values: Sequence[tuple[Point, float]], floor: Callable[[float], float], good: int
) -> list[Change]:
    finite = [each for each in values if math.isfinite(each[1])]
    found = []
    for same in _grouped(finite, lambda each: each[0].series):
        codes = _grouped(same, lambda each: each[0].tree)  # a run of earlier code is beside the other runs of that code
        mine = [point for code in codes for point, _ in code]
        places = list(accumulate(len(code) for code in codes))
        points = changes.change_points([value for code in codes for _, value in code], floor, places)
        bounds = [0, *(point.at for point in points), len(mine)]
        for point, start, end in zip(points, bounds, bounds[2:], strict=False):
            last, first, why = mine[point.at - 1], mine[point.at], _doubt(mine[start:end])
            found.append(Change(first.case, name, last, first, point.before, point.after, point.p, good, why))
    return found


def _doubt(points: Iterable[Point]) -> str:
    return diagnosis.doubt_of_checks(sum({point.session: point.failed_checks for point in points}.values()))
