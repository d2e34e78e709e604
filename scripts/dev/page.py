"""The part of a page of docs/ that a script writes: what is between `<!-- NAME -->` and `<!-- /NAME -->`."""


def around(page: str, name: str) -> tuple[str, str]:
    """The page up to the first marker of `name` and from the second one on. Raises ValueError where it lacks them."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"the page has no {begin} … {end}")
    return before + begin, end + after
