"""Runs of many sessions in the order of time: which of them are comparable, the values of each metric, and where they change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median_low

from verl_verdict import changes, comparable, cost, diagnosis, exact, gate, metrics, speed
from verl_verdict.comparable import Difference
from verl_verdict.metrics import Decisive
from verl_verdict.records import Run
from verl_verdict.sampled import Summary


@dataclass(frozen=True)
class Point:
    """A run of a session's case. `tree` is equal for equal code; `source` says where the code came from."""

    run: Run
    case: str
    side: str  # A or B
    name: str  # of the run in its session
    session: str
    time: str  # of its session
    code: str
    tree: str
    source: str = ""
    log: str = ""  # relative to the page
    decisive: tuple[Decisive, ...] = ()
    ignore: tuple[str, ...] = ()
    failed_checks: int = 0  # of its session

    @property
    def doubt(self) -> str:
        """Why it may not be about the code that was asked for; empty if its session's checks say that it is."""
        return diagnosis.doubt(self.failed_checks)

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
class Change:
    """A metric of one side is different from the run `last` to the run `first`; `p` is None where the runs repeat themselves."""

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
    def how(self) -> str:
        """How sure it is."""
        sure = "the runs repeat themselves" if self.p is None else f"p {self.p:.2g}"
        return f"{sure}; {self.doubt}" if self.doubt else sure


@dataclass(frozen=True)
class Trend:
    """One metric: a value per run that has it, and its change points."""

    metric: str
    values: Sequence[tuple[Point, float]]
    changes: Sequence[Change] = ()

    def of(self, side: str) -> list[tuple[Point, float]]:
        """The values of one side."""
        return [(point, value) for point, value in self.values if point.side == side]


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

    @property
    def changes(self) -> list[Change]:
        """All of them, in the order of time."""
        place = {id(point): at for at, point in enumerate(self.points)}
        return sorted((each for trend in self.trends for each in trend.changes), key=lambda each: place[id(each.first)])


def of(points: Iterable[Point]) -> list[Group]:
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
        starts = {
            min(each.run.steps) for each in (*self.points, point) if each.run.steps
        }  # one that continues another begins later
        is_like = (point.case, point.run.workload) == (mine.case, mine.run.workload) and len(starts) < 2
        return is_like and not any(comparable.facts(run, point.run) for run in self.distinct)

    def add(self, point: Point) -> None:
        self.points.append(point)
        if all(run.facts != point.run.facts for run in self.distinct):
            self.distinct.append(point.run)


def _judged(points: Sequence[Point], number: int, first: Point) -> Group:
    ended = [point.run.last_step for point in points if not (point.run.failure or point.run.unfinished)]
    last = median_low(ended) if ended else 0
    why = [gate.why_unusable(point.compared, last) for point in points]
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
    for same in _by(points, lambda point: (point.run.seed, point.tree)):
        is_equal = exact.repeats([point.compared for point in same])
        if is_equal is False:
            return False
        is_shown = is_shown or is_equal
    for same in _by(points, lambda point: point.run.seed) if not is_shown else []:
        is_shown = is_shown or any(exact.repeats([a.compared, b.compared]) for a, b in pairwise(same)) or None
    return is_shown


def _by(points: Sequence[Point], key: Callable[[Point], object]) -> list[list[Point]]:
    found: dict[object, list[Point]] = {}
    for point in points:
        found.setdefault(key(point), []).append(point)
    return list(found.values())


def _trends(points: Sequence[Point], is_exact: bool) -> list[Trend]:
    if not points:
        return []
    workload, chosen = points[-1].run.workload, points[-1].decisive
    names = sorted({name for point in points for name in point.compared.series})
    differing = _differing(points) if is_exact else []
    found = []
    for name, decisive in metrics.decisive_of(workload, names, chosen):
        summary = Summary(name, decisive, last_third=True)
        values = [(point, summary.of(point.run)) for point in points if point.run.series.get(name)]
        if is_exact:
            found.append(Trend(name, values, _exact(name, values, differing, decisive.good)))
        else:
            found.append(Trend(name, values, _sampled(name, values, summary.floor, decisive.good)))
    took = [(point, seconds) for point in points if (seconds := speed.seconds(point.run)) is not None]
    if took:
        floor = cost.FLOORS[cost.profile_of([point.run for point, _ in took])]
        found.append(Trend(speed.STEP, took, _sampled(speed.STEP, took, lambda mean: floor * mean, -1)))
    return found


def _differing(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Runs of one side and one seed that follow each other and differ, by more than rounding, and what it may grow into."""
    known = exact.noise(
        [point.compared for point in same] for same in _by(points, lambda point: (point.run.seed, point.tree))
    )
    pairs = [pair for same in _by(points, lambda point: (point.side, point.run.seed)) for pair in pairwise(same)]
    return [(a, b) for a, b in pairs if exact.compare(a.compared, b.compared, known).outcome is exact.Outcome.DIFFERS]


def _exact(
    name: str, values: Sequence[tuple[Point, float]], differing: Iterable[tuple[Point, Point]], good: int
) -> list[Change]:
    """Runs that repeat themselves: any difference is a change. Several seeds show the same one, which is kept once."""
    known = {id(point): value for point, value in values}
    found: dict[tuple[str, str, str, str], Change] = {}
    for last, first in differing:
        if (
            id(last) not in known
            or id(first) not in known
            or metrics.is_redefined(name, last.run.series, first.run.series)
        ):
            continue
        before, after = known[id(last)], known[id(first)]
        if abs(after - before) > exact.ROUNDING * metrics.scale_of(name, last.run.series):
            key = (first.side, last.tree, first.tree, first.session)
            change = Change(first.case, name, last, first, before, after, None, good, _doubt([last, first]))
            found.setdefault(key, change)
    return list(found.values())


def _sampled(
    name: str, values: Sequence[tuple[Point, float]], floor: Callable[[float], float], good: int
) -> list[Change]:
    found = []
    for side in "AB":
        mine = [(point, value) for point, value in values if point.side == side and math.isfinite(value)]
        steps = changes.steps([value for _, value in mine], floor)
        bounds = [0, *(step.at for step in steps), len(mine)]
        for step, start, end in zip(steps, bounds, bounds[2:], strict=False):
            last, first = mine[step.at - 1][0], mine[step.at][0]
            why = _doubt([point for point, _ in mine[start:end]])
            found.append(Change(first.case, name, last, first, step.before, step.after, step.p, good, why))
    return found


def _doubt(points: Iterable[Point]) -> str:
    return diagnosis.doubt(sum({point.session: point.failed_checks for point in points}.values()))
