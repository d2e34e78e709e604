"""`ray start` on a worker, as soon as the head is ready for it: ray_start.py start --address=HOST:PORT ARGV…

A worker's `ray start` checks for the head's session and node every two seconds (2.60: internal_kv_get_with_retry and
get_all_node_info_until_retrieved), and a head that was started a moment ago is not ready at the first check. This
script loads Ray, checks for the head ten times a second, and then runs Ray's own command. It ignores errors while
checking: Ray's own command runs into them again and reports them.

One it would not report: a firewall between two hosts that drops the packets to the head. `ray start` then hangs for many
minutes (2.60). A host without a firewall accepts or refuses a connection at once, so this script ends with UNREACHED.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from ray.scripts.scripts import main as ray_main

from verl_regress.cluster import ray_private

LOOK_EVERY = 0.1  # seconds
LONGEST = 60.0  # seconds; Ray itself then tries for 40 more
ANSWER_WITHIN = 10.0  # seconds in which the head's host accepts or refuses a connection
UNREACHED = 108  # exit status; neither Ray nor a signal ends with it. The same in verl_regress/cluster/nodes.py
_ADDRESS = "--address="


def is_reached(gcs: str) -> bool:
    """Does the host of `gcs` (HOST:PORT) accept or refuse a connection, within ANSWER_WITHIN seconds?"""
    host, _, port = gcs.rpartition(":")
    end = time.monotonic() + ANSWER_WITHIN
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_WITHIN).close()
        except ConnectionRefusedError:
            return True  # the GCS is not there yet
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(LOOK_EVERY)
        else:
            return True


def main(argv: Sequence[str]) -> None:
    """Wait for the head that --address names, then run `ray` with `argv`. Ends with UNREACHED if it gets no answer."""
    gcs = next(word.removeprefix(_ADDRESS) for word in argv if word.startswith(_ADDRESS))
    if not is_reached(gcs):
        print(f"No answer from {gcs} within {ANSWER_WITHIN:.0f} s.", file=sys.stderr)
        raise SystemExit(UNREACHED)
    with suppress(Exception):
        ray_private.await_head(gcs, LONGEST)
    os.umask(os.umask(0) | 0o022)  # a checkpoint that an actor writes runs when it is read: only its owner changes it
    sys.argv = ["ray", *argv]
    del sys.path[0]  # this file's directory, which `ray` itself does not have on its path
    ray_main()


if __name__ == "__main__":
    main(sys.argv[1:])
