"""Processes of a finished job on this node: found in /proc, given a moment to exit, and then ended.

VERL_REGRESS_JOB_DIR in their environment names the job. Ray's workers set their own title, which overwrites the environment that the kernel
shows (2.60): these are found by their reports (py/hooks/job_report.py). Children belong to it too.
"""

import argparse
import re
import socket
import time
from pathlib import Path

from verl_regress.base import processes, say
from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir

_GRACE = 5.0  # seconds for processes that Ray has just asked to end
_LOOK_EVERY = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`leftovers JOB_DIR`: for one attempt."""
    parser.add_argument("job_dir", type=Path)


def run(args: argparse.Namespace) -> int:
    """End the leftovers on this node; their number is the one line on stdout. Raises RegressError."""
    job = JobDir(args.job_dir)
    end = time.monotonic() + _GRACE
    while (left := find(job)) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY)
    for pid, command in left.items():
        say.info(f"left of {job.ray_id} on {socket.gethostname()}: {pid} {command[:120]}")
    try:
        print(processes.end(lambda: find(job), job.ray_id))
    except TimeoutError as error:
        raise RegressError(f"{error}: inspect them on {socket.gethostname()}.") from None
    return 0


def find(job: JobDir) -> dict[int, str]:
    """The command line of each process of an attempt on this node, by pid."""
    found, reports = processes.table(), _reports(job)
    mark = f"VERL_REGRESS_JOB_DIR={job.path}".encode()
    ours = {pid for pid, row in found.items() if mark in row.environ or row.started < reports.get(pid, 0.0)}
    while new := {pid for pid, row in found.items() if row.parent in ours} - ours:
        ours |= new
    return {pid: found[pid].command for pid in sorted(ours)}


def _reports(job: JobDir) -> dict[int, float]:
    """When each process that reported from this node last did, in seconds since boot: a later process only reuses its pid."""
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - time.time()
    name = re.compile(rf".*-{re.escape(socket.gethostname())}-([0-9]+)\.json")
    matches = [(name.fullmatch(path.name), path) for path in job.reports.glob("*.json")]
    return {int(match[1]): path.stat().st_mtime + since_boot for match, path in matches if match}
