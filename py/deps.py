"""What the helper needs of a node's Python: `deps.py missing` prints it, `deps.py install [WHEELHOUSE]` brings it.

Runs where nothing is installed yet, so it uses the standard library only. What it brings lies beside the helper's versions
on the shared root, one directory per kind of Python: no node's own packages are touched, and no root is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_REQUIREMENTS = _HERE / "requirements.txt"
PACKAGES = _HERE.parent / f"packages-{sys.implementation.cache_tag}-{os.uname().machine}"
_LINE = re.compile(r"([A-Za-z0-9_.-]+)(?:(==|>=)([0-9.]+)(?:,<[0-9.]+)?)?")


def missing(lines: Iterable[str]) -> list[str]:
    """The requirements that this Python does not satisfy; one a line: `name`, `name==1`, `name>=1` or `name>=1,<2`.

    Only "at least" counts here. What a node has beyond it, it has together with what depends on it; the rest is for pip.
    """
    from importlib import metadata  # here: run.py wants PACKAGES alone, at every start

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


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def install(wheelhouse: str | None) -> None:
    """Bring all requirements into PACKAGES, which appears whole. Raises CalledProcessError."""
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
    """This Python's pip, or the one that its venv brings."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    subprocess.run([sys.executable, "-m", "venv", str(scratch / "venv")], check=True, stdout=sys.stderr)
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]


def main(argv: list[str]) -> int:
    """Run a subcommand; 1 where pip could not do it, as it says on stderr."""
    sys.path.append(str(PACKAGES))
    if argv == ["missing"]:
        print(*missing(_REQUIREMENTS.read_text(encoding="utf-8").splitlines()))
        return 0
    try:
        install(argv[1] if len(argv) > 1 else None)
    except subprocess.CalledProcessError:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
