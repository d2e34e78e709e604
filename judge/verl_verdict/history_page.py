"""history.html: the runs of all sessions as one page that needs nothing else, and the same in a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verl_verdict import trends
from verl_verdict.comparable import shown
from verl_verdict.diagnosis import counted, number
from verl_verdict.history import Change, Group, Left, Point, Trend
from verl_verdict.markup import Markup, element, joined
from verl_verdict.parts import card, details, document, navigation, table

_FACTS = 5  # that set a group apart
_VALUE = "of a run: the mean of the last third of its steps; of timing_s/step the median without the warm-up"


@dataclass(frozen=True)
class Page:
    """All that the page shows. `reports` has the page of each session that has one, relative to this page."""

    groups: Sequence[Group]
    left: Sequence[Left] = ()  # sessions, and runs that could not be read
    reports: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_left(self) -> list[Left]:
        """Also the runs of the groups that cannot be used."""
        return [*self.left, *(left for group in self.groups for left in group.left)]

    @property
    def doubts(self) -> dict[str, str]:
        """The sessions that have runs here although checks of theirs failed, and what that means."""
        return {point.session: point.doubt for group in self.groups for point in group.points if point.doubt}

    @property
    def changes(self) -> list[Change]:
        """Of all groups, in the order of time."""
        found = [change for group in self.groups for change in group.changes]
        return sorted(found, key=lambda change: (change.first.time, change.case))

    @property
    def counts(self) -> str:
        """How much there is, in words."""
        points = [point for group in self.groups for point in group.points]
        sessions = {point.session: point.time for point in points}
        days = [time[:10] for time in sorted(sessions.values())]
        return (
            f"{counted(len(points), 'run')} of {counted(len({point.case for point in points}), 'case')} in "
            f"{counted(len(sessions), 'session')}, {days[0]} to {days[-1]}"
        )

    @property
    def answer(self) -> str:
        """The sentence at the top."""
        cases = list(dict.fromkeys(change.case for change in self.changes))
        if not cases:
            return "No change point."
        doubtful = sum(bool(change.doubt) for change in self.changes)
        more = f", of which {doubtful} may not be about the code that was asked for" if doubtful else ""
        return f"{counted(len(self.changes), 'change point')}, in {', '.join(cases)}{more}."


def text(page: Page) -> list[str]:
    """The summary: a line for what there is, for each change point, for what is in doubt, and for what was left out."""
    lines = [f"history     {page.counts}"]
    lines += [f"change      {_change_line(change)}" for change in page.changes]
    if not page.changes:
        lines.append("change      none")
    for group in page.groups:
        if group.differs:
            lines.append(f"apart       {group.name}: {_apart(group)}")
    lines += [f"in doubt    {session}: {doubt}" for session, doubt in page.doubts.items()]
    lines += [f"left out    {left}" for left in page.all_left]
    return lines


def html(page: Page) -> str:
    """The whole file."""
    links = [(f"case-{at}", group.name) for at, group in enumerate(page.groups)]
    links = [("changes", "change points"), *links]
    links += [("doubts", "in doubt")] if page.doubts else []
    links += [("left", "left out")] if page.all_left else []
    shown_at_top = {"shown": page.counts, "a value": _VALUE}
    top = element(
        "header",
        element("h1", page.answer),
        element("dl", *(joined(element("dt", name), element("dd", value)) for name, value in shown_at_top.items())),
        navigation(links),
    )
    main = element(
        "main",
        _changes(page),
        *(_group(page, group, at) for at, group in enumerate(page.groups)),
        _doubts(page) if page.doubts else "",
        _left(page.all_left) if page.all_left else "",
        id="cases",
        tabindex="-1",
    )
    return document(f"History: {page.answer}", top, main)


def _change_line(change: Change) -> str:
    return (
        f"{change.case}, {change.first.side}, {change.metric}: {number(change.before)} -> {number(change.after)} ({change.word}) "
        f"from {change.last} to {change.first}; {change.how}"
    )


def _apart(group: Group) -> str:
    parts = [f"{each.name}: {shown(each.a)}, here {shown(each.b)}" for each in group.differs[:_FACTS]]
    more = [f"{len(group.differs) - _FACTS} more"] if len(group.differs) > _FACTS else []
    return f"not comparable with the first runs of {group.case}: {'; '.join([*parts, *more])}"


def _changes(page: Page) -> Markup:
    if not page.changes:
        content = element("p", "No metric of any case has changed, as far as these runs show.")
        return card("changes", "Change points", content)
    places = {id(change): at for at, group in enumerate(page.groups) for change in group.changes}
    rows = []
    for change in page.changes:
        name = element("a", change.case, href=f"#case-{places[id(change)]}")
        values = f"{number(change.before)} to {number(change.after)}"
        when = change.first.time[:16].replace("T", " ")
        what = [when, name, change.first.side, change.metric, values, change.word]
        rows.append([*what, str(change.last), str(change.first), change.how])
    head = ("time", "case", "side", "metric", "values", "which is", "last run before", "first run after", "how sure")
    return card("changes", "Change points", table("Where a metric changed, by date", head, rows, "jobs"))


def _group(page: Page, group: Group, at: int) -> Markup:
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
    figures = [_figure(group, trend, f"trend-{at}-{number}") for number, trend in enumerate(group.trends)]
    content.append(element("div", *figures, class_="curves"))
    content += [element("h3", "Runs"), details(f"All {len(group.points)} runs", _runs(page, group))]
    return card(f"case-{at}", group.name, *content)


def _figure(group: Group, trend: Trend, name: str) -> Markup:
    rows = []
    marked = {id(change.first) for change in trend.changes}
    for point, value in trend.values:
        notes = [*(["change"] if id(point) in marked else []), *([trends.FAILED] if point.doubt else [])]
        rows.append([point.time[:10], point.side, point.code, number(value), ", ".join(notes)])
    all_values = details(f"Values of {trend.metric}", table(trend.metric, ("date", "side", "code", "value", ""), rows))
    return element("figure", element("figcaption", trend.metric), trends.svg(group, trend, name), all_values)


def _runs(page: Page, group: Group) -> Markup:
    rows = [_run(page, point) for point in group.points]
    return table("The runs, by date", ("session", "side", "run (its log)", "code", "from", "seed"), rows, "jobs")


def _run(page: Page, point: Point) -> list[str]:
    session = _session(page, point.session)
    if point.doubt:
        session = joined(session, element("p", point.doubt, class_="warning"))
    log = element("a", point.name, href=point.log, aria_label=f"log of {point}") if point.log else point.name
    return [session, point.side, log, point.code, point.source or "-", point.run.seed or "-"]


def _session(page: Page, name: str) -> str:
    report = page.reports.get(name)
    return element("a", name, href=report) if report else name


def _doubts(page: Page) -> Markup:
    rows = [[_session(page, name), doubt] for name, doubt in page.doubts.items()]
    content = [
        element("p", f"The runs of {counted(len(rows), 'session')} may not be about the code that was asked for."),
        details("Which, and why", table("In doubt", ("session", "why"), rows, "config")),
    ]
    return card("doubts", "In doubt", *content)


def _left(left: Sequence[Left]) -> Markup:
    rows = [[each.what, each.why] for each in left]
    content = [
        element("p", f"{len(rows)} left out."),
        details("Which, and why", table("Left out", ("what", "why"), rows, "config")),
    ]
    return card("left", "Left out", *content)
