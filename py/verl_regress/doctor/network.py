"""Network: each node reaches each other one as Ray, Gloo and NCCL will, and takes the address by which the others reach it."""

import fcntl
import os
import socket
import struct
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl_regress.base import processes
from verl_regress.doctor import allreduce
from verl_regress.doctor.checks import Check, Cluster, Facts, Plan, Seen, alarm, ok, skipped
from verl_regress.doctor.connections import (
    AGENT_PORT,
    ANSWERS,
    DASHBOARD_PORT,
    HEALTH_CHECK,
    REFUSES,
    SILENT,
    Server,
    knock,
    ports,
    try_peer,
)

_SIOCGIFADDR = 0x8915  # netdevice(7)
_QUICK = 0.3  # seconds in which most answers come
_LOSS, _AGAIN = 0.01, 3  # a share of the packets, and how many at least, that must be sent again to be an alarm
_SLOW_MS = 20.0  # between hosts of one data centre a round trip is below 1
_WITH_NCCL = ("gpu", "rocm")
_OF_DESKTOP = ".docker.internal"  # names that Docker Desktop adds


def facts(plan: Plan) -> dict[str, Any]:
    """What this node takes as its address, what listens there, what its proxies catch, and what it sees of its peers."""
    found: dict[str, Any] = {
        "choices": _within(2, _choices, {"Gloo": "no answer of the name service"}),
        "names": [] if plan.quick else _within(2, lambda: _names(plan.address), []),
        "listeners": {} if plan.quick else _foreign_listeners(plan),
        **_proxies(("127.0.0.1", *plan.nodes.values())),
    }
    if plan.quick or not plan.peers:
        return {**found, "pairs": {peer: _try_quickly(plan, peer) for peer in plan.peers}}
    torch = allreduce.is_possible() and not plan.trains
    server = Server(plan, {"also": found["choices"], "torch": torch, "trains": plan.trains})
    with ThreadPoolExecutor(len(plan.peers)) as pool:
        found["pairs"] = dict(zip(plan.peers, pool.map(lambda peer: try_peer(plan, peer), plan.peers), strict=True))
    server.close()
    found |= {"listened": server.ports, "torch": torch}
    workers = [node for node in plan.nodes if node != "head"]
    others = [found["pairs"][peer] for peer in workers if peer != plan.node]
    if (
        plan.node in workers
        and others
        and torch
        and all(_is_ready(pair) for pair in others)
        and server.content >= {*workers} - {plan.node}
    ):
        backend = "nccl" if plan.profile in _WITH_NCCL else "gloo"
        found["allreduce"] = allreduce.run(workers.index(plan.node), [plan.nodes[node] for node in workers], backend)
    return found


def _is_ready(pair: Facts) -> bool:
    return bool(pair["content"] and pair["said"]["torch"])


def _within(seconds: float, ask: Callable[[], Any], otherwise: Any) -> Any:
    """What `ask` returns; `otherwise` if it takes longer, as a name service that is not reached does."""
    said = [otherwise]
    thread = threading.Thread(target=lambda: said.append(ask()), daemon=True)
    thread.start()
    thread.join(seconds)
    return said[-1]


def _try_quickly(plan: Plan, peer: str) -> dict[str, Any]:
    """What its ports answer; those that do not are tried again, because a packet may be lost."""
    wanted = ports(plan, peer)
    answers: dict[int, str] = {}
    for seconds in (_QUICK, _QUICK, 2.5):
        left = [port for port in wanted if answers.get(port) not in ANSWERS]
        answers |= dict(zip(left, knock(plan.nodes[peer], left, seconds), strict=True))
    return {"said": None, "ports": answers}


def _interfaces() -> dict[str, str]:
    """The IPv4 address of each interface that is up and has one, in the kernel's order."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found[name] = socket.inet_ntoa(answer[20:24])
            except OSError:
                continue
    return found


def _choices() -> dict[str, str]:
    """Which of this node's addresses Gloo and NCCL take (torch 2.13, NCCL 2.28), and vLLM, which asks for the default route."""
    interfaces = _interfaces()
    found = {"Gloo": _named(os.environ.get("GLOO_SOCKET_IFNAME", ""), interfaces) or _of_hostname()}
    asked = os.environ.get("NCCL_SOCKET_IFNAME", "")
    usual = [name for name in interfaces if not name.startswith(("docker", "lo", "virbr"))]
    usual.sort(key=lambda name: not name.startswith("ib"))
    found["NCCL"] = _named(asked, interfaces) or next((interfaces[name] for name in usual), "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("8.8.8.8", 80))  # sends nothing
            found["vLLM"] = os.environ.get("VLLM_HOST_IP") or route.getsockname()[0]
        except OSError:
            pass  # there is no default route
    return found


def _named(asked: str, interfaces: Mapping[str, str]) -> str:
    """The address of the first interface that a variable such as NCCL_SOCKET_IFNAME means: names, their beginnings, after ^ those not meant."""
    if not asked:
        return ""
    words = tuple(asked.lstrip("^=").split(","))
    for name, address in interfaces.items():
        if (name in words if asked[0] == "=" else name.startswith(words)) != (asked[0] == "^"):
            return address
    return f"no interface {asked}"


def _of_hostname() -> str:
    """The first address of the host's own name that is the host's."""
    for family, _, _, _, address in _resolved(socket.gethostname()):
        with socket.socket(family) as here:
            try:
                here.bind((address[0], 0))
                return str(address[0])
            except OSError:
                continue
    return "127.0.0.1"


def _resolved(name: str) -> list[Any]:
    try:
        return socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []


def _names(address: str) -> list[str]:
    """The names of this node's address and of the loopback."""
    return [socket.getnameinfo((each, 0), 0)[0] for each in (address, "127.0.0.1")]


def _proxies(addresses: Iterable[str]) -> dict[str, Any]:
    """The proxy for HTTP, without its user and password, and those of the addresses that it catches."""
    known = urllib.request.getproxies_environment()
    proxy = known.get("http") or known.get("all") or ""
    caught = [each for each in addresses if proxy and not urllib.request.proxy_bypass(each)]
    return {"proxy": proxy.rpartition("@")[2], "proxies": caught}


def _foreign_listeners(plan: Plan) -> dict[str, str]:
    """Who listens on the ports that Ray has for itself there, by port; our own Ray does not count."""
    wanted = {AGENT_PORT, *((plan.gcs_port, DASHBOARD_PORT) if plan.node == "head" else ())}
    found = processes.listening(wanted)  # before `ours`: our own Ray may be starting
    own, commands = processes.ours(plan.cluster), processes.commands()
    return {  # arguments may be secrets
        str(port): f"process {pid} ({commands[pid].split(bytes(1))[0].decode('utf-8', 'replace')})"
        if pid
        else "a process that this node does not show us"
        for port, pid in found.items()
        if pid is None or pid in commands.keys() - own.keys()  # the others have ended
    }


def _pairs(facts: Mapping[str, Facts]) -> Iterator[tuple[str, str, str, Facts]]:
    """Each pair of nodes that answer: `A -> B`, A, B, and what A saw."""
    for node, found in facts.items():
        for peer, seen in found["pairs"].items():
            if peer in facts:
                yield f"{node} -> {peer}", node, peer, seen


def _judge_ports(facts: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    wrong: dict[str, list[str]] = defaultdict(list)
    tried = 0
    for where, node, peer, seen in _pairs(facts):
        scan = seen.get("scan") or {"tried": 0, "silent": []}
        answers = {int(port): answer for port, answer in seen["ports"].items()} | dict.fromkeys(scan["silent"], SILENT)
        listened = facts[peer].get("listened", ())
        bad = {port: answer for port, answer in answers.items() if answer not in ANSWERS}
        refused = {port for port in listened if answers[port] == REFUSES}
        if len(refused) < len(listened) or facts[peer]["pairs"].get(node, {}).get("said"):  # they ran at the same time
            bad |= dict.fromkeys(refused, "refused by a firewall")
        count = len(seen["ports"]) + scan["tried"]
        tried += count
        if bad:
            port = min(bad)
            every = f"no port answers ({bad[port]})"
            some = f"port {port}: {bad[port]} ({len(bad)} of {count} ports)"
            wrong[every if len(bad) == len(answers) else some].append(where)
    for what, pairs in wrong.items():
        yield alarm(", ".join(pairs), what)
    if not wrong:
        yield ok("every pair", f"{tried} connections were answered")
    if cluster.training and not cluster.quick:
        yield skipped(", ".join(cluster.training), "a job trains, so only some ports were tried")


def _judge_nat(facts: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    for where, node, peer, seen in _pairs(facts):
        if seen["said"] and seen["said"]["you"] not in (cluster.nodes[node], *facts[node]["choices"].values()):
            yield alarm(where, f"{peer} sees {seen['said']['you']}, and {node} is {cluster.nodes[node]}")


def _judge_names(facts: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    for node, found in facts.items():
        gloo = found["choices"]["Gloo"]
        if gloo.startswith("127.") or (":" in gloo) != (":" in cluster.nodes[node]):
            yield alarm(node, f"its own name is {gloo}, and it is {cluster.nodes[node]}")
        for name in found["names"]:
            if name.endswith(_OF_DESKTOP):
                yield alarm(node, f"an address of it is called {name}, as Docker Desktop writes into its hosts file")


def _judge_interfaces(facts: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    for where, _, peer, seen in _pairs(facts):
        for who, address in (seen["said"] or {}).get("also", {}).items():
            is_used = who != "NCCL" or cluster.profile in _WITH_NCCL
            if is_used and not address.startswith("127.") and not seen["also"][address]:
                yield alarm(where, f"{who} on {peer} takes {address}, and only {cluster.nodes.get(peer)} is reached")


def _judge_mtu(facts: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    for where, _, _, seen in _pairs(facts):
        if seen["said"] and seen["mtu"] != 0:
            passes = f"with an MTU of {seen['mtu']} it does" if seen["mtu"] else "a smaller MTU does not help"
            yield alarm(where, f"it does not arrive; {passes}")


def _judge_trips(facts: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    known = {where: seen["trips"] for where, _, _, seen in _pairs(facts) if seen.get("trips")}
    for where, trips in known.items():
        if trips == "lost":
            yield alarm(where, f"no answer in {HEALTH_CHECK:.0f} s, after which Ray counts a health check as failed")
            continue
        again, sent = trips["again"], trips["sent"]
        if trips["fastest_ms"] > _SLOW_MS or (again >= _AGAIN and again >= _LOSS * sent):
            yield alarm(where, f"{again} of {sent} packets sent again, {_span(trips)}")
    measured = [trips for trips in known.values() if trips != "lost"]
    if measured:
        slowest = max(measured, key=lambda trips: trips["slowest_ms"])
        yield ok("every other pair", f"{_span(slowest)}, of the {HEALTH_CHECK:.0f} s of a health check")
    elif not known:
        yield skipped("every pair", "no connection, or the kernel does not count packets")


def _span(trips: Facts) -> str:
    return f"round trips of {trips['fastest_ms']:.1f} to {trips['slowest_ms']:.0f} ms"


def _judge_proxies(facts: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    for node, found in facts.items():
        if found["proxies"]:
            yield alarm(node, f"the proxy {found['proxy']} catches {', '.join(found['proxies'])}")


def _judge_listeners(facts: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    for node, found in facts.items():
        for port, who in found["listeners"].items():
            yield alarm(node, f"{who} listens on port {port}")


def _judge_allreduce(facts: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    tried = {node: found["allreduce"] for node, found in facts.items() if "allreduce" in found}
    if len(tried) < sum(node in facts for node in cluster.workers):  # those that tried have waited for the others
        tried = {}
    for node, found in tried.items():
        if "error" in found:
            yield alarm(node, found["error"])
        elif "late" in found:
            yield skipped(node, found["late"])
    pairs = {
        f"{node} -> {cluster.workers[int(to)]}": speed
        for node, found in tried.items()
        for to, speed in found.get("pairs", {}).items()
    }
    if pairs:
        slowest = min(pairs, key=pairs.__getitem__)
        least = min(found["all"] for found in tried.values() if "all" in found)
        yield ok(", ".join(tried), f"{least:.0f} MB/s, and {pairs[slowest]:.0f} MB/s in the slowest pair, {slowest}")
    elif not tried:
        yield skipped(
            "the workers",
            "a job trains" if cluster.training else "it needs two or more workers that all have torch and are reached",
        )


_EXPORT = (
    "put 'export GLOO_SOCKET_IFNAME=NAME' and 'export NCCL_SOCKET_IFNAME=NAME' with the interface that leads to the other nodes into "
    "env/local.env, then 'make down up'"
)
CHECKS = (
    Check(
        "VR-NET-01",
        "connect to each other node on ports of Ray, Gloo and NCCL",
        _judge_ports,
        "a firewall drops what they send: a worker does not join, or is soon called dead, or processes wait for each other",
        "open all TCP ports between the hosts of the nodes (a container engine that sets iptables' policy for FORWARD to DROP is a usual cause)",
        quick=True,
    ),
    Check(
        "VR-NET-02",
        "compare with the address that the other node sees",
        _judge_nat,
        "addresses are translated between them (NAT), and what Ray or Gloo sends back goes elsewhere",
        "connect the nodes without translation: HOSTS_FILE (the hosts' own network), or address=IP in NODES_FILE",
    ),
    Check(
        "VR-NET-03",
        "resolve the node's own name, as Gloo does",
        _judge_names,
        "Gloo listens where no other node connects to",
        f"correct the node's hosts file, or {_EXPORT}",
        quick=True,
    ),
    Check(
        "VR-NET-04",
        "send a message of 256 KiB",
        _judge_mtu,
        "packets of full size are dropped on the way: Ray's nodes join, and the first large tensor hangs",
        "give the interfaces of the nodes the smallest MTU on the way, or let ICMP pass",
    ),
    Check(
        "VR-NET-05",
        "send small messages for 3 s",
        _judge_trips,
        "each step waits for its slowest packet",
        "check cables, switches and the load of that network, or train on other nodes",
    ),
    Check(
        "VR-NET-06",
        "reach the address that Gloo, NCCL and vLLM take",
        _judge_interfaces,
        "the node has several interfaces, and processes wait for each other on the wrong one",
        f"{_EXPORT}; vLLM takes the one with the default route",
    ),
    Check(
        "VR-NET-07",
        "find proxies that catch the nodes' addresses",
        _judge_proxies,
        "requests to Ray and to rollout servers go to a proxy that does not know the nodes",
        "add these addresses to no_proxy on that node",
        quick=True,
    ),
    Check(
        "VR-NET-08",
        "find who listens on Ray's own ports",
        _judge_listeners,
        "Ray does not start there, or another cluster answers",
        "end that process, or choose another node; the port of the GCS is GCS_PORT",
    ),
    Check(
        "VR-NET-09",
        "all-reduce 16 MB between the workers",
        _judge_allreduce,
        "a job's processes will not find each other either",
        "see the other checks of the network first",
    ),
)
