"""Questions to a node before the helper is there: its release of Ray, and whether its packages have bytecode.

Scripts send this file to `python3 -` on the node: standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path

_LARGE = ("torch", "transformers", "vllm", "ray")  # thousands of modules, of which each process of a job imports most


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


def without_bytecode() -> dict[Path, list[str]]:
    """The large packages whose modules have no bytecode, by the folder in which they are installed."""
    found: dict[Path, list[str]] = {}
    for name in _LARGE:
        spec = find_spec(name)
        if spec is not None and spec.has_location and spec.origin and not Path(cache_from_source(spec.origin)).exists():
            found.setdefault(Path(spec.origin).parents[1], []).append(name)
    return found


def main(argv: Sequence[str]) -> int:
    """`ray OLDEST` prints Ray's version, and the word "older" if it is.

    `compile` compiles the folders of large packages without bytecode if this user can write them. It prints a line for each: the folder, a tab,
    and which of these packages lack bytecode still.
    """
    match argv:
        case ["ray", oldest]:
            try:
                version = metadata.version("ray")
            except metadata.PackageNotFoundError:
                print(f"error   {sys.executable} has no package 'ray'.", file=sys.stderr)
                return 1
            print(version, *(["older"] if _numbers(version) < _numbers(oldest) else []))
        case ["compile"]:
            for folder in without_bytecode():
                if os.access(folder, os.W_OK):
                    # Not compile_dir with workers: those would read this script's file again, and it came on stdin.
                    subprocess.run([sys.executable, "-m", "compileall", "-qq", "-j", "0", folder], check=False)
                print(folder, ", ".join(without_bytecode().get(folder, [])), sep="\t")
        case _:
            raise ValueError(argv)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
