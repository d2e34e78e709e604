"""What differs between the code of A and of B: a unified diff of their snapshots, for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from verl_regress.store.snapshot import BYTECODE, MARKER_FILE, RECORD_FILE
from verl_verdict.diagnosis import listed

_OURS = {BYTECODE, MARKER_FILE, RECORD_FILE}
_MOST_LINES = 2000
_LARGEST = 256 << 10  # bytes of a file: difflib is slow, and nobody reads more


def difference(a: Path, b: Path) -> tuple[list[str], str]:
    """The lines of the diff, and a sentence about it that says what was left out."""
    if gone := [str(path) for path in (a, b) if not path.is_dir()]:
        return [], f"The code cannot be compared: {' and '.join(gone)} no longer exists."
    files = {side: _files(side) for side in (a, b)}
    names = [name for name in sorted(files[a] | files[b]) if _bytes(a / name) != _bytes(b / name)]
    if not names:
        return [], "A and B are the same code."
    lines: list[str] = []
    whole = 0
    for name in names:
        added = list(_of_file(a, b, name))
        if len(lines) + len(added) > _MOST_LINES:
            break
        lines += added
        whole += 1
    left = names[whole:]
    note = f"{len(names)} {'file differs' if len(names) == 1 else 'files differ'}."
    if left:
        note += f" The diff is cut after {whole} of them; also different: {listed(left, 20)}."
    return lines, note


def _files(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and not _OURS & set(path.relative_to(directory).parts)
    }


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _of_file(a: Path, b: Path, name: str) -> Iterable[str]:
    texts = [_bytes(side / name) or b"" for side in (a, b)]
    if any(len(text) > _LARGEST or b"\0" in text for text in texts):
        return [f"{name}: a binary or very large file differs"]
    before, after = (text.decode("utf-8", "replace").splitlines() for text in texts)
    return difflib.unified_diff(before, after, f"A/{name}", f"B/{name}", lineterm="")
