"""Writes the modules of this version of the helper into one file, from which run.py imports them: `python3 pack.py`.

A version whose put was interrupted right before this has no such file: its starts are only slower.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from run import HERE, HOOKS, PACK

_OWN = ("deps.py", "verl_regress/**/*.py")


def _files() -> Iterator[tuple[Path, Path]]:
    """Each file, and the directory that its module's name begins in."""
    for pattern in _OWN:
        yield from ((file, HERE) for file in HERE.glob(pattern))
    yield from ((file, HOOKS) for file in HOOKS.glob("*.py"))


def _name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> None:
    """Write PACK; a start of the helper meanwhile sees the whole file or none."""
    modules = {
        _name(file, root): (
            str(file.relative_to(HERE)),
            zlib.compress(marshal.dumps(compile(file.read_bytes(), file, "exec", dont_inherit=True))),
        )
        for file, root in _files()
    }
    unfinished = PACK.with_suffix(f".{os.getpid()}.tmp")
    try:
        PACK.parent.mkdir(exist_ok=True)
        with unfinished.open("wb") as file:
            file.write(marshal.dumps(modules))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(PACK)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise SystemExit(f"error   {PACK} cannot be written: {error.strerror}: fix that, then run it again.") from None


if __name__ == "__main__":
    main()
