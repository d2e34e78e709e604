"""Questions to a node before the helper is there: its release of Ray, and which ports are taken.

Scripts send this file to `python3 -` on the node: standard library only.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Sequence
from importlib import metadata


def is_older(version: str, oldest: str) -> bool:
    """Is `version` older than `oldest`, a release such as 2.54?"""
    return _numbers(version) < _numbers(oldest)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match.group().split(".")) if match else ()


def taken(ports: Sequence[str]) -> list[str]:
    """Those of `ports` on which something listens."""
    found = []
    for port in ports:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", int(port))) == 0:
                found.append(port)
    return found


def main(argv: Sequence[str]) -> int:
    """`ray OLDEST` prints Ray's version, and the word "older" if it is; `ports PORT…` prints which of them are taken."""
    match argv:
        case ["ray", oldest]:
            try:
                version = metadata.version("ray")
            except metadata.PackageNotFoundError:
                print(f"error   {sys.executable} has no package 'ray'.", file=sys.stderr)
                return 1
            print(version, *(["older"] if is_older(version, oldest) else []))
            return 0
        case ["ports", *ports]:
            print(*taken(ports))
            return 0
    raise ValueError(argv)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
