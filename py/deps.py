"""Packages that a node needs: `deps.py missing SET` prints them, `deps.py install SET [WHEELHOUSE]` installs them.

SET is `helper`, or `judge` for what judge/verl_verdict needs on the head.

Runs before anything is installed, so it uses the standard library only. Packages go next to the helper's versions on
the shared root, one directory per set and kind of Python: the node's own packages are not touched, and root is not
needed.

run.py needs only PACKAGES, at every start, so functions import what takes milliseconds to load.
"""

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SETS = {"helper": ("requirements.txt", "packages"), "judge": ("requirements-judge.txt", "packages-judge")}
_LINE = re.compile(r"([A-Za-z0-9_.-]+)(?:(==|>=)([0-9.]+)(?:,<[0-9.]+)?)?")


def packages(of: str) -> Path:
    """The directory of a set, for the end of sys.path: a package that the node's Python has comes first."""
    return _HERE.parents[1] / f"{_SETS[of][1]}-{sys.implementation.cache_tag}-{os.uname().machine}"


PACKAGES = packages("helper")


def use(of: str) -> None:
    """Let this process import the packages of a set; what the node's own Python has comes first."""
    sys.path.append(str(packages(of)))


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


def missing_here(of: str = "helper") -> list[str]:
    """What a set wants and this Python lacks."""
    return missing(_requirements(of).read_text(encoding="utf-8").splitlines())


def _requirements(of: str) -> Path:
    return _HERE / _SETS[of][0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def install(of: str, wheelhouse: str | None) -> None:
    """Install a whole set into its directory, which appears whole or not at all. Raises CalledProcessError."""
    import shutil
    import subprocess
    import tempfile

    place = packages(of)
    source = ["--no-index", "--find-links", wheelhouse] if wheelhouse else []
    target = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            pip = _pip(Path(scratch))
            constraints = Path(scratch, "constraints.txt")
            constraints.write_text("".join(f"{one}\n" for one in _fixed(of)), encoding="utf-8")
            argv = [*pip, "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", *source]
            argv += ["--constraint", str(constraints), "--requirement", str(_requirements(of))]
            subprocess.run([*argv, "--target", str(target)], check=True)
        target.chmod(0o755)
        _put(target, place)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _put(target: Path, place: Path) -> None:
    """Let a finished set take the place of an older one. Of two that do so at once, the first wins. Raises OSError."""
    import shutil

    aside = target.with_name(f"{target.name}.old")
    with suppress(FileNotFoundError):
        place.rename(aside)
    try:
        target.rename(place)
    except OSError:
        # A set appears only by this rename, so one that is there now is another process's, and whole.
        if not place.is_dir():
            with suppress(OSError):
                aside.rename(place)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fixed(of: str) -> list[str]:
    """The versions that pip must choose: the judge's scipy runs with the node's own numpy.

    The helper's packages run with any version that fits their own requirements.
    """
    if of != "judge":
        return []
    from importlib import metadata

    own = [path for path in sys.path if path != str(packages(of))]
    found = next(iter(metadata.distributions(name="numpy", path=own)), None)
    # A version such as 2.1.0+vendor is in no index.
    return [] if found is None else [f"numpy=={found.version.partition('+')[0]}"]


def _pip(scratch: Path) -> list[str]:
    """This Python's pip, or else the pip of a venv made in `scratch`."""
    import subprocess

    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    subprocess.run([sys.executable, "-m", "venv", str(scratch / "venv")], check=True, stdout=sys.stderr)
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]


def main(argv: list[str]) -> int:
    """Run a subcommand; returns 1 if pip failed, which pip explains on stderr, except for the versions that we fixed."""
    subcommand, of, *rest = argv
    use(of)
    if subcommand == "missing":
        print(*missing_here(of))
        return 0
    from subprocess import CalledProcessError

    try:
        install(of, rest[0] if rest else None)
    except CalledProcessError:
        for one in _fixed(of):
            print(f"The {of}'s packages must fit this node's own {one}: pip needs that version too.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
