"""What a node sees of another one: which of its ports answer, as whom it sees us, round trips, lost packets, large messages."""

import contextlib
import errno
import json
import os
import selectors
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from verl_regress.doctor.checks import Plan

DASHBOARD_PORT, AGENT_PORT = 8265, 52365  # Ray's, on the head and on each node
_OF_WORKERS = range(10002, 20000)  # Ray gives them to its worker processes (2.60)
_OF_KERNEL = range(32768, 61000, 100)  # and the kernel such ports to raylets, Gloo and NCCL
_SAMPLE = (10002, 15000, 19999, 33001, 45001, 60001)  # on which a probe listens
HEALTH_CHECK = 10.0  # seconds that Ray waits for an answer (2.60)
ACCEPTS, REFUSES, SILENT = "accepts", "refuses", "no answer"
ANSWERS = (ACCEPTS, REFUSES)  # a port without a listener answers, too
_READY_WITHIN, _LONGEST = 20.0, 35.0  # seconds in which the peers' probes start, and end
_PATIENCE = 2.5  # seconds for one answer
_AT_ONCE = 400  # connections: 1,024 files may be open
_KNOCKS, _SCAN_SECONDS = 24000, 8.0  # at most so many from one node, and for so long
_ECHOES, _ECHO_SECONDS, _ECHO_EVERY = 16, 3.0, 0.02  # connections, and how long and how often each has a message
_LARGE = b"x" * (1 << 18) + b"\n"
_CONTENT = b"content\n"
_MTUS = (1400, 1280, 1000)  # tried where large messages do not pass
_HEADERS = 52  # bytes of IP and TCP in a packet


def ports(plan: Plan, node: str) -> list[int]:
    """The ports of a node that the others try."""
    return [*([plan.gcs_port] if node == "head" else []), AGENT_PORT, *_SAMPLE]


def knock(address: str, numbers: Sequence[int], seconds: float) -> list[str]:
    """What each port says to a connection: one of ANSWERS, or why there is none."""
    said = []
    for start in range(0, len(numbers), _AT_ONCE):
        said += _knock(address, numbers[start : start + _AT_ONCE], seconds)
    return said


def _knock(address: str, numbers: Sequence[int], seconds: float) -> list[str]:
    said, end = [SILENT] * len(numbers), time.monotonic() + seconds
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for number, port in enumerate(numbers):
            client = stack.enter_context(_socket(address))
            client.setblocking(False)
            error = client.connect_ex((address, port))
            if error in (0, errno.EINPROGRESS):
                waiting.register(client, selectors.EVENT_WRITE, (number, client))
            else:
                said[number] = _answer(error)
        left = seconds
        while waiting.get_map() and left > 0:
            left = end - time.monotonic()  # once more when it is over: a busy node may wake us late
            for key, _ in waiting.select(max(left, 0)):
                number, client = key.data
                said[number] = _answer(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                waiting.unregister(client)
    return said


def _socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)


def _answer(error: int) -> str:
    known = {0: ACCEPTS, errno.ECONNREFUSED: REFUSES, errno.ECONNRESET: REFUSES, errno.ETIMEDOUT: SILENT}
    return known.get(error) or os.strerror(error).lower()


class Server:
    """Listens on this node's `ports` while its peers try them: greets each connection, and answers each line with the line's length.

    The first line is the peer's name, of one connection that lasts until the peer has tried all. `content` are peers that say so in the end.
    """

    def __init__(self, plan: Plan, greeting: Mapping[str, Any]) -> None:
        self.ports: list[int] = []
        self.content: set[str] = set()
        self._awaited, self._began, self._stack = set(plan.peers), time.monotonic(), contextlib.ExitStack()
        self._here: set[str] = set()
        server = self

        class Handler(socketserver.StreamRequestHandler):
            timeout = _LONGEST

            def handle(self) -> None:
                said = {"you": self.client_address[0], **greeting}
                self.wfile.write(json.dumps(said).encode() + b"\n")
                peer = self.rfile.readline().decode().strip()
                server._here.add(peer)
                server._awaited.discard(peer)
                with contextlib.suppress(OSError):
                    for line in self.rfile:
                        self.wfile.write(b"%d\n" % len(line))
                        server.content |= {peer} if line == _CONTENT else set()
                server._here.discard(peer)

        class Listener(socketserver.ThreadingTCPServer):
            address_family = socket.AF_INET6 if ":" in plan.address else socket.AF_INET
            allow_reuse_address = daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A peer that knocks and goes is no error."""

        listeners = []
        for port in ports(plan, plan.node):
            with contextlib.suppress(OSError):  # something listens there already
                listeners.append(self._stack.enter_context(Listener(("", port), Handler)))
                self.ports.append(port)
        for listener in listeners:  # a peer that is greeted finds all of them
            threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
            self._stack.callback(listener.shutdown)

    def close(self) -> None:
        """Wait until each peer has come and gone, if it comes at all; then listen no more."""
        while (self._awaited and self._passed(_READY_WITHIN)) or (self._here - {""} and self._passed(_LONGEST)):
            time.sleep(0.05)
        self._stack.close()

    def _passed(self, seconds: float) -> bool:
        return time.monotonic() - self._began < seconds


def try_peer(plan: Plan, peer: str) -> dict[str, Any]:
    """All that this node sees of `peer`, whose probe listens, too."""
    address, wanted = plan.nodes[peer], ports(plan, peer)
    found: dict[str, Any] = {"said": None, "content": False}
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError):
            port = _await_server(address, wanted)
            client, found["said"] = _dial(address, port, plan.node)
            stack.enter_context(client)
        found["ports"] = dict(zip(wanted, knock(address, wanted, _PATIENCE), strict=True))
        if found["said"]:
            found["mtu"] = _largest(address, port)
            found["trips"] = _trips(address, port)
            found["also"] = {
                other: knock(other, [port], _PATIENCE)[0] == ACCEPTS for other in set(found["said"]["also"].values())
            }
            if found["mtu"] == 0:
                client.sendall(_CONTENT)
                found["content"] = bool(client.recv(16))
        if found["said"] and not plan.trains and not found["said"]["trains"]:
            found["scan"] = _scan(address, _KNOCKS // len(plan.peers))
    return found


def _await_server(address: str, wanted: Sequence[int]) -> int:
    end = time.monotonic() + _READY_WITHIN
    while time.monotonic() < end:
        for port, answer in zip(wanted, knock(address, wanted, 1.2), strict=True):
            if answer == ACCEPTS and port in _SAMPLE:
                return port
        time.sleep(0.1)
    raise TimeoutError


def _dial(address: str, port: int, name: str = "", mtu: int = 0) -> tuple[socket.socket, dict[str, Any]]:
    """A connection to a peer's server, and its greeting. Raises OSError, and ValueError for another program."""
    client = _socket(address)
    client.settimeout(_PATIENCE)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if mtu:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mtu - _HEADERS)
    client.connect((address, port))
    said: dict[str, Any] = json.loads(client.makefile("rb").readline(4096))
    client.sendall(name.encode() + b"\n")
    return client, said


def _largest(address: str, port: int) -> int | None:
    """The MTU that large messages to the peer must be limited to; 0 for none, None if none helps."""
    for mtu in (0, *_MTUS):
        with contextlib.suppress(OSError, ValueError):
            client, _ = _dial(address, port, mtu=mtu)
            with client:
                client.sendall(_LARGE)
                if client.recv(16):
                    return mtu
    return None


def _trips(address: str, port: int) -> dict[str, Any] | str | None:
    """Round trips in milliseconds, and packets sent and sent again, as the kernel counts them (tcp(7), TCP_INFO); `lost` without an answer."""
    trips, infos = [], []
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError, ValueError):
        clients = [stack.enter_context(_dial(address, port)[0]) for _ in range(_ECHOES)]
        for client in clients:
            client.settimeout(HEALTH_CHECK)
        end = time.monotonic() + _ECHO_SECONDS
        while time.monotonic() < end:
            began = time.monotonic()
            for client in clients:
                client.sendall(b"a message of the usual size of a health check of Ray\n")
            for client in clients:
                try:
                    client.recv(16)
                except TimeoutError:
                    return "lost"
                trips.append(1000 * (time.monotonic() - began))
            time.sleep(_ECHO_EVERY)
        infos = [client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192) for client in clients]
    if not infos or len(infos[0]) < 160:
        return None
    again, fastest, sent = zip(*(struct.unpack_from("100xI44xI4xI", info) for info in infos), strict=True)
    return {
        "count": len(trips),
        "slowest_ms": max(trips),
        "again": sum(again),
        "sent": sum(sent),
        "fastest_ms": min(fastest) / 1000,
    }


def _scan(address: str, most: int) -> dict[str, Any]:
    """Those of Ray's and the kernel's ports that do not answer, at most `most` of them tried; four times, because packets may be lost."""
    step = -(-len(_OF_WORKERS) // max(most - len(_OF_KERNEL), 1))
    numbers = [*_OF_KERNEL, *_OF_WORKERS[::step]]
    tried, silent, end = 0, list[int](), time.monotonic() + _SCAN_SECONDS
    while tried < len(numbers) and len(silent) < _AT_ONCE and time.monotonic() < end:  # a blocked range costs seconds
        some = numbers[tried : tried + _AT_ONCE]
        tried += len(some)
        for seconds in (0.3, 0.3, 1.3, 3.3):
            answers = knock(address, some, seconds)
            some = [port for port, answer in zip(some, answers, strict=True) if answer not in ANSWERS]
        silent += some
    return {"tried": tried, "silent": silent}
