"""Two jobs on one cluster never share a TransferQueue: each job's actors are in its own namespace."""

import importlib
import sys

import pytest

import transfer_queue_names

INTERFACE = """
class ray:
    calls = []
    @classmethod
    def get_actor(cls, name, namespace=None):
        cls.calls.append((name, namespace))
        return name
    @staticmethod
    def get(value):
        return value

class TransferQueueController:
    @classmethod
    def options(cls, **options):
        return options

def found():
    return ray.get(ray.get_actor("TransferQueueController", namespace="transfer_queue"))

def begin():
    return TransferQueueController.options(name="TransferQueueController", namespace="transfer_queue")
"""
STORAGE = """
class ray:
    @staticmethod
    def get_actor(name, namespace=None):
        return namespace

class RayObjectRefStorage:
    @classmethod
    def options(cls, **options):
        return options["namespace"]

def namespaces():
    return ray.get_actor("x", namespace="transfer_queue"), RayObjectRefStorage.options(namespace="transfer_queue")
"""


@pytest.fixture
def transfer_queue(tmp_path, monkeypatch):
    """Fakes of the two modules, found by the import system."""

    def make():
        clients = tmp_path / "transfer_queue" / "storage" / "clients"
        clients.mkdir(parents=True)
        for folder in (clients, clients.parent, clients.parent.parent):
            (folder / "__init__.py").write_text("")
        (tmp_path / "transfer_queue" / "interface.py").write_text(INTERFACE)
        (clients / "ray_storage_client.py").write_text(STORAGE)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        for name in [name for name in sys.modules if name.split(".")[0] == "transfer_queue"]:
            monkeypatch.delitem(sys.modules, name)
        transfer_queue_names.install()

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] == "transfer_queue"]:
        del sys.modules[name]


def test_the_namespace_is_the_jobs(transfer_queue, monkeypatch):
    monkeypatch.setenv("VERL_REGRESS_JOB_DIR", "/private/jobs/a")
    transfer_queue()
    interface = importlib.import_module(transfer_queue_names.INTERFACE)
    assert interface.found() == "TransferQueueController"
    assert interface.ray.calls == [("TransferQueueController", "transfer_queue:/private/jobs/a")]
    assert interface.begin()["namespace"] == "transfer_queue:/private/jobs/a"
    storage = importlib.import_module(transfer_queue_names.STORAGE)
    assert set(storage.namespaces()) == {"transfer_queue:/private/jobs/a"}


def test_outside_a_job_nothing_is_changed(transfer_queue, monkeypatch):
    monkeypatch.delenv("VERL_REGRESS_JOB_DIR", raising=False)
    transfer_queue()
    assert importlib.import_module(transfer_queue_names.INTERFACE).begin()["namespace"] == "transfer_queue"
