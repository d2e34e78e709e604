"""What every page has: a head whose policy forbids every request, one style sheet, tables that scroll by themselves, and badges."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from verl_verdict.show.markup import Markup, element

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = Path(__file__).with_name("page.css")


def document(title: str, *content: Markup) -> str:
    """The whole file. A part of the content has the id `cases`."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(_STYLE.read_text(encoding="utf-8"))),
    )
    body = element("body", element("a", "Skip to the cases", href="#cases", class_="to-cases"), *content)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def navigation(links: Iterable[tuple[str, str]]) -> Markup:
    """Links to parts of the page: their ids and their names."""
    items = (element("li", element("a", name, href=f"#{place}")) for place, name in links)
    return element("nav", element("ul", *items), aria_label="Parts of this page")


def badge(word: str) -> Markup:
    """A verdict's word, or a check's."""
    return element("span", word, class_=f"badge {word}")


def card(place: str, title: str, *content: str) -> Markup:
    """A part of the page with a heading; `place` is its id."""
    heading = element("h2", title, id=f"heading-{place}")
    return element("section", heading, *content, class_="card", id=place, aria_labelledby=f"heading-{place}")


def details(label: str, content: str) -> Markup:
    """What is shown when its label is chosen."""
    return element("details", element("summary", label), content)


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], class_: str = "numbers") -> Markup:
    """A table that scrolls by itself where the screen is narrow, also with the keyboard. The first cell names its row."""
    titles = element("thead", element("tr", *(element("th", title, scope="col") for title in head)))
    lines = [
        element("tr", element("th", row[0], scope="row"), *(element("td", value) for value in row[1:])) for row in rows
    ]
    shown = element("table", element("caption", caption), titles, element("tbody", *lines), class_=class_)
    return element("div", shown, class_="wide", role="region", aria_label=caption, tabindex="0")
