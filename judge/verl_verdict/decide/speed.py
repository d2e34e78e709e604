"""Is B slower? The seconds of a step and of its phases: per run the median without the warm-up."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from verl_verdict.decide import cost
from verl_verdict.decide.cost import Quantity
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.read.records import Run

STEP = "timing_s/step"
_SMALLEST_PHASE = 0.02  # of a step


@dataclass(frozen=True)
class Phase:
    """The seconds of a phase, as the median over the runs' medians."""

    name: str
    a: float
    b: float


def seconds(run: Run, name: str = STEP) -> float | None:
    """The median without the warm-up: the first tenth of the steps, at least one. None without a later step."""
    values = [value for _, value in sorted(run.series.get(name, {}).items())]
    later = [value for value in values[max(1, len(values) // 10) :] if math.isfinite(value)]
    return median(later) if later else None


def phases(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[Phase]:
    """The phases that take a visible part of a step on either side, the longest first."""
    names = {
        name
        for run in (*runs_a, *runs_b)
        for name in run.series
        if name.startswith("timing_s/") and name.count("/") == 1
    }
    found = []
    for name in names:
        medians = [[each for run in side if (each := seconds(run, name)) is not None] for side in (runs_a, runs_b)]
        if all(medians):
            found.append(Phase(name, median(medians[0]), median(medians[1])))
    step = next((max(phase.a, phase.b) for phase in found if phase.name == STEP), 0.0)
    visible = [phase for phase in found if max(phase.a, phase.b) >= _SMALLEST_PHASE * step]
    return sorted(visible, key=lambda phase: (-max(phase.a, phase.b), phase.name))


def case(runs_a: Sequence[Run], runs_b: Sequence[Run], *, name: str = "speed", profile: str | None = None) -> Verdict:
    """The verdict on the speed of B. Ratios are judged, so they are compared as logarithms."""
    base = Verdict(name, Word.INCONCLUSIVE, "", workload=runs_a[0].workload, how=f"medians of {STEP}")
    unusable = [run.name for run in (*runs_a, *runs_b) if not (seconds(run) or 0) > 0]
    if unusable:
        reason = f"'{unusable[0]}' has no {STEP} after its first step: verl's SFT trainer records none, and a run needs two steps"
        return dataclasses.replace(base, reason=reason)
    pairs = cost.paired(runs_a, runs_b)
    base = dataclasses.replace(base, notes=tuple(_notes(runs_a, runs_b)))
    step = _step(cost.FLOORS[profile or cost.profile_of([*runs_a, *runs_b])])
    return cost.judge(base, pairs, [step], f"medians of {STEP} without the warm-up")


def _step(floor: float) -> Quantity:
    def summary(a: float, b: float, margin: float) -> str:
        return f"a step takes {math.exp(a):.3g} s with A and {math.exp(b):.3g} s with B ({math.exp(b - a):.2f} times; the margin is {math.expm1(margin):.0%})"

    return Quantity(
        name=STEP,
        measure=lambda run: math.log(seconds(run) or math.nan),
        floor=math.log1p(floor),
        few=lambda a, b: f"a step of B takes {math.exp(b - a):.2f} times as long as one of A",
        summary=summary,
        noisy=f"A's own steps vary too much to see {floor:.0%}; use a quieter machine, or longer runs",
    )


def _notes(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[str]:
    return [
        f"{phase.name}: A {phase.a:.3g} s, B {phase.b:.3g} s ({phase.b / phase.a:.2f} times)"
        for phase in phases(runs_a, runs_b)
        if phase.name != STEP and phase.a > 0
    ]
