"""A drawing of the pages: matplotlib's SVG, which needs no program and no request; the page's style sheet gives it its colours."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from verl_verdict.show.markup import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Each stands for a variable of the page's style sheet.
COLOURS = {
    name: f"#00{at:02x}fe" for at, name in enumerate(("a", "b", "ink", "faint", "mark", "card", "good", "odd"), start=1)
}
_INCHES = (5.0, 2.9)  # drawn about as wide as a phone, so that its text has the size of the page's


def svg(name: str, sentence: str, draw: Callable[[Axes], None]) -> Markup:
    """What `draw` draws, as an SVG element; `sentence` says it in words. The ids of its parts begin with `name`, unique on the page."""
    import matplotlib.style  # here: it takes half a second to load, and only a page with curves needs it
    from matplotlib.figure import Figure

    # It warns of a home that cannot be written, and of a slow first time.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    look = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 11}
    with matplotlib.style.context(["default", look]):
        figure = Figure(figsize=_INCHES, facecolor="none")
        draw(figure.add_subplot(facecolor="none"))
        figure.subplots_adjust(left=0.16, right=0.98, top=0.88, bottom=0.16)
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return Markup(_for_page(drawn.getvalue(), name, sentence))


def frame(axes: Axes, label: str, shown: Sequence[int]) -> None:
    """Axes, grid and legend round what was drawn at the whole numbers `shown`."""
    from matplotlib.ticker import MaxNLocator

    ink, faint = COLOURS["ink"], COLOURS["faint"]
    axes.set_xlabel(label, color=ink)
    axes.tick_params(colors=ink)
    axes.grid(color=faint, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(color=faint, visible=side in ("left", "bottom"))
    axes.ticklabel_format(useOffset=False)
    axes.locator_params(axis="y", nbins=5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.12)
    if len(shown) == 1:
        axes.set_xlim(shown[0] - 1, shown[0] + 1)
    if axes.get_legend_handles_labels()[0]:
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


def room_for_marks(axes: Axes) -> None:
    """Room for the names of marks above what was drawn."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))


def mark(axes: Axes, at: float, text: str, name: str) -> None:
    """A dotted line, and its name beside it, on the side where there is room."""
    left, right = axes.get_xlim()
    axes.axvline(at, color=COLOURS["mark"], linewidth=1.5, linestyle=":", gid=name)
    is_left = at < (left + right) / 2
    axes.annotate(
        text,
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4 if is_left else -4, -3),
        textcoords="offset points",
        ha="left" if is_left else "right",
        va="top",
        color=COLOURS["mark"],
        bbox={"facecolor": COLOURS["card"], "edgecolor": "none", "alpha": 0.8, "pad": 1},
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
    for variable, colour in COLOURS.items():
        rest = rest.replace(colour, f"var(--{variable})")
    return f'{opening} role="img" aria-label="{html.escape(sentence)}">{rest.strip()}'
