"""Tar streams for tests, hostile ones included, and what became of them."""

import io
import tarfile

from verl_regress.store import artefact


def tar(files=(), *, members=()):
    """A tar of `files` (name -> content), then of ready-made `members`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in dict(files).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return io.BytesIO(buffer.getvalue())


def special(name, kind, points_to=""):
    """A member that is not an ordinary file, such as a link to `points_to`."""
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = points_to
    return member


def whole(target):
    """The manifest of an artefact, whose files have the bytes that it says."""
    manifest = artefact.load(target)
    assert {name: artefact.sha256_of(target / name) for name in manifest.files} == {
        name: file["sha256"] for name, file in manifest.files.items()
    }
    return manifest


def state_of(directory):
    """What a second run must not change: every path with its mode, time and bytes."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(directory.rglob("*"))
    }
