"""Calls a function right before the import of a module, or with the module right after it, before anything uses it."""

import sys
from collections.abc import Callable, Collection
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def before_import(names: Collection[str], then: Callable[[], None]) -> None:
    """Call ``then`` once, before the first import of one of these modules; what it raises, the import raises."""
    sys.meta_path.insert(0, _BeforeImport(names, then))


class _BeforeImport(MetaPathFinder):
    """Finds nothing, but notices the import."""

    def __init__(self, names: Collection[str], then: Callable[[], None]) -> None:
        self._names, self._then = names, then

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> None:
        if fullname in self._names and self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


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
