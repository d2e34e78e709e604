"""The node that this process runs on, as the other nodes know it."""

import os
import socket


def address() -> str:
    """Its IP. Where we log in to a node the transport tells it: a host's own name is often 127.0.1.1 to itself."""
    return os.environ.get("VERL_REGRESS_NODE_IP") or socket.gethostbyname(socket.gethostname())


def name() -> str | None:
    """Its name, head or worker-N, which all that our `ray start` starts inherits; None elsewhere."""
    return os.environ.get("VERL_REGRESS_NODE")
