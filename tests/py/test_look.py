"""What a node knows about itself, for the scripts of one `make up`."""

import shutil
import socket
import stat

import pytest
from conftest import node_row, write

import deps
from verl_regress.base import processes
from verl_regress.base.layout import SharedRoot
from verl_regress.cluster import packages


@pytest.fixture
def look(run, shared, monkeypatch):
    """The facts that `look` prints, on a node with Ray's parts `parts`, with a GCS on `port`."""

    def look(node, port=9, parts=("raylet", "gcs_server"), missing=(), gpus=None):
        monkeypatch.setattr(processes, "running", lambda cluster: set(parts) if cluster == "c" else set())
        monkeypatch.setattr(deps, "missing_here", lambda: list(missing))
        words = [] if gpus is None else [f"--worker-gpus={gpus}"]
        outcome = run("look", f"--node={node}", f"--log-dir={shared.path}/ray/c", f"--gcs-port={port}", *words)
        assert (outcome.status, outcome.err) == (0, "")
        facts = dict(line.split(" ", 1) for line in outcome.out.splitlines())
        assert facts.pop("clock").isdecimal()
        return facts

    return look


@pytest.fixture
def gcs():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_facts_that_a_worker_reports(look, shared, gcs):
    assert look("worker-0", gcs, missing=["PyYAML>=6.0"]) == {
        "writable": "1",
        "running": "gcs_server raylet",
        "missing": "PyYAML>=6.0",
    }
    assert not list(shared.path.glob(".writable*"))


@pytest.fixture
def head(look, shared, gcs, ray):
    """What the head reports about Ray's nodes `rows`, where head and worker-0 have joined and listed their packages."""
    shared.ensure()
    (shared.user_code / "examples").mkdir()
    for name, start in (("head", "1"), ("worker-0", "2")):
        write(shared.path / "ray" / "c" / f"{name}.start", f"{start}\n")
        packages.keep(shared.packages("c", name), start)

    def head(*rows, gpus=None):
        ray.has_nodes(*rows)
        return look("head", gcs, gpus=gpus)

    return head


def node(name, address, start, state="ALIVE", **resources):
    return {**node_row(name, address, state, **resources), "labels": {"start": start}}


HEAD = node("head", "10.0.0.1", "1")
WORKER = node("worker-0", "10.0.0.2", "2", CPU=64.0, GPU=4.0, worker_node=100.0)
ALIVE = {"alive:head": "10.0.0.1: CPU 0, GPU 0", "alive:worker-0": "10.0.0.2: CPU 64, GPU 4, worker_node 100"}


def of_ray(facts):
    return {name: value for name, value in facts.items() if name.startswith(("joined", "alive"))}


def test_the_facts_that_a_head_reports(head):
    facts = head(HEAD, WORKER)
    assert facts == {
        **{"writable": "1", "running": "gcs_server raylet", "missing": "", "layout": "1", "gcs": "1"},
        "joined": "head=10.0.0.1 worker-0=10.0.0.2",
        **ALIVE,
    }


def test_a_node_of_an_earlier_start_has_not_joined_and_nothing_is_settled_while_ray_lists_it(head):
    assert of_ray(head(HEAD, {**WORKER, "labels": {"start": "1"}})) == {"joined": "head=10.0.0.1"}
    assert of_ray(head(HEAD, WORKER, node("worker-1", "10.0.0.3", "3"))) == {
        "joined": "head=10.0.0.1 worker-0=10.0.0.2"
    }
    assert of_ray(head(HEAD, WORKER, node("worker-1", "10.0.0.3", "3", "DEAD"))) == {
        "joined": "head=10.0.0.1 worker-0=10.0.0.2",
        **ALIVE,
    }


@pytest.mark.parametrize(
    ("wrong", "gpus"),
    [(node("head", "10.0.0.1", "1", CPU=2.0), None), (node("head", "10.0.0.1", "1", GPU=1.0), None), (HEAD, 8)],
)
def test_nothing_is_settled_with_wrong_resources(head, wrong, gpus):
    assert "alive:head" not in head(wrong, WORKER, gpus=gpus)
    assert of_ray(head(HEAD, WORKER, gpus=4)).keys() >= ALIVE.keys()


@pytest.mark.parametrize("name", ["head", "worker-0"])
def test_nothing_is_settled_while_a_list_of_packages_is_missing(head, shared, name):
    shared.packages("c", name).unlink()
    assert "alive:head" not in head(HEAD, WORKER)


def test_nothing_is_settled_while_jobs_may_have_secrets(head, shared):
    directory = shared.secrets / "c"
    directory.mkdir(parents=True)
    assert "alive:head" in head(HEAD, WORKER)
    write(directory / "a-job", "secret")
    assert "alive:head" not in head(HEAD, WORKER)
    shutil.rmtree(directory)
    (shared.path / "empty").mkdir()
    directory.symlink_to(shared.path / "empty")
    assert "alive:head" not in head(HEAD, WORKER)
    directory.unlink()
    directory.write_text("a file")
    assert "alive:head" not in head(HEAD, WORKER)


def test_facts_that_cannot_be_found_out_are_left_out(look, shared, gcs, ray):
    ray.goes_away()
    shutil.rmtree(shared.path)
    assert look("head", gcs) == {"running": "gcs_server raylet", "missing": "", "gcs": "1"}


def test_a_head_without_a_gcs(look, unused_address):
    assert "gcs" not in look("head", int(unused_address.rpartition(":")[2]), parts=())


def test_a_cache_of_hugging_face_that_others_could_write_is_closed(tmp_path):
    """An earlier version made it under the umask 002, or the shared root has a default ACL."""
    root = SharedRoot(tmp_path)
    root.ensure()
    root.hf.chmod(0o775)
    assert not root.is_complete()
    root.ensure()
    assert (stat.S_IMODE(root.hf.stat().st_mode), root.is_complete()) == (0o755, True)


def test_the_layout_is_complete_when_there_is_nothing_to_make_or_to_open(tmp_path):
    root = SharedRoot(tmp_path / "shared")
    assert not root.is_complete()
    root.ensure()
    assert root.is_complete()
    (root.path / "common").chmod(0o755)
    assert not root.is_complete()
    root.ensure()
    assert root.is_complete()
