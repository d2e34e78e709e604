"""Network: each node reaches each other one as Ray, Gloo and NCCL will, and takes the address by which the others reach it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verl_regress.base import processes
from verl_regress.base.errors import last_line
from verl_regress.doctor.checks import ALARM, LATE, OK, SKIPPED, DoctorCheck, Facts, ProbePlan, Seen

_HOSTS, _RESOLVER = Path("/etc/hosts"), Path("/etc/resolv.conf")
_INTERFACES = Path("/sys/class/net")
_NAMES_WITHIN = 6.0  # seconds for a name server; a question that was lost is asked again after 5 (resolv.conf(5))
_DASHBOARD_PORT, _AGENT_PORT = 8265, 52365  # Ray's, on the head and on each node
_WITH_NCCL = ("gpu", "rocm")  # profiles
_LISTENED = (10002, 15000, 19999, 33001, 45001, 60001)  # by a probe
# Ray gives 10002 to 19999 to its worker processes (2.60), and the kernel such as the others to raylets, Gloo and NCCL.
_TRIED = (*_LISTENED, *range(10500, 19999, 500), *range(33000, 60000, 1500))
_HEALTH_CHECK, _ECHO_SECONDS = 10.0, 3.0  # seconds that Ray waits for an answer (2.60), and in which we ask
_ANSWERS = _ACCEPTS, _REFUSES = "accepts", "refuses"  # a port without a listener answers, too
_PATIENCE = 2.5  # seconds for an answer
_QUICKLY, _PATIENTLY = (0.3, 0.3, _PATIENCE), (_PATIENCE, _PATIENCE)  # again because a packet may be lost
_READY_WITHIN, _LONGEST = 20.0, 35.0  # seconds in which probes start and end
_LOSS, _AGAIN = 0.01, 3  # a share of the packets, and how many at least, that must be sent again to be an alarm
_SLOW = 20_000  # microseconds: between hosts of one data centre a round trip is below 1,000
_LARGE = b"x" * (1 << 18) + b"\n"
# A process of it, on each worker: RANK SIZE ADDRESS_OF_THE_FIRST BACKEND. NCCL may hang where it does not count its seconds. It ends at
# once, because the end of others would be an error.
_PROGRAM = """
import os, signal, sys, time
signal.alarm(25)
import torch, torch.distributed as d
rank, size, (address, backend) = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
data = torch.ones(1 << 22, device="cuda" if backend == "nccl" else "cpu")
store = d.TCPStore(address, 45003, size, rank == 0)
store.set(str(rank), "")
store.wait([str(each) for each in range(size)])
signal.alarm(13)
print("all are there", flush=True)
d.init_process_group(backend, store=store, rank=rank, world_size=size)
d.all_reduce(data[:1])
began = time.monotonic()
d.all_reduce(data)
data[0].item()
print(f"{16.8 / (time.monotonic() - began):.0f} MB/s", flush=True)
d.barrier()
os._exit(0)
"""
_ERRORS = (OSError, ValueError, asyncio.TimeoutError)  # ValueError: another program listens there


def facts(plan: ProbePlan) -> dict[str, Any]:
    """How the all-reduce ended, which the judge compares. It sees what is wrong with this node's network, and between it and its peers."""
    choices: dict[str, str] = {}
    are_named = _see_names(plan, choices)
    _see_itself(plan)
    found = asyncio.run(_see_peers(plan, choices, are_named=are_named))
    here = {"hostname": socket.gethostname(), "macs": _macs()}
    return {**found, **here, "neighbours": processes.neighbours()}  # now the kernel knows them


def _see_names(plan: ProbePlan, choices: dict[str, str]) -> bool:
    """Ask what a job asks: Gloo for the node's own name, torch's store for the name of each address (2.13). Notes the node's choices.
    Returns whether all were answered in time."""
    asked: dict[str, Callable[[], object]] = {socket.gethostname(): lambda: choices.update(_choices())}
    asked |= {address: partial(_name_of, address) for address in plan.nodes.values()}
    threads = {name: threading.Thread(target=ask, daemon=True) for name, ask in asked.items()}
    end = time.monotonic() + _NAMES_WITHIN
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    if late := [name for name, thread in threads.items() if thread.is_alive()]:
        servers = [line.split()[1] for line in _RESOLVER.read_text().splitlines() if line.startswith("nameserver ")]
        what = f"no answer from {', '.join(servers)} in {_NAMES_WITHIN:.0f} s for {', '.join(late)}"
        plan.see("VR-NET-10", what, status=LATE)
    elif not os.environ.get("GLOO_SOCKET_IFNAME"):
        gloo = choices.get("Gloo", "")
        if not gloo or gloo.startswith("127.") or (":" in gloo) != (":" in plan.nodes[plan.node]):
            plan.see("VR-NET-03", f"its own name is {gloo or 'unknown'}, and it is {plan.nodes[plan.node]}")
    return not late


def _name_of(address: str) -> None:
    # Not getnameinfo, as torch does: CPython 3.11's keeps the interpreter's lock, so that no other thread would run meanwhile.
    with contextlib.suppress(OSError):  # it may have no name
        socket.gethostbyaddr(address)


def _macs() -> list[str]:
    """The hardware addresses of this node."""
    return [path.read_text().strip() for path in _INTERFACES.glob("*/address")]


def _see_itself(plan: ProbePlan) -> None:
    _see_docker_desktop(plan)
    _see_proxy(plan)
    _see_listeners(plan)


def _see_docker_desktop(plan: ProbePlan) -> None:
    """Docker Desktop writes a name of its own for an address of the host into the hosts file."""
    for address, *names in filter(None, map(str.split, _HOSTS.read_text().splitlines())):
        wrong = [name for name in names if name.endswith(".docker.internal")]
        if wrong and address == plan.nodes[plan.node]:
            plan.see("VR-NET-03", f"an address of it is called {wrong[0]}")


def _see_proxy(plan: ProbePlan) -> None:
    known = urllib.request.getproxies_environment()
    proxy = known.get("http") or known.get("all") or ""
    caught = [each for each in ("127.0.0.1", *plan.nodes.values()) if not urllib.request.proxy_bypass(each)]
    if proxy and caught:  # it may have a password
        plan.see("VR-NET-07", f"the proxy {proxy.rpartition('@')[2]} catches {', '.join(caught)}")


def _see_listeners(plan: ProbePlan) -> None:
    """Processes that hold Ray's own ports on this node, and are not of this cluster."""
    of_head = (int(plan.knobs["GCS_PORT"]), _DASHBOARD_PORT) if plan.node == "head" else ()
    listening = _listening({_AGENT_PORT, *of_head})  # before `ours`: our own Ray may be starting
    ours, commands = processes.of_cluster(plan.knobs["CLUSTER_NAME"]), processes.commands()
    for port, pid in listening.items():
        if pid is None:
            plan.see("VR-NET-08", f"a process that this node does not show us listens on port {port}")
        elif pid in commands and pid not in ours:  # its arguments may be secrets
            name = commands[pid].split(b"\0")[0].decode("utf-8", "replace")
            plan.see("VR-NET-08", f"process {pid} ({name}) listens on port {port}")


def _listening(ports: Collection[int]) -> dict[int, int | None]:
    """Who listens on these ports. A process that ends keeps its socket a little longer than the kernel shows it."""
    until = time.monotonic() + _PATIENCE
    while None in (found := processes.listening(ports)).values() and time.monotonic() < until:
        time.sleep(0.1)
    return found


async def _see_peers(plan: ProbePlan, choices: Mapping[str, str], *, are_named: bool = True) -> dict[str, Any]:
    if plan.quick:
        await asyncio.gather(*(_try_ports(plan, peer) for peer in plan.peers))
        return {}
    torch = find_spec("torch") is not None and not plan.trains and are_named  # else it waits for names, too
    ready = await _meet(plan, {"also": choices, "torch": torch})
    workers = [node for node in plan.nodes if node != "head"]
    if plan.node not in workers:
        return {}
    status, said = (
        SKIPPED,
        "a job trains, a name server is late, or there are no two workers with torch that all reach each other",
    )
    if torch and len(workers) > 1 and {*workers} <= ready | {plan.node}:
        status, said = _all_reduce(plan, workers)
    return {"all-reduce": Seen("VR-NET-09", status, plan.node, said)}


def _all_reduce(plan: ProbePlan, workers: Sequence[str]) -> tuple[str, str]:
    backend = "nccl" if plan.knobs["PROFILE"] in _WITH_NCCL else "gloo"
    words = [str(workers.index(plan.node)), str(len(workers)), plan.nodes[workers[0]], backend]
    ran = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=False)
    if ran.returncode == -signal.SIGALRM:
        return (ALARM, "it did not end in 13 s") if ran.stdout else (LATE, "a worker was not ready in 25 s")
    return (ALARM, last_line(ran.stderr)) if ran.returncode else (OK, last_line(ran.stdout))


def _choices() -> dict[str, str]:
    """Which of this node's addresses Gloo takes (torch 2.13), if no variable says so, and vLLM, which asks for the default route."""
    found = {} if os.environ.get("GLOO_SOCKET_IFNAME") else {"Gloo": _of_hostname()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route, contextlib.suppress(OSError):  # no default route
        route.connect(("8.8.8.8", 80))  # sends nothing
        found["vLLM"] = os.environ.get("VLLM_HOST_IP") or route.getsockname()[0]
    return found


def _of_hostname() -> str:
    """The first address of the host's own name that is the host's."""
    with contextlib.suppress(OSError):  # the name has no address
        for family, _, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with socket.socket(family) as here, contextlib.suppress(OSError):
                here.bind((address[0], 0))
                return str(address[0])
    return "127.0.0.1"


async def _knock(address: str, numbers: Sequence[int], patience: Sequence[float]) -> dict[int, str]:
    """What each port says to a connection: one of _ANSWERS, or why there is none; tried again as often as `patience` has seconds."""

    async def knock(port: int) -> str:
        said = ""
        for seconds in patience:
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), seconds)
            except (ConnectionRefusedError, ConnectionResetError):
                return _REFUSES
            except (OSError, asyncio.TimeoutError) as error:
                said = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else "no answer"
            else:
                writer.close()
                return _ACCEPTS
        return said

    return dict(zip(numbers, await asyncio.gather(*map(knock, numbers)), strict=True))


async def _try_ports(plan: ProbePlan, peer: str, listened: Sequence[int] = ()) -> bool:
    """Do the ports that Ray, Gloo and NCCL will use on the peer all answer? Those on which it has `listened` must not refuse."""
    wanted = [*([int(plan.knobs["GCS_PORT"])] if peer == "head" else []), _AGENT_PORT, *_TRIED]
    said = await _knock(plan.nodes[peer], wanted, _QUICKLY if plan.quick else _PATIENTLY)
    bad = {port: answer for port, answer in said.items() if answer not in _ANSWERS}
    bad |= {port: "refused by a firewall" for port in listened if said[port] == _REFUSES}
    if bad:
        what = f"port {min(bad)}: {bad[min(bad)]} ({len(bad)} of {len(said)} ports)"
        plan.see("VR-NET-01", what, f"{plan.node} -> {peer}")
    return not bad


async def _meet(plan: ProbePlan, greeting: Mapping[str, Any]) -> set[str]:
    """See this node's peers, whose probes do the same at this time. Returns which of them have torch and take a large message.
    It greets each connection, and answers each line with the line's length. The first line is the name of a peer that tries all."""
    awaited, here, listened, began = set(plan.peers), set[str](), list[int](), time.monotonic()
    family = socket.AF_INET6 if ":" in plan.nodes[plan.node] else socket.AF_INET

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, client = "", writer.get_extra_info("peername")
        with contextlib.suppress(OSError, asyncio.CancelledError):  # the peer has gone, or all is over
            said = {"you": client[0] if client else "", "listens": listened, **greeting}
            writer.write(json.dumps(said).encode() + b"\n")
            peer = (await reader.readline()).decode().strip()
            here.update(awaited & {peer})
            awaited.discard(peer)
            while line := await reader.readline():
                writer.write(b"%d\n" % len(line))
        here.discard(peer)
        writer.close()

    listeners = list[socket.socket]()
    for port in _LISTENED:  # all before the first peer is greeted
        with contextlib.suppress(OSError):  # something listens there already
            listeners.append(socket.create_server(("", port), family=family, backlog=128))
            listened.append(port)
    for listener in listeners:
        await asyncio.start_server(handle, sock=listener, limit=2 * len(_LARGE))
    are_ready = await asyncio.gather(*(_see_peer(plan, peer, greeting["also"], awaited) for peer in plan.peers))
    while (awaited and time.monotonic() < began + _READY_WITHIN) or (here and time.monotonic() < began + _LONGEST):
        await asyncio.sleep(0.05)
    return {peer for peer, is_ready in zip(plan.peers, are_ready, strict=True) if is_ready}


async def _see_peer(plan: ProbePlan, peer: str, own: Mapping[str, str], awaited: Collection[str]) -> bool:
    """As _try_peer; a connection that breaks says something about this peer, and nothing about the others."""
    try:
        return await _try_peer(plan, peer, own, awaited)
    except Exception as error:  # in a way that we did not think of
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        plan.see("VR-NET-05", f"the connection broke ({why})", f"{plan.node} -> {peer}")
        return False


async def _try_peer(plan: ProbePlan, peer: str, own: Mapping[str, str], awaited: Collection[str]) -> bool:
    """Returns whether it has torch and takes a large message."""
    address, where, said = plan.nodes[peer], f"{plan.node} -> {peer}", dict[str, Any]()
    with contextlib.suppress(*_ERRORS):
        port = await _await_server(address)
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), _PATIENCE)
        said = json.loads(await _heard(reader))
        writer.write(plan.node.encode() + b"\n")
    # who came to us listens
    are_open = await _try_ports(plan, peer, said.get("listens", () if peer in awaited else _LISTENED))
    if not said:
        if are_open:
            plan.see("VR-NET-05", f"the doctor of {peer} did not answer in {_READY_WITHIN:.0f} s", where, LATE)
        return False
    is_chosen = any(os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"))
    if said["you"] not in {plan.nodes[plan.node], *own.values(), *(processes.addresses() if is_chosen else ())}:
        plan.see("VR-NET-02", f"{peer} sees {said['you']}, and {plan.node} is {plan.nodes[plan.node]}", where)
    for who, at in said["also"].items():
        if not at.startswith("127.") and (await _knock(at, [port], _PATIENTLY))[port] != _ACCEPTS:
            plan.see("VR-NET-06", f"{who} on {peer} takes {at}, and only {address} is reached", where)
    status, what = await _trips(reader, writer)
    plan.see("VR-NET-05", what, where, status)
    connection = writer.get_extra_info("socket")
    size = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    for start in range(0, len(_LARGE), size):  # each is a packet, which nothing on this machine cuts
        writer.write(_LARGE[start : start + size])
    if not (answer := await _heard(reader)):
        plan.see("VR-NET-04", "it does not arrive", where)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()  # the peer hears of it before it has all of the message
    return bool(answer and said["torch"])


async def _await_server(address: str) -> int:
    end = time.monotonic() + _READY_WITHIN
    while time.monotonic() < end:
        for port, answer in (await _knock(address, _LISTENED, [1.2])).items():
            if answer == _ACCEPTS:
                return port
        await asyncio.sleep(0.1)
    raise TimeoutError


async def _heard(reader: asyncio.StreamReader, seconds: float = _PATIENCE) -> bytes:
    """The peer's next line; b"" without one."""
    try:
        return await asyncio.wait_for(reader.readline(), seconds)
    except _ERRORS:
        return b""


async def _trips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str]:
    """Round trips, and packets that are sent again, as the kernel counts them (tcp(7), TCP_INFO)."""
    slowest, end = 0.0, time.monotonic() + _ECHO_SECONDS
    while time.monotonic() < end:
        began = time.monotonic()
        writer.write(b"x" * 50 + b"\n")  # one at a time: several packets may be sent again because the peer is busy
        if not await _heard(reader, _HEALTH_CHECK):
            if reader.at_eof() or reader.exception():
                return ALARM, "the connection broke"
            return ALARM, f"no answer, for which Ray's health check waits {_HEALTH_CHECK:.0f} s"
        slowest = max(slowest, 1000 * (time.monotonic() - began))
        await asyncio.sleep(0.005)
    info = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    again, fastest, sent = struct.unpack_from("100xI44xI4xI", info.ljust(192, b"\0"))
    what = f"{again} of {sent} packets sent again, round trips of {fastest / 1000:.1f} to {slowest:.0f} ms"
    return ALARM if fastest > _SLOW or again >= max(_AGAIN, _LOSS * sent) else OK, what


def _judge_all_reduce(facts: Mapping[str, Facts], plan: ProbePlan) -> list[Seen]:
    """While a worker does not take part, or was not ready in time, the errors of the others are no alarm: they miss its connection."""
    rows = [Seen(*found["all-reduce"]) for found in facts.values() if "all-reduce" in found]
    is_late = any(row.status in (SKIPPED, LATE) for row in rows)
    return [row._replace(status=SKIPPED) if is_late and row.status == ALARM else row for row in rows]


def _judge_duplicates(facts: Mapping[str, Facts], plan: ProbePlan) -> Iterator[Seen]:
    """An address that answers from hardware which its node does not have. A router that answers for others (proxy ARP) has several."""
    for node, found in facts.items():
        macs = [*found["neighbours"].values()]
        for peer in facts.keys() - {node}:
            mac = found["neighbours"].get(address := plan.nodes[peer])
            if mac and mac not in facts[peer]["macs"] and macs.count(mac) == 1:
                own = ", ".join(one for one in facts[peer]["macs"] if one.strip("0:"))
                what = f"{address} answers from the MAC address {mac}, and {peer} has {own}"
                yield Seen("VR-NET-11", ALARM, f"{node} -> {peer}", what)


def _judge_hostnames(facts: Mapping[str, Facts], _plan: ProbePlan) -> Iterator[Seen]:
    owners = defaultdict(list)
    for node, found in facts.items():
        owners[found["hostname"]].append(node)
    for hostname, nodes in owners.items():
        if len(nodes) > 1:
            yield Seen("VR-NET-12", ALARM, ", ".join(nodes), f"each is called {hostname}")


_EXPORT = "put 'export GLOO_SOCKET_IFNAME=NAME', and NCCL_SOCKET_IFNAME's, into env/local.env, then 'make down up'"
CHECKS = (
    DoctorCheck(
        "VR-NET-01",
        "connect on ports of Ray, Gloo and NCCL",
        "a worker does not join, is soon called dead, or waits for others",
        "correct VR-NET-11 first; open all TCP ports between the hosts (Docker may set iptables' policy for FORWARD to DROP), and let a "
        "firewall on the way see both directions",
    ),
    DoctorCheck(
        "VR-NET-02",
        "compare with the address that the other node sees",
        "what Ray or Gloo sends back goes elsewhere (NAT)",
        "connect the nodes without translation: HOSTS_FILE, or address=IP in NODES_FILE",
        quick=False,
    ),
    DoctorCheck(
        "VR-NET-03",
        "resolve the node's own name, as Gloo does",
        "Gloo listens where no other node connects to",
        f"correct the node's hosts file, or {_EXPORT}",
    ),
    DoctorCheck(
        "VR-NET-04",
        "send a message of 256 KiB",
        "packets of full size are dropped, and the first large tensor hangs",
        "give the nodes' interfaces the smallest MTU on the way, or let ICMP pass",
        quick=False,
    ),
    DoctorCheck(
        "VR-NET-05",
        "send small messages for 3 s",
        "each step waits for its slowest packet",
        "check that network's cables, switches and load",
        quick=False,
    ),
    DoctorCheck(
        "VR-NET-06",
        "reach the address that Gloo and vLLM take",
        "processes wait on the wrong interface",
        f"{_EXPORT}; vLLM takes the one with the default route",
        quick=False,
    ),
    DoctorCheck(
        "VR-NET-07",
        "find proxies that catch the nodes' addresses",
        "requests to Ray and rollout servers go to the proxy",
        "add these addresses to no_proxy on that node, or name them with address=IP in NODES_FILE",
    ),
    DoctorCheck(
        "VR-NET-08",
        "find who listens on Ray's own ports",
        "Ray does not start there, or another cluster answers",
        "end that process, or choose another node or GCS_PORT",
    ),
    DoctorCheck(
        "VR-NET-09",
        "all-reduce 16 MB between the workers",
        "a job's processes will not find each other either",
        f"see the other checks of the network first; for NCCL on the wrong interface, {_EXPORT}",
        _judge_all_reduce,
        quick=False,
    ),
    DoctorCheck(
        "VR-NET-10",
        "ask the name server as a job does",
        "each connection of a job waits for it",
        "correct the lines 'nameserver' of that node's /etc/resolv.conf, or name all nodes in its hosts file",
    ),
    DoctorCheck(
        "VR-NET-11",
        "compare MAC addresses with what the other nodes see",
        "another machine has this node's address, too",
        "give one of the two another address, then run 'ip neigh flush all' on the nodes",
        _judge_duplicates,
    ),
    DoctorCheck(
        "VR-NET-12",
        "compare the nodes' hostnames",
        "NCCL may take them for one machine, and the name leads to only one of them",
        "give each a hostname of its own ('hostnamectl hostname NAME', or --hostname of its container), then run 'make down up'",
        _judge_hostnames,
    ),
)
