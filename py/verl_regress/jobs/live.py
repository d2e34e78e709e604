"""`live`: the jobs of a cluster that would end with it: running, queued, pending or being submitted."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find, unreadable
from verl_regress.jobs.liveness import Launcher, launcher_of
from verl_regress.jobs.status import Status, judge_among

_AT_WORK = (Status.SUBMITTING, Status.PENDING, Status.QUEUED, Status.RUNNING)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`live --cluster NAME`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME")


def run(args: argparse.Namespace) -> int:
    """Print `ID STATUS` of each live job, the latest first. If Ray does not answer, the locks decide; that is no error."""
    known: dict[str, dict[str, Any]] | None = None
    with contextlib.suppress(RegressError, OSError):  # nor does a Ray run whose token was removed
        known = RayApi(nodes.ADDRESS).jobs()
    for ray_id, status in live(SharedRoot(args.shared_root), args.cluster, known):
        print(ray_id, status)
    return 0


def live(root: SharedRoot, cluster: str, known: Mapping[str, Mapping[str, Any]] | None) -> Iterator[tuple[str, str]]:
    """The live jobs and their status; `known` is what Ray says of each of its jobs, None if it does not answer.

    A job that Ray knows and that has no directory here was submitted another way, and is live if Ray says so.
    """
    every = find.newest_first(root)
    for job in every:
        status = _status_if_live(job, cluster, known)
        if status is not None:
            yield job.ray_id, status.value
    for ray_id in sorted((known or {}).keys() - {attempt.ray_id for job in every for attempt in job.attempts()}):
        status_there = str((known or {})[ray_id].get("status"))
        if status_there in ("PENDING", "RUNNING"):
            yield ray_id, status_there


def _status_if_live(job: JobDir, cluster: str, known: Mapping[str, Mapping[str, Any]] | None) -> Status | None:
    try:
        plan = job.read_config("resolved.json")
        if plan is not None and plan.get("cluster") != cluster:
            return None  # several clusters may share a root
        status = judge_among(job, known).status
    except unreadable.DAMAGED:  # another user's, who has another cluster; or damaged, and Ray and the lock still tell
        is_in_ray = (known or {}).get(job.ray_id, {}).get("status") in ("PENDING", "RUNNING")
        return Status.RUNNING if is_in_ray or _is_ours_and_launched(job) else None
    if status in _AT_WORK:
        return status
    with contextlib.suppress(OSError):  # a file system without locks, on which no launcher runs
        if job.read_state("ended") is None and launcher_of(job) is Launcher.ALIVE:
            return Status.RUNNING
    return None


def _is_ours_and_launched(job: JobDir) -> bool:
    with contextlib.suppress(OSError):
        return job.path.stat().st_uid == os.geteuid() and launcher_of(job) is Launcher.ALIVE
    return False
