"""Stops a job, running or still pending, and waits until it is over."""

import argparse
import time

from verl_regress.base import owner, say
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import JobDir
from verl_regress.base.pulse import Pulse
from verl_regress.cluster import ray_internals
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find, sweep
from verl_regress.jobs.status import Status, observe
from verl_regress.jobs.watch import asked
from verl_regress.secrets import secret_files

_LOOK_EVERY = 0.2  # seconds between two checks of the job
_ABOUT_TO_RUN = 2.0  # seconds in which a PENDING job may just be starting, and then stops as a running one does


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`stop JOB [--cluster NAME] --deadline S`."""
    find.add_job(parser)
    parser.add_argument("--cluster", help="the knob CLUSTER_NAME: whose Ray is asked")
    parser.add_argument("--deadline", type=float, required=True, help="seconds")


def run(args: argparse.Namespace) -> int:
    """Stop a job, unless it is over. Prints its id and its directory, for the script that ends its leftovers.

    Raises RegressError if it is not over in time.
    """
    job = find.asked_for(args)
    _need_here(job, args.cluster)
    end(job, args.deadline)
    print(job.ray_id, job.path, sep="\n")
    return 0


def end(job: JobDir, deadline: float) -> None:
    """Stop a job and wait until it is over. Raises RegressError if it is not over in time."""
    api = find.api_of(job)
    began = time.monotonic()
    pulse = Pulse(began)
    while (before := asked(job, api)).status is Status.SUBMITTING and time.monotonic() - began < deadline:
        pulse.beat("waiting for the submission to end", time.monotonic())
        time.sleep(_LOOK_EVERY)
    if before.status.exit is not None:
        _remove_secrets(job)
        say.skip(f"{job.ray_id} is over: {before.status.value} ({before.reason})")
        return
    api.stop(job.ray_id)
    began = time.monotonic()
    is_cancelled = False
    while (now := asked(job, api)).status.exit is None or _has_actors(job, api):
        waited = time.monotonic() - began
        if now.status is Status.PENDING and waited > _ABOUT_TO_RUN and not is_cancelled:
            is_cancelled = _cancel(job, api)
        if waited > deadline:
            raise RegressError(
                f"{job.ray_id} is still {now.status.value} {deadline:.0f} s after it was asked to stop: see 'make status', and 'make debug JOB={job.ray_id}' for what it still does."
            )
        pulse.beat(f"waiting for {job.ray_id} to stop ({now.status.value})", time.monotonic())
        time.sleep(_LOOK_EVERY)
    _remove_secrets(job)
    say.changed(f"{job.ray_id} was {before.status.value}, is {now.status.value} ({now.reason})")


def _need_here(job: JobDir, cluster: str | None) -> None:
    """Its own Ray alone can stop it: ours would say that it knows no such job. Raises BadInput."""
    plan = find.plan_of(job)
    theirs = plan.get("cluster")
    if cluster is not None and theirs not in (None, cluster):
        raise BadInput(
            f"{job.ray_id} is on the cluster {theirs}, and CLUSTER_NAME is {cluster}: stop it from there ({owner.described(plan)})."
        )


def _remove_secrets(job: JobDir) -> None:
    """Remove its secrets, and what other jobs of its cluster left of theirs."""
    secret_files.forget(job)
    sweep.attempt(job.root, find.plan_of(job).get("cluster"))


def _has_actors(job: JobDir, api: RayApi) -> bool:
    """Is a process of the job still alive? Until all are gone, the next job cannot have the job's resources."""
    return any(actor["state"] != "DEAD" for actor in api.actors(job.ray_id))


def _cancel(job: JobDir, api: RayApi) -> bool:
    """End a job that Ray has not started, and record what Ray will not say: that it was stopped, and did not fail."""
    details = api.job(job.ray_id) or {}
    said = {**details, "status": "STOPPED", "message": "stopped while it waited for resources"}
    return ray_internals.end_supervisor(job.ray_id, lambda: observe(job, said))
