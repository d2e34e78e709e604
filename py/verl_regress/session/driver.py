"""Who drives a session: one shell at a time (scripts/60_verify.sh). A process on the head holds the lock for it.

The lock is `flock(2)` on the file `driver` of the session, and ends with that process. It ends when its stdin does, because the shell is
gone, and when stdin is silent, because the shell's machine is.
"""

from __future__ import annotations

import os
import select
from typing import Any

from verl_regress.base import lock
from verl_regress.base.errors import BadInput
from verl_regress.store.sessions import Session, need_unfinished

_GRACE = 5.0  # seconds in which the lock of a shell that was just killed ends
_SILENCE = 60.0  # seconds; the shell writes every second


def hold(session: Session, driver: str, head: dict[str, Any]) -> int:
    """Lock the session for `driver`, print a line, and stay until that shell is gone.

    Records the head too: a container that was made again has another id. Raises BadInput if another shell has the lock, or had it
    until the session was over.
    """
    descriptor = os.open(session.path / "driver", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not lock.take_within(descriptor, _GRACE):
            raise BadInput(
                f"The session {session.path.name} is driven by {lock.holder(descriptor)}: wait until that process ends, or stop it on that machine, then run this again."
            )
        need_unfinished(session.path, "SESSION", session.path.name)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{driver}\n".encode(), 0)
        heads = (session.read("heads") or {}).get("heads", [])
        if head not in heads:
            session.write("heads", {"heads": [*heads, head]})
        nodes = (session.read("begin") or {}).get("nodes", [])
        session.reserve("canary", *(f"canary-{node['name']}" for node in nodes))
        print("held", flush=True)
        _stay()
    finally:
        os.close(descriptor)
    return 0


def _stay() -> None:
    while select.select([0], [], [], _SILENCE)[0] and os.read(0, 4096):
        pass
