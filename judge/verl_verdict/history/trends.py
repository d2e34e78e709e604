"""The curves of history.html: a metric of every session's runs, a line for each series, with its change points, as SVG and as a sentence."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from verl_verdict.decide.diagnosis import counted, number
from verl_verdict.history.history import Group, Trend
from verl_verdict.show import drawing
from verl_verdict.show.markup import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAILED = "checks failed"  # of a point that may not be about the code that was asked for
_DAY = slice(5, 10)  # of a time in ISO 8601: month and day
_LARGEST = 1e300  # the sum of larger values would be infinite
_NAMED = 5  # series of a sentence

# Each series has another combination; the last part is the marker as text.
_COLOURS = ("a", "b", "good", "odd", "mark")
_MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"))


def style(at: int) -> tuple[str, str, str]:
    """How the series with that number is drawn: its colour, its marker, and the marker as text."""
    return (_COLOURS[at % len(_COLOURS)], *_MARKERS[at % len(_MARKERS)])


def svg(group: Group, trend: Trend, name: str) -> Markup:
    """The curve. `name` is unique on the page: its parts are `name`-line-0 … for each series and `name`-mark-0 … for each change point."""
    return drawing.svg(name, sentence(group, trend), partial(_draw, group=group, trend=trend, name=name))


def sentence(group: Group, trend: Trend) -> str:
    """The curve in words, for people who cannot see it."""
    parts = [f"{trend.metric}, {counted(len(group.sessions), 'session')}."]
    shown = [(series, values) for series in group.series if (values := [value for _, value in trend.values_of(series)])]
    for series, values in shown[:_NAMED]:
        parts.append(f"{series} begins with {number(values[0])} and ends with {number(values[-1])}.")
    if len(shown) > _NAMED:
        parts.append(f"{len(shown) - _NAMED} more are in the table of values.")
    doubtful = sum(bool(point.doubt) for point, _ in trend.values)
    if doubtful:
        parts.append(f"{counted(doubtful, 'value')} may not be about the code that was asked for.")
    for each in trend.changes:
        change = f"{each.first.series} changes from {number(each.before)} to {number(each.after)} with {each.first}"
        parts.append(f"{change}; {each.doubt}." if each.doubt else f"{change}.")
    return " ".join(parts if trend.changes else [*parts, "No change point."])


def _draw(axes: Axes, group: Group, trend: Trend, name: str) -> None:
    shown: set[int] = set()
    for place, series in enumerate(group.series):
        points = ((group.sessions[point.session], value) for point, value in trend.values_of(series))
        values: dict[int, list[float]] = {}
        for at, value in points:
            if abs(value) < _LARGEST:
                values.setdefault(at, []).append(value)
        if values:
            _draw_series(axes, place, values, f"{name}-line-{place}")
        shown |= values.keys()
    _draw_doubtful(axes, group, trend, f"{name}-doubt")
    drawing.frame(axes, "date of the session", sorted(shown))
    days = {group.sessions[point.session]: point.time[_DAY] for point in group.points}
    axes.xaxis.set_major_formatter(lambda at, _position: days.get(round(at), ""))
    if trend.changes:
        drawing.room_for_marks(axes)
    for at, change in enumerate(trend.changes):
        what = f"since {change.first.code}" + (f" ({FAILED})" if change.doubt else "")
        drawing.mark(axes, group.sessions[change.first.session], what, f"{name}-mark-{at}")


def _draw_series(axes: Axes, place: int, values: dict[int, list[float]], name: str) -> None:
    """The means of a series as a line, and each value where a session has several. `values` are by the session's place in time."""
    colour, marker, _ = style(place)
    paint, means = drawing.COLOURS[colour], {at: fmean(of_session) for at, of_session in values.items()}
    single = [(at, value) for at, of_session in values.items() if len(of_session) > 1 for value in of_session]
    if single:
        axes.plot(*zip(*single, strict=True), marker, color=paint, alpha=0.35, markersize=3)
    drawn = axes.plot(list(means), list(means.values()), color=paint, marker=marker, gid=name)
    # The first is wide and the others are narrow: all can be seen where they are equal.
    drawn[0].set(markersize=8 if place == 0 else 5, linewidth=3.2 if place == 0 else 1.4)


def _draw_doubtful(axes: Axes, group: Group, trend: Trend, name: str) -> None:
    """A cross at each value that may not be about the code that was asked for."""
    found = [(point, value) for point, value in trend.values if point.doubt and abs(value) < _LARGEST]
    if found:
        at = [group.sessions[point.session] for point, _ in found]
        values = [value for _, value in found]
        axes.plot(at, values, "x", color=drawing.COLOURS["mark"], label=FAILED, zorder=3, gid=name)
