"""Snapshots: immutable verl source trees at `common/code/verl/<code_id>`, each with its marker and `snapshot.json`."""

import argparse
import compileall
import hashlib
import json
import os
import re
import secrets
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any, BinaryIO

from verl_regress.base import ids, say
from verl_regress.base.errors import BadInput, RegressError, first, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.base.trust import need
from verl_regress.store import artefact, commit_tree, requirements, tarball

MARKER_FILE = "mvp_marker.py"
RECORD_FILE = "snapshot.json"
# What the stream (scripts/lib/snapshot.bash) has about a tree: METADATA of the release that it comes from, which pip stores next to it, and
# what its commit has, as git lists it.
METADATA_MEMBER, COMMIT_MEMBER = ".verl-regress.metadata", ".verl-regress.commit"
BYTECODE = "__pycache__"
KNOB = "CODE_ID"
TREE = "{tree}"  # in a code id: the first digits of the tree's hash, once known

# Processes that compile a snapshot, one for so many files: more would take longer to start than they save.
_COMPILERS, _FILES_EACH = 4, 100
_TREE_DIGITS, _COMMIT_DIGITS = 8, 8
_OF_TREE = re.compile(rf"verl-([0-9a-f]{{{_TREE_DIGITS}}})")  # an id that names a tree, as `auto` makes it
# We write these at the top of every snapshot, so they are not part of the hashed tree.
_OURS = frozenset({MARKER_FILE, RECORD_FILE})

# What others read of a record.
_NEEDED = {"code_id", "source", "revision", "dirty", "tree_sha256", "verl_version", "requirements"}

Record = dict[str, Any]
"""What `snapshot.json` holds: code_id, source, revision, dirty, changed (how many files; older ones lack it), tree_sha256, file_count,
verl_version, created, requirements (verl_regress.store.requirements), and broken, the Python files that do not compile, if there are any."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `snapshot create | find`."""
    actions = parser.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create", help="make a snapshot of the tree whose tar is on stdin")
    find = actions.add_parser(
        "find", help="print the code id if that snapshot exists, from that source; change nothing"
    )
    for action in (create, find):
        action.add_argument(
            "--code-id", required=True, help=f"{TREE} in it becomes the first 8 digits of the tree's hash"
        )
        action.add_argument("--source", required=True, help="VERL_SOURCE as it was given")
        action.add_argument("--revision", required=True, help="the git commit or the version; empty: not known")


def run(args: argparse.Namespace) -> int:
    """Do what `args.action` says; returns 0."""
    root = SharedRoot(Path(args.shared_root))
    if args.action == "create":
        print(create(root, args.code_id, args.source, args.revision, sys.stdin.buffer)["code_id"])
    else:
        print(find(root, args.code_id, args.source, args.revision) or "")
    return 0


def create(root: SharedRoot, code_id: str, source: str, revision: str, stream: BinaryIO) -> Record:
    """Make the snapshot `code_id` of the tree in the tar `stream`, or skip it if it has that tree already. Returns its record.

    Raises BadInput for a code id that cannot be used, a stream that `tarball.unpack` refuses, a tree without verl/__init__.py or with files
    that Git LFS did not fetch, and if `code_id` is another tree; nothing is left behind then.
    """
    _directory(root, code_id.replace(TREE, "0" * _TREE_DIGITS))
    directory = root.snapshots / f".{os.getpid()}.{secrets.token_hex(4)}.tmp"
    artefact.make_directory(directory)
    try:
        tarball.unpack(stream, directory, source)
        metadata, listing = (_take(directory / name) for name in (METADATA_MEMBER, COMMIT_MEMBER))
        if not (directory / "verl" / "__init__.py").is_file():
            raise BadInput(
                f"{source} (from VERL_SOURCE) has no verl/__init__.py, so it is not a verl source tree: name the folder or the repository that contains the folder 'verl'."
            )
        for brought in list(directory.rglob(BYTECODE)):  # it was compiled elsewhere
            artefact.delete(brought)
        _need_fetched(directory, source)
        changes = [] if listing is None else _changes(directory, listing)
        tree_sha256, file_count = tree_of(directory)
        code_id = code_id.replace(TREE, tree_sha256[:_TREE_DIGITS])
        target = _directory(root, code_id)
        _need_its_tree(code_id, tree_sha256, f"{KNOB}={code_id}", f"{source} (from VERL_SOURCE)")
        record: Record = {
            "code_id": code_id,
            "source": source,
            "revision": revision,
            "dirty": bool(changes),
            "changed": len(changes),
            "tree_sha256": tree_sha256,
            "file_count": file_count,
            "verl_version": verl_version(directory),
            "requirements": requirements.declared(
                directory, None if metadata is None else metadata.decode(errors="replace")
            ),
            "created": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }
        if os.path.lexists(target):
            return _keep(root, record)
        _compile(directory, target, file_count)
        if broken := _broken(directory):
            record["broken"] = broken
            name, why = next(iter(broken.items()))
            more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
            say.warn(
                f"{source} has Python files that do not compile ({name}: {why}{more}): jobs that load one are refused."
            )
        _write_ours(directory, record)
        _make_read_only(directory)
        try:
            directory.rename(target)
        except OSError:
            if os.path.lexists(target):  # another one has made it meanwhile
                return _keep(root, record)
            raise
        say.changed(f"snapshot {code_id} made from {_described(record)}, {file_count} files at {target}")
        if changes:
            say.info(f"not as in the commit: {shown(first(changes))} ({len(changes)} in all)")
        return record
    finally:
        artefact.delete(directory)


def find(root: SharedRoot, code_id: str, source: str, revision: str) -> str | None:
    """Return the id of the snapshot `code_id`, in which TREE may be any tree, if it was made from `source` at `revision`.

    Raises BadInput for a code id that cannot be used, and for a snapshot that `need_whole` refuses.
    """
    _directory(root, code_id.replace(TREE, "0" * _TREE_DIGITS))
    for known, record in list_snapshots(root).items():
        named = code_id.replace(TREE, record["tree_sha256"][:_TREE_DIGITS])
        if named == known and (record["source"], record["revision"], record["dirty"]) == (source, revision, False):
            target = root.snapshots / known
            need_whole(target, record, f"{KNOB}={known}")
            say.skip(f"snapshot {known} at {target} (exists, same source)")
            return known
    return None


def list_snapshots(root: SharedRoot) -> dict[str, Record]:
    """The records of the snapshots that this user can read, by code id and in its order."""
    found = {}
    for file in sorted(root.snapshots.glob(f"*/{RECORD_FILE}")):
        with suppress(OSError, ValueError):  # another user closed it, or it is damaged
            if ids.NAME.fullmatch(file.parent.name):
                found[file.parent.name] = _read_record(file.parent)
    return found


def load(
    root: SharedRoot, code_id: str, origin: str = "the command line", was: Mapping[str, Any] | None = None
) -> Record:
    """Return the record of the snapshot `code_id`. `origin` says in messages where that id was given, and `was` is the record that a job kept.

    Raises BadInput, listing the ids that exist, if there is no such snapshot or it has no record.
    """
    target = _directory(root, code_id)
    escape = root.escape_of(target) or root.escape_of(target / "verl")
    if escape is not None:
        raise BadInput(f"{KNOB}={code_id} (from {origin}) is refused: {escape}; name another snapshot.")
    if not target.is_dir():
        # A further attempt runs the code of its job: no other.
        others = ", ".join(list_snapshots(root)) if was is None else ""
        raise BadInput(
            f"{KNOB}={code_id} (from {origin}) has no snapshot under {root.snapshots}: "
            f"make {'one' if was is None else 'it again'} with '{_make(code_id, was)}'"
            + (f" or use one of: {others}." if others else ".")
        )
    try:
        record = _read_record(target)
    except (OSError, ValueError) as error:
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be used: {shown(str(error))}"
        raise BadInput(
            f"{KNOB}={code_id} (from {origin}) is not usable, because {target} has no complete snapshot ({RECORD_FILE} {problem}): move it "
            f"away and make it again with '{_make(code_id, was)}', or name another {KNOB}."
        ) from None
    _need_its_tree(code_id, record["tree_sha256"], f"{KNOB}={code_id} (from {origin})", str(target))
    return record


@dataclass(frozen=True)
class Use:
    """What a snapshot is used for: since when it must be whole, how the cure ends, and the error that is raised if it is not whole."""

    since: str = "it was made"
    then: str = ""
    error: Callable[[str], RegressError] = BadInput


def need_whole(
    target: Path, record: Mapping[str, Any], named: str, use: Use | None = None, trusted: Collection[str] | None = None
) -> None:
    """Read every file of the snapshot at `target`, which messages call `named`.

    Raises the error of `use` if it is not the tree of `record` (any more), and BadInput if a user whom we do not trust can change it:
    `trusted` are those of a job, as recorded when it was submitted.
    """
    use = use or Use()
    again = f"make it again with '{_make(target.name, record)}'{use.then}"
    if not target.is_dir():
        raise use.error(f"{named} was removed after {use.since} ({target} is not there): {again}.")
    need(target, named, f"or make a snapshot of your own under another {KNOB}{use.then}", trusted)
    tree = tree_of(target)[0]
    if tree != record["tree_sha256"]:
        trees = f"{target}: tree {tree[:12]}, recorded {record['tree_sha256'][:12]}"
        raise use.error(f"{named} was changed after {use.since} ({trees}): remove it ({_removal(target)}) and {again}.")


def _need_its_tree(code_id: str, tree: str, named: str, where: str) -> None:
    """Raise BadInput for an id that names another tree."""
    digits = _OF_TREE.fullmatch(code_id)
    if digits is not None and not tree.startswith(digits[1]):
        raise BadInput(
            f"{named} names the tree {digits[1]}, but {where} has the tree {tree[:_TREE_DIGITS]}: name it verl-{tree[:_TREE_DIGITS]}, or "
            "something else."
        )


def _directory(root: SharedRoot, code_id: str) -> Path:
    return root.snapshots / ids.check_name(code_id, KNOB)


def _read_record(target: Path) -> Record:
    """Raises OSError, and ValueError for something that is not a record."""
    record: Record = json.loads((target / RECORD_FILE).read_text(encoding="utf-8"))
    missing = _NEEDED - record.keys() if isinstance(record, dict) else _NEEDED
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    return record


def _keep(root: SharedRoot, new: Record) -> Record:
    """The record of the snapshot that exists already. Raises BadInput if it has another tree than `new`."""
    target = _directory(root, new["code_id"])
    old = load(root, new["code_id"])
    need_whole(target, old, f"{KNOB}={target.name}")
    if old["tree_sha256"] == new["tree_sha256"]:
        is_same = (old["source"], old["revision"]) == (new["source"], new["revision"])
        same = "source" if is_same else f"tree from {_described(old)}"
        say.skip(f"snapshot {target.name} at {target} (exists, same {same})")
        return old
    raise BadInput(
        f"{KNOB}={target.name} is a snapshot of {_described(old)}, tree {old['tree_sha256'][:12]}, and VERL_SOURCE now gives "
        f"{_described(new)}, tree {new['tree_sha256'][:12]}; a snapshot is never changed: choose another {KNOB}, or remove it "
        f"({_removal(target)})."
    )


def tree_of(directory: Path) -> tuple[str, int]:
    """The hash over the kind (f, x: executable, or l: a link), the name and the content of each file, and how many files there are."""
    kinds = {"100644": "f", "100755": "x", "120000": "l"}
    entries = {
        file.name: f"{kinds[file.mode]} {hashlib.sha256(file.content).hexdigest()}"
        for file in commit_tree.files_of(directory, BYTECODE)
        if file.name not in _OURS
    }
    # NUL ends an entry: it is the one byte that no path can contain.
    text = b"".join(os.fsencode(f"{kind} {name}\0") for name, kind in sorted(entries.items()))
    return hashlib.sha256(text).hexdigest(), len(entries)


def _take(member: Path) -> bytes | None:
    """What a member of the stream that is not part of the tree says; None if there is none."""
    if not member.is_file():
        return None
    content = member.read_bytes()
    member.unlink()
    return content


def _need_fetched(directory: Path, source: str) -> None:
    """Raises BadInput if the tree has files as Git LFS leaves them where they were not fetched."""
    pointers = [file.name for file in commit_tree.files_of(directory, BYTECODE) if file.is_lfs_pointer]
    if pointers:
        raise BadInput(
            f"{source} (from VERL_SOURCE) has only the Git LFS pointers of {shown(first(sorted(pointers)))}: run 'git lfs pull' in a checkout, and name that as path:DIR."
        )


def _changes(directory: Path, listing: bytes) -> list[str]:
    """The files that differ from those of the commit; bytecode is never taken, and our own files are replaced."""
    found = commit_tree.differences(commit_tree.files_of(directory, BYTECODE), listing)
    return [name for name in found if name not in _OURS and BYTECODE not in name.split("/")]


def _compile(directory: Path, target: Path, file_count: int) -> None:
    """Compile a tree of so many files, which is going to be at `target`. What does not compile, such as a template, gets no bytecode."""
    compileall.compile_dir(
        directory / "verl",
        quiet=2,
        stripdir=directory,
        prependdir=target,
        workers=min(_COMPILERS, 1 + file_count // _FILES_EACH),
        invalidation_mode=PycInvalidationMode.CHECKED_HASH,  # bound to its source (PEP 552)
    )


def _broken(directory: Path) -> dict[str, str]:
    """The Python files of a tree that was compiled and have no bytecode, each with the reason."""
    found = {}
    for path in sorted((directory / "verl").rglob("*.py")):
        if not Path(cache_from_source(path)).exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
                except (SyntaxError, ValueError, RecursionError) as error:
                    found[path.relative_to(directory).as_posix()] = shown(str(error))
    return found


def verl_version(directory: Path) -> str:
    """What the verl in this directory calls its version."""
    file = directory / "verl" / "version" / "version"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else "unknown"


def _write_ours(directory: Path, record: Record) -> None:
    marker, text = f'MARKER = "{record["code_id"]}"\n', json.dumps(record, indent=2, sort_keys=True) + "\n"
    for file, content in ((directory / MARKER_FILE, marker), (directory / RECORD_FILE, text)):
        file.unlink(missing_ok=True)  # a tree copied from a snapshot contains that one's
        file.write_text(content, encoding="utf-8")


def _make_read_only(directory: Path) -> None:
    for folder, _, files in os.walk(directory):
        for path in (Path(folder) / name for name in files):
            if not path.is_symlink():
                path.chmod(0o555 if path.stat().st_mode & 0o111 else 0o444)
        Path(folder).chmod(0o555)


def _described(record: Record) -> str:
    return f"{origin_of(record)} (verl {record['verl_version']})"


def origin_of(record: Mapping[str, Any]) -> str:
    """What the code of a snapshot is, for the user who submits it: `the tree /home/me/verl at 1d80895 and 1 changed file`."""
    source, revision, changed = record["source"], record["revision"], record.get("changed", 0)
    kind, _, place = source.partition(":")
    named = f"the tree {place}" if kind == "path" else source
    commit = f" at {revision[:_COMMIT_DIGITS]}" if revision and kind != "pypi" else ""
    if not record["dirty"]:
        return f"{named}{commit}"
    files = "changed files" if not changed else f"{changed} changed file{'s' if changed > 1 else ''}"
    return f"{named}{commit} and {files}"


def _make(code_id: str, was: Mapping[str, Any] | None = None) -> str:
    """The command that makes it, from what it `was` made from: a branch may have moved, so its commit."""
    source = was["source"] if was else "…"
    revision = was.get("revision") if was else None
    if revision and source.startswith("git:"):
        source = f"{source.rpartition('@')[0]}@{revision}"
    return f"make snapshot {KNOB}={code_id} VERL_SOURCE={source}"


def _removal(target: Path) -> str:
    return f"chmod -R u+w {target} && rm -rf {target}"
