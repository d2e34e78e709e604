"""Tar streams from the host: read completely or refused, and unpacked so that nothing is written outside the target.

tarfile's own `filter="data"` is not used: the Python 3.11.2 of Debian 12, which nodes may have, lacks it.
"""

from __future__ import annotations

import shutil
import tarfile
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
        self._stream, self.last = stream, b""

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self.last = (self.last + data)[-len(_END_OF_ARCHIVE) :]
        return data


def unpack(stream: BinaryIO, target: Path, label: str) -> None:
    """Unpack the tar `stream` into the empty directory `target`: directories, files (0644, or 0755) and links inside.

    `label` names the stream in messages. Raises BadInput for a member that is absolute, climbs out with "..", is a
    device, a pipe or a hard link, occurs twice, or is a symbolic link out of the tree, and for a stream that is not a
    tar or is cut short; `target` then contains part of the tree.
    """
    tail, links = _Tail(stream), []
    try:
        with tarfile.open(fileobj=tail, mode="r|") as archive:  # type: ignore[call-overload]  # it only ever reads
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise BadInput(
                        f"'{name}' in {label} would be written outside the folder into which the tree is unpacked: remove it from the tree."
                    )
                path = target / name
                if member.issym():
                    links.append((path, member.linkname))
                elif member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                elif member.isfile():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("xb") as file, archive.extractfile(member) as source:
                        shutil.copyfileobj(source, file, _CHUNK)
                    path.chmod(0o755 if member.mode & 0o111 else 0o644)
                else:
                    raise BadInput(
                        f"'{member.name}' in {label} is neither a file, a directory nor a symbolic link: leave it out."
                    )
        drain(tail)
        # Links come last: no file can be written through a link while there is none.
        for path, points_to in links:
            path.parent.mkdir(parents=True, exist_ok=True)
            if PurePosixPath(points_to).is_absolute() or not _is_in(path.parent, target):
                raise _leaves(path.relative_to(target), points_to, label)
            path.symlink_to(points_to)
    except tarfile.TarError as error:
        raise BadInput(
            f"the tar stream of {label} cannot be read ({error}): was it cut short? Run the step again."
        ) from error
    except FileExistsError as error:
        raise BadInput(
            f"'{Path(error.filename2 or error.filename).relative_to(target)}' occurs twice in {label}: leave one out."
        ) from error
    if tail.last != _END_OF_ARCHIVE:
        raise BadInput(f"the tar stream of {label} ends before the archive does: run the step again.")
    for path, points_to in links:
        if not _is_in(path, target):
            raise _leaves(path.relative_to(target), points_to, label)


def drain(stream: _Readable) -> None:
    """Read and discard the rest of `stream`: its writer must not see a closed pipe."""
    while stream.read(_CHUNK):
        pass


def _is_in(path: Path, target: Path) -> bool:
    return path.resolve().is_relative_to(target.resolve())


def _leaves(name: Path, points_to: str, label: str) -> BadInput:
    return BadInput(
        f"the link '{name}' in {label} points out of the tree, to '{points_to}': "
        "leave it out, or copy what it points to."
    )
