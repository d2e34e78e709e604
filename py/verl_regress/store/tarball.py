"""Tar streams from the host: read completely or refused, and unpacked so that nothing is written outside the target."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from verl_regress.base.errors import BadInput, shown

# A complete archive ends with two blocks of zeros. GNU tar accepts a stream that stops between two files.
_END_OF_ARCHIVE = bytes(1024)


def unpack(stream: BinaryIO, target: Path, label: str) -> None:
    """Unpack the tar `stream` into the empty directory `target`. `label` names the stream in messages.

    GNU tar itself refuses a name that climbs out with "..", drops the first slash of a name, and writes through no link. Raises BadInput
    for a stream that is no tar or is cut short, and for a device, a pipe or a link out of the tree.
    """
    last = b""
    with (
        os.fdopen(os.memfd_create("tar"), "w+b") as errors,  # a pipe that nobody reads would fill up, and stop tar
        subprocess.Popen(
            ["tar", "--extract", "--touch", "--no-same-owner", "--no-same-permissions", "--directory", str(target)],
            stdin=subprocess.PIPE,
            stderr=errors,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        ) as process,
    ):
        assert process.stdin is not None
        while data := stream.read(1 << 20):  # to its end: its writer must not see a closed pipe
            last = (last + data)[-len(_END_OF_ARCHIVE) :]
            with suppress(BrokenPipeError):
                process.stdin.write(data)
        process.communicate()
        errors.seek(0)
        said = errors.read(1 << 16).decode(errors="replace")
    if process.returncode != 0 or last != _END_OF_ARCHIVE:
        reason = shown("; ".join(said.splitlines()) or "it ends before the archive does", 500)
        raise BadInput(f"The tar stream of {label} cannot be unpacked ({reason}): run the step again.")
    for path in target.rglob("*"):
        name = path.relative_to(target)
        if path.is_symlink() and not path.resolve().is_relative_to(target.resolve()):
            raise BadInput(
                f"The link '{name}' in {label} points out of the tree, to '{path.readlink()}': leave it out, or copy what it points to."
            )
        if not (path.is_symlink() or path.is_file() or path.is_dir()):
            raise BadInput(f"'{name}' in {label} is neither a file, a directory nor a link: leave it out.")
