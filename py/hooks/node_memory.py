"""What the kernel counts of the memory of this process's container (its control group): version 2, or version 1."""

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

_V2 = ("", "/sys/fs/cgroup", "memory.events", "memory.max", "memory.peak")
_V1 = ("memory", "/sys/fs/cgroup/memory", "memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes")
_NO_LIMIT = 1 << 62  # version 1 writes a number as large as this


def node_name() -> str:
    """This node's name in the cluster, which everything started by our `ray start` inherits; elsewhere the hostname, which two may share."""
    return os.environ.get("VERL_REGRESS_NODE") or socket.gethostname()


def counters() -> dict[str, str | int | None]:
    """The node's name; `kills`, the processes that the kernel has killed for lack of memory; `limit` and `peak` in bytes; None: not known."""
    found: dict[str, str | int | None] = {"node": node_name(), "kills": None, "limit": None, "peak": None}
    groups = dict(re.findall(r"^\d+:([^:]*):(.*)$", _read("/proc/self/cgroup"), re.MULTILINE))
    for name, home, events, limit, peak in (_V2, _V1):
        # In a container, its own group may be mounted at the root.
        for folder in (home + groups.get(name, "").rstrip("/"), home):
            kills = re.search(r"^oom_kill (\d+)$", _read(f"{folder}/{events}"), re.MULTILINE)
            if kills is not None:
                most = _number(f"{folder}/{limit}") or _NO_LIMIT
                found |= {"kills": int(kills[1]), "peak": _number(f"{folder}/{peak}")}
                return found | {"limit": most if most < _NO_LIMIT else None}
    return found


def _number(file: str) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdecimal() else None


def _read(file: str) -> str:
    with suppress(OSError):
        return Path(file).read_text(encoding="ascii", errors="replace")
    return ""
