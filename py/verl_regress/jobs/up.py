"""`await-nodes`, the end of `make up`: waits for all of Ray's nodes, and removes secrets of the last cluster's jobs."""

from __future__ import annotations

import argparse

from verl_regress.base.layout import SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs.sweep import sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """As `cluster.nodes` declares them."""
    nodes.add_await_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Wait for the nodes, then sweep: whatever killed the previous cluster killed its jobs too."""
    nodes.await_all(args)
    sweep(SharedRoot(args.shared_root), args.log_dir.name, RayApi(nodes.ADDRESS))
    return 0
