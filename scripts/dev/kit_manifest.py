"""The manifest of a kit: kit_manifest.py STAGE NAME=VALUE... < members.

A member is a line: a path in STAGE, what it is, its version and its licence, separated by tabs; packages (.deb, .whl) say the last three
themselves. Writes STAGE/debs/Packages, apt's index, if there are packages of the distribution. Prints the facts NAME=VALUE, the bytes of all
files and what they take when installed, then a line for each member: path, what, version, bytes, SHA-256, licence.
"""

from __future__ import annotations

import email
import gzip
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from verl_regress.store.artefact import sha256_of

_UNKNOWN = "unknown"
_MOST_LICENCES = 6


class Member(NamedTuple):
    """A file of a kit; `installed` is how many bytes it takes when it is installed."""

    path: str
    what: str
    version: str
    licence: str
    installed: int
    control: str = ""  # of a .deb


def of_wheel(path: str, file: Path) -> Member:
    """What a wheel's metadata say. Raises StopIteration if it has none."""
    with zipfile.ZipFile(file) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        facts = email.message_from_bytes(archive.read(name))
        installed = sum(member.file_size for member in archive.infolist())
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in facts.get_all("Classifier", [])
        if line.startswith("License ::") and not line.endswith("OSI Approved")
    ]
    licence = facts["License-Expression"] or ", ".join(classifiers) or str(facts["License"] or "")
    return Member(path, facts["Name"], facts["Version"], _in_a_line(licence), installed)


def of_deb(path: str, file: Path) -> Member:
    """What a package of the distribution says: its control fields, and the names of the licences in its copyright file."""
    control = subprocess.run(["dpkg-deb", "--field", file], check=True, capture_output=True, text=True).stdout.rstrip(
        "\n"
    )
    facts = dict(re.findall(r"(?m)^([A-Za-z-]+): *(.*)$", control))
    tree = subprocess.run(["dpkg-deb", "--fsys-tarfile", file], check=True, capture_output=True).stdout
    copyright_file = re.compile(rf"\./usr/share/doc/{re.escape(facts['Package'])}/copyright(\.gz)?")
    text = b""
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        for member in archive:
            if copyright_file.fullmatch(member.name) and (content := archive.extractfile(member)) is not None:
                text = gzip.decompress(content.read()) if member.name.endswith(".gz") else content.read()
                break
    names = dict.fromkeys(re.findall(r"(?m)^License: *(\S.*)$", text.decode("utf-8", "replace")))
    installed = int(facts.get("Installed-Size", "0")) * 1024
    return Member(
        path, facts["Package"], facts["Version"], _in_a_line("; ".join([*names][:_MOST_LICENCES])), installed, control
    )


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:120] or _UNKNOWN


def read(stage: Path, lines: Iterable[str]) -> list[Member]:
    """The members that `lines` name."""
    found = []
    for line in lines:
        path, what, version, licence = line.rstrip("\n").split("\t")
        file = stage / path
        if path.endswith(".whl"):
            found.append(of_wheel(path, file))
        elif path.endswith(".deb"):
            found.append(of_deb(path, file))
        else:
            size = file.stat().st_size if file.exists() else 0
            found.append(Member(path, what, version or "-", licence or "-", size * (3 if "images/" in path else 1)))
    return found


def write(stage: Path, facts: Iterable[str], members: Iterable[Member]) -> str:
    """The manifest's text; writes the index of the packages."""
    members = sorted(members)
    debs = [member for member in members if member.control]
    hashes = {member.path: sha256_of(stage / member.path) for member in members if member.path != "debs/Packages"}
    if debs:
        index = "".join(
            f"{one.control}\nFilename: ./{Path(one.path).name}\nSize: {(stage / one.path).stat().st_size}\nSHA256: {hashes[one.path]}\n\n"
            for one in debs
        )
        (stage / "debs/Packages").write_text(index, encoding="utf-8")
        hashes["debs/Packages"] = sha256_of(stage / "debs/Packages")
    sizes = {member.path: (stage / member.path).stat().st_size for member in members}
    total, installed = sum(sizes.values()), sum(member.installed for member in members)
    head = [f"# {fact.replace('=', chr(9), 1)}\n" for fact in (*facts, f"bytes={total}", f"installed={installed}")]
    rows = [
        f"{one.path}\t{one.what}\t{one.version}\t{sizes[one.path]}\t{hashes[one.path]}\t{one.licence}\n"
        for one in members
    ]
    return "".join([*head, "# path\twhat\tversion\tbytes\tsha256\tlicence\n", *rows])


if __name__ == "__main__":
    _stage = Path(sys.argv[1])
    sys.stdout.write(write(_stage, sys.argv[2:], read(_stage, sys.stdin)))
