"""Processes of a finished job on this node: found in /proc, given a moment to exit, and then ended.

VERL_REGRESS_JOB_DIR in their environment names the job. Ray's workers set their own title, which overwrites the environment that the kernel
shows (2.60): these are found by their reports (py/hooks/job_report.py), which name the node, the boot, the pid and the time of the start; a
hostname and a pid may be another process's. Children belong to it too.
"""

import argparse
import time
from pathlib import Path

import job_report
from verl_regress.base import processes, say
from verl_regress.base.errors import RegressError, Unreadable
from verl_regress.base.files import read_json
from verl_regress.base.layout import JobDir

_GRACE = 5.0  # seconds for processes that Ray has just asked to end
_LOOK_EVERY = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`leftovers JOB_DIR --node NAME`: for one attempt."""
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--node", required=True, help="what Ray calls this node")


def run(args: argparse.Namespace) -> int:
    """End the leftovers on this node; their number is the one line on stdout. Raises RegressError."""
    job = JobDir(args.job_dir)
    end = time.monotonic() + _GRACE
    while (left := find(job, args.node)) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY)
    for pid, command in left.items():
        say.info(f"left of {job.ray_id} on {args.node}: {pid} {command[:120]}")
    try:
        print(processes.end(lambda: find(job, args.node), job.ray_id))
    except TimeoutError as error:
        raise RegressError(f"{error}: inspect them on {args.node}.") from None
    return 0


def find(job: JobDir, node: str) -> dict[int, str]:
    """The command line of each process of an attempt on this node, by pid."""
    found, reported = processes.table(), _reported(job, node)
    mark = f"{job_report.JOB_DIR_VARIABLE}={job.path}".encode()
    ours = {pid for pid, row in found.items() if mark in row.environ or (pid, row.started) in reported}
    while new := {pid for pid, row in found.items() if row.parent in ours} - ours:
        ours |= new
    return {pid: found[pid].command for pid in sorted(ours)}


def _reported(job: JobDir, node: str) -> set[tuple[int, int]]:
    """The pid and the start of each process that reported from this node since it booted."""
    boot, found = job_report.boot(), set()
    for path in job.reports.glob("*.json"):
        try:
            report = read_json(path) or {}
        except Unreadable:  # cut off by a full disk
            continue
        if (report.get("node"), report.get("boot")) == (node, boot):
            found.add((report["pid"], report["started"]))
    return found
