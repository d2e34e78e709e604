"""The part of a page that a script writes: what is between `<!-- NAME -->` and `<!-- /NAME -->`.

page.py put FILE NAME      replace that part of FILE by stdin, byte for byte
page.py part FILE NAME     print that part of FILE

FILE is a path from the root of the project.
"""

import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def put(page: str, name: str, text: str) -> str:
    """The page with `text` as that part. Raises ValueError if it has no such part."""
    before, _, after = _split(page, name)
    return before + text + after


def _split(page: str, name: str) -> tuple[str, str, str]:
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, has_begin, rest = page.partition(f"{begin}\n")
    text, has_end, after = rest.partition(f"{end}\n")
    if not has_begin or not has_end:
        raise ValueError(f"has no lines '{begin}' and '{end}' for what this script writes: add them.")
    return f"{before}{begin}\n", text, f"{end}\n{after}"


def main(action: str, name: str, part: str) -> int:
    """Do `action` with the file `name`; returns the exit status."""
    file = REPO / name
    page = file.read_text(encoding="utf-8")
    try:
        if action == "put":
            file.write_text(put(page, part, sys.stdin.buffer.read().decode()), encoding="utf-8")
        else:
            sys.stdout.buffer.write(_split(page, part)[1].encode())
    except ValueError as error:
        print(f"error   {name} {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
