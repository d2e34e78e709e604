"""Runs the doctor from stdin: `python3 -c BOOT ARGS`, where BOOT is this file, and stdin has lines, an empty line, and a tar of our packages.

So a node needs nothing of ours, no shared root and no space on a disk.
"""

import importlib.abc
import sys
import tarfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

files: dict[str, bytes] = {}


class _Sent(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports what the tar has."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        stem = name.replace(".", "/")
        is_package = f"{stem}/__init__.py" in files
        if not is_package and f"{stem}.py" not in files:
            return None
        spec = ModuleSpec(name, self, origin=f"/sent/{stem}.py", is_package=is_package)
        spec.has_location = True  # it has a __file__, as modules expect
        return spec

    def is_package(self, fullname: str) -> bool:
        return f"{fullname.replace('.', '/')}/__init__.py" in files

    def get_source(self, fullname: str) -> str:
        stem = fullname.replace(".", "/")
        return files[f"{stem}/__init__.py" if self.is_package(fullname) else f"{stem}.py"].decode("utf-8")


if __name__ == "__main__":
    lines = list(iter(sys.stdin.buffer.readline, b"\n"))
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        files |= {one.name: found.read() for one in archive if (found := archive.extractfile(one)) is not None}
    sys.meta_path.insert(0, _Sent())
    from verl_regress.doctor.command import main

    raise SystemExit(main(sys.argv[1:], [line.decode("utf-8", "replace") for line in lines]))
