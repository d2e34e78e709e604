"""The helper's entry point: `python3 run.py SUBCOMMAND …`, on a node.

Its modules come from PACK, which pack.py writes when this version is put on the shared root; without PACK, from their own files.
A start imports about thirty of them, and to read one of a file system asks it five times.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
import zlib
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

HERE = Path(__file__).resolve().parent
HOOKS = HERE / "hooks"
PACK = HERE / "__pycache__" / f"helper.{sys.implementation.cache_tag}.pack"


class Packed:
    """A finder of sys.meta_path; `modules` are {name: (its file under HERE, its compressed code)}."""

    def __init__(self, modules: dict[str, tuple[str, bytes]]) -> None:
        self._modules = modules

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """How to load the module; None if the pack does not have it."""
        if name not in self._modules:
            return None
        file, code = self._modules[name]
        path = f"{HERE}/{file}"
        return spec_from_file_location(name, path, loader=_Loader(name, path, code))


class _Loader(SourceFileLoader):
    """Loads the packed code as if it were read at the module's own path."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, _fullname: str) -> CodeType:
        return marshal.loads(zlib.decompress(self._code))  # type: ignore[no-any-return]


def _start() -> int:
    os.umask(os.umask(0) | 0o022)  # what we run again later, such as a job's plan, is ours to change
    # It is of another Python than the head's, is being put, or was damaged: marshal raises all of these.
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        modules = marshal.loads(PACK.read_bytes())
        if isinstance(modules, dict):
            sys.meta_path.insert(0, Packed(modules))
    from deps import PACKAGES

    # What the helper shares with job processes, and its packages: all of it after the node's own packages.
    sys.path += [str(HOOKS), str(HERE / "rehearsal"), str(PACKAGES)]
    try:
        from verl_regress.cli import main

        return main()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        cure = "bring it with 'scripts/12_install_py_deps.sh'"
        if package in {"numpy", "scipy", "matplotlib"}:  # the judge's
            cure = "'make verify' and 'make history' bring it to the head of a cluster that is up, from WHEELHOUSE if you set that"
        raise SystemExit(f"error   This node's Python has no package '{package}': {cure}.") from None


if __name__ == "__main__":
    raise SystemExit(_start())
