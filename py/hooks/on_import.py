"""Calls a function with a module right after its import, before anything uses it."""

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def on_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call ``then`` with the module ``name`` when it is imported; what ``then`` raises, the import raises."""
    sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then, self._asks_others = name, then, False

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if fullname != self._name or self._asks_others:
            return None
        self._asks_others = True
        try:
            spec = find_spec(fullname)
        finally:
            self._asks_others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def call(self, module: ModuleType) -> None:
        """Call the function, once: a module may be looked for many times before it is imported."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


class _Loader:
    """Takes the place of the module's own loader until the module is loaded."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self._loader  # type: ignore[union-attr]
        self._loader.exec_module(module)
        self._finder.call(module)
