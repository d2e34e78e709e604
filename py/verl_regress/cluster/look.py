"""What a node knows about itself: all that the scripts of one `make up` ask it, in one call (scripts/lib/look.bash)."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

from verl_regress.base import layout, processes
from verl_regress.base.errors import RegressError
from verl_regress.base.layout import SharedRoot
from verl_regress.cluster import host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`look --node NAME --log-dir DIR --gcs-port P [--worker-gpus N]`."""
    parser.add_argument("--node", required=True, help="this node's name")
    parser.add_argument("--log-dir", type=Path, required=True, help="where Ray's logs of this cluster are")
    parser.add_argument("--gcs-port", type=int, required=True, help="the knob GCS_PORT")
    parser.add_argument("--worker-gpus", type=int, help="the knob GPUS_PER_WORKER, where Ray counts a worker's GPUs")


def run(args: argparse.Namespace) -> int:
    """Print a line "NAME VALUE" for each fact; leaves out what it cannot find out. Changes nothing that lasts."""
    group = layout.group_number(args.shared_group) if args.shared_group else None
    root = SharedRoot(args.shared_root)
    for name, value in _facts(root, group, args.node, args.log_dir, args.gcs_port, args.worker_gpus):
        print(name, value)
    print("clock", int(time.time()))  # last, so that it is as fresh as can be
    return 0


def _facts(
    root: SharedRoot, group: int | None, node: str, log_dir: Path, gcs_port: int, worker_gpus: int | None
) -> Iterator[tuple[str, str]]:
    from deps import missing_here  # py/deps.py, next to this package

    if _is_writable(root.path, node):
        yield "writable", "1"
    yield "running", " ".join(sorted(processes.running(log_dir.name)))  # the directory is named after the cluster
    yield "missing", " ".join(missing_here())
    if node != "head":
        return
    if root.is_complete(group) and (root.user_code / "examples").is_dir():
        yield "layout", "1"
    if host.taken([str(gcs_port)]):
        yield "gcs", "1"
        yield from _nodes_of_ray(root, log_dir, worker_gpus)


def _nodes_of_ray(root: SharedRoot, log_dir: Path, worker_gpus: int | None) -> Iterator[tuple[str, str]]:
    """The nodes that have joined and, if `await-nodes` would have nothing to do for them (jobs/up.py), what it would say of each."""
    from verl_regress.cluster import nodes  # here: the workers need no HTTP

    try:
        known = nodes.known()
    except RegressError:
        return  # Ray may be starting; whoever needs it waits for it
    joined = nodes.with_latest_start(known, log_dir)
    yield "joined", " ".join(f"{one.name}={one.address}" for one in joined)
    if nodes.are_settled(known, root, log_dir, worker_gpus) and not _may_have_secrets(root.secrets / log_dir.name):
        for one in joined:
            yield f"alive:{one.name}", nodes.alive_at(one)


def _may_have_secrets(directory: Path) -> bool:
    """A job of this cluster has secrets, or something else is in their place."""
    try:
        return directory.is_symlink() or any(directory.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_writable(directory: Path, node: str) -> bool:
    file = directory / f".writable.{node}.{os.getpid()}"
    try:
        file.write_bytes(b"")
        file.unlink()
    except OSError:
        return False
    return True
