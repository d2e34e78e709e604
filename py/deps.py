"""Packages that the helper needs on a node: `deps.py missing` prints them, `deps.py install [WHEELHOUSE]` installs
them.

Runs before anything is installed, so it uses the standard library only. Packages go next to the helper's versions on
the shared root, one directory per kind of Python: the node's own packages are not touched, and root is not needed.

run.py needs only PACKAGES, at every start, so functions import what takes milliseconds to load.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_REQUIREMENTS = _HERE / "requirements.txt"
PACKAGES = _HERE.parent / f"packages-{sys.implementation.cache_tag}-{os.uname().machine}"
_LINE = re.compile(r"([A-Za-z0-9_.-]+)(?:(==|>=)([0-9.]+)(?:,<[0-9.]+)?)?")


def missing(lines: Iterable[str]) -> list[str]:
    """The requirements that this Python does not satisfy, one per line: `name`, `name==1`, `name>=1` or `name>=1,<2`.

    Only lower bounds are checked. A newer version on the node came with whatever depends on it; the rest is up to pip.
    """
    from importlib import metadata

    wanting = []
    for line in lines:
        match = _LINE.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        name, relation, version = match.groups()
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = None
        if found is None or (relation == ">=" and _numbers(found) < _numbers(version)):
            wanting.append(match.group())
    return wanting


def missing_here() -> list[str]:
    """What requirements.txt wants and this Python lacks."""
    return missing(_REQUIREMENTS.read_text(encoding="utf-8").splitlines())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def install(wheelhouse: str | None) -> None:
    """Install all requirements into PACKAGES, which appears whole or not at all. Raises CalledProcessError."""
    import shutil
    import subprocess
    import tempfile

    source = ["--no-index", "--find-links", wheelhouse] if wheelhouse else []
    target = Path(tempfile.mkdtemp(prefix=f".{PACKAGES.name}.", dir=PACKAGES.parent))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            pip = _pip(Path(scratch))
            argv = [*pip, "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", *source]
            subprocess.run([*argv, "--target", str(target), "--requirement", str(_REQUIREMENTS)], check=True)
        target.chmod(0o755)
        shutil.rmtree(PACKAGES, ignore_errors=True)
        target.rename(PACKAGES)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _pip(scratch: Path) -> list[str]:
    """This Python's pip, or else the pip of a venv made in `scratch`."""
    import subprocess

    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    subprocess.run([sys.executable, "-m", "venv", str(scratch / "venv")], check=True, stdout=sys.stderr)
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]


def main(argv: list[str]) -> int:
    """Run a subcommand; returns 1 if pip failed, which pip explains on stderr."""
    sys.path.append(str(PACKAGES))
    if argv == ["missing"]:
        print(*missing_here())
        return 0
    from subprocess import CalledProcessError

    try:
        install(argv[1] if len(argv) > 1 else None)
    except CalledProcessError:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
