"""What differs between the code of A and of B: a unified diff of their snapshots, for people."""

import difflib
from pathlib import Path

from verl_regress.store.snapshot import BYTECODE, MARKER_FILE, RECORD_FILE

_OURS = {BYTECODE, MARKER_FILE, RECORD_FILE}
_MOST_LINES = 2000
_LARGEST = 256 << 10  # bytes of a file: difflib is slow, and nobody reads more


def difference(a: Path, b: Path) -> tuple[list[str], str]:
    """The lines of the diff, and a sentence about it that says whether it is cut."""
    if gone := [str(path) for path in (a, b) if not path.is_dir()]:
        return [], f"The code cannot be compared: {' and '.join(gone)} no longer exists."
    names = [name for name in sorted(_files(a) | _files(b)) if _bytes(a / name) != _bytes(b / name)]
    if not names:
        return [], "A and B are the same code."
    lines: list[str] = []
    for name in names:
        texts = [_bytes(side / name) for side in (a, b)]
        if max(map(len, texts)) > _LARGEST or any(b"\0" in text for text in texts):
            lines.append(f"{name}: a large or binary file differs")
            continue
        before, after = (text.decode("utf-8", "replace").splitlines() for text in texts)
        lines += difflib.unified_diff(before, after, f"A/{name}", f"B/{name}", lineterm="")
        if len(lines) > _MOST_LINES:
            break
    cut = f" The diff is cut after {_MOST_LINES} lines." if len(lines) > _MOST_LINES else ""
    return lines[:_MOST_LINES], f"{len(names)} {'file differs' if len(names) == 1 else 'files differ'}.{cut}"


def _files(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and not _OURS & set(path.relative_to(directory).parts)
    }


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
