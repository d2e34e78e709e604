"""Is a tree that of its commit? Decided by git's own hashes of what is in the files, which nothing in a checkout's configuration can hide."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_ROW = re.compile(rb"([0-7]{6}) [a-z]+ ([0-9a-f]{40}(?:[0-9a-f]{24})?)\t(.+)", re.DOTALL)
# How the file begins that git has in place of one in Git LFS, and all of it (git-lfs 3.6, docs/spec.md); it is below 1024 bytes.
_LFS, _LFS_BYTES = b"version https://git-lfs.github.com/spec/v1\n", 1024


class File(NamedTuple):
    """A file of a tree: its mode as git has it (120000 is a link, whose content is where it leads), and its content."""

    name: str
    mode: str
    content: bytes

    @property
    def is_lfs_pointer(self) -> bool:
        """Is it what Git LFS puts in place of a file that was not fetched?"""
        return len(self.content) < _LFS_BYTES and self.content.startswith(_LFS)


def files_of(directory: Path, without: str) -> Iterator[File]:
    """The files and links below a directory, those in folders named `without` left out."""
    for folder, below, names in os.walk(directory):
        below[:] = [name for name in below if name != without]
        links = [name for name in below if (Path(folder) / name).is_symlink()]
        for path in (Path(folder) / name for name in [*names, *links]):
            name = path.relative_to(directory).as_posix()
            if path.is_symlink():
                yield File(name, "120000", os.fsencode(path.readlink()))
            else:
                yield File(name, "100755" if path.stat().st_mode & 0o111 else "100644", path.read_bytes())


def differences(files: Iterable[File], listing: bytes) -> list[str]:
    """The names, in their order, that are not in both, or differ in mode or content. `listing` is `git ls-tree -r -z` of the commit.

    A file that Git LFS has fetched equals its pointer. Raises ValueError if the listing is none.
    """
    committed = dict(_rows(listing))
    differ = []
    for file in files:
        mode, digest = committed.pop(file.name, ("", ""))
        if mode != file.mode or not _has_id(file.content, digest):
            differ.append(file.name)
    return sorted([*differ, *committed])


def _rows(listing: bytes) -> Iterator[tuple[str, tuple[str, str]]]:
    for row in listing.split(b"\0")[:-1]:
        match = _ROW.fullmatch(row)
        if match is None:
            raise ValueError(f"no row of git ls-tree: {row!r}")
        yield os.fsdecode(match[3]), (match[1].decode(), match[2].decode())


def _has_id(content: bytes, digest: str) -> bool:
    """Does git know this content, or its pointer, by this id? The length says which hash a repository uses."""
    algorithm = hashlib.sha1 if len(digest) == 2 * hashlib.sha1().digest_size else hashlib.sha256
    blobs = (b"blob %d\0" % len(known) + known for known in (content, _lfs_pointer(content)))
    return any(algorithm(blob).hexdigest() == digest for blob in blobs)


def _lfs_pointer(content: bytes) -> bytes:
    return _LFS + b"oid sha256:%s\nsize %d\n" % (hashlib.sha256(content).hexdigest().encode(), len(content))
