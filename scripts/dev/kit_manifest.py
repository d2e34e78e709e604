"""The manifest of a kit: kit_manifest.py STAGE NAME=VALUE... < members.

A member is a line: a path in STAGE, what it is, its version and its licence, separated by tabs; packages (.deb, .whl) say the last three
themselves. Writes STAGE/debs/Packages, apt's index, if there are packages of the distribution. Prints the facts NAME=VALUE, the bytes of all
files and what they take when installed, then a line for each member: path, what, version, bytes, SHA-256, licence.
"""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from verl_regress.store.artefact import sha256_of

_INDEX = "debs/Packages"


class Member(NamedTuple):
    """A file of a kit; `installed` is how many bytes it takes when it is installed."""

    path: str
    what: str
    version: str
    licence: str
    installed: int
    control: str = ""  # of a .deb


def read_wheel(path: str, file: Path) -> Member:
    """What a wheel's metadata say. Raises StopIteration if it has none."""
    with zipfile.ZipFile(file) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        facts = email.message_from_bytes(archive.read(name))
        installed = sum(member.file_size for member in archive.infolist())
    classifiers = [
        line[26:] for line in facts.get_all("Classifier", []) if line.startswith("License :: OSI Approved ::")
    ]
    licence = facts["License-Expression"] or ", ".join(classifiers) or str(facts["License"] or "")
    return Member(path, facts["Name"], facts["Version"], _in_a_line(licence), installed)


def read_deb(path: str, file: Path) -> Member:
    """What a package of the distribution says: its control fields, and the names of the licences in its copyright file."""
    control = _output("dpkg-deb", "--field", file).decode().rstrip("\n")
    facts = dict(re.findall(r"(?m)^([A-Za-z-]+): *(.*)$", control))
    copyright_file = f"./usr/share/doc/{facts['Package']}/copyright"
    text = _output("tar", "-xO", copyright_file, content=_output("dpkg-deb", "--fsys-tarfile", file), check=False)
    names = dict.fromkeys(re.findall(r"(?m)^License: *(\S.*)$", text.decode("utf-8", "replace")))
    installed = int(facts["Installed-Size"]) * 1024
    return Member(path, facts["Package"], facts["Version"], _in_a_line("; ".join(names)), installed, control)


def _output(*command: str | Path, content: bytes = b"", check: bool = True) -> bytes:
    return subprocess.run(command, check=check, input=content, capture_output=True).stdout


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:120] or "unknown"


def read(stage: Path, lines: Iterable[str]) -> list[Member]:
    """The members that `lines` name, and the index of the packages of the distribution, which is written."""
    found = []
    for line in lines:
        path, what, version, licence = line.rstrip("\n").split("\t")
        file = stage / path
        if path.endswith(".whl"):
            found.append(read_wheel(path, file))
        elif path.endswith(".deb"):
            found.append(read_deb(path, file))
        else:
            found.append(Member(path, what, version, licence, file.stat().st_size * (3 if "images/" in path else 1)))
    if index := "".join(
        f"{one.control}\nFilename: ./{Path(one.path).name}\nSize: {(stage / one.path).stat().st_size}\nSHA256: {sha256_of(stage / one.path)}\n\n"
        for one in found
        if one.control
    ):
        (stage / _INDEX).write_text(index, encoding="utf-8")
        found.append(Member(_INDEX, "index of the packages", "-", "-", 0))
    return sorted(found)


def manifest(stage: Path, facts: Iterable[str], members: list[Member]) -> str:
    """The manifest's text."""
    sizes = {one.path: (stage / one.path).stat().st_size for one in members}
    total, installed = sum(sizes.values()), sum(one.installed for one in members)
    head = [f"# {fact.replace('=', chr(9), 1)}\n" for fact in (*facts, f"bytes={total}", f"installed={installed}")]
    rows = [
        f"{one.path}\t{one.what}\t{one.version}\t{sizes[one.path]}\t{sha256_of(stage / one.path)}\t{one.licence}\n"
        for one in members
    ]
    return "".join([*head, "# path\twhat\tversion\tbytes\tsha256\tlicence\n", *rows])


if __name__ == "__main__":
    _stage = Path(sys.argv[1])
    sys.stdout.write(manifest(_stage, sys.argv[2:], read(_stage, sys.stdin)))
