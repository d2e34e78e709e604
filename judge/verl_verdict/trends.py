"""The curves of history.html: a metric of every session's runs of A and of B, with its change points, as SVG and as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from verl_verdict import drawing
from verl_verdict.diagnosis import counted, number
from verl_verdict.history import Group, Trend
from verl_verdict.markup import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAILED = "checks failed"  # of a point that may not be about the code that was asked for
_DAY = slice(5, 10)  # of a time in ISO 8601: month and day
_LARGEST = 1e300  # the sum of larger values would be infinite


@dataclass(frozen=True)
class _Side:
    """The values of A's or B's runs, by the number of their session."""

    name: str
    values: Mapping[int, Sequence[float]]

    @property
    def means(self) -> dict[int, float]:
        return {at: fmean(values) for at, values in self.values.items()}


def svg(group: Group, trend: Trend, name: str) -> Markup:
    """The curve. `name` is unique on the page: its parts are `name`-a, -b and, for each change point, -mark-0, -mark-1 …"""
    sides = [_side(group, trend, side) for side in "AB"]
    return drawing.svg(name, sentence(group, trend), partial(_draw, group=group, trend=trend, sides=sides, name=name))


def sentence(group: Group, trend: Trend) -> str:
    """The curve in words, for people who cannot see it."""
    parts = [f"{trend.metric}, {counted(len(group.sessions), 'session')}."]
    for side in "AB":
        values = [value for _, value in trend.of(side)]
        if values:
            parts.append(f"{side} begins with {number(values[0])} and ends with {number(values[-1])}.")
        else:
            parts.append(f"{side} has no value.")
    doubtful = sum(bool(point.doubt) for point, _ in trend.values)
    if doubtful:
        parts.append(f"{counted(doubtful, 'value')} may not be about the code that was asked for.")
    for each in trend.changes:
        change = f"{each.first.side} changes from {number(each.before)} to {number(each.after)} with {each.first}"
        parts.append(f"{change}; {each.doubt}." if each.doubt else f"{change}.")
    return " ".join(parts if trend.changes else [*parts, "No change point."])


def _side(group: Group, trend: Trend, side: str) -> _Side:
    values: dict[int, list[float]] = {}
    for point, value in trend.of(side):
        if abs(value) < _LARGEST:
            values.setdefault(group.sessions[point.session], []).append(value)
    return _Side(side, values)


def _draw(axes: Axes, group: Group, trend: Trend, sides: Sequence[_Side], name: str) -> None:
    for side, style, marker in zip(sides, ("-", "--"), ("o", "s"), strict=True):
        colour, means = drawing.COLOURS[side.name.lower()], side.means
        single = [(at, value) for at, values in side.values.items() if len(values) > 1 for value in values]
        if single:
            axes.plot(*zip(*single, strict=True), marker, color=colour, alpha=0.35, markersize=3)
        if means:
            label = f"{side.name}, mean" if single else side.name
            drawn = axes.plot(
                list(means), list(means.values()), style, color=colour, label=label, gid=f"{name}-{side.name.lower()}"
            )
            # A is wide and B is narrow: both can be seen where they are equal.
            wide = side.name == "A"
            drawn[0].set(marker=marker, markersize=8 if wide else 4, linewidth=3.2 if wide else 1.4)
    doubtful = [
        (group.sessions[point.session], value) for point, value in trend.values if point.doubt and abs(value) < _LARGEST
    ]
    if doubtful:
        axes.plot(
            *zip(*doubtful, strict=True),
            "x",
            color=drawing.COLOURS["mark"],
            label=FAILED,
            zorder=3,
            gid=f"{name}-doubt",
        )
    shown = sorted({at for side in sides for at in side.values})
    drawing.frame(axes, "date of the session", shown)
    days = {group.sessions[point.session]: point.time[_DAY] for point in group.points}
    axes.xaxis.set_major_formatter(lambda at, _position: days.get(round(at), ""))
    if trend.changes:
        drawing.room_for_marks(axes)
    for at, change in enumerate(trend.changes):
        what = f"{change.first.side} changes" + (f" ({FAILED})" if change.doubt else "")
        drawing.mark(axes, group.sessions[change.first.session], what, f"{name}-mark-{at}")
