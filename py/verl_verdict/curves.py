"""The curves of report.html: a metric of A's and of B's runs, drawn as SVG, and the same values as a sentence and as a table.

matplotlib draws them. Its SVG needs no program and no request, and the page's style sheet gives it the colours of light and dark.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from statistics import fmean
from typing import TYPE_CHECKING

from verl_verdict import metrics
from verl_verdict.diagnosis import number
from verl_verdict.markup import Markup
from verl_verdict.metrics import Decisive
from verl_verdict.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Mapping[int, float]

# Each stands for a variable of the page's style sheet.
_COLOURS = {name: f"#00{at:02x}fe" for at, name in enumerate(("a", "b", "ink", "faint", "mark", "card"), start=1)}
_INCHES = (5.0, 2.9)  # drawn about as wide as a phone, so that its text has the size of the page's
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
    import matplotlib.style  # here: it takes half a second to load, and only a page with curves needs it
    from matplotlib.figure import Figure

    # It warns of a home that cannot be written, and of a slow first time.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    look = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 11}
    with matplotlib.style.context(["default", look]):
        figure = Figure(figsize=_INCHES, facecolor="none")
        axes: Axes = figure.add_subplot(facecolor="none")
        _draw(axes, curve, name)
        figure.subplots_adjust(left=0.16, right=0.98, top=0.88, bottom=0.16)
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return Markup(_for_page(drawn.getvalue(), name, curve.sentence))


def _draw(axes: Axes, curve: Curve, name: str) -> None:
    for side, runs, style, marker in (("a", curve.a, "-", "o"), ("b", curve.b, "--", "s")):
        colour, line = _COLOURS[side], mean(runs)
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
    _frame(axes, curve)
    if curve.mark is not None:
        axes.axvline(curve.mark, color=_COLOURS["mark"], linewidth=1.5, linestyle=":", gid=f"{name}-mark")
        _name_mark(axes, curve.mark)


def _frame(axes: Axes, curve: Curve) -> None:
    from matplotlib.ticker import MaxNLocator

    ink, faint = _COLOURS["ink"], _COLOURS["faint"]
    axes.set_xlabel("step", color=ink)
    axes.tick_params(colors=ink)
    axes.grid(color=faint, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(color=faint, visible=side in ("left", "bottom"))
    axes.ticklabel_format(useOffset=False)
    axes.locator_params(axis="y", nbins=5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.12)
    if len(curve.steps) == 1:
        axes.set_xlim(curve.steps[0] - 1, curve.steps[0] + 1)
    if curve.steps:
        legend = axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.04, 0.99),
            ncol=3,
            frameon=False,
            borderaxespad=0.2,
            handlelength=1.7,
            columnspacing=1.1,
            handletextpad=0.4,
        )
        for text in legend.get_texts():
            text.set_color(ink)


def _name_mark(axes: Axes, mark: int) -> None:
    """The name of the line of the first difference, above the curves, on the side where there is room."""
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    is_left = mark < (left + right) / 2
    axes.annotate(
        f"first difference: step {mark}",
        (mark, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4 if is_left else -4, -3),
        textcoords="offset points",
        ha="left" if is_left else "right",
        va="top",
        color=_COLOURS["mark"],
        bbox={"facecolor": _COLOURS["card"], "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )


def _for_page(drawn: str, name: str, sentence: str) -> str:
    """matplotlib's file as a part of a page: as wide as its place, with the page's font and colours, a name for screen readers, and
    no id that another curve has too.
    """
    element = drawn[drawn.index("<svg") :]
    element = re.sub(r"<style.*?</style>", "", element, count=1, flags=re.DOTALL)
    element = re.sub(rf'<g id="(?!{re.escape(name)}-)[^"]*"', "<g", element)
    element = re.sub(r"font-family: [^;]*; ", "", element)
    element = re.sub(r"font: (\d+px) [^;\"]*", r"font-size: \1", element)  # matplotlib before 3.9
    element = re.sub(r"\n\s*", " ", element)
    opening, rest = element.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    for variable, colour in _COLOURS.items():
        rest = rest.replace(colour, f"var(--{variable})")
    return f'{opening} role="img" aria-label="{html.escape(sentence)}">{rest.strip()}'
