"""What is in files and folders, as hashes. Large files, such as weights, are read once: after that their inode, size and time must be the same."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from verl_regress.base.errors import RegressError
from verl_regress.base.files import read_json, write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.base.owner import is_mine
from verl_regress.store.artefact import sha256_of

_WHOLE = 64 << 20  # bytes: a larger file is read once, or not at all
_MOST = 10_000  # large files that are remembered


def by_stat(path: Path) -> str:
    """The size and the time of a large file, hashed."""
    stat = path.stat()
    return hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()


def digest(directory: Path, large: Callable[[Path], str] = by_stat, *, follow: bool = False) -> str:
    """One hash over a directory: every path, and every file's bytes (`large` above 64 MiB), with `follow` also those in folders that links
    in it lead to, each once. Raises OSError.
    """
    found, paths, seen = hashlib.sha256(), list[Path](), set[str]()
    for folder, below, names in os.walk(directory, followlinks=follow):
        if (real := os.path.realpath(folder)) in seen:
            below.clear()
            continue
        seen.add(real)
        below.sort()
        paths += [path for name in names if (path := Path(folder, name)).is_file()]
    for path in sorted(paths):
        found.update(os.fsencode(f"{path.relative_to(directory)}\0"))
        found.update(bytes.fromhex(of_file(path, large)))
    return found.hexdigest()


def of_file(path: Path, large: Callable[[Path], str] = by_stat) -> str:
    """The sha256 of a file, or what `large` says of one above 64 MiB. Raises OSError."""
    return sha256_of(path) if path.stat().st_size <= _WHOLE else large(path)


def _of_code(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(os.fsencode(f"{path.relative_to(folder)}\0{by_stat(path)}\0"))
    return found.hexdigest()


class Hashes:
    """Hashes of what jobs read. It remembers those of large files in `jobs/`, in a file of this user's; another user's counts for nothing."""

    def __init__(self, root: SharedRoot) -> None:
        self._root, self._file = root, root.jobs / f".hashes-{os.geteuid()}.json"

    def content_of(self, path: Path, *, is_read: bool = True, is_code: bool = False) -> str | None:
        """The sha256 of a file, or one hash over a folder; None if nothing is there, or neither of them.

        For a repository in the hub's cache, the hash of its main revision. Without `is_read`, large files count by size and time; of a folder
        that `is_code`, all Python files do, and no others count. Raises OSError.
        """
        if is_code:
            return _of_code(path)
        large = self.of_large if is_read else by_stat
        main = path / "refs" / "main"
        if main.is_file():
            path = path / "snapshots" / main.read_text(encoding="utf-8", errors="replace").strip()
        if path.is_dir():
            return digest(path, large, follow=True)
        return of_file(path, large) if path.is_file() else None

    def of_large(self, path: Path) -> str:
        """The sha256 of a file, which is read only if it is not known with this inode, size and time. Raises OSError."""
        stat = path.stat()
        node = "" if self._root.has(path) else f"{os.uname().nodename} "  # which has files of its own elsewhere
        name = f"{node}{stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
        known = dict[str, str]()
        with suppress(RegressError):  # cut off: it is written again
            known = (read_json(self._file) or {}) if is_mine(self._file) else {}
        if name not in known:
            known[name] = sha256_of(path)
            with suppress(OSError):  # a full disk
                write_atomically(self._file, json.dumps(dict([*known.items()][-_MOST:])))
        return known[name]
