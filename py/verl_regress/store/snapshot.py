"""Snapshots: immutable verl source trees at `common/code/verl/<code_id>`, each with its marker and `snapshot.json`."""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any, BinaryIO

from verl_regress.base import ids, say
from verl_regress.base.errors import BadInput, Exit, RegressError, first, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.base.owner import Foreign, by_mode, by_owner
from verl_regress.store import artefact, requirements, tarball

MARKER_FILE = "mvp_marker.py"
RECORD_FILE = "snapshot.json"
# How a dirty tree differs from its revision: a member of the stream (scripts/lib/snapshot.bash), kept in the record.
DIFF_MEMBER = ".verl-regress.diff"
# The METADATA of the release that a tree comes from, which pip stores next to it: another such member.
METADATA_MEMBER = ".verl-regress.metadata"
BYTECODE = "__pycache__"
KNOB = "CODE_ID"
TREE = "{tree}"  # in a code id: the first digits of the tree's hash, once known

# Processes that compile a snapshot, one for so many files: more would take longer to start than they save.
_COMPILERS, _FILES_EACH = 4, 100
_TREE_DIGITS = 8
# We write these at the top of every snapshot, so they are not part of the hashed tree.
_OURS = frozenset({MARKER_FILE, RECORD_FILE})

# What others read of a record.
_NEEDED = {"code_id", "source", "revision", "dirty", "tree_sha256", "verl_version", "requirements"}

Record = dict[str, Any]
"""What `snapshot.json` holds: code_id, source, revision, dirty, diff, tree_sha256, file_count, verl_version, created,
requirements (verl_regress.store.requirements)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `snapshot create | check | list`."""
    actions = parser.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create", help="make a snapshot of the tree whose tar is on stdin")
    check = actions.add_parser("check", help="print 'same', 'other' or 'absent', and the code id; change nothing")
    for action in (create, check):
        action.add_argument(
            "--code-id", required=True, help=f"{TREE} in it becomes the first 8 digits of the tree's hash"
        )
        action.add_argument("--source", required=True, help="VERL_SOURCE as it was given")
        action.add_argument("--revision", required=True, help="the git commit or the version; empty: not known")
    create.add_argument("--dirty", action="store_true", help="the tree differs from its revision")
    actions.add_parser("list", help="print the code ids, one per line")


def run(args: argparse.Namespace) -> int:
    """Do what `args.action` says; returns 0. Raises as `create`, `verify` and `check` do."""
    root = SharedRoot(Path(args.shared_root))
    if args.action == "create":
        record = create(root, args.code_id, args.source, args.revision, sys.stdin.buffer, dirty=args.dirty)
        print(record["code_id"])
    elif args.action == "check":
        code_id = find(root, args.code_id, args.source, args.revision)
        print(check(root, code_id, args.source, args.revision) if TREE not in code_id else "absent", code_id)
    else:
        for code_id in list_snapshots(root):
            print(code_id)
    return 0


def create(root: SharedRoot, code_id: str, source: str, revision: str, stream: BinaryIO, *, dirty: bool) -> Record:
    """Make the snapshot `code_id` of the tree in the tar `stream`, or skip it if it has that tree already.

    TREE in `code_id` becomes the first 8 digits of the tree's hash. Returns the record. Raises BadInput for a code id
    that cannot be used, a stream that `tarball.unpack` refuses, a tree without verl/__init__.py, and if `code_id` is
    another tree; nothing is left behind then.
    """
    _directory(root, code_id.replace(TREE, "0" * _TREE_DIGITS))
    directory = root.snapshots / f".{os.getpid()}.{secrets.token_hex(4)}.tmp"
    artefact.make_directory(directory)
    try:
        tarball.unpack(stream, directory, source)
        diff = _take(directory, DIFF_MEMBER)
        metadata = _take(directory, METADATA_MEMBER)
        if not (directory / "verl" / "__init__.py").is_file():
            raise BadInput(
                f"{source} (from VERL_SOURCE) has no verl/__init__.py, so it is not a verl source tree: name the folder or the repository that contains the folder 'verl'."
            )
        _drop_bytecode(directory)
        tree = _tree(directory)
        tree_sha256 = _tree_sha256(tree)
        code_id = code_id.replace(TREE, tree_sha256[:_TREE_DIGITS])
        target = _directory(root, code_id)
        record: Record = {
            "code_id": code_id,
            "source": source,
            "revision": revision,
            "dirty": dirty,
            "diff": diff,
            "tree_sha256": tree_sha256,
            "file_count": len(tree),
            "verl_version": _verl_version(directory),
            "requirements": requirements.declared(directory, metadata),
            "created": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }
        if os.path.lexists(target):
            return _keep(target, record, tree)
        _write_ours(directory, record)
        _compile(directory, target)
        _make_read_only(directory)
        try:
            directory.rename(target)
        except OSError:
            if not os.path.lexists(target):
                raise
            return _keep(target, record, tree)
    finally:
        artefact.delete(directory)
    say.changed(f"snapshot {code_id} made from {_described(record)}, {record['file_count']} files at {target}")
    return record


def find(root: SharedRoot, code_id: str, source: str, revision: str) -> str:
    """Return the code id that `code_id`, which may contain TREE, means; `code_id` itself if there is no such snapshot."""
    for known in list_snapshots(root) if TREE in code_id else []:
        with suppress(OSError, ValueError):  # another user closed it, or it is damaged: it is not the one
            record = _read_record(root.snapshots / known)
            named = code_id.replace(TREE, record["tree_sha256"][:_TREE_DIGITS])
            if named == known and (record["source"], record["revision"], record["dirty"]) == (source, revision, False):
                return known
    return code_id


def check(root: SharedRoot, code_id: str, source: str, revision: str) -> str:
    """Return `same` if `code_id` is an intact tree of `source` at `revision`, else `other` or `absent`.

    Raises BadInput for a code id that cannot be used and for something that is not a snapshot, RegressError for a
    snapshot that was changed after it was made.
    """
    target = _directory(root, code_id)
    if not os.path.lexists(target):
        return "absent"
    record = _record(target)
    need_trusted(target, "the command line")
    if (record["source"], record["revision"], record["dirty"]) != (source, revision, False):
        return "other"
    verify(root, code_id)
    say.skip(f"snapshot {code_id} at {target} (exists, same source)")
    return "same"


def list_snapshots(root: SharedRoot) -> list[str]:
    """Return the code ids that have a snapshot, in order."""
    if not root.snapshots.is_dir():
        return []
    return sorted(
        path.name
        for path in root.snapshots.iterdir()
        if ids.NAME.fullmatch(path.name) and (path / RECORD_FILE).is_file()
    )


def load(root: SharedRoot, code_id: str, origin: str = "the command line") -> Record:
    """Return the record of the snapshot `code_id`; `origin` says in messages where that id was given.

    Raises BadInput, listing the ids that exist, if there is no such snapshot or it is not complete.
    """
    target = _directory(root, code_id)
    escape = root.escape_of(target) or root.escape_of(target / "verl")
    if escape is not None:
        raise BadInput(f"{KNOB}={code_id} (from {origin}) is refused: {escape}; name another snapshot.")
    if not target.is_dir():
        others = ", ".join(list_snapshots(root))
        raise BadInput(
            f"{KNOB}={code_id} (from {origin}) has no snapshot under {root.snapshots}: "
            f"make one with '{_make(code_id)}'" + (f" or use one of: {others}." if others else ".")
        )
    try:
        record = _read_record(target)
    except (OSError, ValueError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be used: {shown(str(error))}"
        raise BadInput(
            f"{KNOB}={code_id} (from {origin}) is not usable, because {target} has no complete snapshot ({RECORD_FILE} {problem}): move it "
            f"away and make it again with '{_make(code_id)}', or name another {KNOB}."
        ) from None
    if not (target / "verl" / "__init__.py").is_file():
        raise BadInput(
            f"{KNOB}={code_id} (from {origin}) is not usable, because {target} has no complete snapshot (verl/__init__.py is missing): "
            f"{_cure(target)}."
        )
    return record


def verify(root: SharedRoot, code_id: str, trusted: Iterable[int] | None = None) -> Record:
    """Return the record of the snapshot `code_id` after reading every file of it.

    Raises BadInput as `load` does, and RegressError (check failed) if the tree is not the one that was recorded, or if a
    user whom we do not trust (`is_trusted`) can change what runs.
    """
    record = load(root, code_id)
    target = _directory(root, code_id)
    found = damage(target, record, trusted)
    if found is not None:
        raise RegressError(
            f"the snapshot {target} was changed after it was made ({found}): {_cure_of(found, target)}.",
            Exit.CHECK_FAILED,
        )
    return record


def need_trusted(target: Path, origin: str) -> None:
    """Whoever can change a snapshot or its record can change both. Raises BadInput if that is a user whom we do not trust."""
    for path in (target, target / RECORD_FILE):
        foreign = _foreign(path, target=target)
        if foreign is not None:
            raise BadInput(
                f"{KNOB}={target.name} (from {origin}) is refused, because {foreign}, and what is there would run as you: {_cure_of(foreign, target)}."
            )


def need_whole(target: Path, record: Mapping[str, Any], origin: str) -> None:
    """Read every file of the snapshot at `target`. Raises BadInput if it differs from `record`."""
    found = damage(target, record)
    if found is not None:
        raise BadInput(
            f"{KNOB}={target.name} (from {origin}) is not usable, because the snapshot {target} was changed after it was made "
            f"({found}): {_cure_of(found, target)}."
        )


def damage(target: Path, record: Mapping[str, Any], trusted: Iterable[int] | None = None) -> Foreign | str | None:
    """How the snapshot at `target` differs from its `record`, after reading every file; None if it does not.

    Bytecode and the marker run, too, and are not part of the tree: they must belong to a user whom we trust
    (`is_trusted`), as must every folder, whose owner can replace what is in it.
    """
    try:
        found = _tree_sha256(_tree(target))
        foreign = next(filter(None, (_foreign(path, trusted, target) for path in _unhashed(target))), None)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    if foreign is not None:
        return foreign
    return None if found == record["tree_sha256"] else f"tree {_short(found)}, recorded {_short(record['tree_sha256'])}"


def _unhashed(target: Path) -> Iterator[Path]:
    """Every folder of a snapshot, and the files that its hash leaves out: ours, and bytecode."""
    for name, directories, files in os.walk(target):
        folder = Path(name)
        yield folder
        yield from (folder / ours for ours in _OURS.intersection(files) if folder == target)
        if BYTECODE in directories:
            yield folder / BYTECODE
            yield from (folder / BYTECODE).iterdir()


def _foreign(path: Path, trusted: Iterable[int] | None = None, target: Path | None = None) -> Foreign | None:
    """Whether a user whom we do not trust can change what `path` leads to; the owner of a link can change where it leads."""
    own = path.lstat()
    for uid in (_owner_of(path), own.st_uid):
        if (foreign := by_owner(path, uid, trusted)) is not None:
            return foreign
    return by_mode(path, path.stat(), None if stat.S_ISLNK(own.st_mode) else target)


def _owner_of(path: Path) -> int:
    """The owner of what `path` leads to."""
    return path.stat().st_uid


def need_unchanged(
    target: Path,
    record: Mapping[str, Any],
    since: str = "the job was submitted",
    then: str = "submit the job again",
    trusted: Iterable[int] | None = None,
) -> None:
    """For a job that starts, and for a session: check that its snapshot still exists, unchanged. Raises RegressError.

    `trusted` are the users whose snapshots a job runs, as recorded when it was submitted.
    """
    again = f"make it again with '{_make(target.name, record['source'])}', and {then}"
    if not target.is_dir():
        raise RegressError(f"The snapshot {target.name} was removed after {since} ({target} is not there): {again}.")
    found = damage(target, record, trusted)
    if found is not None:
        cure = (
            f"{_cure_of(found, target)}, and {then}"
            if isinstance(found, Foreign)
            else f"remove it ({_removal(target)}), {again}"
        )
        raise RegressError(f"The snapshot {target.name} was changed after {since} ({target}: {found}): {cure}.")


def _directory(root: SharedRoot, code_id: str) -> Path:
    return root.snapshots / ids.check_name(code_id, KNOB)


def _read_record(target: Path) -> Record:
    """Raises OSError, and ValueError for something that is not a record."""
    record: Record = json.loads((target / RECORD_FILE).read_text(encoding="utf-8"))
    missing = _NEEDED - record.keys() if isinstance(record, dict) else _NEEDED
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    return record


def _record(target: Path) -> Record:
    try:
        return _read_record(target)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{target} exists but is not a snapshot made by verl-regress ({RECORD_FILE}: {error}): "
            f"move it away, or choose another {KNOB}."
        ) from error


def _keep(target: Path, new: Record, new_tree: Mapping[str, str]) -> Record:
    """Return the record of the snapshot at `target`, which must have the tree `new_tree`; BadInput otherwise."""
    old = _record(target)
    need_trusted(target, "the command line")
    old_tree = _tree(target)
    if old_tree == new_tree:
        same = (old["source"], old["revision"]) == (new["source"], new["revision"])
        say.skip(
            f"snapshot {new['code_id']} at {target} (exists, same {'source' if same else 'tree from ' + _described(old)})"
        )
        return old
    names = sorted(name for name in old_tree.keys() | new_tree.keys() if old_tree.get(name) != new_tree.get(name))
    raise BadInput(
        f"{KNOB}={new['code_id']} is a snapshot of {_described(old)}, tree {_short(_tree_sha256(old_tree))}, "
        f"and VERL_SOURCE now gives {_described(new)}, tree {_short(new['tree_sha256'])}: "
        f"{len(names)} of {len(old_tree.keys() | new_tree.keys())} files differ ({first(names)}); a snapshot is never changed: choose another {KNOB}, or {_cure(target)}."
    )


def _tree(directory: Path) -> dict[str, str]:
    """Return a value for each file, by its path: `f`, `x` (executable) or `l` (a link), and a sha256."""
    return dict(sorted((name, _signature(path)) for name, path in _files(directory) if name not in _OURS))


def _files(directory: Path) -> Iterator[tuple[str, Path]]:
    for folder, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if name != BYTECODE]
        links = [name for name in directories if (Path(folder) / name).is_symlink()]
        for path in (Path(folder) / name for name in [*files, *links]):
            yield path.relative_to(directory).as_posix(), path


def _signature(path: Path) -> str:
    if path.is_symlink():
        return f"l {hashlib.sha256(os.fsencode(path.readlink())).hexdigest()}"
    kind = "x" if path.stat().st_mode & 0o111 else "f"
    return f"{kind} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def _tree_sha256(tree: Mapping[str, str]) -> str:
    # NUL ends an entry: it is the one byte that no path can contain.
    return hashlib.sha256(b"".join(os.fsencode(f"{kind} {name}\0") for name, kind in tree.items())).hexdigest()


def _take(directory: Path, member: str) -> str | None:
    """The text of a member of the stream that is not part of the tree, or None; bytes that are not text are dropped."""
    file = directory / member
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    file.unlink()
    return text


def _drop_bytecode(directory: Path) -> None:
    """Remove bytecode that came with a tree: it was compiled elsewhere."""
    for brought in list(directory.rglob(BYTECODE)):
        if brought.is_dir() and not brought.is_symlink():
            shutil.rmtree(brought)
        else:
            brought.unlink()


def _compile(directory: Path, target: Path) -> None:
    """Give `verl/` in `directory`, which becomes `target`, the bytecode that job processes use but never write.

    It is bound to its source by hash (PEP 552), not by time. What does not compile (a template, or for another Python) is
    left out: importing it reports the error.
    """
    files = sum(1 for _ in (directory / "verl").rglob("*.py"))
    compileall.compile_dir(
        directory / "verl",
        quiet=2,
        stripdir=directory,
        prependdir=target,
        workers=min(_COMPILERS, 1 + files // _FILES_EACH),
        invalidation_mode=PycInvalidationMode.CHECKED_HASH,
    )


def _verl_version(directory: Path) -> str:
    file = directory / "verl" / "version" / "version"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else "unknown"


def _write_ours(directory: Path, record: Record) -> None:
    for name, text in (
        (MARKER_FILE, f'MARKER = "{record["code_id"]}"\n'),
        (RECORD_FILE, json.dumps(record, indent=2, sort_keys=True) + "\n"),
    ):
        file = directory / name
        # A tree copied from a snapshot contains that one's.
        file.unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")


def _make_read_only(directory: Path) -> None:
    for folder, _, files in os.walk(directory):
        for path in (Path(folder) / name for name in files):
            if not path.is_symlink():
                path.chmod(0o555 if path.stat().st_mode & 0o111 else 0o444)
        Path(folder).chmod(0o555)


def _described(record: Record) -> str:
    revision = f" at {record['revision'][:12]}" if record["revision"] else ""
    changes = " with uncommitted changes" if record["dirty"] else ""
    return f"{record['source']}{revision}{changes} (verl {record['verl_version']})"


def _cure_of(found: Foreign | str, target: Path) -> str:
    return (
        f"{found.cure}, or make a snapshot of your own under another {KNOB}"
        if isinstance(found, Foreign)
        else _cure(target)
    )


def _cure(target: Path) -> str:
    return f"remove it ({_removal(target)}) and make it again with '{_make(target.name)}'"


def _make(code_id: str, source: str = "…") -> str:
    return f"make snapshot {KNOB}={code_id} VERL_SOURCE={source}"


def _removal(target: Path) -> str:
    return f"chmod -R u+w {target} && rm -rf {target}"


def _short(digest: str) -> str:
    return digest[:12]
