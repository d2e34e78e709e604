"""Does a resumed run go on where its checkpoint was?

Its steps are compared with those of the straight run: the one that saved the checkpoint and trained on.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_verdict.decide import diagnosis, exact
from verl_verdict.decide.diagnosis import number
from verl_verdict.decide.exact import Comparison, Noise, Outcome
from verl_verdict.decide.rules import Evidence, Regime
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.read import metrics
from verl_verdict.read.records import Run

_MEANS = "B saves or loads something else than A does: weights, the optimizer's state, a schedule, the position in the data, random states"


@dataclass(frozen=True)
class Resumed:
    """A resumed run, and the straight run that saved its checkpoint."""

    run: Run
    straight: Run

    @property
    def steps(self) -> list[int]:
        """The steps that both have trained."""
        return sorted(set(self.run.steps) & set(self.straight.steps))

    def without(self, names: Sequence[str]) -> "Resumed":
        """The same without these metrics."""
        return Resumed(self.run.without(names), self.straight.without(names))


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
        if first is None:
            return ""
        resumed = f"at step {first.step}, {first.metric} is {number(first.b)} in {self.name}'s resumed run"
        return f"{resumed} and {number(first.a)} in its straight run"

    def __str__(self) -> str:
        first = self.found.first
        if first and not self.goes_on:
            begins = " and begins as rounding" if self.found.outcome is Outcome.GROWS else ""
            by = f"{first.size:.1g} of the metric's size{begins}; {self.off} of {self.found.metrics} metrics differ"
            return f"{self.name} does not go on where its checkpoint was: {self.where} (by {by})"
        size = max((each.size for each in self.found.differences), default=0.0)
        equal = f"equal but for rounding (at most {size:.1g} of a metric's size)" if size else "bit-equal"
        runs = f"{self.steps} of its resumed and its straight run"
        return f"{self.name} goes on where its checkpoint was: {runs} are {equal}"


@dataclass(frozen=True)
class Resumption:
    """What resumed runs show beside their straight runs.

    `found` is the verdict on A's against B's resumed runs, and `source` that on the runs which they continue. B must go
    on where its checkpoint was as exactly as A does. How far A itself is off counts as noise.
    """

    found: Verdict
    source: Verdict
    a: Sequence[Resumed]
    b: Sequence[Resumed]
    is_bit_equal: bool  # A to B, by one of the two verdicts
    is_new: bool  # the resumed runs regressed, and those which they continue did not

    @cached_property
    def regime(self) -> Regime:
        """Two bit-equal runs with one seed show that A repeats itself, and so does an A that goes on exactly."""
        is_exact = not self._why_not and (self._mine.goes_on or self._repeats)
        return Regime.EXACT if is_exact else Regime.SAMPLED

    @cached_property
    def base(self) -> Verdict:
        """The verdict on A's against B's resumed runs, with what the straight runs show."""
        notes = [f"not compared with the straight runs: {self._why_not}"]
        if not self._why_not:
            notes = [str(self._mine), str(self._other)]
        return dataclasses.replace(self.found, notes=(*notes, *self.found.notes))

    def off(self) -> Evidence | None:
        """B does not go on where its checkpoint was, and A does."""
        return self._beyond_a() if self._mine.goes_on else None

    def further_off(self) -> Evidence | None:
        """Neither goes on where its checkpoint was, and B is off by more than A."""
        return None if self._mine.goes_on else self._beyond_a()

    def fixed(self) -> Evidence | None:
        """B goes on where its checkpoint was, and A does not."""
        is_fixed = self._mine.found.outcome is Outcome.DIFFERS and self._other.goes_on and self.source.agrees
        return self._still({"where": self._mine.where}, self.found.first, how=self._how) if is_fixed else None

    def both_go_on(self) -> Evidence | None:
        """Each goes on where its checkpoint was, so A and B differ because the runs that they continue do."""
        if self._why_not or not self._differs_before():
            return None
        goes_on = self._mine.goes_on and self._other.goes_on and not any(map(_lacks, (*self.a, *self.b)))
        return self._still(self._said_of_source, how=self._how) if goes_on else None

    def source_differs(self) -> Evidence | None:
        """The runs that are continued differ already, which shows nothing about resuming."""
        return self._still(self._said_of_source, self.found.first, pairs=0) if self._differs_before() else None

    def _still(
        self,
        said: Mapping[str, object],
        first: diagnosis.Diagnosis | None = None,
        how: str | None = None,
        pairs: int | None = None,
    ) -> Evidence:
        """A perturbed run tells as much as without the straight runs."""
        return Evidence(said, how, first, pairs=pairs, needs_perturbed=self.found.needs_perturbed)

    def _beyond_a(self) -> Evidence | None:
        """B is off by more than A's own distance."""
        worst = self._beyond_mine
        if worst.found.outcome is not Outcome.DIFFERS:
            return None
        first = diagnosis.diagnose(worst.found, self.found.config)
        if first is not None:  # its values are A's and B's, so of the resumed runs of both
            run = next((each.run for each in self.a if each.run.seed == worst.pair.run.seed), worst.pair.straight)
            of_a = run.series.get(first.metric, {}).get(first.step, first.a)
            first = dataclasses.replace(first, a=of_a, means=_MEANS)
        return Evidence({"where": worst.where}, how=self._how, first=first)

    def _differs_before(self) -> bool:
        """The resumed runs differ, and those that they continue do already."""
        return not (self.found.agrees or self.source.agrees or self.is_new)

    @property
    def _said_of_source(self) -> dict[str, object]:
        return {"source": self.source.case, "word": self.source.word.value}

    @cached_property
    def _mine(self) -> _Side:
        return _side("A", self.a, exact.Noise())

    @cached_property
    def _other(self) -> _Side:
        return _side("B", self.b, exact.Noise())

    @cached_property
    def _beyond_mine(self) -> _Side:
        return _side("B", self.b, exact.noise([(each.straight, each.run) for each in self.a]))

    @property
    def _how(self) -> str:
        return f"{self._mine.steps} of each resumed run against those of its straight run, value by value"

    @cached_property
    def _why_not(self) -> str | None:
        """Why the resumed runs cannot be compared with the straight ones."""
        if not self.source.pairs:
            return f"see {self.source.case}"
        if not (self.a and self.b and all(each.steps for each in (*self.a, *self.b))):
            return f"the runs of {self.source.case} did not train the steps after the checkpoint"
        return "runs of A with one seed differ" if self._repeats is False else None

    @property
    def _repeats(self) -> bool | None:
        """Does A repeat itself?"""
        known = [each.deterministic for each in (self.found, self.source) if each.deterministic is not None]
        return all(known) if known else self.is_bit_equal or None


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
