"""Is B slower? The seconds of a step and of its phases: per run the median without the warm-up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from verl_verdict.decide.cost import Cost, Quantity
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
    names = {name for run in (*runs_a, *runs_b) for name in run.series if _is_phase(name)}
    found = [phase for name in names if (phase := _phase(name, runs_a, runs_b))]
    step = next((max(phase.a, phase.b) for phase in found if phase.name == STEP), 0.0)
    visible = [phase for phase in found if max(phase.a, phase.b) >= _SMALLEST_PHASE * step]
    return sorted(visible, key=lambda phase: (-max(phase.a, phase.b), phase.name))


def _is_phase(name: str) -> bool:
    return name.startswith("timing_s/") and name.count("/") == 1


def _phase(name: str, runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Phase | None:
    """The medians of both sides; None if no run of one side has this phase."""
    a, b = ([each for run in side if (each := seconds(run, name)) is not None] for side in (runs_a, runs_b))
    return Phase(name, median(a), median(b)) if a and b else None


class Speed(Cost):
    """How long a step takes. Ratios are judged, so they are compared as logarithms."""

    how = f"medians of {STEP}"
    how_of_look = f"{how} without the warm-up"

    @cached_property
    def why_not(self) -> str | None:
        """The first run without a step after the warm-up."""
        unusable = next((run.name for run in self.runs if not (seconds(run) or 0) > 0), None)
        if unusable is None:
            return None
        return f"'{unusable}' has no {STEP} after its first step: verl's SFT trainer records none, and a run needs two steps"

    @cached_property
    def quantities(self) -> list[Quantity]:
        """The seconds of a step."""
        return [_step(self.floor)]

    @property
    def notes(self) -> list[str]:
        """The phases of a step."""
        return [
            f"{phase.name}: A {phase.a:.3g} s, B {phase.b:.3g} s ({phase.b / phase.a:.2f} times)"
            for phase in phases(self.runs_a, self.runs_b)
            if phase.name != STEP and phase.a > 0
        ]


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
