"""The curves of report.html: a metric of A's and of B's runs, drawn as SVG, and the same values as a sentence and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from verl_verdict import drawing, metrics
from verl_verdict.diagnosis import number
from verl_verdict.markup import Markup
from verl_verdict.metrics import Decisive
from verl_verdict.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Mapping[int, float]

_MARKERS = 40  # more steps than this are a line without markers
_ROWS = 200  # of a table
_LARGEST = 1e300


@dataclass(frozen=True)
class Curve:
    """One metric, run by run, without values that cannot be drawn; `mark` is the step of the first difference of the case."""

    metric: str
    a: tuple[Series, ...]
    b: tuple[Series, ...]
    mark: int | None = None

    @property
    def steps(self) -> list[int]:
        """All steps at which any run has a value."""
        return sorted({step for run in (*self.a, *self.b) for step in run})

    @property
    def has_band(self) -> bool:
        """Is there more than one run of A?"""
        return len(self.a) > 1

    @property
    def sentence(self) -> str:
        """The curve in words, for people who cannot see it."""
        steps = self.steps
        parts = [f"{self.metric}, steps {steps[0]} to {steps[-1]}." if steps else f"{self.metric}."]
        sides = {"A": mean(self.a), "B": mean(self.b)}
        for name, values in sides.items():
            if values:
                first, last = values[min(values)], values[max(values)]
                parts.append(f"{name} begins with {number(first)} and ends with {number(last)}.")
            else:
                parts.append(f"{name} has no value.")
        apart = {step: abs(sides["B"][step] - sides["A"][step]) for step in sides["A"].keys() & sides["B"].keys()}
        if apart:
            most = max(sorted(apart), key=apart.__getitem__)
            found = f"They differ most at step {most}, by {number(apart[most])}." if apart[most] else "They are equal."
            parts.append(found)
        if self.mark is not None:
            parts.append(f"The first difference of the case is at step {self.mark}.")
        return " ".join(parts)

    def rows(self) -> list[tuple[int, float | None, float | None, float | None, float | None]]:
        """Step, mean of A, smallest and largest of A, mean of B. Of very many steps evenly chosen ones, with the marked one."""
        a, b = mean(self.a), mean(self.b)
        rows = []
        for step in chosen(self.steps, self.mark):
            values = [run[step] for run in self.a if step in run]
            rows.append(
                (step, a.get(step), min(values, default=None), max(values, default=None), b.get(step)),
            )
        return rows


def of_case(
    workload: str,
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    decisive: Sequence[Decisive] = (),
    first: tuple[str, int] | None = None,
) -> list[Curve]:
    """The curves of a case: of each decisive metric, and of the metric that differs first."""
    names = sorted({name for run in (*runs_a, *runs_b) for name in run.series})
    shown = [name for name, _ in metrics.decisive_of(workload, names, decisive)]
    metric, mark = first if first else (None, None)
    if metric in names and metric not in shown:
        shown.insert(0, str(metric))
    return [of_metric(name, runs_a, runs_b, mark) for name in dict.fromkeys(shown)]


def of_metric(name: str, runs_a: Sequence[Run], runs_b: Sequence[Run], mark: int | None = None) -> Curve:
    """The curve of one metric."""
    a, b = (tuple(series for run in side if (series := _finite(run, name))) for side in (runs_a, runs_b))
    return Curve(name, a, b, mark)


def _finite(run: Run, name: str) -> Series:
    """Without values that cannot be drawn: NaN, infinity, and those whose sum would be infinite."""
    return {step: value for step, value in sorted(run.series.get(name, {}).items()) if abs(value) < _LARGEST}


def mean(runs: Sequence[Series]) -> dict[int, float]:
    """The mean of the runs at each step that one of them has."""
    steps = sorted({step for run in runs for step in run})
    return {step: fmean([run[step] for run in runs if step in run]) for step in steps}


def chosen(steps: Sequence[int], mark: int | None) -> list[int]:
    """At most 200 of the steps, evenly, and always the first, the last and the marked one."""
    if len(steps) <= _ROWS:
        return list(steps)
    spread = {steps[round(at * (len(steps) - 1) / (_ROWS - 2))] for at in range(_ROWS - 1)}
    return [step for step in steps if step in spread or step == mark]


def svg(curve: Curve, name: str) -> Markup:
    """The curve as an SVG element. `name` is unique on the page: its parts are `name`-a, -b, -band and -mark."""
    return drawing.svg(name, curve.sentence, partial(_draw, curve=curve, name=name))


def _draw(axes: Axes, curve: Curve, name: str) -> None:
    for side, runs, style, marker in (("a", curve.a, "-", "o"), ("b", curve.b, "--", "s")):
        colour, line = drawing.COLOURS[side], mean(runs)
        has_markers = len(line) <= _MARKERS
        if side == "a" and curve.has_band:
            smallest, largest = (
                [pick(run[step] for run in runs if step in run) for step in line] for pick in (min, max)
            )
            band = axes.fill_between(list(line), smallest, largest, color=colour, alpha=0.25, linewidth=0)
            band.set(gid=f"{name}-band", label="A against A")
        if side == "b" and len(runs) > 1:
            for run in runs:
                axes.plot(list(run), list(run.values()), color=colour, alpha=0.35, linewidth=1)
        label = f"{side.upper()}, mean of {len(runs)}" if len(runs) > 1 else side.upper()
        if line:
            drawn = axes.plot(list(line), list(line.values()), style, color=colour, label=label, gid=f"{name}-{side}")
            # A is wide and B is narrow: both can be seen where they are equal.
            drawn[0].set(marker=marker if has_markers else "", markersize=4, linewidth=3.2 if side == "a" else 1.4)
    drawing.frame(axes, "step", curve.steps)
    if curve.mark is not None:
        drawing.room_for_marks(axes)
        drawing.mark(axes, curve.mark, f"first difference: step {curve.mark}", f"{name}-mark")
