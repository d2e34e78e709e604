"""The processes of one cluster's Ray on this node: those that carry its mark in their environment.

Ray's own way ends every Ray that it finds by name, other people's too. Ours was started with VERL_REGRESS_RAY=<cluster>, which
all that Ray starts inherits. Scripts send this file to `python3 -` on a node, so that it works before the helper is there and
when the shared root is gone: standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

MARK = "VERL_REGRESS_RAY"
_GRACE = 5.0  # seconds between the request to end and the end
_LOOK_EVERY = 0.1


def marked(cluster: str) -> dict[int, str]:
    """The command line of each process, by pid: of our user, in our PID namespace (root sees those of containers too)."""
    wanted, own = f"{MARK}={cluster}".encode(), os.readlink("/proc/self/ns/pid")
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                path.stat().st_uid == os.geteuid()
                and wanted in (path / "environ").read_bytes().split(b"\0")
                and os.readlink(path / "ns/pid") == own
            ):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has just ended, or is not ours
    return found


def is_running(cluster: str, program: str) -> bool:
    """Is a process among them that is `program` (raylet, gcs_server) or has it as a word of its command line?"""
    return any(program in (Path(line.split(" ")[0]).name, *line.split()) for line in marked(cluster).values())


def stop(cluster: str) -> int:
    """End them all, the stubborn ones by force; how many there were. Raises TimeoutError where one cannot be ended."""
    asked: set[int] = set()
    began = time.monotonic()
    while found := marked(cluster):
        waited = time.monotonic() - began
        if waited > 2 * _GRACE:
            raise TimeoutError(f"{len(found)} processes of Ray cannot be ended: {sorted(found)}")
        for pid in found:
            if pid not in asked or waited > _GRACE:
                _signal(pid, signal.SIGTERM if waited <= _GRACE else signal.SIGKILL)
        asked.update(found)
        time.sleep(_LOOK_EVERY)
    return len(asked)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended by itself


def main() -> int:
    """`stop CLUSTER` prints how many there were; `is-running CLUSTER PROGRAM` exits with 0 or 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    subparsers = parser.add_subparsers(dest="question", required=True)
    subparsers.add_parser("stop").add_argument("cluster")
    asking = subparsers.add_parser("is-running")
    asking.add_argument("cluster")
    asking.add_argument("program")
    args = parser.parse_args()
    if args.question == "is-running":
        return 0 if is_running(args.cluster, args.program) else 1
    try:
        print(stop(args.cluster))
    except TimeoutError as error:
        print(f"error   {error}: look at them on that node.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
