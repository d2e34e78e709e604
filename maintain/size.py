"""Prints the table of sizes of CONTRIBUTING.md: files, lines and characters of each part, words of the pages, knobs and targets.

size.py [--write]    print it; --write: put it into CONTRIBUTING.md
"""

import re
import subprocess
import sys
from pathlib import Path

from page import put

REPO = Path(__file__).resolve().parents[1]
CODE = (".py", ".bash", ".sh", ".bats", ".yaml", ".css", ".js", "")
# A part, and how the names of its files begin.
PARTS = {
    "helper (`py/verl_regress`), with export": "py/verl_regress/",
    "judge (`judge/verl_verdict`)": "judge/verl_verdict/",
    "rehearsal": "rehearsal/(?!tests/)",
    "hooks": "py/hooks/",
    "scripts, with `ci`": "scripts/(?!lib/|dev/)|ci/(?!tests/)",
    "`scripts/lib`": "scripts/lib/",
    "`scripts/dev`": "scripts/dev/",
    "maintain": "maintain/(?!tests/)",
    "tests": r"(\w+/)?tests/(?!recorded/|mutations/)",
}


def table() -> str:
    """The whole table, from the files that git tracks."""
    listed = subprocess.run(["git", "-C", REPO, "ls-files"], check=True, capture_output=True, text=True).stdout
    files = [name for name in listed.splitlines() if (REPO / name).is_file()]
    rows = [_row(part, files, begins) for part, begins in PARTS.items()]
    pages = [
        name for name in files if re.fullmatch(r"(docs|maintain)/.*\.md|[A-Z]+\.md", name) and name != "CHANGELOG.md"
    ]
    user = [name for name in pages if name.startswith("docs/")]
    knobs = re.findall(r"^[A-Z][A-Z0-9_]*=", _text("env/defaults.env"), re.MULTILINE)
    targets = re.findall(r"^[a-z][a-z-]*:.*## ", _text("Makefile"), re.MULTILINE)
    return "\n".join(
        [
            "| part | files | lines | characters |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            f"{len(user)} pages in `docs/` with {_words(user):,} words, {_words(pages):,} with README, CONTRIBUTING and `maintain/`; "
            f"{len(knobs)} knobs; {len(targets)} targets.",
            "",
        ]
    )


def _row(part: str, files: list[str], begins: str) -> str:
    texts = [_text(name) for name in files if re.match(begins, name) and Path(name).suffix in CODE]
    if not texts:
        raise SystemExit(f"error   git lists no file of {part}, so the table would be wrong: see 'git status'.")
    return f"| {part} | {len(texts)} | {sum(text.count(chr(10)) for text in texts):,} | {sum(map(len, texts)):,} |"


def _text(name: str) -> str:
    return (REPO / name).read_text(encoding="utf-8")


def _words(names: list[str]) -> int:
    return sum(len(_text(name).split()) for name in names)


def main(write: bool) -> int:
    """Print the table, or put it into its page."""
    if write:
        page = REPO / "CONTRIBUTING.md"
        page.write_text(put(page.read_text(encoding="utf-8"), "sizes", f"\n{table()}\n"), encoding="utf-8")
    else:
        print(table(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main("--write" in sys.argv[1:]))
