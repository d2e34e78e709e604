"""What snapshots share, by content, at `common/code/objects`: each file by hard link, each folder's bytecode by a link.

    <sha256>.f, <sha256>.x   one content, plain or executable: the file of every snapshot that has it
    <sha256>.cpython-311     what Python compiled from that content
    <26 letters>/            the bytecode of a folder: of one set of names and contents

An object is only used if this user owns it and its bytes match its name: whatever happens to a linked file happens to
all. If links do not work, the copy stays. Bytecode is bound to its source by hash (PEP 552), not by time, so it stays
valid.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import py_compile
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from verl_regress.base import lock

BYTECODE = "__pycache__"
_MODES = {"f": 0o444, "x": 0o555}
_PYTHON = sys.implementation.cache_tag


def share(objects: Path, directory: Path, tree: Mapping[str, str]) -> int:
    """Share the files of `tree` (path -> `f|x|l` and a sha256) at `directory` and give `verl/` its bytecode.

    Returns how many files were shared already.
    """
    found = 0
    objects.mkdir(parents=True, exist_ok=True)
    with lock.held(objects, fcntl.LOCK_SH):
        for name, signature in tree.items():
            kind, digest = signature.split()
            if kind in _MODES:
                found += _share_file(objects / f"{digest}.{kind}", directory / name, _MODES[kind])
        _share_bytecode(objects, directory, tree)
    return found


def prune(objects: Path, snapshots: Path) -> None:
    """Remove what no snapshot uses any more, unless a snapshot is being made right now."""
    objects.mkdir(parents=True, exist_ok=True)
    with lock.held(objects, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_held:
        for path in unused(objects, snapshots) if is_held else ():
            if path.is_dir():
                path.chmod(0o755)
                shutil.rmtree(path)
            else:
                path.unlink()


def unused(objects: Path, snapshots: Path, gone: Collection[Path] = ()) -> list[Path]:
    """This user's objects that no snapshot uses, or none but those in `gone`; call it while `objects` is locked."""
    links = (link for link in snapshots.glob(f"*/verl/**/{BYTECODE}") if link.is_symlink())
    used = {link.readlink().name for link in links if not any(link.is_relative_to(path) for path in gone)}
    ours = [path for path in objects.glob("*") if _is_ours(path)]
    folders = [path for path in ours if path.is_dir() and path.name not in used]
    leaving = Counter(path.stat().st_ino for directory in (*gone, *folders) for path in _files(directory))
    states = {path: path.stat() for path in ours if path.is_file()}
    return folders + [path for path, state in states.items() if state.st_nlink - leaving[state.st_ino] == 1]


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _share_file(shared: Path, file: Path, mode: int) -> bool:
    """Make `file` and `shared` the same file; True if `shared` existed, whose bytes are then kept."""
    file.chmod(mode)
    is_there = _is_intact(shared)
    source, target = (shared, file) if is_there else (file, shared)
    temporary = target.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        os.link(source, temporary)
        temporary.replace(target)
    except OSError:  # another file system, too many links, another user's file: the copy stays
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
    """Link each folder of verl's Python files to its bytecode, compiling it if that was not done before."""
    folders: dict[Path, list[str]] = {}
    for name in tree:
        if name.startswith("verl/") and name.endswith(".py"):
            folders.setdefault(Path(name).parent, []).append(name)
    missing: dict[Path, list[str]] = {}
    for folder, names in folders.items():
        contents = "".join(f"{Path(name).name}\0{tree[name]}\0" for name in sorted(names))
        digest = hashlib.sha256(f"{_PYTHON} {MAGIC_NUMBER.hex()}\0{contents}".encode()).digest()
        # Short: a link of up to 59 bytes takes no block of its own on ext4.
        shared = objects / base64.b32encode(digest[:16]).decode().rstrip("=").lower()
        if not _is_ours(shared):
            missing[shared] = names
        (directory / folder / BYTECODE).symlink_to(os.path.relpath(shared, directory / folder))
    compiled = {name: objects / f"{tree[name].split()[1]}.{_PYTHON}" for names in missing.values() for name in names}
    jobs = {path: name for name, path in compiled.items() if not _is_ours(path)}
    if jobs:
        with ProcessPoolExecutor() as pool:
            list(pool.map(_compile, [directory] * len(jobs), jobs.values(), jobs.keys(), chunksize=8))
    for shared, names in missing.items():
        _gather(shared, {f"{Path(name).stem}.{_PYTHON}.pyc": compiled[name] for name in names})


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _compile(directory: Path, name: str, compiled: Path) -> None:
    # `name` is compiled in as a placeholder for all files with this content; importing one corrects it.
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    # Under our own temporary name: py_compile's is an address in memory, which two processes may share.
    temporary = compiled.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        py_compile.compile(str(directory / name), str(temporary), name, doraise=True, invalidation_mode=mode)
    except py_compile.PyCompileError:
        return  # a template, or for another Python: importing it reports the error
    temporary.chmod(0o444)
    temporary.replace(compiled)


def _gather(shared: Path, files: Mapping[str, Path]) -> None:
    """Make the folder `shared` of links to `files`, whole or not at all."""
    temporary = shared.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    for name, path in files.items():
        if path.exists():
            try:
                os.link(path, temporary / name)
            except OSError:
                shutil.copy2(path, temporary / name)
    temporary.chmod(0o555)
    try:
        temporary.rename(shared)
    except OSError:  # another process was first
        temporary.chmod(0o755)
        shutil.rmtree(temporary)
