"""Tar streams from the host: read completely or refused, and unpacked so that nothing is written outside the target.

tarfile's own `filter="data"` is not used: the Python 3.11.2 of Debian 12 does not have it, and links that leave the
target were fixed in it as late as 3.11.13.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from verl_regress.base.errors import BadInput

# A complete archive ends with two blocks of zeros. tarfile accepts a stream that stops between two files.
_END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)
_CHUNK = 1 << 20


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Tail:
    """Passes a stream's bytes on and remembers the last ones."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._last = b""

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._last = (self._last + data)[-len(_END_OF_ARCHIVE) :]
        return data

    def ended_properly(self) -> bool:
        """Read the rest and return whether it ends as a complete archive does."""
        drain(self)
        return self._last == _END_OF_ARCHIVE


def unpack(stream: BinaryIO, target: Path, label: str) -> None:
    """Unpack the tar `stream` into the empty directory `target`: directories, files (0644, or 0755) and links inside.

    `label` names the stream in messages. Raises BadInput for a member that is absolute, climbs out with "..", is a
    device, a pipe or a hard link, occurs twice, or is a symbolic link out of the tree, and for a stream that is not a
    tar or is cut short; `target` then contains part of the tree.
    """
    links: list[tuple[Path, str]] = []
    with _reading(stream, label) as archive:
        for member in archive:
            path = _inside(target, member.name, label)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.issym():
                links.append((path, member.linkname))
            elif member.isfile():
                _write(archive, member, path, label)
            else:
                raise BadInput(
                    f"'{member.name}' in {label} is neither a file, a directory nor a symbolic link: leave it out."
                )
    # Links come last: no member can be written through a link while there is none.
    for path, points_to in links:
        _link(path, points_to, target, label)
    for path, points_to in links:
        if not path.resolve().is_relative_to(target.resolve()):
            raise _leaves(path.relative_to(target), points_to, label)


def read_files(stream: BinaryIO, names: Collection[str], label: str) -> dict[str, bytes]:
    """Return the contents of the files `names` in the tar `stream`; raises BadInput if one is missing or is not a file."""
    contents: dict[str, bytes] = {}
    with _reading(stream, label) as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isfile() and member.name in names else None
            if source is None:
                raise BadInput(
                    f"'{member.name}' in {label} was not expected: it must contain {_and(names)}, each an ordinary file."
                )
            contents[member.name] = source.read()
    missing = [name for name in names if name not in contents]
    if missing:
        raise BadInput(f"{label} has no {_and(missing)}: it must contain {_and(names)}.")
    return contents


def drain(stream: _Readable) -> None:
    """Read and discard the rest of `stream`: its writer must not see a closed pipe."""
    while stream.read(_CHUNK):
        pass


@contextmanager
def _reading(stream: BinaryIO, label: str) -> Iterator[tarfile.TarFile]:
    tail = _Tail(stream)
    try:
        with tarfile.open(fileobj=tail, mode="r|") as archive:  # type: ignore[call-overload]  # it only ever reads
            yield archive
    except tarfile.TarError as error:
        raise BadInput(
            f"the tar stream of {label} cannot be read ({error}): was it cut short? Run the step again."
        ) from error
    if not tail.ended_properly():
        raise BadInput(f"the tar stream of {label} ends before the archive does: run the step again.")


def _inside(target: Path, name: str, label: str) -> Path:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise BadInput(
            f"'{name}' in {label} would be written outside the folder into which the tree is unpacked: remove it from the tree."
        )
    return target / pure


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, label: str) -> None:
    source = archive.extractfile(member)
    assert source is not None  # tarfile returns None for what is not a file
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
    except FileExistsError as error:
        raise _twice(member.name, label) from error
    path.chmod(0o755 if member.mode & 0o111 else 0o644)


def _link(path: Path, points_to: str, target: Path, label: str) -> None:
    if PurePosixPath(points_to).is_absolute():
        raise _leaves(path.relative_to(target), points_to, label)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(target.resolve()):
        raise _leaves(path.relative_to(target), points_to, label)
    try:
        path.symlink_to(points_to)
    except FileExistsError as error:
        raise _twice(str(path.relative_to(target)), label) from error


def _leaves(name: Path, points_to: str, label: str) -> BadInput:
    return BadInput(
        f"the link '{name}' in {label} points out of the tree, to '{points_to}': "
        "leave it out, or copy what it points to."
    )


def _twice(name: str, label: str) -> BadInput:
    return BadInput(f"'{name}' occurs twice in {label}: leave one out.")


def _and(names: Collection[str]) -> str:
    return " and ".join(names)
