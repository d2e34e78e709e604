"""The verdict by statistics: seed-paired runs of a case in which A does not repeat itself."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from verl_verdict.decide import diagnosis, statistics
from verl_verdict.decide.diagnosis import counted, listed
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.statistics import LOOKS, Array
from verl_verdict.decide.verdicts import Row, Verdict, Word
from verl_verdict.read import comparable, metrics
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run

_DIFFERS = (Word.REGRESSED, Word.CHANGED, Word.IMPROVED)  # the worst first
_WIDE = 5.0  # floors: a larger margin is noted, because "same" then says little


@dataclass(frozen=True)
class Summary:
    """One value per run: a metric at the first update, or its mean over the last third of its steps, or over all.

    The mean over all steps shows a small difference that lasts (`is_drift`); it is no part of sameness.
    """

    metric: str
    decisive: Decisive
    last_third: bool
    is_drift: bool = False

    @property
    def name(self) -> str:
        """As the report shows it."""
        part = "mean of all steps" if self.is_drift else "mean of the last third" if self.last_third else "first update"
        return f"{self.metric}, {part}"

    def value(self, run: Run) -> float:
        """The value of this run."""
        steps = sorted(run.series[self.metric].items())
        if not (self.last_third or self.is_drift):
            return steps[0][1]
        last = steps if self.is_drift else steps[-math.ceil(len(steps) / 3) :]
        return sum(value for _, value in last) / len(last)

    def first_step(self, run: Run) -> int:
        """The first step that it covers."""
        steps = sorted(run.series[self.metric])
        return steps[-math.ceil(len(steps) / 3)] if self.last_third else steps[0]


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
    return dataclasses.replace(decisive, good=0, path_free=False) if is_apart else decisive


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
        if decisive.path_free and decisive.good * (other - mine) < -summary.decisive.floor_of(mine):
            return f"{summary.name} is worse: {diagnosis.a_and_b(mine, other)}"
    return None


@np.errstate(over="ignore", invalid="ignore")  # what no float can hold is infinite or NaN, and so never the same
def judge(base: Verdict, pairs: Sequence[Pair], others: Sequence[Run], chosen: Sequence[Decisive]) -> Verdict:
    """The verdict at the first declared look that decides. Further pairs do not change it, unless they show a difference.

    `others` are runs of A with further seeds: they tell more about A against A.
    """
    base = dataclasses.replace(base, how=f"{len(pairs)} pairs of runs, by statistics")
    runs = [run for pair in pairs for run in (pair.a[0], pair.b[0])]
    for decisive in chosen or metrics.DECISIVE.get(base.workload, ()):
        lacking = [run.name for run in runs if not any(map(decisive.matches, run.series))]
        if decisive.required and lacking:
            reason = f"'{lacking[0]}' has no {decisive.pattern}, which decides this case"
            return dataclasses.replace(base, word=Word.INCONCLUSIVE, reason=reason)
    found = summaries(runs, base.workload, chosen)
    if not found:
        return dataclasses.replace(base, word=Word.INCONCLUSIVE, reason="the runs have no decisive metric in common")
    found += drifts(runs, base.workload, chosen)
    table = statistics.taken([[summary.value(run) for summary in found] for run in runs])
    more = [[each.value(run) for each in found] for run in others if all(each.metric in run.series for each in found)]
    repeats = None if base.deterministic else _repeats(pairs, found)  # they would tell that A has no noise at all
    case = _Sampled(base, found, pairs, repeats, statistics.taken(more) if more else None)
    judged, decided = base, 0
    for look in [look for look in LOOKS if look <= len(pairs)]:
        now = _look(case, table[0 : 2 * look : 2], table[1 : 2 * look : 2])
        if judged.word is not Word.SAME or now.word in _DIFFERS:
            judged, decided = now, look
        if judged.word in _DIFFERS:
            break
    if judged.word is not Word.INCONCLUSIVE and len(pairs) > decided:
        note = f"decided at {decided} pairs, as declared: the other {len(pairs) - decided} do not change it"
        judged = dataclasses.replace(judged, notes=(*judged.notes, note))
    return judged


@dataclass(frozen=True)
class _Sampled:
    """What all looks share."""

    base: Verdict
    found: list[Summary]
    pairs: Sequence[Pair]
    repeats: Array | None
    others: Array | None


def _look(case: _Sampled, a: Array, b: Array) -> Verdict:
    """What this many pairs show."""
    found = case.found
    sizes = ((a + b) / 2).mean(axis=0)  # of both sides alike, so that exchanging A and B in a pair changes no floor
    floors = statistics.taken([each.decisive.floor_of(size) for each, size in zip(found, sizes, strict=True)])
    is_drift = np.array([each.is_drift for each in found])
    look = statistics.look_at(a, b, floors, case.repeats, case.others, is_drift)
    every = [_row(each, a[:, at].mean(), b[:, at].mean(), look, at) for at, each in enumerate(found)]
    rows = [row for row, drift in zip(every, is_drift, strict=True) if not drift or row.finding != "same"]
    base = dataclasses.replace(case.base, rows=tuple(rows), how=f"{look.pairs} pairs of runs, by statistics")
    for word in (Word.REGRESSED, Word.CHANGED, Word.IMPROVED):
        if found_so := [row for row in rows if row.finding == word.value]:
            reason = f"{found_so[0].summary}: {diagnosis.a_and_b(found_so[0].a, found_so[0].b)}, beyond the margin of {found_so[0].margin:.4g} (p {found_so[0].p:.2g})"
            return dataclasses.replace(base, word=word, reason=reason, first=_first(case, every, look.pairs))
    dead = [row for at, row in enumerate(rows) if np.ptp(a[:, at]) == 0 and not found[at].decisive.may_be_constant]
    if dead:
        reason = f"{dead[0].summary} is {diagnosis.number(dead[0].a)} in every run of A, so it cannot show that B is the same: choose another decisive metric, or a case in which it varies"
        return dataclasses.replace(base, word=Word.INCONCLUSIVE, reason=reason)
    hidden = [
        f"{row.summary} ({row.margin:.4g})"
        for row, floor in zip(rows, floors, strict=False)
        if row.margin > _WIDE * floor
    ]
    if hidden:
        note = f"A varies so much that a smaller difference than the margin cannot be seen in {listed(hidden, 1)}"
        base = dataclasses.replace(base, notes=(*base.notes, note))
    if bool(np.all(look.same)):
        reason = f"B is within A's margin in all {len(rows)} values of the decisive metrics"
        return dataclasses.replace(base, word=Word.SAME, reason=reason)
    needed = statistics.pairs_needed((b - a)[:, ~is_drift], look.margin[~is_drift], len(case.pairs))
    open_rows = [row.summary for row in rows if row.finding == "open"]
    ask = f"run {counted(needed, 'more pair')}" if needed else "more pairs would not decide it: longer runs may"
    shown = open_rows[0] if len(open_rows) == 1 else f"{len(open_rows)} of {len(rows)} values, such as {open_rows[0]}"
    reason = f"after {look.pairs} pairs it is not known whether B differs from A in {shown}: {ask}"
    return dataclasses.replace(base, word=Word.INCONCLUSIVE, reason=reason, pairs_needed=needed)


def _row(summary: Summary, a: float, b: float, look: statistics.Look, at: int) -> Row:
    finding = "same" if look.same[at] else "open"
    if look.differs[at]:
        good = summary.decisive.good * look.mean[at]
        finding = (Word.IMPROVED if good > 0 else Word.REGRESSED if good < 0 else Word.CHANGED).value
    return Row(
        summary.name, float(a), float(b), float(look.margin[at]), float(look.p[at]), float(look.sameness_p[at]), finding
    )


def _first(case: _Sampled, rows: list[Row], pairs: int) -> diagnosis.Diagnosis:
    """The first of the summaries that differ, and then in causal order. The values are means over the pairs."""
    beyond = []
    for summary, row in zip(case.found, rows, strict=True):
        if row.finding not in ("same", "open"):
            at = (summary.first_step(case.pairs[0].a[0]), row.a, row.b)
            step, a, b = _since(summary.metric, case.pairs[:pairs], row) if summary.is_drift else at
            beyond.append((step, metrics.causal_rank(summary.metric), a, b, summary.metric))
    step, _, a, b, metric = min(beyond)
    return diagnosis.at(step, metric, a, b, case.base.config)


def _since(metric: str, pairs: Sequence[Pair], row: Row) -> tuple[int, float, float]:
    """The first step at which B is half as far from A as at the worst step, and the means there: a drift begins in noise."""
    a, b = (
        [side[0].series[metric] for side in sides] for sides in zip(*((pair.a, pair.b) for pair in pairs), strict=True)
    )
    means = [(step, fmean(run[step] for run in a), fmean(run[step] for run in b)) for step in sorted(a[0])]
    sign = 1 if row.b > row.a else -1
    apart = [sign * (other - mine) for _, mine, other in means]
    return next(each for each, far in zip(means, apart, strict=True) if 2 * far >= max(apart))


def _repeats(pairs: Sequence[Pair], found: Sequence[Summary]) -> Array | None:
    """Differences between runs of A with one seed."""
    rows = [
        [each.value(other) - each.value(one) for each in found]
        for pair in pairs
        for one, other in itertools.combinations(pair.a, 2)
        if all(each.metric in run.series for each in found for run in (one, other))
    ]
    return statistics.taken(rows) if rows else None
