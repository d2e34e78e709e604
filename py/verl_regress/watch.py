"""Following a job to its end: a line a step, and the exit status that tells how it ended."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_regress import debug, jobs, progress, say
from verl_regress.errors import Exit
from verl_regress.job_status import Judgement, Status, judge, observe
from verl_regress.layout import JobDir, SharedRoot
from verl_regress.ray_api import Node, RayApi, Unreachable

_LOOK_EVERY = 1.0  # seconds between two looks at the job


@dataclass(frozen=True)
class Deadlines:
    """How long, in seconds, a job may wait for a place, go without a new step, and Ray go without an answer."""

    pending: float
    stall: float
    unreachable: float

    @classmethod
    def parse(cls, text: str) -> Deadlines:
        """`300,900,60`: the knobs PENDING_TIMEOUT, STALL_TIMEOUT and UNREACHABLE_TIMEOUT. Raises ValueError."""
        pending, stall, unreachable = map(float, text.split(","))
        return cls(pending, stall, unreachable)


def add_deadlines(parser: argparse.ArgumentParser) -> None:
    """The option of every command that follows a job."""
    parser.add_argument(
        "--deadlines", type=Deadlines.parse, required=True, metavar="S,S,S",
        help="seconds: PENDING_TIMEOUT, STALL_TIMEOUT, UNREACHABLE_TIMEOUT",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`wait JOB`."""
    jobs.add_job(parser)
    add_deadlines(parser)


def run(args: argparse.Namespace) -> int:
    """Follow a job that was submitted before, from any terminal."""
    job = jobs.find(SharedRoot(args.shared_root), args.job)
    return int(follow(job, jobs.api_of(job), args.deadlines))


def follow(job: JobDir, api: RayApi, deadlines: Deadlines) -> Exit:
    """Print each change and each step until the job has ended or a deadline has passed; returns how it ended.

    Ray's own log tail may end while the job runs, and its command exits 0 for a stopped job (2.60): the end here is
    what `judge` says, and nothing else.
    """
    shown: Status | None = None
    known: Status | None = None  # the last one while Ray answered: an outage does not set the clocks back
    steps_shown = 0
    moved = answered = time.monotonic()
    while True:
        try:
            ray: Mapping[str, Any] | None = api.job(job.ray_id)
            reachable, answered = True, time.monotonic()
            observe(job, ray)
        except Unreachable:
            ray, reachable = None, False
        judgement = judge(job, ray, reachable=reachable)
        if judgement.status is not shown:
            shown = judgement.status
            say.info(f"{job.ray_id} is {shown.value}")
        if shown not in (Status.UNKNOWN, known):
            known, moved = shown, time.monotonic()
        steps = progress.steps(job.metrics)
        for step in steps[steps_shown:]:
            say.info(step.line(progress.total_steps(job)))
            steps_shown, moved = len(steps), time.monotonic()
        if (end := judgement.status.exit) is not None:
            if end in (Exit.JOB_FAILED, Exit.LOST) and job.read_state("ended") is None:
                # The launcher, which takes the bundles, never ran or is gone.
                debug.attempt(job, api.address, judgement.status.value.lower(), logs=True)
            summarise(job, judgement)
            return end
        waited = time.monotonic() - moved
        if not reachable and time.monotonic() - answered > deadlines.unreachable:
            say.error(
                f"Ray has not answered for {deadlines.unreachable:.0f} s (UNREACHABLE_TIMEOUT): the job may run on; see 'make status'."
            )
            return Exit.UNREACHABLE
        if shown is Status.PENDING and waited > deadlines.pending:
            debug.attempt(job, api.address, "not-schedulable")
            say.error(_not_schedulable(job, api.nodes(), deadlines.pending))
            return Exit.NOT_SCHEDULABLE
        if shown is Status.RUNNING and waited > deadlines.stall:
            debug.attempt(job, api.address, "stalled", logs=True)
            say.error(
                f"{job.ray_id} has made no new step for {deadlines.stall:.0f} s (STALL_TIMEOUT), after step "
                f"{steps[-1].number if steps else 0}: read 'make logs JOB={job.ray_id}'."
            )
            return Exit.STALLED
        time.sleep(_LOOK_EVERY)


def summarise(job: JobDir, judgement: Judgement) -> None:
    """The facts of a finished job, each from where it was recorded."""
    for line in progress.log_lines(job, "MVP_PRECHECK_"):
        say.info(line)
    steps, total = progress.steps(job.metrics), progress.total_steps(job)
    kept = ", ".join(f"checkpoints/{name}" for name in progress.checkpoints(job)) or progress.no_checkpoint(job)
    say.info(f"driver_info.node_ip_address: {judgement.driver_ip or 'none (the driver never called ray.init)'}")
    say.info(f"{len(steps)} of {total if total is not None else '?'} training steps, {kept}")
    say.info(f"outputs: {job.path}")
    sentence = f"{job.ray_id} {judgement.status.value} ({judgement.reason or 'no reason was given'})"
    if judgement.status is Status.SUCCEEDED:
        say.ok(sentence)
    else:
        say.error(f"{sentence}: read 'make logs JOB={job.ray_id}'.")


def _not_schedulable(job: JobDir, nodes: list[Node], seconds: float) -> str:
    plan = jobs.plan_of(job)
    asked = {"CPU": plan["entrypoint_num_cpus"], **plan["entrypoint_resources"]}
    has = {node.name: {key: node.resources.get(key, 0) for key in asked} for node in nodes if node.alive}
    return f"{job.ray_id} found no place in {seconds:.0f} s (PENDING_TIMEOUT): it asked for {asked}, the nodes have {has}; wait for room, or ask for less (resources)."
