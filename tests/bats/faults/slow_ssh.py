"""ProxyCommand of ssh: what goes to HOST PORT and what comes back arrives 300 ms later, and nothing is reordered.

slow_ssh.py HOST PORT
"""

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable

_DELAY = 0.3  # seconds


def relay(read: Callable[[], bytes], write: Callable[[bytes], object], close: Callable[[], object]) -> None:
    """Pass on what `read` returns, each piece `_DELAY` after it came; at its end, `close`."""
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def deliver() -> None:
        while True:
            due, piece = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not piece:
                close()
                return
            write(piece)

    thread = threading.Thread(target=deliver)
    thread.start()
    while piece := read():
        pieces.put((time.monotonic() + _DELAY, piece))
    pieces.put((time.monotonic() + _DELAY, b""))
    thread.join()


def put(piece: bytes) -> None:
    """Write all of it to stdout, at once."""
    while piece:
        piece = piece[os.write(1, piece) :]


def main(host: str, port: str) -> None:
    """Both directions until both have ended."""
    there = socket.create_connection((host, int(port)))
    back = threading.Thread(target=relay, args=(lambda: there.recv(65536), put, lambda: os.close(1)))
    back.start()
    relay(lambda: os.read(0, 65536), there.sendall, lambda: there.shutdown(socket.SHUT_WR))
    back.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
