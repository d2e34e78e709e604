"""What a node knows about itself, for the scripts of one `make up`."""

import shutil
import socket
import stat

import pytest
from conftest import node_row, write

import deps
from verl_regress.base import processes
from verl_regress.base.layout import SharedRoot


@pytest.fixture
def look(run, shared, monkeypatch):
    """The facts that `look` prints, on a node with Ray's parts `parts`, with a GCS on `port`."""

    def look(node, port=9, parts=("raylet", "gcs_server"), missing=()):
        monkeypatch.setattr(processes, "running", lambda cluster: set(parts) if cluster == "c" else set())
        monkeypatch.setattr(deps, "missing_here", lambda: list(missing))
        outcome = run("look", f"--node={node}", f"--log-dir={shared.path}/ray/c", f"--gcs-port={port}")
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


def test_the_facts_that_a_head_reports(look, shared, gcs, ray):
    shared.ensure()
    (shared.user_code / "examples").mkdir()
    write(shared.path / "ray" / "c" / "head.start", "1\n")
    write(shared.path / "ray" / "c" / "worker-0.start", "2\n")
    ray.has_nodes(
        {**node_row("head", "10.0.0.1"), "labels": {"start": "1"}},
        {**node_row("worker-0", "10.0.0.2"), "labels": {"start": "an earlier one"}},
    )
    facts = look("head", gcs)
    assert {name: facts[name] for name in ("layout", "gcs", "joined")} == {
        "layout": "1",
        "gcs": "1",
        "joined": "head=10.0.0.1",
    }


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
