"""history.html: the runs of all sessions as one page that needs nothing else, and the same in a few lines of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from verl_verdict.decide.diagnosis import counted, number
from verl_verdict.history import history, trends
from verl_verdict.history.history import Change, Ended, Group, Left, Point, Trend
from verl_verdict.read.comparable import shown
from verl_verdict.show.markup import Markup, element, joined
from verl_verdict.show.parts import card, details, document, navigation, table

_FACTS = 5  # that set a group apart
_KEYS = 12  # series whose key is not folded
_SOURCE = "the branch, path or release of a run of A or of B: each is one line of a curve"
_VALUE = "of a run: the mean of the last third of its steps; of timing_s/step the median without the warm-up"


@dataclass(frozen=True)
class HistoryPage:
    """All that the page shows. `reports` has the page of each session that has one, relative to this page."""

    groups: Sequence[Group]
    left: Sequence[Left] = ()  # sessions, and runs that could not be read
    reports: Mapping[str, str] = field(default_factory=dict)
    ended: Sequence[Ended] = ()  # the sessions that are over, the oldest first

    @property
    def all_left(self) -> list[Left]:
        """Also the runs of the groups that cannot be used."""
        return [*self.left, *(left for group in self.groups for left in group.left)]

    @property
    def doubts(self) -> dict[str, str]:
        """The sessions that have runs here although checks of theirs failed, and what that means."""
        return {point.session: point.doubt for group in self.groups for point in group.points if point.doubt}

    @cached_property
    def change_points(self) -> list[list[Change]]:
        """The changes of all groups, in the order of time; the worst change of each is its first."""
        return history.change_points(self.groups)

    @property
    def verdicts(self) -> list[Ended]:
        """The sessions in which B did not train as A does, the oldest first: a run that failed has no value to draw."""
        return [each for each in self.ended if each.is_change]

    @property
    def counts(self) -> str:
        """How much there is, in words."""
        points = [point for group in self.groups for point in group.points]
        sessions = {point.session: point.time for point in points} | {each.session: each.time for each in self.ended}
        days = [time[:10] for time in sorted(sessions.values())]
        return (
            f"{counted(len(points), 'run')} of {counted(len({point.case for point in points}), 'case')} in "
            f"{counted(len(sessions), 'session')}, {days[0]} to {days[-1]}"
        )

    @property
    def answer(self) -> str:
        """The sentence at the top: the newest change, or the newest verdict if that is later."""
        if self.verdicts and not (
            self.change_points and self.change_points[-1][0].first.time >= self.verdicts[-1].time
        ):
            return f"The newest session in which B did not train as A does is {self.verdicts[-1]}."
        if not self.change_points:
            return "No source's metrics changed when its code did."
        worst, *others = self.change_points[-1]
        first, many = worst.first, counted(len(self.change_points), "change")
        newest = many if len(self.change_points) == 1 else f"The newest of {many}"
        more = f", and {counted(len(others), 'more metric')} changed" if others else ""
        doubt = f"; {worst.doubt}" if worst.doubt else ""
        return (
            f"{newest}: since {first.code} of {first.series}, {first.time[:10]}, {worst.metric} of {worst.case} "
            f"is {worst.after:.4g} instead of {worst.before:.4g} ({worst.word}){more}{doubt}."
        )


def text(page: HistoryPage) -> list[str]:
    """The summary: a line for what there is, for each change point, for each session in which B did not train as A does, for what is in
    doubt, and for what was left out.
    """
    lines = [f"history     {page.counts}"]
    lines += [f"change      {_line(point)}" for point in page.change_points]
    lines += [f"verdict     {each}" for each in page.verdicts]
    if not page.change_points and not page.verdicts:
        lines.append("change      none")
    for group in page.groups:
        if group.differs:
            lines.append(f"apart       {group.name}: {_apart(group)}")
    lines += [f"in doubt    {session}: {doubt}" for session, doubt in page.doubts.items()]
    lines += [f"left out    {left}" for left in page.all_left]
    return lines


def html(page: HistoryPage) -> str:
    """The whole file."""
    links = [(f"case-{at}", group.name) for at, group in enumerate(page.groups)]
    links.append(("changes", "change points"))
    links += [("verdicts", "verdicts")] if page.verdicts else []
    links += [("doubts", "in doubt")] if page.doubts else []
    links += [("left", "left out")] if page.all_left else []
    shown_at_top = {"shown": page.counts, "a value": _VALUE, "a source": _SOURCE}
    top = element(
        "header",
        element("h1", page.answer),
        element("dl", *(joined(element("dt", name), element("dd", value)) for name, value in shown_at_top.items())),
        navigation(links),
    )
    doubts = [[_session(page, name), doubt] for name, doubt in page.doubts.items()]
    ended = [[_session(page, each.session), each.code, each.said] for each in page.verdicts]
    left = [[each.what, each.why] for each in page.all_left]
    said = f"{counted(len(doubts), 'session')} may not be about the code that was asked for"
    main = element(
        "main",
        *(_group(page, group, at) for at, group in enumerate(page.groups)),
        _changes(page),
        _verdicts(ended) if ended else "",
        _which("doubts", "In doubt", f"The runs of {said}.", "session", doubts) if doubts else "",
        _which("left", "Left out", f"{len(left)} left out.", "what", left) if left else "",
        id="cases",
        tabindex="-1",
    )
    return document(f"History: {page.answer}", top, main)


def _line(point: Sequence[Change]) -> str:
    worst, *others = point
    more = f"; {counted(len(others), 'more metric')}" if others else ""
    return f"{worst.first.series}: {_what(worst)} {_between(worst)}{more}"


def _what(change: Change) -> str:
    return f"{change.case}, {change.metric}: {number(change.before)} -> {number(change.after)} ({change.word})"


def _between(change: Change) -> str:
    return f"from {change.last} to {change.first}; {change.how}"


def _apart(group: Group) -> str:
    parts = [f"{each.name}: {shown(each.a)}, here {shown(each.b)}" for each in group.differs[:_FACTS]]
    more = [f"{len(group.differs) - _FACTS} more"] if len(group.differs) > _FACTS else []
    return f"not comparable with the first runs of {group.case}: {'; '.join([*parts, *more])}"


def _changes(page: HistoryPage) -> Markup:
    if not page.change_points:
        content = element("p", "No change of code has changed a metric of any case, as far as these runs show.")
        return card("changes", "Change points", content)
    rows = []
    for worst, *others in page.change_points:
        shown = [element("p", element("strong", _what(worst))), element("p", _between(worst), class_="quiet")]
        if others:
            lines = [element("p", f"{_what(each)}; {each.how}") for each in others]
            shown.append(details(counted(len(others), "more metric"), joined(*lines)))
        codes = joined(worst.first.series, element("p", f"{worst.last.code} -> {worst.first.code}"))
        rows.append([worst.first.time[:10], codes, joined(*shown)])
    head = ("date", "change of code", "the worst of what it changed")
    return card("changes", "Change points", table("Changes of code that changed a metric, by date", head, rows, "jobs"))


def _group(page: HistoryPage, group: Group, at: int) -> Markup:
    how = {
        True: "Runs with one seed repeat each other, so any difference is a change.",
        False: "Runs with one seed do not repeat each other, so a change point is found by statistics.",
        None: "No two runs show whether runs repeat each other, so a change point is found by statistics.",
    }[group.repeats]
    content: list[str] = [element("p", _apart(group).capitalize(), class_="quiet")] if group.differs else []
    if not group.points:
        return card(f"case-{at}", group.name, *content, element("p", "No run can be used: see what was left out."))
    content += [
        element("p", f"{counted(len(group.points), 'run')} in {counted(len(group.sessions), 'session')}. {how}")
    ]
    content.append(_keys(group))
    shown = sorted(enumerate(group.trends), key=lambda each: not each[1].changes)
    figures = [_figure(group, trend, f"trend-{at}-{number}") for number, trend in shown]
    content.append(element("div", *figures, class_="curves"))
    content += [element("h3", "Runs"), details(f"All {len(group.points)} runs", _runs(page, group))]
    return card(f"case-{at}", group.name, *content)


def _keys(group: Group) -> Markup:
    """Which line is which series."""
    items = []
    for at, (series, count) in enumerate(group.series.items()):
        colour, _, marker = trends.style(at)
        sign = element("span", marker, style=f"color: var(--{colour})", aria_hidden="true")
        items.append(element("li", sign, f"\N{NO-BREAK SPACE}{series} ({counted(count, 'session')})"))
    shown = element("ul", *items[:_KEYS], class_="keys")
    rest = items[_KEYS:]
    return joined(shown, details(f"{len(rest)} more", element("ul", *rest, class_="keys")) if rest else "")


def _figure(group: Group, trend: Trend, name: str) -> Markup:
    rows = []
    marked = {id(change.first) for change in trend.changes}
    for point, value in trend.values:
        notes = [*(["change"] if id(point) in marked else []), *([trends.FAILED] if point.doubt else [])]
        rows.append([point.time[:10], point.code, number(value), ", ".join(notes)])
    values = table(trend.metric, ("date", "code", "value", ""), rows, "jobs")
    all_values = details(f"Values of {trend.metric}", values)
    return element("figure", element("figcaption", trend.metric), trends.svg(group, trend, name), all_values)


def _runs(page: HistoryPage, group: Group) -> Markup:
    rows = [_run(page, point) for point in group.points]
    return table("The runs, by date", ("run (its log)", "side", "code", "seed"), rows, "jobs")


def _run(page: HistoryPage, point: Point) -> list[str]:
    session = _session(page, point.session)
    if point.doubt:
        session = joined(session, element("p", point.doubt, class_="warning"))
    log = element("a", point.name, href=point.log, aria_label=f"log of {point}") if point.log else point.name
    origin = ", ".join(each for each in (point.source, point.revision) if each)
    code = joined(point.code, element("p", origin, class_="quiet")) if origin else point.code
    return [joined(log, " of ", session), point.side, code, point.run.seed or "-"]


def _session(page: HistoryPage, name: str) -> str:
    report = page.reports.get(name)
    return element("a", name, href=report) if report else name


def _verdicts(rows: Sequence[Sequence[str]]) -> Markup:
    """A card with the sessions in which B did not train as A does."""
    title = "Sessions in which B did not train as A does"
    return card("verdicts", title, table(title, ("session", "code of B", "verdict"), rows, "config"))


def _which(place: str, title: str, said: str, what: str, rows: Sequence[Sequence[str]]) -> Markup:
    """A card that says how many are in doubt or left out, with each of them and why."""
    shown = details("Which, and why", table(title, (what, "why"), rows, "config"))
    return card(place, title, element("p", said), shown)
