"""`logs`: the log of a job's driver, or its training steps, from the shared root. Changes nothing."""

import argparse
import shutil
import sys
import time

from verl_regress.base import say
from verl_regress.base.pulse import Pulse
from verl_regress.jobs import find, progress
from verl_regress.jobs.status import status_of

_LOOK_EVERY = 0.5  # seconds between two checks of a log that is followed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`logs JOB [--follow] [--metrics]`."""
    find.add_job(parser)
    parser.add_argument("--metrics", action="store_true", help="the steps, one JSON object per line, over all attempts")
    parser.add_argument("--follow", action="store_true", help="continue until the job has recorded its end")


def run(args: argparse.Namespace) -> int:
    """Print the driver's log from the shared storage, where it stays after its node is gone."""
    job = find.asked_for(args)
    if args.metrics:
        rows = progress.joined(job)
        if not rows:
            say.info(f"{job.ray_id} has no steps to print: {progress.summary(job)}.")
        sys.stdout.write("".join(f"{row.text}\n" for row in rows))
        return 0
    pulse = Pulse(time.monotonic())
    while not job.driver_log.exists():
        judgement = status_of(job, None, reachable=False)
        if judgement.status.exit is not None or not args.follow:
            say.info(f"{job.ray_id} has no {job.driver_log.name} yet ({judgement.status.value}: {judgement.reason}).")
            return 0
        pulse.beat(f"waiting for the log of {job.ray_id} ({judgement.shown})", time.monotonic())
        time.sleep(_LOOK_EVERY)
    with job.driver_log.open("rb") as log:
        while True:
            is_over = status_of(job, None, reachable=False).status.exit is not None
            shutil.copyfileobj(log, sys.stdout.buffer)
            sys.stdout.flush()
            if is_over or not args.follow:
                return 0
            time.sleep(_LOOK_EVERY)
