"""Calls a function with a module right after its import, before anything uses it."""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def on_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call ``then`` with the module ``name`` when it is imported; what ``then`` raises, the import raises."""
    sys.meta_path.insert(0, _OnImport(name, then))


class _OnImport(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_then(module: ModuleType) -> None:
                load(module)
                self._then(module)

            spec.loader.exec_module = load_then  # type: ignore[method-assign]
        return spec
