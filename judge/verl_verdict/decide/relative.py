"""Other devices: how far the reward and the losses of B are from those of A, as a mean over the steps.

The error of a metric is the mean over the steps of |B - A|, divided by the mean over the steps of |A|: a step in which
A is near 0 does not decide alone. Where a side has several runs, its mean over these runs counts.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from verl_verdict.decide.diagnosis import counted, listed
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.rules import Evidence, Regime
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.read import metrics
from verl_verdict.read.records import Run


@dataclass(frozen=True)
class Error:
    """The relative error of a metric: its mean over the steps, and the largest of one step."""

    metric: str
    mean: float
    largest: float
    step: int
    steps: int

    def __str__(self) -> str:
        if np.isinf(self.mean):
            return f"{self.metric} is 0 at all {self.steps} steps of A, and not of B"
        return f"{self.metric} {self.mean:.2%} over {counted(self.steps, 'step')}, at most {self.largest:.2%} at step {self.step}"


@dataclass(frozen=True)
class OtherDevices:
    """What runs on other devices show: the errors of the metrics that are compared, and the limit that the user gives.

    `ignore` names the metrics that the user left out.
    """

    case: Verdict
    pairs: Sequence[Pair]
    limit: float
    ignore: Collection[str] = ()
    regime = Regime.SAMPLED

    @cached_property
    def base(self) -> Verdict:
        """The verdict so far: it says what was compared and what not, whatever the word is."""
        how = f"mean relative error over the steps, {counted(len(self.pairs), 'pair')} of runs"
        return dataclasses.replace(self.case, how=how, notes=(*self.case.notes, *self._notes()))

    def above(self) -> Evidence | None:
        """An error is above the limit."""
        above = [each.metric for each in self._errors if not each.mean <= self.limit]
        return Evidence({"metrics": listed(above), "limit": self.limit}) if above else None

    def without_value(self) -> Evidence | None:
        """No metric can be compared, or not the first one, and the user did not leave that one out."""
        lacks_first = self._wanted[0] in set(self._lacking).difference(self.ignore)
        return Evidence({"metrics": listed(self._lacking)}) if lacks_first or not self._errors else None

    def within(self) -> Evidence | None:
        """No error is above the limit."""
        return Evidence({"metrics": listed([each.metric for each in self._errors]), "limit": self.limit})

    @property
    def _wanted(self) -> tuple[str, ...]:
        return metrics.of_workload(self.case.workload).on_other_devices

    @cached_property
    def _errors(self) -> list[Error]:
        a, b = [run for pair in self.pairs for run in pair.a], [run for pair in self.pairs for run in pair.b]
        return self._errors_of(a, b)

    def _errors_of(self, runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[Error]:
        return [each for metric in self._wanted if (each := error(metric, runs_a, runs_b))]

    @property
    def _lacking(self) -> list[str]:
        found = {each.metric for each in self._errors}
        return [metric for metric in self._wanted if metric not in found]

    def _notes(self) -> list[str]:
        notes = [f"mean relative error: {each}" for each in self._errors]
        if repeated := [pair.a for pair in self.pairs if len(pair.a) > 1]:
            own = self._errors_of(repeated[0][:1], repeated[0][1:])
            notes += [f"A against A with the same seed: {each}" for each in own]
        beside = "".join(f", {name} (not in both records, or 0)" for name in self._lacking)
        return [*notes, f"not compared: all other metrics, the times and what was sampled{beside}"]


def error(metric: str, runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Error | None:
    """The error over the steps that all runs have; infinite if only A is 0 in all of them.

    None if there is no such step, or if both sides are 0.
    """
    every = [run.series.get(metric, {}) for run in (*runs_a, *runs_b)]
    steps = sorted(set.intersection(*(set(values) for values in every)))
    courses = np.array([[values[step] for step in steps] for values in every])
    a, b = courses[: len(runs_a)].mean(axis=0), courses[len(runs_a) :].mean(axis=0)
    if not steps or not (a.any() or b.any()):
        return None
    away = np.abs(b - a) / np.abs(a).mean() if a.any() else np.where(b, np.inf, 0)
    return Error(metric, float(away.mean()), float(away.max()), steps[int(away.argmax())], len(steps))
