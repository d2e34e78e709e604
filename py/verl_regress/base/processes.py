"""All that we read in /proc: the processes on this node, and which of them one cluster's Ray started (its mark is in their environment).

Ray's own way ends every Ray that it finds by name, other people's too. Ours was started with
VERL_REGRESS_RAY=<cluster>, which everything that Ray starts inherits. Scripts send this file to `python3 -` on a node,
so that it works before the helper is there and when the shared root is gone: standard library only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "VERL_REGRESS_RAY"
_START = "--disable-usage-stats"  # an argument of cluster.bash; `ray start` passes it to nothing that keeps running
_GRACE = 5.0  # seconds between asking a process to end and killing it
_LOOK_EVERY = 0.1
_OPENED = ("01", "02")  # of a connection in /proc/net/tcp: established, or asked for (include/net/tcp_states.h)
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp


@dataclass(frozen=True)
class Process:
    """A process of our user."""

    parent: int
    session: int
    started: int  # clock ticks since boot
    environ: Collection[bytes]
    command: str


def table() -> dict[int, Process]:
    """Our user's processes in our PID namespace (root would see processes of containers, too), by pid; zombies are left out."""
    return {int(path.name): row for path in _all() if (row := _look(path))}


def commands() -> dict[int, bytes]:
    """The command line of each process on this node, of every user, by pid; the kernel's own and zombies have none."""
    found = {}
    for path in _all():
        with contextlib.suppress(OSError):  # it has just ended
            found[int(path.name)] = (path / "cmdline").read_bytes()
    return {pid: command for pid, command in found.items() if command}


def _all() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*")


def container() -> str | None:
    """The id of the container that this process is in, if a container engine says so."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    match = re.search(r"/(?:overlay-)?containers/([0-9a-f]{64})/", mounts)
    return match[1] if match else None


def started_with() -> list[bytes]:
    """The environment in which this process was started, as NAME=VALUE: what the process list shows."""
    return _environ(Path("/proc/self"))


def of_cluster(cluster: str) -> dict[int, str]:
    """The command line of each process, by pid: processes with the mark, and all processes in their sessions.

    Ray sets its workers' titles and so overwrites the environment that the kernel shows (2.60), but everything that
    `ray start` leaves running stays in the session that the scripts made for it.
    """
    found = table()
    marked = {pid for pid, row in found.items() if f"{MARK}={cluster}".encode() in row.environ}
    sessions = {found[pid].session for pid in marked}
    sessions -= found.keys() - marked  # not led by one of ours: a login, say
    return {pid: row.command for pid, row in found.items() if pid in marked or row.session in sessions}


def peers(pids: Collection[int]) -> set[str]:
    """ADDRESS:PORT of each TCP connection that these processes of this node have opened, or are opening."""
    rows = _connections()
    listened = {row[1].rpartition(":")[2] for row in rows if row[3] == _LISTENS}
    opened = {}
    for row in rows:
        address, port = row[2].split(":")
        if row[3] in _OPENED and row[1].rpartition(":")[2] not in listened:
            opened[_socket(row)] = f"{_address(address)}:{int(port, 16)}"
    return {opened[name] for name, _ in _holders(opened, pids)}


def addresses() -> set[str]:
    """All addresses of this node: the local ones of the kernel's tables of routes and of interfaces; that for IPv6 is only there where it is on."""
    routes, interfaces = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")
    found = set(re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", routes.read_text("ascii") if routes.exists() else ""))
    lines = interfaces.read_text("ascii").splitlines() if interfaces.exists() else []
    return found | {str(ipaddress.ip_address(bytes.fromhex(line.split()[0]))) for line in lines}


def neighbours(table: Path = Path("/proc/net/arp")) -> dict[str, str]:
    """The hardware address from which each address of this node's networks has answered (proc(5)); without those of IPv6."""
    rows = [line.split() for line in table.read_text("ascii").splitlines()[1:]] if table.exists() else []
    return {address: mac for address, _, flags, mac, *_ in rows if int(flags, 16)}


def _socket(row: Sequence[str]) -> str:
    """As a descriptor in /proc names it."""
    return f"socket:[{row[9]}]"


def _holders(sockets: Collection[str], pids: Collection[int]) -> Iterator[tuple[str, int]]:
    """Which of the sockets which of the processes have open, as far as the kernel shows us."""
    for pid in pids if sockets else ():
        with contextlib.suppress(OSError):  # it has just ended, or is not ours
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # it has just been closed
                    if (name := str(descriptor.readlink())) in sockets:
                        yield name, pid


def _connections() -> list[list[str]]:
    """The rows of the kernel's tables of TCP sockets in this network; there is one for IPv6 only where that is on."""
    tables = [Path("/proc/net", kind) for kind in ("tcp", "tcp6")]
    return [line.split() for one in tables if one.exists() for line in one.read_text(encoding="ascii").splitlines()[1:]]


def _address(hexadecimal: str) -> str:
    """Each group of four bytes is a number of this machine."""
    groups = [int(hexadecimal[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(hexadecimal), 8)]
    address = ipaddress.ip_address(b"".join(groups))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _look(path: Path) -> Process | None:
    try:
        if path.stat().st_uid != os.geteuid() or (path / "ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return None
        # What follows the program's name, in brackets: fields 3 (state), 4, 6 and 22 of proc(5).
        stat = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        if stat[0] == "Z":
            return None
        command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return Process(int(stat[1]), int(stat[3]), int(stat[19]), _environ(path), command)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # it has just ended, or is not ours


def _environ(path: Path) -> list[bytes]:
    return (path / "environ").read_bytes().split(b"\0")


def running(cluster: str) -> set[str]:
    """The names of their programs and scripts (raylet, gcs_server, dashboard.py), and `ray-start` while one is at work."""
    lines = [line.split() for line in of_cluster(cluster).values()]
    names = {Path(word).name for line in lines for word in line if word is line[0] or word.endswith(".py")}
    return names | {"ray-start" for line in lines if _START in line}


def stop(cluster: str) -> int:
    """End them all; returns how many there were. Raises TimeoutError if one cannot be ended."""
    return end(lambda: of_cluster(cluster), "Ray")


def end(find: Callable[[], Mapping[int, str]], whose: str) -> int:
    """End what `find` finds until it finds nothing, stubborn ones by force; returns the count. Raises TimeoutError."""
    asked: set[int] = set()
    began = time.monotonic()
    while found := find():
        waited = time.monotonic() - began
        if waited > 2 * _GRACE:
            raise TimeoutError(f"{len(found)} processes of {whose} cannot be ended: {sorted(found)}")
        for pid in found:
            if pid not in asked or waited > _GRACE:
                _signal(pid, signal.SIGTERM if waited <= _GRACE else signal.SIGKILL)
        asked.update(found)
        time.sleep(_LOOK_EVERY)
    return len(asked)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, number)


def listening(ports: Collection[int]) -> dict[int, int | None]:
    """Those of the TCP ports on which a process of this network listens, and its pid, None if the kernel does not show it to us."""
    sockets: dict[str, int] = {}
    for words in _connections():
        if words[3] == _LISTENS and (port := int(words[1].rpartition(":")[2], 16)) in ports:
            sockets[_socket(words)] = port
    found: dict[int, int | None] = dict.fromkeys(sockets.values())
    for name, pid in _holders(sockets, [int(path.name) for path in _all()]):
        found[sockets[name]] = pid
    return found


def path_of(descriptor: int) -> Path:
    """A path to what this process has open, which leads there whatever its name means by now."""
    return Path(f"/proc/self/fd/{descriptor}")


def main(argv: Sequence[str]) -> int:
    """`running CLUSTER` prints their names on one line, `stop CLUSTER` how many there were."""
    match argv:
        case ["running", cluster]:
            print(*sorted(running(cluster)))
            return 0
        case ["stop", cluster]:
            try:
                print(stop(cluster))
            except TimeoutError as error:
                print(f"error   {error}: inspect them on that node.", file=sys.stderr)
                return 1
            return 0
    raise ValueError(argv)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
