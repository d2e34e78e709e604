"""Two nodes of this host, which has all of 127.0.0.0/8, try each other; and what a node finds wrong with itself."""

import asyncio
import errno
import os
import socket
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from verl_regress.doctor import network
from verl_regress.doctor.checks import ALARM, LATE, OK, SKIPPED, ProbePlan

NODES = {"head": "127.0.0.1", "worker-0": "127.0.0.2"}
KNOBS = {"CLUSTER_NAME": "c", "PROFILE": "cpu"}


def plan(node, *, nodes=NODES, **more):
    return ProbePlan(nodes, {"GCS_PORT": "6379", **KNOBS}, node=node, **more)


@pytest.fixture
def port(monkeypatch):
    """A free port: the only one that is tried; a busy machine has all the time that it needs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    monkeypatch.setattr(network, "_LISTENED", (number,))
    monkeypatch.setattr(network, "_TRIED", ())
    monkeypatch.setattr(network, "_AGENT_PORT", number)
    monkeypatch.setitem(KNOBS, "GCS_PORT", str(number))
    for name in ("_PATIENCE", "_READY_WITHIN", "_LONGEST"):
        monkeypatch.setattr(network, name, 60.0)
    monkeypatch.setattr(network, "_PATIENTLY", (60.0,))
    monkeypatch.setattr(network, "_ECHO_SECONDS", 0.1)
    return number


@pytest.fixture
def meet(port):
    """What the head sees of worker-0, whose probe greets it so, and whether that is ready."""

    def run(torch=True, **greeting):
        async def both():
            said = {"also": {"Gloo": "127.0.0.2"}, "torch": torch, **greeting}
            served = asyncio.create_task(network._meet(plan("worker-0"), said))
            is_ready = await network._see_peer(head := plan("head"), "worker-0", {}, set())
            served.cancel()
            return head.seen, is_ready

        return asyncio.run(both())

    return run


def test_peer_is_greeted_and_measured(meet):
    seen, is_ready = meet()
    assert [row[:3] for row in seen] == [("VR-NET-05", OK, "head -> worker-0")]
    assert "packets sent again, round trips of " in seen[0][3]
    assert is_ready
    assert not meet(torch=False)[1]


FAULTS = {
    "addresses are translated": ({"you": "192.168.0.9"}, "VR-NET-02", "worker-0 sees 192.168.0.9, and head is 127.0.0.1"),
    "the wrong interface": ({"also": {"vLLM": "0.0.0.1"}}, "VR-NET-06", "vLLM on worker-0 takes 0.0.0.1, and only 127.0.0.2 is reached"),
    "a port is refused": ({"listens": [1]}, "VR-NET-01", "port 1: refused by a firewall (1 of 2 ports)"),
}  # fmt: skip


@pytest.mark.parametrize(("greeting", "code", "seen"), FAULTS.values(), ids=FAULTS)
def test_fault_between_two_nodes_is_found_by_its_code(meet, monkeypatch, greeting, code, seen):
    real = network._knock

    async def knock(address, ports, patience):
        refused = {port: "refuses" for port in ports if address == "0.0.0.1" or port == 1}
        return {**refused, **await real(address, [port for port in ports if port not in refused], patience)}

    monkeypatch.setattr(network, "_knock", knock)
    monkeypatch.setattr(network, "_TRIED", (1,))
    found, _ = meet(**greeting)
    assert [row for row in found if row[1] == ALARM] == [(code, ALARM, "head -> worker-0", seen)]


def test_large_message_and_health_check_without_an_answer_are_found(meet, monkeypatch):
    heard = network._heard

    async def silent(reader, seconds=60):
        line = await heard(reader)
        return line if b"you" in line else b""

    monkeypatch.setattr(network, "_heard", silent)
    assert [(row[0], row[3]) for row in meet()[0]] == [
        ("VR-NET-05", "no answer, for which Ray's health check waits 10 s"),
        ("VR-NET-04", "it does not arrive"),
    ]


def test_packets_that_are_sent_again_and_round_trips_that_are_long_are_found(meet, monkeypatch):
    for again, fastest, status in ((40, 100, ALARM), (2, 100, OK), (0, 80_000, ALARM)):
        monkeypatch.setattr(network.struct, "unpack_from", lambda *_, counts=(again, fastest, 800): counts)
        ((code, said, _, seen),) = meet()[0]
        assert (code, said) == ("VR-NET-05", status)
        assert seen.startswith(f"{again} of 800 packets sent again, round trips of {fastest / 1000:.1f} to ")


def tried(peer, answers, listened=()):
    async def knock(_address, ports, _patience):
        return {port: answers.get(port, "accepts") for port in ports}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "_knock", knock)
        asyncio.run(network._try_ports(known := plan("worker-0" if peer == "head" else "head"), peer, listened))
    return [(one.code, one.where, one.seen) for one in known.seen]


def test_ports_that_do_not_answer_are_counted():
    count = len({*network._TRIED}) + 2
    assert tried("head", {}) == []
    assert tried("head", {10002: "refuses"}) == []  # nobody listens
    where = "worker-0 -> head"
    assert tried("head", {6379: "no answer"}) == [("VR-NET-01", where, f"port 6379: no answer (1 of {count} ports)")]
    refused = f"port 10002: refused by a firewall (1 of {count} ports)"
    assert tried("head", {10002: "refuses"}, [10002]) == [("VR-NET-01", where, refused)]
    everything = dict.fromkeys((network._AGENT_PORT, *network._TRIED), "no route to host")
    seen = f"port 10002: no route to host ({count - 1} of {count - 1} ports)"
    assert tried("worker-0", everything) == [("VR-NET-01", "head -> worker-0", seen)]


def test_port_answers_without_a_listener_but_not_where_nothing_is_routed(port, monkeypatch):
    def answer():
        return asyncio.run(network._knock("127.0.0.1", [port], [60, 60]))[port]

    assert answer() == "refuses"
    with socket.create_server(("127.0.0.1", port)):
        assert answer() == "accepts"
    errors = [asyncio.TimeoutError(), OSError(errno.EHOSTUNREACH, ""), asyncio.TimeoutError()]
    monkeypatch.setattr(network.asyncio, "open_connection", Mock(side_effect=[*errors, errors[0]]))
    assert (answer(), answer()) == ("no route to host", "no answer")


@pytest.fixture
def itself(tmp_path, monkeypatch):
    """What the head finds wrong with itself."""
    for name in ("GLOO_SOCKET_IFNAME", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(network, "_HOSTS", tmp_path / "hosts")
    monkeypatch.setattr(network.processes, "listening", lambda _ports: {})
    network._HOSTS.write_text("# names\n10.0.0.1 c0ffee\n10.0.0.9 host.docker.internal\n")
    nodes = {"head": "10.0.0.1", "worker-0": "10.0.0.2"}

    def see():
        network._see_itself(head := plan("head", nodes=nodes))
        return [(one.code, one.seen) for one in head.seen]

    return see


def test_nothing_is_wrong_with_a_healthy_node(itself):
    assert itself() == []


@pytest.fixture
def named(tmp_path, monkeypatch):
    """What the head finds wrong with its names, where Gloo would take this one."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(network, "_NAMES_WITHIN", 60.0)
    monkeypatch.setattr(network, "_RESOLVER", tmp_path / "resolv.conf")
    monkeypatch.setattr(network.socket, "gethostname", lambda: "c0ffee")
    monkeypatch.setattr(network.socket, "gethostbyaddr", lambda _: ("a name", [], []))
    network._RESOLVER.write_text("search example\nnameserver 10.0.0.53\nnameserver 10.0.0.54\n")

    def see(gloo="10.0.0.1"):
        monkeypatch.setattr(network, "_choices", lambda: {"Gloo": gloo})
        network._see_names(head := plan("head", nodes={"head": "10.0.0.1", "worker-0": "10.0.0.2"}), {})
        return [(one.code, one.status, one.seen) for one in head.seen]

    return see


@pytest.mark.parametrize("name", ["127.0.1.1", "fe80::1", ""])
def test_own_name_that_others_cannot_reach_is_found_unless_gloo_does_not_ask(named, monkeypatch, name):
    assert named() == []
    assert named(name) == [("VR-NET-03", ALARM, f"its own name is {name or 'unknown'}, and it is 10.0.0.1")]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert named(name) == []


def test_name_server_that_answers_late_is_named(named, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(network, "_NAMES_WITHIN", 0.05)
    monkeypatch.setattr(network.socket, "gethostbyaddr", lambda address: address == "10.0.0.2" and hangs.wait())
    what = "no answer from 10.0.0.53, 10.0.0.54 in 0 s for 10.0.0.2"
    assert named("127.0.1.1") == [("VR-NET-10", LATE, what)]
    hangs.set()


def test_address_without_a_name_is_no_fault(named, monkeypatch):
    def nameless(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(network.socket, "gethostbyaddr", nameless)
    assert named() == []


def test_address_that_two_machines_have_is_found_by_its_mac_addresses():
    def judged(mac, gateway):
        seen = {"10.0.0.2": mac, "10.0.0.254": gateway}
        facts = {
            "head": {"macs": ["00:00:00:00:00:00", "02:42:0a:00:00:01"], "neighbours": seen},
            "worker-0": {"macs": ["00:00:00:00:00:00", "02:42:0a:00:00:02"], "neighbours": {}},
        }
        nodes = {"head": "10.0.0.1", "worker-0": "10.0.0.2"}
        return [(one.where, one.seen) for one in network._judge_duplicates(facts, plan("head", nodes=nodes))]

    other, router = "02:42:0a:00:00:09", "12:34:56:78:9a:bc"
    what = f"10.0.0.2 answers from the MAC address {other}, and worker-0 has 02:42:0a:00:00:02"
    assert judged(other, router) == [("head -> worker-0", what)]
    assert judged("02:42:0a:00:00:02", router) == []
    assert judged(router, router) == []  # it answers for all addresses


def test_nodes_of_one_hostname_are_named():
    facts = {"head": {"hostname": "a"}, "worker-0": {"hostname": "b"}, "worker-1": {"hostname": "b"}}
    assert [*network._judge_hostnames(facts, plan("head"))] == [
        ("VR-NET-12", ALARM, "worker-0, worker-1", "each is called b")
    ]
    assert [*network._judge_hostnames({**facts, "worker-1": {"hostname": "c"}}, plan("head"))] == []


def test_name_of_docker_desktop_is_found(itself):
    network._HOSTS.write_text("10.0.0.1 kubernetes.docker.internal c0ffee\n")
    assert itself() == [("VR-NET-03", "an address of it is called kubernetes.docker.internal")]


def test_proxy_is_named_without_its_password_and_with_what_it_catches(itself, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1,10.0.0.2")
    for proxy in ("http://ann:secret@proxy.example:3128", "ann:secret@proxy.example:3128"):
        monkeypatch.setenv("http_proxy", proxy)
        assert itself() == [("VR-NET-07", "the proxy proxy.example:3128 catches 10.0.0.1")]


def test_our_own_ray_that_starts_meanwhile_is_no_foreign_listener(itself, monkeypatch):
    running = {7: "raylet"}

    def listening(_ports):
        running[8] = "agent"  # ours, too
        return {6379: 7, 52365: 8, 8265: 9, 8266: 10, 8267: None}

    monkeypatch.setattr(network.processes, "listening", listening)
    monkeypatch.setattr(network.processes, "of_cluster", lambda _cluster: running)
    monkeypatch.setattr(network.processes, "commands", lambda: {9: b"nc\0-l\0"})  # and 10 has ended
    monkeypatch.setattr(network, "_PATIENCE", 0.0)
    assert itself() == [
        ("VR-NET-08", "process 9 (nc) listens on port 8265"),
        ("VR-NET-08", "a process that this node does not show us listens on port 8267"),
    ]


def test_a_process_that_ends_while_it_is_looked_for_is_no_listener(itself, monkeypatch):
    looks = iter([{52365: None}, {}])
    monkeypatch.setattr(network.processes, "listening", lambda _ports: next(looks))
    assert itself() == []


@pytest.mark.parametrize(
    ("returned", "out", "status", "what"),
    [
        (0, "all are there\n500 MB/s\n", OK, "500 MB/s"),
        (1, "all are there\nConnection refused\n", ALARM, "Connection refused"),
        (-14, "all are there\n", ALARM, "it did not end in 13 s"),
        (-14, "", LATE, "a worker was not ready in 25 s"),
    ],
)
def test_workers_all_reduce_if_all_have_torch_and_are_reached(monkeypatch, returned, out, status, what):
    calls = []

    def run(words, **_options):
        calls.append(words)
        return SimpleNamespace(returncode=returned, stdout=out, stderr=out)

    async def meet(*_):
        return ready

    monkeypatch.setattr(network.subprocess, "run", run)
    monkeypatch.setattr(network, "find_spec", lambda _: True)
    monkeypatch.setattr(network, "_meet", meet)
    nodes = {**NODES, "worker-1": "127.0.0.3"}

    def reduced(node, **more):
        return asyncio.run(network._see_peers(plan(node, nodes=nodes, **more), {}))

    ready = {"worker-0"}
    assert reduced("worker-1") == {"all-reduce": ("VR-NET-09", status, "worker-1", what)}
    assert calls[0][-4:] == ["1", "2", "127.0.0.2", "gloo"]
    compile(calls[0][-5], "sent", "exec")
    assert reduced("head") == {}
    why = "a job trains, a name server is late, or there are no two workers with torch that all reach each other"
    assert reduced("worker-1", trains=True) == {"all-reduce": ("VR-NET-09", SKIPPED, "worker-1", why)}
    late = asyncio.run(network._see_peers(plan("worker-1", nodes=nodes), {}, are_named=False))
    assert late == {"all-reduce": ("VR-NET-09", SKIPPED, "worker-1", why)}
    ready = set()
    assert reduced("worker-1") == {"all-reduce": ("VR-NET-09", SKIPPED, "worker-1", why)}
    assert len(calls) == 1


@pytest.mark.parametrize(("other", "status"), [(OK, ALARM), (ALARM, ALARM), (SKIPPED, SKIPPED), (LATE, SKIPPED)])
def test_error_of_a_worker_is_no_alarm_where_another_was_not_ready(other, status):
    rows = [("VR-NET-09", other, "worker-0", "said"), ("VR-NET-09", ALARM, "worker-1", "Connection reset by peer")]
    facts = {row[2]: {"all-reduce": list(row)} for row in rows}
    (judge,) = (check.judge for check in network.CHECKS if check.code == "VR-NET-09")
    assert [row.status for row in judge({"head": {}, **facts}, plan("head"))] == [other, status]


def test_connection_that_breaks_says_something_about_its_peer_only(meet, monkeypatch):
    def broken(*_):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(network, "_trips", broken)
    seen, is_ready = meet()
    assert seen == [("VR-NET-05", ALARM, "head -> worker-0", "the connection broke (Bad file descriptor)")]
    assert not is_ready


def test_peer_whose_doctor_does_not_answer_is_late_unless_its_ports_say_why(port, monkeypatch):
    def seen():
        asyncio.run(network._see_peer(head := plan("head"), "worker-0", {}, {"worker-0"}))
        return [(one.code, one.status, one.seen) for one in head.seen]

    monkeypatch.setattr(network, "_READY_WITHIN", 0.0)
    assert seen() == [("VR-NET-05", LATE, "the doctor of worker-0 did not answer in 0 s")]
    monkeypatch.setattr(network, "_ANSWERS", ())
    assert [code for code, *_ in seen()] == ["VR-NET-01"]


def test_connection_that_breaks_is_not_called_one_without_an_answer():
    async def trips():
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            return await network._trips(*await asyncio.open_connection(*server.sockets[0].getsockname()))

    assert asyncio.run(trips()) == (ALARM, "the connection broke")
