"""Stops a job, running or still pending, and waits until it is over."""

import argparse
import time
from functools import partial

from verl_regress.base import owner, say
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import JobDir
from verl_regress.base.pulse import Pulse
from verl_regress.cluster import ray_internals
from verl_regress.jobs import find, sweep
from verl_regress.jobs.status import Status, observe
from verl_regress.jobs.watch import ask_ray
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

    Raises RegressError if it is not over in time, BadInput if it is on another cluster, whose own Ray alone can stop it.
    """
    job = find.asked_for(args)
    plan = find.plan_of(job)
    if args.cluster is not None and plan.get("cluster") not in (None, args.cluster):
        raise BadInput(
            f"{job.ray_id} is on the cluster {plan['cluster']}, and CLUSTER_NAME is {args.cluster}: stop it from there "
            f"({owner.described(plan)})."
        )
    end(job, args.deadline)
    print(job.ray_id, job.path, sep="\n")
    return 0


def end(job: JobDir, deadline: float) -> None:
    """Stop a job and wait until it is over. Raises RegressError if it is not over in time."""
    api, cluster = find.api_of(job), find.plan_of(job).get("cluster")
    began = time.monotonic()
    pulse = Pulse(began)
    while (before := ask_ray(job, api)).status is Status.SUBMITTING and time.monotonic() - began < deadline:
        pulse.beat("waiting for the submission to end", time.monotonic())
        time.sleep(_LOOK_EVERY)
    if before.status.exit is not None:
        secret_files.forget(job)
        sweep.attempt(job.root, cluster)
        say.skip(f"{job.ray_id} is over: {before.status.value} ({before.reason})")
        return
    api.stop(job.ray_id)
    began = time.monotonic()
    is_cancelled = False
    # Until all its processes are gone, the next job cannot have the job's resources.
    while (now := ask_ray(job, api)).status.exit is None or any(
        row["state"] != "DEAD" for row in api.actors(job.ray_id)
    ):
        waited = time.monotonic() - began
        if now.status is Status.PENDING and waited > _ABOUT_TO_RUN and not is_cancelled:
            # Ray will not say that it was stopped, and did not fail.
            said = {
                **(api.job(job.ray_id) or {}),
                "status": "STOPPED",
                "message": "stopped while it waited for resources",
            }
            is_cancelled = ray_internals.end_supervisor(job.ray_id, partial(observe, job, said))
        if waited > deadline:
            raise RegressError(
                f"{job.ray_id} is still {now.status.value} {deadline:.0f} s after it was asked to stop: see 'make status', and "
                f"'make debug JOB={job.ray_id}' for what it still does."
            )
        pulse.beat(f"waiting for {job.ray_id} to stop ({now.status.value})", time.monotonic())
        time.sleep(_LOOK_EVERY)
    secret_files.forget(job)
    sweep.attempt(job.root, cluster)
    say.changed(f"{job.ray_id} was {before.status.value}, is {now.status.value} ({now.reason})")
