"""Runs with one seed, compared value by value: all metrics but times, every step."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_verdict import metrics
from verl_verdict.records import Run

# Another order of summation shows first as a difference of at most this, relative to the metric's scale. Measured: 1.4e-6 between
# equal runs of the rehearsal, whose samples come back in another order.
ROUNDING = 1e-5
_GROWTH = 100.0  # how much rounding may grow in a step, except if it changes a sampled token
_NOISE_FACTOR = 3.0  # a second perturbed run would not do exactly what the first did


class Outcome(enum.Enum):
    """What an exact comparison found."""

    IDENTICAL = "bit-equal"
    ROUNDING = "equal but for rounding"
    GROWS = "begins as rounding, and grows"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Difference:
    """One value that differs; `size` is relative to the metric's scale."""

    step: int
    metric: str
    a: float
    b: float
    size: float


@dataclass(frozen=True)
class OneSided:
    """A metric that only one side recorded: at some steps (`step` is the first), or at all (`step` is None)."""

    metric: str
    side: str
    step: int | None
    why: str | None  # why another release explains it

    def __str__(self) -> str:
        other = "B" if self.side == "A" else "A"
        when = "" if self.step is None else f" at step {self.step}"
        return f"{self.metric} is not in {other}{when}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Comparison:
    """A run of A against one of B with the same seed."""

    outcome: Outcome
    first: Difference | None
    differences: tuple[Difference, ...]
    metrics: int
    steps: int


# Per metric: the largest difference of A against A up to each step.
Noise = Mapping[str, Mapping[int, float]]


def differences(a: Run, b: Run, ignore: Iterable[str] = ()) -> list[Difference]:
    """All values that both have and that differ, by step and in causal order. NaN and infinity differ from everything, even themselves."""
    found = []
    for name in compared(a, b, ignore):
        scale = metrics.scale_of(name, a.series)
        for step, value in a.series[name].items():
            other = b.series[name].get(step)
            if other is None or (value == other and math.isfinite(value)):
                continue
            distance = abs(value - other)
            size = distance / scale if scale > 0 and math.isfinite(distance) else math.inf
            found.append(Difference(step, name, value, other, size))
    return sorted(found, key=lambda each: (each.step, metrics.causal_rank(each.metric)))


def compared(a: Run, b: Run, ignore: Iterable[str] = ()) -> list[str]:
    """The metrics that both have recorded, without times and without those to ignore."""
    left_out = set(ignore)
    return [
        name
        for name in a.series
        if name in b.series
        and name not in left_out
        and not metrics.is_time(name)
        and not metrics.is_redefined(name, a.series, b.series)
    ]


def one_sided(a: Run, b: Run, ignore: Iterable[str] = ()) -> list[OneSided]:
    """The metrics, or steps of metrics, that only one side has; times are left out."""
    left_out = set(ignore)
    found = []
    for mine, other, side in ((a, b, "A"), (b, a, "B")):
        for name, values in mine.series.items():
            if name in left_out or metrics.is_time(name):
                continue
            if name not in other.series:
                found.append(OneSided(name, side, None, metrics.why_one_sided(name)))
            elif missing := sorted(values.keys() - other.series[name].keys()):
                found.append(OneSided(name, side, missing[0], None))
    return sorted(found, key=lambda each: metrics.causal_rank(each.metric))


def noise(groups: Iterable[Sequence[Run]], ignore: Iterable[str] = ()) -> Noise:
    """What A does against A: the runs of each group have one seed (repeats, or runs with a perturbed last bit)."""
    left_out = tuple(ignore)
    largest: dict[str, dict[int, float]] = {}
    for group in groups:
        for one, other in itertools.combinations(group, 2):
            for each in differences(one, other, left_out):
                steps = largest.setdefault(each.metric, {})
                steps[each.step] = max(steps.get(each.step, 0.0), abs(each.a - each.b))
    return {name: _running(steps) for name, steps in largest.items()}


def _running(steps: Mapping[int, float]) -> dict[int, float]:
    reached = 0.0
    running = {}
    for step in sorted(steps):
        reached = max(reached, steps[step])
        running[step] = reached
    return running


def compare(a: Run, b: Run, known: Noise, ignore: Iterable[str] = ()) -> Comparison:
    """B against A: identical, equal but for rounding, or different from a certain value on."""
    left_out = tuple(ignore)
    found = differences(a, b, left_out)
    beyond = [each for each in found if not _is_rounding(each, known)]
    if not found:
        outcome = Outcome.IDENTICAL
    elif not beyond:
        outcome = Outcome.ROUNDING
    else:
        outcome = Outcome.GROWS if _has_grown(beyond[0], found, known) else Outcome.DIFFERS
    first = beyond[0] if beyond else (found[0] if found else None)
    return Comparison(outcome, first, tuple(found), len(compared(a, b, left_out)), len(set(a.steps) & set(b.steps)))


def _is_rounding(each: Difference, known: Noise) -> bool:
    return each.size <= ROUNDING or _is_noise(each, known)


def _has_grown(first: Difference, found: Iterable[Difference], known: Noise) -> bool:
    """May rounding alone have led to this difference? Then it is no sign of a change, and no sign of sameness either.

    Only if an update before it differed by rounding, more than A does from itself: other weights may sample another token, or
    differ visibly after some steps. A value that was equal and jumps is a change.
    """
    before = [each for each in found if each.step < first.step and not _is_noise(each, known)]
    if not any(metrics.is_of_update(each.metric) for each in before):
        return False
    if metrics.is_of_sampling(first.metric):
        return True
    own = [each for each in before if each.metric == first.metric]
    return bool(own) and first.size <= _GROWTH * own[-1].size


def _is_noise(each: Difference, known: Noise) -> bool:
    """Does A differ as much from itself, up to this step?"""
    seen = [value for step, value in known.get(each.metric, {}).items() if step <= each.step]
    return bool(seen) and abs(each.a - each.b) <= _NOISE_FACTOR * seen[-1] and math.isfinite(seen[-1])


def repeats(runs: Sequence[Run], ignore: Iterable[str] = ()) -> bool | None:
    """Do runs with one seed repeat each other, but for rounding? None with fewer than two."""
    if len(runs) < 2:
        return None
    left_out = tuple(ignore)
    return all(
        compare(runs[0], other, {}, left_out).outcome in (Outcome.IDENTICAL, Outcome.ROUNDING)
        and not one_sided(runs[0], other, left_out)
        for other in runs[1:]
    )
