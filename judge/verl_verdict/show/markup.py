"""HTML that is escaped by construction: text becomes markup only through `element`, which escapes it."""

import html


class Markup(str):
    """HTML that is complete as it is. Any other text is escaped where it is inserted."""

    __slots__ = ()


_VOID = {"meta", "br"}


def element(name: str, *content: str, **attributes: str | None) -> Markup:
    """An element. `class_` is the attribute class, `aria_label` is aria-label; an attribute that is None is left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{said}>"
    return Markup(opening if name in _VOID else f"{opening}{joined(*content)}</{name}>")


def joined(*content: str) -> Markup:
    """One piece of markup after the other; what is plain text is escaped."""
    return Markup("".join(each if isinstance(each, Markup) else html.escape(each) for each in content))
