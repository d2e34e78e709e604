import copy

import pytest

from verl_regress.base.knobs import Knobs
from verl_regress.doctor import network
from verl_regress.doctor.checks import Cluster, Plan
from verl_regress.doctor.connections import ACCEPTS, REFUSES, SILENT

NODES = {"head": "10.0.0.1", "worker-0": "10.0.0.2", "worker-1": "10.0.0.3"}


def pair(node, peer):
    also = {"Gloo": NODES[peer], "NCCL": NODES[peer], "vLLM": NODES[peer]}
    return {
        "said": {"you": NODES[node], "also": also, "torch": True, "trains": False},
        "ports": {"6379": ACCEPTS, "10002": REFUSES},
        "mtu": 0,
        "trips": {"count": 800, "slowest_ms": 9.0, "again": 1, "sent": 800, "fastest_ms": 0.1},
        "also": {NODES[peer]: True},
        "scan": {"tried": 9000, "silent": []},
    }


def facts():
    """What the nodes find where all is well, as JSON brings it."""
    return {
        node: {
            "choices": {"Gloo": address, "NCCL": address, "vLLM": address},
            "names": ["c0ffee"],
            "listeners": {},
            "proxy": "",
            "proxies": [],
            "listened": [10002] if node == "none" else [],
            "pairs": {peer: pair(node, peer) for peer in NODES if peer != node},
            **({} if node == "head" else {"allreduce": {"all": 500.0, "pairs": {str(1 - int(node[-1])): 400.0}}}),
        }
        for node, address in NODES.items()
    }


def said(found, training=(), profile="gpu"):
    cluster = Cluster(NODES, profile, quick=False, knobs=Knobs({}), training=training)
    return {check.code: list(check.judge(found, cluster)) for check in network.CHECKS}


def changed(change):
    found = copy.deepcopy(facts())
    change(found["worker-0"]["pairs"]["head"], found["worker-0"], found)
    return found


def test_nothing_is_wrong_where_all_is_well():
    assert {seen.status for answers in said(facts()).values() for seen in answers} == {"ok"}
    assert said(facts())["VR-NET-09"][0].seen == "500 MB/s, and 400 MB/s in the slowest pair, worker-0 -> worker-1"


FAULTS = {
    "one port is blocked one way": (
        lambda pair, node, all: pair["ports"].update({"6379": SILENT}),
        ("VR-NET-01", "worker-0 -> head", "port 6379: no answer (1 of 9002 ports)"),
    ),
    "the scan finds one": (
        lambda pair, node, all: pair["scan"].update(silent=[12345]),
        ("VR-NET-01", "worker-0 -> head", "port 12345: no answer (1 of 9002 ports)"),
    ),
    "a firewall drops all": (
        lambda pair, node, all: pair.update(ports={"6379": SILENT, "10002": SILENT}, said=None, scan=None, trips=None),
        ("VR-NET-01", "worker-0 -> head", "no port answers (no answer)"),
    ),
    "a firewall refuses": (
        lambda pair, node, all: all["head"].update(listened=[10002]),
        (
            "VR-NET-01",
            "worker-0 -> head, worker-1 -> head",
            "port 10002: refused by a firewall (1 of 9002 ports)",
        ),
    ),
    "addresses are translated": (
        lambda pair, node, all: pair["said"].update(you="192.168.0.9"),
        ("VR-NET-02", "worker-0 -> head", "head sees 192.168.0.9, and worker-0 is 10.0.0.2"),
    ),
    "the host's name is 127.0.1.1": (
        lambda pair, node, all: node["choices"].update(Gloo="127.0.1.1"),
        ("VR-NET-03", "worker-0", "its own name is 127.0.1.1, and it is 10.0.0.2"),
    ),
    "IPv6 comes first": (
        lambda pair, node, all: node["choices"].update(Gloo="fe80::1"),
        ("VR-NET-03", "worker-0", "its own name is fe80::1, and it is 10.0.0.2"),
    ),
    "Docker Desktop": (
        lambda pair, node, all: node.update(names=["kubernetes.docker.internal"]),
        (
            "VR-NET-03",
            "worker-0",
            "an address of it is called kubernetes.docker.internal, as Docker Desktop writes into its hosts file",
        ),
    ),
    "full packets are dropped": (
        lambda pair, node, all: pair.update(mtu=1400),
        ("VR-NET-04", "worker-0 -> head", "it does not arrive; with an MTU of 1400 it does"),
    ),
    "nothing large arrives": (
        lambda pair, node, all: pair.update(mtu=None),
        ("VR-NET-04", "worker-0 -> head", "it does not arrive; a smaller MTU does not help"),
    ),
    "5 % are lost": (
        lambda pair, node, all: pair["trips"].update(again=40),
        ("VR-NET-05", "worker-0 -> head", "40 of 800 packets sent again, round trips of 0.1 to 9 ms"),
    ),
    "a message has no answer": (
        lambda pair, node, all: pair.update(trips="lost"),
        ("VR-NET-05", "worker-0 -> head", "no answer in 10 s, after which Ray counts a health check as failed"),
    ),
    "far away": (
        lambda pair, node, all: pair["trips"].update(fastest_ms=80.0, slowest_ms=90.0),
        ("VR-NET-05", "worker-0 -> head", "1 of 800 packets sent again, round trips of 80.0 to 90 ms"),
    ),
    "the wrong interface": (
        lambda pair, node, all: pair.update(
            said={**pair["said"], "also": {"NCCL": "192.168.0.2"}}, also={"192.168.0.2": False}
        ),
        ("VR-NET-06", "worker-0 -> head", "NCCL on head takes 192.168.0.2, and only 10.0.0.1 is reached"),
    ),
    "a proxy": (
        lambda pair, node, all: node.update(proxy="proxy.example", proxies=["127.0.0.1", "10.0.0.1"]),
        ("VR-NET-07", "worker-0", "the proxy proxy.example catches 127.0.0.1, 10.0.0.1"),
    ),
    "a listener": (
        lambda pair, node, all: all["head"].update(listeners={"6379": "process 7 (nc -l 6379)"}),
        ("VR-NET-08", "head", "process 7 (nc -l 6379) listens on port 6379"),
    ),
    "no all-reduce": (
        lambda pair, node, all: node.update(allreduce={"error": "Connection refused"}),
        ("VR-NET-09", "worker-0", "Connection refused"),
    ),
}


@pytest.mark.parametrize(("change", "expected"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_found_with_its_code_and_nothing_else(change, expected):
    found = said(changed(change))
    alarms = [(code, *seen[1:3]) for code, answers in found.items() for seen in answers if seen.status == "alarm"]
    assert alarms == [expected]


def test_every_check_has_a_meaning_and_a_cure():
    assert all(check.means and check.cure for check in network.CHECKS)


def test_another_interface_for_nccl_is_no_fault_of_a_rehearsal():
    found = changed(FAULTS["the wrong interface"][0])
    assert not [seen for seen in said(found, profile="cpu")["VR-NET-06"] if seen.status == "alarm"]


def test_node_that_does_not_answer_is_not_a_fault_of_the_pairs():
    found = changed(FAULTS["a firewall drops all"][0])
    del found["head"]
    assert [seen.status for seen in said(found)["VR-NET-01"]] == ["ok"]


def test_while_a_job_trains_it_says_what_is_left_out():
    found = facts()
    for node in found.values():
        node.pop("allreduce", None)
    answers = said(found, training=("worker-0",))
    assert answers["VR-NET-01"][-1].seen == "a job trains, so only some ports were tried"
    assert answers["VR-NET-09"][0][:3] == ("skipped", "the workers", "a job trains")


@pytest.mark.parametrize(
    ("asked", "address"),
    [
        ("eth1", "10.0.0.1"),
        ("eth", "172.0.0.1"),
        ("=eth", "no interface =eth"),
        ("=eth1", "10.0.0.1"),
        ("^eth0,lo", "10.0.0.1"),
        ("ib0", "no interface ib0"),
        ("", ""),
    ],
)
def test_a_variable_names_interfaces_as_nccl_reads_it(asked, address):
    assert network._named(asked, {"lo": "127.0.0.1", "eth0": "172.0.0.1", "eth1": "10.0.0.1"}) == address


def test_proxy_is_named_without_its_password_and_with_what_it_catches(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert network._proxies(["127.0.0.1"])["proxies"] == []
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    for proxy in ("http://ann:secret@proxy.example:3128", "ann:secret@proxy.example:3128"):
        monkeypatch.setenv("http_proxy", proxy)
        found = network._proxies(["127.0.0.1", "10.0.0.1"])
        assert found == {"proxy": "proxy.example:3128", "proxies": ["10.0.0.1"]}


def plan(quick, **nodes):
    return Plan("head", {"head": "127.0.0.1", **nodes}, "c", "cpu", "/private", 6379, quick, trains=False)


def test_one_node_has_nothing_to_reach(monkeypatch):
    monkeypatch.setattr(network, "_within", lambda _seconds, _ask, otherwise: otherwise)
    found = network.facts(plan(quick=False))
    cluster = Cluster({"head": "127.0.0.1"}, "cpu", quick=False, knobs=Knobs({}), training=())
    assert found["pairs"] == {}
    assert [seen.status for seen in network._judge_trips({"head": found}, cluster)] == ["skipped"]


def test_our_own_ray_that_starts_meanwhile_is_no_foreign_listener(monkeypatch):
    running = {7: "raylet"}

    def listening(_ports):
        running[8] = "agent"  # ours, too
        return {6379: 7, 52365: 8, 8265: 9, 8266: 10, 8267: None}

    monkeypatch.setattr(network.processes, "listening", listening)
    monkeypatch.setattr(network.processes, "ours", lambda _cluster: running)
    monkeypatch.setattr(network.processes, "commands", lambda: {9: b"nc\0-l\0"})  # and 10 has ended
    assert network._foreign_listeners(plan(quick=False)) == {
        "8265": "process 9 (nc)",
        "8267": "a process that this node does not show us",
    }


def test_probe_that_had_ended_is_no_firewall():
    found = changed(FAULTS["a firewall refuses"][0])
    for node in ("worker-0", "worker-1"):
        found["head"]["pairs"][node]["said"] = None
    assert [seen.status for seen in said(found)["VR-NET-01"]] == ["ok"]
    found["head"]["listened"].append(6379)  # which they reached
    assert [seen.status for seen in said(found)["VR-NET-01"]] == ["alarm"]


def test_all_reduce_that_a_worker_did_not_begin_is_no_fault():
    found = changed(FAULTS["no all-reduce"][0])
    del found["worker-1"]["allreduce"]
    assert [seen.status for seen in said(found)["VR-NET-09"]] == ["skipped"]
