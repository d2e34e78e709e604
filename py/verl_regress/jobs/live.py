"""`live`: the jobs of a cluster that would end with it: running, queued, pending or being submitted."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find, unreadable
from verl_regress.jobs.liveness import Launcher, launcher_of
from verl_regress.jobs.status import Status, judge_among

_AT_WORK = (Status.SUBMITTING, Status.PENDING, Status.QUEUED, Status.RUNNING)
_THERE = ("PENDING", "RUNNING")  # Ray's statuses of a job that would end with it
_READERS = 64  # jobs that are read at once: a slow NFS answers one call in 5 ms


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


def live(root: SharedRoot, cluster: str, known: Mapping[str, Mapping[str, Any]] | None) -> list[tuple[str, str]]:
    """The live jobs and their status, the latest first; `known` is what Ray says of each of its jobs, None if it does not answer.

    It checks every job, because it must miss none: a link in the queue or a mark may be gone, or an older version made none. But it
    reads only attempts that may be live, of many jobs at once.

    A job that Ray knows and that has no directory here was submitted another way, and is live if Ray says so.
    """
    there = {ray_id for ray_id, details in (known or {}).items() if details.get("status") in _THERE}
    jobs = [JobDir(root.jobs / name) for name in find.ids_of(root)]
    with ThreadPoolExecutor(_READERS) as readers:
        read = [each for found in readers.map(lambda job: _read(job, cluster, known, there), jobs) for each in found]
    others = there - {attempt.ray_id for attempt, _ in read}
    found = sorted(((attempt, status) for attempt, status in read if status is not None), key=_age)
    return [
        *((attempt.ray_id, status.value) for attempt, status in reversed(found)),
        *((ray_id, str((known or {})[ray_id]["status"])) for ray_id in sorted(others)),
    ]


def _read(
    job: JobDir, cluster: str, known: Mapping[str, Mapping[str, Any]] | None, there: Collection[str]
) -> list[tuple[JobDir, Status | None]]:
    """The attempts that may be live, each with its status if it is: the newest until it recorded its end, and all that Ray has."""
    attempts = job.attempts()
    may_be = [each for each in attempts if each.ray_id in there or (each == attempts[-1] and not _has_ended(each))]
    return [(each, _status_if_live(each, cluster, known)) for each in may_be]


def _has_ended(attempt: JobDir) -> bool:
    """Its launcher recorded how it ended, which is the last thing that it does. If that record is damaged, the lock and Ray decide."""
    try:
        return attempt.read_state("ended") is not None
    except unreadable.DAMAGED:
        return False


def _age(found: tuple[JobDir, Status]) -> tuple[float, str, int]:
    attempt, _ = found
    with contextlib.suppress(OSError):
        return find.made(attempt), attempt.submission_id, attempt.attempt
    return 0.0, attempt.submission_id, attempt.attempt  # removed meanwhile


def _status_if_live(job: JobDir, cluster: str, known: Mapping[str, Mapping[str, Any]] | None) -> Status | None:
    try:
        plan = job.read_config("resolved.json")
        if plan is not None and plan.get("cluster") != cluster:
            return None  # several clusters may share a root
        status = judge_among(job, known).status
    except unreadable.DAMAGED:  # another user's, who has another cluster; or damaged, and Ray and the lock still tell
        is_in_ray = (known or {}).get(job.ray_id, {}).get("status") in _THERE
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
