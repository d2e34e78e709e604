"""Gives each job its own TransferQueue.

TransferQueue (0.1.11), which verl's V1 trainer uses, has a controller with a fixed name: of two jobs, the first to end would remove it.
"""

import functools
from types import ModuleType
from typing import Any

import job_report
from on_import import on_import

NAMESPACE = "transfer_queue"
INTERFACE = "transfer_queue.interface"
STORAGE = "transfer_queue.storage.clients.ray_storage_client"
# Per module, what it calls with a namespace.
_CALLED = {INTERFACE: ("ray", "TransferQueueController"), STORAGE: ("ray", "RayObjectRefStorage")}


def install() -> None:
    """Watch for TransferQueue's import; does nothing outside a job."""
    if (job := job_report.job_dir()) is not None:
        for name in _CALLED:
            on_import(name, lambda module: _rename(module, f"{NAMESPACE}:{job}"))


def _rename(module: ModuleType, namespace: str) -> None:
    for name in _CALLED[module.__name__]:
        setattr(module, name, _InNamespace(getattr(module, name), namespace))


class _InNamespace:
    """An object whose methods ``options`` and ``get_actor`` use the job's namespace instead of TransferQueue's."""

    def __init__(self, inner: Any, namespace: str) -> None:
        self._inner, self._namespace = inner, namespace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return found if name not in ("options", "get_actor") else functools.partial(self._call, found)

    def _call(self, found: Any, *args: Any, namespace: str | None = None, **kwargs: Any) -> Any:
        return found(*args, namespace=self._namespace if namespace == NAMESPACE else namespace, **kwargs)
