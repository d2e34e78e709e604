"""Files of the shared root, where another process, user or machine may be at work: written whole or not at all.

A file that cannot be read is one sentence (`Unreadable`), which says what is in the way.
"""

import json
import os
import stat
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from verl_regress.base.errors import Unreadable

_RESERVE_BYTES = 16384  # more than any state needs


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` by a temporary name and a rename: a reader sees the old file or the new one, never half.

    Never writes through a link: the rename replaces one at `path`, and one at the temporary name is an error.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(
            temporary, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o644)
        ) as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def reserve(path: Path) -> None:
    """Take the space of the JSON file `path` now, in case the disk is full when it is written. Raises OSError."""
    with _reserve_of(path).open("wb") as file:
        file.write(b" " * _RESERVE_BYTES)  # JSON ignores trailing spaces
        file.flush()
        os.fsync(file.fileno())


def write_reserved(path: Path, text: str) -> None:
    """Write `text` to `path` atomically; on a full disk into the space that was reserved for it. Raises OSError."""
    space = _reserve_of(path)
    try:
        write_atomically(path, text)
        space.unlink(missing_ok=True)
    except OSError:
        if not space.exists():
            raise
        with space.open("r+b") as file:  # writing in place needs no new block
            file.write(text.encode("utf-8"))
        space.replace(path)


def _reserve_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserve")


def opened(path: Path) -> BinaryIO:
    """Open a file to read. A pipe in its place is empty: a reader never waits for its writer. Raises OSError."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _read(path: Path) -> bytes:
    with opened(path) as file:
        return file.read() or b""


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file. Raises Unreadable."""
    content = None
    try:
        content = json.loads(_read(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError):
        pass
    if not isinstance(content, dict):
        raise damaged(path, "it is cut off, or no JSON object")
    return content


def read_text(path: Path) -> str:
    """The text of a file, whatever its encoding. Raises OSError."""
    return _read(path).decode("utf-8", errors="replace")


def unreadable(path: Path, error: OSError) -> Unreadable:
    """The error for a path that could not be read: names what is in the way, its owner, and its mode."""
    if not isinstance(error, PermissionError):
        why = f"cannot be read: {error.strerror}"
        return Unreadable(f"{path} {why}: fix that, then run it again.", why)
    place = next(each for each in (path, *path.parents) if os.path.lexists(each))  # the last part that can be reached
    found = place.lstat()
    why = f"cannot be read: owned by uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
    return Unreadable(f"{place} {why}: ask that user to let you read it.", why)


def damaged(path: Path, wrong: str) -> Unreadable:
    """The error for a file of a job or a session with which `wrong` is wrong."""
    return Unreadable(
        f"{path} cannot be read: {wrong}: restore it from a backup.",
        f"cannot be read: {path.parent.name}/{path.name}: {wrong}",
    )


def end_of(path: Path, most: int) -> bytes:
    """The last `most` bytes of a file, which may be growing. Raises OSError."""
    with opened(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most)


def as_json(content: Any) -> str:
    """`content` as a JSON document that people read, too: indented, not escaped, with a newline at the end."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def value_at(document: Any, key: str) -> Any:
    """The value at a dotted key of nested mappings; None if there is none."""
    for part in key.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document
