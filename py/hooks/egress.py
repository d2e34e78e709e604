"""Records which hosts a process of the job asks for, where VERL_REGRESS_OFFLINE is set (`make unkit`, `make acceptance`).

The hosts go into ``state/reports/egress-<node>-<pid>.json``; one that is clearly no node is also named on stderr, once a process.
Programs that are not Python, and libraries that open sockets themselves (gRPC, NCCL), are not seen here.
"""

import ipaddress
import socket
import sys
from contextlib import suppress

import job_report

_HOST_OF = {
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"), 0),
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.sendmsg"), 1),
}
_MOST = 100
_NODES = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "0.0.0.0/32",
    "fc00::/7",
    "fe80::/10",
    "::/128",
)
_seen: dict[str, None] = {}  # what was asked for, in that order


def install() -> None:
    """Watch this process."""
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    """Never raises, because it would refuse what it hears of."""
    if event in _HOST_OF:
        with suppress(Exception):
            _note(event, arguments)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    asked, port = arguments[_HOST_OF[event]], arguments[1] if event == "socket.getaddrinfo" else None
    if _HOST_OF[event] == 1:
        is_datagram = getattr(arguments[0], "type", None) == socket.SOCK_DGRAM
        if not isinstance(asked, tuple) or (is_datagram and event == "socket.connect"):
            return  # the path of a socket file; or nothing is sent, as by what asks for its own address
        asked, port = asked[:2]
    host = asked.decode() if isinstance(asked, bytes) else asked
    if not isinstance(host, str) or host in ("", socket.gethostname(), "localhost"):
        return
    is_outside = _is_outside(host)
    named = f"{host}:{port}" if port and is_outside else host  # of a node, one entry is enough
    if is_outside is None or named in _seen or len(_seen) >= _MOST:
        return
    _seen[named] = None
    job_report.write("egress", {"asked": [*_seen]})
    if is_outside:
        sys.stderr.write(
            f"verl-regress: this process asks for {named}, which is no node of this cluster, and this installation has no way out "
            "(make unkit): leave out what asks for it, or have what it fetches on the shared root.\n"
        )


def _is_outside(host: str) -> bool | None:
    """A name with a domain other than our own, or an address that a site does not give to its nodes; None: this machine itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        domain = socket.gethostname().partition(".")[2]
        return "." in host and not (domain and host.endswith(f".{domain}"))
    return None if address.is_loopback else not any(address in ipaddress.ip_network(one) for one in _NODES)
