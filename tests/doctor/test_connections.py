import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_regress.doctor import connections
from verl_regress.doctor.checks import Plan
from verl_regress.doctor.connections import ACCEPTS, REFUSES, Server, knock, try_peer

# Two nodes of this host, which has all of 127.0.0.0/8.
NODES = {"head": "127.0.0.1", "worker-0": "127.0.0.2"}


def plan(node, trains=False):
    return Plan(node, NODES, "c", "cpu", "/private", 6379, quick=False, trains=trains)


@pytest.fixture
def port(monkeypatch):
    """A free port: the only one that is tried; a busy machine has all the time that it needs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    monkeypatch.setattr(connections, "ports", lambda _plan, _node: [number])
    monkeypatch.setattr(connections, "_SAMPLE", (number,))
    monkeypatch.setattr(connections, "_OF_WORKERS", range(number, number + 1))
    monkeypatch.setattr(connections, "_OF_KERNEL", range(number, number + 1))
    for name in ("_READY_WITHIN", "_LONGEST", "_PATIENCE", "_SCAN_SECONDS"):
        monkeypatch.setattr(connections, name, 60.0)
    monkeypatch.setattr(connections, "_ECHO_SECONDS", 0.1)
    return number


@contextlib.contextmanager
def listening(port, trains=False):
    """The other node's probe, which tries us, too."""
    with ThreadPoolExecutor(1) as pool:
        server = Server(plan("worker-0"), {"also": {"Gloo": "127.0.0.2"}, "torch": False, "trains": trains})
        yield server
        pool.submit(try_peer, plan("head"), "worker-0").result(60)
        server.close()


def test_a_peer_is_greeted_and_measured_and_hears_that_all_is_well(port):
    with listening(port) as server:
        found = try_peer(plan("head"), "worker-0")
    assert found["said"] == {"you": "127.0.0.1", "also": {"Gloo": "127.0.0.2"}, "torch": False, "trains": False}
    assert (found["ports"], found["mtu"], found["also"]) == ({port: ACCEPTS}, 0, {"127.0.0.2": True})
    assert found["trips"]["count"] >= found["trips"]["sent"] / 2 > 0
    assert found["scan"] == {"tried": 2, "silent": []}
    assert found["content"]
    assert server.content == {"head"}


@pytest.mark.parametrize("here", [True, False])
def test_nothing_is_scanned_while_a_job_trains_on_either_node(port, here):
    with listening(port, trains=not here):
        assert "scan" not in try_peer(plan("head", trains=here), "worker-0")


def test_message_without_an_answer_is_lost(monkeypatch):
    monkeypatch.setattr(connections, "HEALTH_CHECK", 0.01)
    ends = [socket.socketpair() for _ in range(connections._ECHOES)]
    left = iter(ends)
    monkeypatch.setattr(connections, "_dial", lambda *_: (next(left)[0], {}))
    assert connections._trips("127.0.0.2", 1) == "lost"
    for _, other in ends:
        other.close()


def test_port_without_a_listener_answers_and_one_that_is_in_use_is_not_listened_on(port):
    assert knock("127.0.0.1", [port], 60) == [REFUSES]
    with socket.create_server(("", port)):
        assert knock("127.0.0.1", [port], 60) == [ACCEPTS]
        assert Server(plan("worker-0"), {}).ports == []


def test_peer_whose_probe_does_not_start_is_known_by_its_ports(port, monkeypatch):
    monkeypatch.setattr(connections, "_READY_WITHIN", 0.0)
    found = try_peer(plan("head"), "worker-0")
    assert (found["said"], found["ports"], found["content"]) == (None, {port: REFUSES}, False)


def test_ports_of_the_head_have_that_of_the_gcs():
    assert 6379 in connections.ports(plan("worker-0"), "head")
    assert 6379 not in connections.ports(plan("head"), "worker-0")
