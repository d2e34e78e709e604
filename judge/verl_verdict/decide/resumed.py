"""Does a resumed run go on where its checkpoint was? Its steps are compared with those of the straight run: the one that saved the
checkpoint and trained on.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from verl_verdict.decide import diagnosis, exact
from verl_verdict.decide.diagnosis import number
from verl_verdict.decide.exact import Comparison, Noise, Outcome
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.read import metrics
from verl_verdict.read.records import Run

_MEANS = "B saves or loads something else than A does: weights, the optimizer's state, a schedule, the position in the data, random states"
_AGREE = (Word.IDENTICAL, Word.SAME)


@dataclass(frozen=True)
class Resumed:
    """A resumed run, and the straight run that saved its checkpoint."""

    run: Run
    straight: Run

    @property
    def steps(self) -> list[int]:
        """The steps that both have trained."""
        return sorted(set(self.run.steps) & set(self.straight.steps))


@dataclass(frozen=True)
class _Side:
    """A or B: its pair of runs that differs most, and how."""

    name: str
    pair: Resumed
    found: Comparison
    off: int  # metrics that differ by more than rounding at any step

    @property
    def goes_on(self) -> bool:
        return self.found.outcome in (Outcome.IDENTICAL, Outcome.ROUNDING)

    @property
    def steps(self) -> str:
        return f"steps {self.pair.steps[0]} to {self.pair.steps[-1]}"

    @property
    def where(self) -> str:
        """The first value that differs; empty if none does."""
        first = self.found.first
        return (
            f"at step {first.step}, {first.metric} is {number(first.b)} in {self.name}'s resumed run and {number(first.a)} in its straight run"
            if first
            else ""
        )

    def __str__(self) -> str:
        first = self.found.first
        if first and not self.goes_on:
            begins = " and begins as rounding" if self.found.outcome is Outcome.GROWS else ""
            by = f"{first.size:.1g} of the metric's size{begins}; {self.off} of {self.found.metrics} metrics differ"
            return f"{self.name} does not go on where its checkpoint was: {self.where} (by {by})"
        size = max((each.size for each in self.found.differences), default=0.0)
        equal = f"equal but for rounding (at most {size:.1g} of a metric's size)" if size else "bit-equal"
        return f"{self.name} goes on where its checkpoint was: {self.steps} of its resumed and its straight run are {equal}"


def judge(
    found: Verdict, a: Sequence[Resumed], b: Sequence[Resumed], source: Verdict, ignore: Sequence[str] = ()
) -> Verdict:
    """The verdict on a case of resumed runs: `found` is that on A's against B's, `source` that on the runs which they continue.

    B must go on where its checkpoint was as exactly as A does. How far A itself is off counts as noise.
    """
    if not found.pairs:
        return found
    a, b = ([Resumed(each.run.without(ignore), each.straight.without(ignore)) for each in side] for side in (a, b))
    why_not = _why_not(found, [*a, *b] if a and b else [], source)
    if why_not:
        return _unless_sources_differ(_with_notes(found, f"not compared with the straight runs: {why_not}"), source)
    off = exact.noise([(each.straight, each.run) for each in a])
    mine, other, beyond_mine = _side("A", a, exact.Noise()), _side("B", b, exact.Noise()), _side("B", b, off)
    found = _with_notes(found, str(mine), str(other))
    how = f"{mine.steps} of each resumed run against those of its straight run, value by value"
    is_exact = mine.goes_on or _repeats(found, source)
    if is_exact and beyond_mine.found.outcome is Outcome.DIFFERS:
        return _regressed(dataclasses.replace(found, how=how), mine, beyond_mine, a)
    if is_exact and mine.found.outcome is Outcome.DIFFERS and other.goes_on and source.word in _AGREE:
        reason = f"B goes on where its checkpoint was, and A does not: {mine.where}"
        return dataclasses.replace(found, word=Word.IMPROVED, reason=reason, how=how, pairs_needed=None)
    both_go_on = mine.goes_on and other.goes_on and not any(map(_lacks, (*a, *b)))
    return _unless_sources_differ(found, source, how if both_go_on else None)


def _why_not(found: Verdict, pairs: Sequence[Resumed], source: Verdict) -> str | None:
    if not source.pairs:
        return f"see {source.case}"
    if not pairs or not all(each.steps for each in pairs):
        return f"the runs of {source.case} did not train the steps after the checkpoint"
    return "runs of A with one seed differ" if _repeats(found, source) is False else None


def _repeats(found: Verdict, source: Verdict) -> bool | None:
    """Does A repeat itself? Two bit-equal runs with one seed show it, too."""
    known = [each.deterministic for each in (found, source) if each.deterministic is not None]
    return all(known) if known else Word.IDENTICAL in (found.word, source.word) or None


def _side(name: str, pairs: Sequence[Resumed], known: Noise) -> _Side:
    compared = [_Side(name, each, exact.compare(each.straight, each.run, known), _differing(each)) for each in pairs]
    return min(compared, key=lambda each: exact.worst_first(each.found))


def _differing(pair: Resumed) -> int:
    found = itertools.chain.from_iterable(exact.differences(pair.straight, pair.run))
    return len({each.metric for each in found if each.size > exact.ROUNDING})


def _lacks(pair: Resumed) -> bool:
    """Does the resumed run lack a value that the straight one recorded? Times are left out."""
    steps = set(pair.steps)
    return any(
        (values.keys() & steps) - pair.run.series.get(name, {}).keys()
        for name, values in pair.straight.series.items()
        if not metrics.is_time(name)
    )


def _with_notes(found: Verdict, *notes: str) -> Verdict:
    return dataclasses.replace(found, notes=(*notes, *found.notes))


def _regressed(found: Verdict, mine: _Side, other: _Side, a: Sequence[Resumed]) -> Verdict:
    differs = diagnosis.diagnose(other.found, found.config)
    if differs is not None:  # its values are A's and B's, so of the resumed runs of both
        run = next((each.run for each in a if each.run.seed == other.pair.run.seed), other.pair.straight)
        of_a = run.series.get(differs.metric, {}).get(differs.step, differs.a)
        differs = dataclasses.replace(differs, a=of_a, means=_MEANS)
    what = "does not go on where its checkpoint was, and A does" if mine.goes_on else "is further off than A is"
    reason = f"B {what}: {other.where}"
    return dataclasses.replace(found, word=Word.REGRESSED, reason=reason, first=differs, pairs_needed=None)


def _unless_sources_differ(found: Verdict, source: Verdict, both_go_on: str | None = None) -> Verdict:
    """Where the runs that are continued differ, so do the resumed ones. That shows nothing about resuming; `both_go_on` tells how it was seen."""
    is_new = found.word is Word.REGRESSED and source.word is not Word.REGRESSED
    if found.word in _AGREE or source.word in _AGREE or is_new:
        return found
    differ = f"runs of {source.case} that differ already ({source.word.value}): see there"
    if both_go_on:
        reason = f"A and B each go on where their checkpoints were, from {differ}"
        return dataclasses.replace(found, word=Word.SAME, reason=reason, how=both_go_on, first=None, pairs_needed=None)
    reason = f"A and B both resume, but continue from {differ}"
    return dataclasses.replace(found, word=Word.INCONCLUSIVE, reason=reason, pairs=0, pairs_needed=None)
