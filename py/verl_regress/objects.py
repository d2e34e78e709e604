"""What snapshots share, by content, at `common/code/objects`: each file by hard link, each folder's bytecode by a link.

    <sha256>.f, <sha256>.x   one content, plain or executable; also the file of every snapshot that holds it
    <sha256>.bytecode/       what Python compiled from one set of names and contents

An object is only used where this user owns it and its bytes are those of its name: a link shares what happens to it.
Where links do not work the copy stays. Bytecode is bound to its source by hash (PEP 552), not by time: it stays valid.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import py_compile
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.util import MAGIC_NUMBER
from pathlib import Path

BYTECODE = "__pycache__"
_MODES = {"f": 0o444, "x": 0o555}


def share(objects: Path, directory: Path, tree: Mapping[str, str]) -> int:
    """Share the files of `tree` (path -> `f|x|l` and a sha256) at `directory` and give `verl/` its bytecode.

    Returns how many files were there already.
    """
    found = 0
    with _lock(objects, fcntl.LOCK_SH):
        for name, signature in tree.items():
            kind, digest = signature.split()
            if kind in _MODES:
                found += _share_file(objects / f"{digest}.{kind}", directory / name, _MODES[kind])
        _share_bytecode(objects, directory, tree)
    return found


def prune(objects: Path, snapshots: Path) -> None:
    """Remove what no snapshot holds any more, unless a snapshot is being made at this moment."""
    with _lock(objects, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_locked:
        if not is_locked:
            return
        used = {link.readlink().name for link in snapshots.glob(f"*/verl/**/{BYTECODE}") if link.is_symlink()}
        for path in objects.iterdir():
            if path.stat().st_uid != os.getuid():
                continue
            if path.is_dir() and path.name not in used:
                path.chmod(0o755)
                shutil.rmtree(path)
            elif path.is_file() and path.stat().st_nlink == 1:
                path.unlink()


@contextmanager
def _lock(objects: Path, how: int) -> Iterator[bool]:
    """Many may share at once, pruning is alone; False where that cannot be had (a file system without locks)."""
    objects.mkdir(parents=True, exist_ok=True)
    directory = os.open(objects, os.O_RDONLY)
    try:
        fcntl.flock(directory, how)
        is_locked = True
    except OSError:
        is_locked = False
    try:
        yield is_locked
    finally:
        os.close(directory)


def _share_file(shared: Path, file: Path, mode: int) -> bool:
    """Make `file` and `shared` the same file; True where `shared` was there, and then its bytes stay."""
    file.chmod(mode)
    is_there = _is_intact(shared)
    source, target = (shared, file) if is_there else (file, shared)
    temporary = target.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        os.link(source, temporary)
        temporary.replace(target)
    except OSError:  # another file system, too many links, the file of another user: the copy stays
        temporary.unlink(missing_ok=True)
        return False
    return is_there


def _is_intact(shared: Path) -> bool:
    try:
        state = shared.lstat()
        return state.st_uid == os.getuid() and hashlib.sha256(shared.read_bytes()).hexdigest() == shared.stem
    except OSError:
        return False


def _share_bytecode(objects: Path, directory: Path, tree: Mapping[str, str]) -> None:
    """Link each folder of verl's Python files to its bytecode, which is compiled where nobody did."""
    folders: dict[Path, list[str]] = {}
    for name in tree:
        if name.startswith("verl/") and name.endswith(".py"):
            folders.setdefault(Path(name).parent, []).append(name)
    missing: dict[Path, Path] = {}
    for folder, names in folders.items():
        contents = "".join(f"{Path(name).name}\0{tree[name]}\0" for name in sorted(names))
        key = hashlib.sha256(f"{sys.implementation.cache_tag} {MAGIC_NUMBER.hex()}\0{contents}".encode()).hexdigest()
        shared = objects / f"{key}.bytecode"
        if not (shared.is_dir() and shared.stat().st_uid == os.getuid()):
            missing[shared] = folder
        (directory / folder / BYTECODE).symlink_to(os.path.relpath(shared, directory / folder))
    if missing:
        with ProcessPoolExecutor() as pool:
            list(pool.map(_compile_folder, [directory] * len(missing), missing.values(), missing.keys()))


def _compile_folder(directory: Path, folder: Path, shared: Path) -> None:
    temporary = shared.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    for source in (directory / folder).glob("*.py"):
        compiled = temporary / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        try:
            py_compile.compile(
                str(source), str(compiled), str(folder / source.name), doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
            )  # fmt: skip
            compiled.chmod(0o444)
        except py_compile.PyCompileError:
            continue  # a template, or for another Python: who imports it is told
    temporary.chmod(0o555)
    try:
        temporary.rename(shared)
    except OSError:  # another was first
        temporary.chmod(0o755)
        shutil.rmtree(temporary)
