"""The curves of report.html: a metric of A's and of B's runs, drawn as SVG, and the same values as a sentence and as a table.

Where A's runs differ, the band of what they do is drawn with each run of B in it; else A and B alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from verl_verdict.decide import band, exact, pairing
from verl_verdict.decide.band import Band
from verl_verdict.decide.diagnosis import counted, number
from verl_verdict.read import metrics
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import Run
from verl_verdict.show import drawing
from verl_verdict.show.markup import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Mapping[int, float]

_MARKERS = 40  # more steps than this are a line without markers
_ROWS = 200  # of a table
_LARGEST = 1e300
_APART = "first clearly apart:"
_BAND = "A's band, in blue, is where runs of A's code stay at each step."


@dataclass(frozen=True)
class Curve:
    """One metric, run by run, without values that cannot be drawn.

    `mark` is the step since which B leaves the band, differs from A, or in noise is apart from it; `label` says which, and `story`
    the same in plain words.
    """

    metric: str
    a: tuple[Series, ...]
    b: tuple[Series, ...]
    mark: int | None = None
    label: str = ""
    band: Band | None = None
    story: str = ""

    @property
    def steps(self) -> list[int]:
        """All steps at which any run has a value."""
        return sorted({step for run in (*self.a, *self.b) for step in run})

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
        return " ".join([*parts, self.story] if self.story else parts)

    def table(self) -> tuple[tuple[str, ...], list[tuple[int, tuple[float | None, ...]]]]:
        """The names of the columns after the step, and each step with its values; of very many steps evenly chosen ones, with the marked one.

        With a band: its limits, the smallest and the largest value of B. Without: the means of A and of B, and how far apart they are.
        """
        steps = chosen(self.steps, self.mark)
        a, b = mean(self.a), mean(self.b)
        if not self.band:
            values = [(a.get(step), b.get(step)) for step in steps]
            rows = [(one, other, None if one is None or other is None else other - one) for one, other in values]
            return ("A", "B", "B - A"), list(zip(steps, rows, strict=True))
        limits = {step: limit for step, *limit in zip(self.band.steps, self.band.low, self.band.high, strict=True)}
        of_b = {step: [run[step] for run in self.b if step in run] for step in steps}
        return ("A from", "A to", "B from", "B to"), [
            (step, (*limits.get(step, (None, None)), min(of_b[step], default=None), max(of_b[step], default=None)))
            for step in steps
        ]


@dataclass(frozen=True)
class Sides:
    """The runs of a case. `deterministic`: does A repeat itself? None: not known."""

    a: Sequence[Run]
    b: Sequence[Run]
    deterministic: bool | None = None


def case_curves(
    workload: str, sides: Sides, decisive: Sequence[Decisive] = (), first: tuple[str, int | None] | None = None
) -> list[Curve]:
    """The curves of a case: of each decisive metric, and of the metric `first`, which is clearly different since its step (None: maybe not).
    Metrics that B leaves or changes come first, the earliest at the top.

    In noise a metric without a band has no story: each of its values may differ by chance.
    """
    compared = replace(sides, a=pairing.compared(sides.a))
    names = sorted({name for run in (*compared.a, *compared.b) for name in run.series})
    deciding = metrics.decisive_of(workload, names, decisive)
    known = {} if sides.deterministic else band.bands(compared.a, deciding)
    metric, step = first or ("", None)
    shown = [name for name, _ in deciding]
    if metric in names and metric not in shown:
        shown.insert(0, metric)
    found = [_curve(name, compared, known) for name in dict.fromkeys(shown)]
    if known and step is not None:
        found = [_apart_since(step, curve) if curve.metric == metric else curve for curve in found]
    return sorted(found, key=lambda curve: math.inf if curve.mark is None else curve.mark)


def _curve(name: str, sides: Sides, known: Mapping[str, Band]) -> Curve:
    """The curve of a metric, with its band if it has one, and with what B does."""
    curve, limits = metric_curve(name, sides.a, sides.b), known.get(name)
    if limits:
        mark, story = _in_band(limits, sides.b)
        return replace(curve, band=limits, mark=mark, label="first outside:", story=story)
    if known or sides.deterministic is False:
        return curve
    pairs = [(pair.a[0], b) for pair in pairing.pair_runs(sides.a, sides.b).pairs for b in pair.b]
    mark, story = _equal(name, pairs)
    return replace(curve, mark=mark, label="first difference:", story=story)


def _apart_since(step: int, curve: Curve) -> Curve:
    """The curve with the step at which its runs, taken together, are first apart, if it has no mark of its own."""
    if curve.mark is not None:
        return curve
    said = f"{curve.story[:-1]}, but taken together they are clearly apart, first at step {step}."
    return replace(curve, mark=step, label=_APART, story=said if curve.story else "")


def _in_band(known: Band, runs_b: Sequence[Run]) -> tuple[int | None, str]:
    """The first step at which a run of B leaves the band, and what it does there."""
    of_b = [run for run in runs_b if known.metric in run.series]
    outside = [found for run in of_b if (found := band.outside(known, run))]
    if not outside:
        return None, f"{_runs_of_b(len(of_b), len(of_b), 'stay')} in A's band at every step." if of_b else ""
    step, value = min(found[0] for found in outside)
    at = known.steps.index(step)
    limits = f"{known.low[at]:.4g} to {known.high[at]:.4g}"
    steps = len({step for found in outside for step, _ in found})
    when = f"at {steps} of {counted(len(known.steps), 'step')}, first at step {step}"
    who = _runs_of_b(len(outside), len(of_b), "leave")
    return step, f"{who} A's band {when}: the value is {value:.4g}, the band goes from {limits}."


def _equal(name: str, pairs: Iterable[tuple[Run, Run]]) -> tuple[int | None, str]:
    """The first step at which a run of B differs by more than rounding from the run of A with its seed."""
    both = [(a.series[name], b.series[name], a) for a, b in pairs if name in a.series and name in b.series]
    differing = []
    for a, b, run in both:
        rounding = exact.ROUNDING * metrics.scale_of(name, run.series)
        steps = [step for step in a.keys() & b.keys() if not abs(b[step] - a[step]) <= rounding]
        differing += [min(steps)] if steps else []
    if not both:
        return None, ""
    if not differing:
        return None, "B has A's values at every step."
    return min(differing), f"{_runs_of_b(len(differing), len(both), 'differ')} from A, first at step {min(differing)}."


def _runs_of_b(count: int, of: int, verb: str) -> str:
    who = "The run" if of == 1 else f"All {of} runs" if count == of else f"{count} of {of} runs"
    return f"{who} of B {verb}{'s' if count == 1 else ''}"


def summary(shown: Sequence[Curve]) -> str:
    """What happened in a case, since when and in how many runs; empty if nothing tells."""
    said = [curve for curve in shown if curve.story]
    if not said:
        return ""
    marked = sorted((curve for curve in said if curve.mark is not None), key=lambda curve: curve.mark or 0)
    beyond = [curve for curve in marked if curve.label != _APART]
    what = f"{_BAND} B leaves it" if said[0].band else "B differs from A"
    what += f" in {len(beyond) or 'none'} of {counted(len(said), 'metric')}"
    if not marked:
        return f"{what}."
    first = (beyond or marked)[0]
    since = f"{first.metric}: {first.story[0].lower()}{first.story[1:]}"
    return f"{what}, first in {since}" if beyond else f"{what}, but see {since}"


def metric_curve(name: str, runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Curve:
    """The curve of one metric, without a story."""
    a, b = (tuple(series for run in side if (series := _finite(run, name))) for side in (runs_a, runs_b))
    return Curve(name, a, b)


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
    if curve.band and curve.steps:
        _draw_band(axes, curve, curve.band, f"{name}-band")
    if len(curve.a) > 1:  # each run, thin, behind the mean
        single = _one_after_the_other(curve.a)
        axes.plot(*zip(*single, strict=True), color=drawing.COLOURS["a"], alpha=0.5, linewidth=0.5)
    _draw_line(axes, "a", _label("A", curve.a), sorted(mean(curve.a).items()), f"{name}-a")
    if curve.band:
        _draw_line(axes, "b", _label("B", curve.b, are_single=True), _one_after_the_other(curve.b), f"{name}-b")
    else:
        _draw_line(axes, "b", _label("B", curve.b), sorted(mean(curve.b).items()), f"{name}-b")
    drawing.frame(axes, "step", curve.steps)
    if curve.mark is not None:
        drawing.room_for_marks(axes)
        drawing.mark(axes, curve.mark, f"{curve.label} step {curve.mark}", f"{name}-mark")


def _draw_band(axes: Axes, curve: Curve, limits: Band, name: str) -> None:
    """A's band. One that is much wider than the courses would hide them, so the axis ends in it."""
    values = [value for run in (*curve.a, *curve.b) for value in run.values()]
    size = max(values) - min(values) or abs(values[0])
    least, most = min(values) - size, max(values) + size
    low, high = ([min(max(limit, least), most) for limit in side] for side in (limits.low, limits.high))
    filled = axes.fill_between(limits.steps, low, high, color=drawing.COLOURS["a"], alpha=0.25, linewidth=0)
    filled.sticky_edges.y[:] = [least, most]
    filled.set(gid=name, label="A's band")


def _label(side: str, runs: Sequence[Series], *, are_single: bool = False) -> str:
    if len(runs) < 2:
        return side
    return f"{side}, {len(runs)} runs" if are_single else f"{side}, mean of {len(runs)}"


def _draw_line(axes: Axes, side: str, label: str, line: Sequence[tuple[float, float]], name: str) -> None:
    """A's line is wide and B's is narrow: both can be seen where they are equal."""
    if not line:
        return
    style, marker, width = {"a": ("-", "o", 3.2), "b": ("--", "s", 1.4)}[side]
    drawn = axes.plot(*zip(*line, strict=True), style, color=drawing.COLOURS[side], label=label, gid=name)
    drawn[0].set(marker=marker if len(line) <= _MARKERS else "", markersize=4, linewidth=width)


def _one_after_the_other(runs: Sequence[Series]) -> list[tuple[float, float]]:
    """The runs as one line with gaps between them."""
    return [point for run in runs for point in (*sorted(run.items()), (math.nan, math.nan))]
