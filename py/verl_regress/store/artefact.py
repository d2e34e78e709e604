"""Artefacts: directories made once, atomically; `manifest.json` says what they were made from."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from verl_regress import __version__
from verl_regress.base import say
from verl_regress.base.errors import BadInput, RegressError, first

MANIFEST = "manifest.json"
_SHOWN_REVISION = 12


@dataclass(frozen=True)
class Origin:
    """What an artefact is made from: the source as the user named it, its exact revision, and the seed if one matters."""

    source: str
    revision: str
    seed: int | None = None

    def __str__(self) -> str:
        """`synthetic (revision 0123456789ab, seed 1)`."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.source} (revision {self.revision[:_SHOWN_REVISION]}{seed})"


@dataclass(frozen=True)
class Manifest:
    """An artefact's `manifest.json`; `files` has the `sha256` and the `bytes` of each file."""

    name: str
    source: str
    revision: str
    seed: int | None
    builder: str
    files: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]
    created: str


def ensure(target: Path, origin: Origin, build: Callable[[Path], Mapping[str, Any]], *, knob: str) -> None:
    """Make the artefact `target` unless it exists. See `ensure_all`."""
    ensure_all([target], origin, lambda directories: build(directories[0]), knob=knob)


def ensure_all(
    targets: Sequence[Path], origin: Origin, build: Callable[[Sequence[Path]], Mapping[str, Any]], *, knob: str
) -> None:
    """Make the artefacts `targets`, which one call of `build` makes together, unless they exist.

    `build` gets one new directory for each target, fills them and returns facts worth keeping (JSON values). If two builders run at once,
    the first to finish wins. Raises as `are_there` does; RegressError if the directory cannot be written; whatever `build` raises. Then
    nothing is left behind.
    """
    if are_there(targets, origin, knob=knob):
        return
    suffix = f"{os.getpid()}.{secrets.token_hex(4)}.tmp"
    directories = [target.with_name(f".{target.name}.{suffix}") for target in targets]
    try:
        for directory in directories:
            make_directory(directory)
        facts = build(directories)
        for directory, target in zip(directories, targets, strict=True):
            _finish(directory, target, origin, facts, knob)
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


def are_there(targets: Sequence[Path], origin: Origin, *, knob: str) -> bool:
    """Do all `targets` exist, made from `origin`? Only the names and sizes of their files are checked. `knob` (such as `DATASET`) names them.

    Raises BadInput if one exists from another source, damaged, or is not an artefact.
    """
    found = {target: manifest for target in targets if (manifest := find(target)) is not None}
    for target, manifest in found.items():
        made_from = Origin(manifest.source, manifest.revision, manifest.seed)
        if made_from != origin:
            raise BadInput(
                f"{target} was made from {made_from}, and {knob}_SOURCE now asks for {origin}: "
                f"remove that directory, or choose another name with {knob}=NAME."
            )
        sizes = {name: path.stat().st_size for name in manifest.files if (path := target / name).is_file()}
        damaged = [name for name, file in manifest.files.items() if sizes.get(name) != file["bytes"]]
        if damaged:
            raise BadInput(
                f"{target} is damaged, {first(damaged)} missing or of another size than its {MANIFEST} says: "
                "remove that directory and run the step again."
            )
    if len(found) < len(targets):
        return False
    for target in targets:
        say.skip(f"{target} (exists, same source)")
    return True


def load(target: Path) -> Manifest:
    """The manifest of the artefact `target`. Raises BadInput if there is none."""
    try:
        return Manifest(**json.loads((target / MANIFEST).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise BadInput(
            f"{target} has no {MANIFEST} of verl-regress ({error}): move it away, or choose another name."
        ) from error


def find(target: Path) -> Manifest | None:
    """The manifest of the artefact `target`, or None if nothing has that name. Raises as `load` does."""
    return load(target) if os.path.lexists(target) else None


def sha256_of(path: Path) -> str:
    """The sha256 of a file's contents, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def make_directory(directory: Path) -> None:
    """Make a directory that does not exist, with its parents. Raises RegressError."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
    except OSError as error:
        raise RegressError(
            f"{directory.parent} cannot be written by uid {os.getuid()} ({error.strerror}): "
            "give that directory to the user who runs verl-regress, or set another WORKDIR."
        ) from error


def delete(path: Path) -> None:
    """Remove a file or a directory, even with read-only folders in it. Raises OSError."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o755)
    shutil.rmtree(path)


def _finish(directory: Path, target: Path, origin: Origin, facts: Mapping[str, Any], knob: str) -> None:
    # A folder copied from an artefact contains that one's manifest: replace it with ours.
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / MANIFEST)
    files = {
        str(path.relative_to(directory)): {"sha256": sha256_of(path), "bytes": path.stat().st_size} for path in paths
    }
    created, builder = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}", f"verl-regress {__version__}"
    made: dict[str, Any] = {"builder": builder, "files": files, "facts": dict(facts), "created": created}
    manifest = Manifest(target.name, **asdict(origin), **made)
    text = json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")
    for path in (directory, *directory.rglob("*")):  # everyone reads, only the owner writes, whatever the umask was
        path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        directory.rename(target)
    except OSError:
        if not are_there([target], origin, knob=knob):
            raise
        return
    described = "".join(f", {name.replace('_', ' ')} {value}" for name, value in facts.items())
    say.changed(f"{target} made from {origin}{described}")
