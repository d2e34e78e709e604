"""`live`: the jobs of a cluster that would end with it: running, queued, pending or being submitted."""

import argparse
import contextlib

from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find
from verl_regress.jobs.launcher_lock import Launcher, launcher_of
from verl_regress.jobs.status import DAMAGED, Known, Status, judge_listed

_AT_WORK = (Status.SUBMITTING, Status.PENDING, Status.QUEUED, Status.RUNNING)
_THERE = ("PENDING", "RUNNING")  # Ray's statuses of a job that would end with it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`live --cluster NAME`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME")


def run(args: argparse.Namespace) -> int:
    """Print `ID STATUS` of each live job, the latest first. If Ray does not answer, the locks decide; that is no error."""
    known: Known = None
    with contextlib.suppress(RegressError, OSError):  # after its token was removed, Ray does not run either
        known = RayApi(nodes.ADDRESS).jobs()
    for ray_id, status in find_live(SharedRoot(args.shared_root), args.cluster, known):
        print(ray_id, status)
    return 0


def find_live(root: SharedRoot, cluster: str, known: Known) -> list[tuple[str, str]]:
    """The live jobs and their status, the latest first.

    A job that Ray knows and that has no directory here was submitted another way, and is live if Ray says so.
    """
    there = {ray_id for ray_id, details in (known or {}).items() if details.get("status") in _THERE}
    found = []
    for job in find.newest(root):
        status = _status_if_live(job, cluster, known)
        if status is not None:
            found.append((job.ray_id, status.value))
        there.discard(job.ray_id)
    return [*found, *((ray_id, str((known or {})[ray_id]["status"])) for ray_id in sorted(there))]


def _status_if_live(job: JobDir, cluster: str, known: Known) -> Status | None:
    try:
        plan = job.read_config("resolved.json")
        if plan is not None and plan.get("cluster") != cluster:
            return None  # several clusters may share a root
        status = judge_listed(job, known).status
        if status in (Status.UNKNOWN, Status.LOST) and launcher_of(job) is Launcher.ALIVE:
            return Status.RUNNING
        return status if status in _AT_WORK else None
    except DAMAGED:  # another user's, who has another cluster; or damaged, and Ray still tells
        is_in_ray = (known or {}).get(job.ray_id, {}).get("status") in _THERE
        return Status.RUNNING if is_in_ray else None
