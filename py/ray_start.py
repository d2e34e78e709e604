"""`ray start` on a node: ray_start.py start ARGV…; on a worker, with --address=HOST:PORT, as soon as the head's GCS listens.

If Ray does not start, the last line of the output is what its own processes say of it, because `ray start` may only say that it waited.
A firewall between two hosts may drop the packets to the head, and `ray start` then hangs for many minutes (2.60). A host
without a firewall accepts or refuses a connection at once, so without an answer this script ends with UNREACHED.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ray.scripts.scripts import main as ray_main

LOOK_EVERY = 0.1  # seconds
LONGEST = 60.0  # seconds in which the GCS starts to listen
ANSWER_WITHIN = 10.0  # seconds in which the head's host accepts or refuses a connection
UNREACHED = 108  # exit status; neither Ray nor a signal ends with it. The same in verl_regress/cluster/nodes.py
_ADDRESS = "--address="
_OWN = "Ray's own log: "  # the same in verl_regress/cluster/nodes.py
_ERROR = re.compile(r"^\[[^]]* [EC] [^]]*\] *(.*)")  # of Ray's processes in C++: an error, or what ended one (2.60)


def is_reached(gcs: str) -> bool:
    """Wait until `gcs` (HOST:PORT, or [IPv6]:PORT) accepts a connection, at most LONGEST seconds; False if its host gives no answer."""
    host, _, port = gcs.rpartition(":")
    began = time.monotonic()
    answered = False
    while time.monotonic() < began + (LONGEST if answered else ANSWER_WITHIN):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_WITHIN).close()
        except ConnectionRefusedError:
            answered = True  # the GCS is not there yet
        except OSError:
            pass
        else:
            return True
        time.sleep(LOOK_EVERY)
    return answered


def own_error(since: float) -> str:
    """The first error that Ray's processes here have logged since then; empty without one."""
    directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    for name in ("raylet", "gcs_server"):
        path = Path(directory, "ray/session_latest/logs", f"{name}.err")
        if path.exists() and path.stat().st_mtime >= since:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if match := _ERROR.match(line):
                    return match[1]
    return ""


def _run_ray(argv: Sequence[str]) -> None:
    began = time.time()
    sys.argv = ["ray", *argv]
    del sys.path[0]  # this file's directory, which `ray` itself does not have on its path
    try:
        ray_main()
    except BaseException as error:
        is_failure = not isinstance(error, SystemExit) or error.code not in (None, 0)
        if is_failure and (line := own_error(began)):
            print(f"{_OWN}{line}", file=sys.stderr, flush=True)
        raise


def main(argv: Sequence[str]) -> None:
    """Wait for the head that --address names, if any, then run `ray` with `argv`. Ends with UNREACHED if it gets no answer."""
    gcs = next((word.removeprefix(_ADDRESS) for word in argv if word.startswith(_ADDRESS)), "")
    if gcs and not is_reached(gcs):
        print(f"No answer from {gcs} within {ANSWER_WITHIN:.0f} s.", file=sys.stderr)
        raise SystemExit(UNREACHED)
    os.umask(os.umask(0) | 0o022)  # a checkpoint that an actor writes runs when it is read: only its owner changes it
    # Ray has read it by now, and a job must not wait that long for a head that is gone.
    os.environ.pop("RAY_NUM_REDIS_GET_RETRIES", None)
    _run_ray(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
