"""Gives each job its own TransferQueue.

verl's V1 trainer (0.9.1) keeps its samples in TransferQueue, whose controller is an actor with a fixed name in a fixed
Ray namespace. With two jobs on one cluster, the second would use the first one's controller, and the first job to end
would remove it: the other then hangs without an error. This hook gives each job its own namespace.

Touches ``TransferQueueController.options`` and ``ray.get_actor`` as ``transfer_queue.interface`` calls them, and
``ray`` of ``transfer_queue.storage.clients.ray_storage_client``, read in TransferQueue 0.1.11. Jobs that never import
TransferQueue are not affected.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import job_report

NAMESPACE = "transfer_queue"
INTERFACE = "transfer_queue.interface"
STORAGE = "transfer_queue.storage.clients.ray_storage_client"
# Per module, what it calls with a namespace.
_CALLED = {INTERFACE: ("ray", "TransferQueueController"), STORAGE: ("ray", "RayObjectRefStorage")}


def install() -> None:
    """Watch for TransferQueue's import; does nothing outside a job."""
    if os.environ.get(job_report.JOB_DIR_VARIABLE):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _CALLED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        rename(module, f"{NAMESPACE}:{os.environ[job_report.JOB_DIR_VARIABLE]}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and the like


def rename(module: ModuleType, namespace: str) -> None:
    """Make ``module`` use ``namespace`` instead of "transfer_queue". Raises RuntimeError if ``module`` lacks what is
    replaced.
    """
    for name in _CALLED[module.__name__]:
        found = getattr(module, name, None)
        if found is None:
            raise RuntimeError(
                f"verl-regress: {module.__name__} of the TransferQueue at {module.__file__} has no {name}, which the hook "
                "transfer_queue_names replaces: use TransferQueue 0.1.11, or teach py/hooks/transfer_queue_names.py what "
                "this release does."
            )
        setattr(module, name, _InNamespace(found, namespace))


class _InNamespace:
    """An object whose methods ``options`` and ``get_actor`` use the job's namespace instead of TransferQueue's."""

    def __init__(self, inner: Any, namespace: str) -> None:
        self._inner = inner
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._renaming(found) if name in ("options", "get_actor") else found

    def _renaming(self, call: Any) -> Any:
        def renamed(*args: Any, namespace: str | None = None, **kwargs: Any) -> Any:
            return call(*args, namespace=self._namespace if namespace == NAMESPACE else namespace, **kwargs)

        return renamed
