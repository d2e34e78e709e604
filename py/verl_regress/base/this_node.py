"""The node that this process runs on, as the other nodes know it."""

import os
import socket


def address() -> str:
    """Its IP. For nodes reached over ssh the transport provides it: a host often resolves its own name to 127.0.1.1."""
    return os.environ.get("VERL_REGRESS_NODE_IP") or socket.gethostbyname(socket.gethostname())


def name() -> str | None:
    """Its name, head or worker-N, which everything started by our `ray start` inherits; None elsewhere."""
    return os.environ.get("VERL_REGRESS_NODE")
