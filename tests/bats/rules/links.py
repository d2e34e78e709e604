"""Links of Markdown pages: links.py ROOT PAGE... prints each relative link whose file or #anchor is not there, then how many it
checked. Exits 1 where one is broken, or where there was none to check.
"""

import re
import sys
from pathlib import Path

_LINK = re.compile(r"\[(?:[^][]|\[[^]]*\])*\]\(([^()\s]+)\)")
_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} (.+)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = found[anchor] = found.get(anchor, 0) + 1
        if count > 1:
            found[f"{anchor}-{count - 1}"] = 1
    return set(found)


def broken(root: Path, page: str) -> tuple[int, list[str]]:
    """How many relative links `page` has, and a sentence for each that leads nowhere."""
    wrong = []
    text = re.sub(
        r"^ {4,}.*$|`[^`\n]*`(?!\])", "", _CODE.sub("", (root / page).read_text(encoding="utf-8")), flags=re.MULTILINE
    )
    links = [link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (root / page).parent / path if path else root / page
        if not target.exists():
            wrong.append(f"{page}: {link}: no such file")
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{page}: {link}: no such heading")
    return len(links), wrong


def main(root: Path, pages: list[str]) -> int:
    """Print what is broken and the count; returns the exit status."""
    results = [broken(root, page) for page in pages]
    checked, wrong = sum(count for count, _ in results), [line for _, lines in results for line in lines]
    print(*wrong, f"checked {checked} links of {len(pages)} pages, {len(wrong)} broken", sep="\n")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
