"""Finding jobs: by id, by the word `latest`, and all of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from verl_regress import ids
from verl_regress.errors import BadInput, RegressError
from verl_regress.layout import JobDir, SharedRoot
from verl_regress.ray_api import RayApi


def add_job(parser: argparse.ArgumentParser) -> None:
    """The positional JOB of every command about one job."""
    parser.add_argument("job", help="a submission id, or 'latest'")


def newest_first(root: SharedRoot) -> list[JobDir]:
    """All job directories, the latest made first."""
    directories = [path for path in root.jobs.iterdir() if path.is_dir()] if root.jobs.is_dir() else []
    return [JobDir(path) for path in sorted(directories, key=lambda path: (_made(path), path.name), reverse=True)]


def _made(path: Path) -> float:
    """When the directory was reserved: the time of its config, which is written once, not of what runs change."""
    config = path / "config"
    return (config if config.exists() else path).stat().st_mtime


def find(root: SharedRoot, asked: str) -> JobDir:
    """The job directory of a submission id, or of the latest job. Raises BadInput."""
    jobs = newest_first(root)
    if asked == "latest":
        if not jobs:
            raise BadInput(f"JOB=latest but {root.jobs} has no job yet: submit one with 'make submit'.")
        return jobs[0]
    ids.check(asked, "JOB")
    job = JobDir(root.jobs / asked)
    if not job.path.is_dir():
        known = ", ".join(other.path.name for other in jobs[:5]) or "none"
        raise BadInput(f"JOB={asked} is not under {root.jobs}: the latest are {known}.")
    return job


def plan_of(job: JobDir) -> dict[str, Any]:
    """`config/resolved.json`. Raises RegressError where the submitter died before it was written."""
    plan = job.read_config("resolved.json")
    if plan is None:
        raise RegressError(
            f"{job.config}/resolved.json is not there: submit with 'make submit', which writes it first."
        )
    return plan


def api_of(job: JobDir) -> RayApi:
    """Ray as this job's plan addresses it."""
    return RayApi(str(plan_of(job)["address"]))


def run_where(args: argparse.Namespace) -> int:
    """Print the job's directory."""
    print(find(SharedRoot(args.shared_root), args.job).path)
    return 0
