"""`ray start` on a worker, as soon as the head is ready for it: ray_start.py start --address=HOST:PORT ARGV…

A worker's `ray start` checks for the head's session and node every two seconds (2.60: internal_kv_get_with_retry and
get_all_node_info_until_retrieved), and a head that was started a moment ago is not ready at the first check. This
script loads Ray, checks for the head ten times a second, and then runs Ray's own command. It ignores errors while
checking: Ray's own command runs into them again and reports them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from ray.scripts.scripts import main as ray_main

LOOK_EVERY = 0.1  # seconds
LONGEST = 60.0  # seconds; Ray itself then tries for 40 more
_ADDRESS = "--address="


def await_head(gcs: str) -> None:
    """Return when the GCS at `gcs` (HOST:PORT) lists a head node, or after LONGEST. Raises what Ray raises."""
    from ray._raylet import GcsClient
    from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest

    head = GetAllNodeInfoRequest.NodeSelector()
    head.is_head_node = True
    end, client = time.monotonic() + LONGEST, GcsClient(address=gcs)
    while not client.get_all_node_info(timeout=5, node_selectors=[head]) and time.monotonic() < end:
        time.sleep(LOOK_EVERY)


def main(argv: Sequence[str]) -> None:
    """Wait for the head that --address names, then run `ray` with `argv`."""
    with suppress(Exception):
        await_head(next(word.removeprefix(_ADDRESS) for word in argv if word.startswith(_ADDRESS)))
    sys.argv = ["ray", *argv]
    del sys.path[0]  # this file's directory, which `ray` itself does not have on its path
    ray_main()


if __name__ == "__main__":
    main(sys.argv[1:])
