"""Follows a job to its end: prints a line per step, and exits with the job's result."""

import argparse
import os
import select
import threading
import time
from typing import NamedTuple

from verl_regress.base import say
from verl_regress.base.errors import Exit
from verl_regress.base.layout import JobDir
from verl_regress.base.pulse import Pulse
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import checkpoints, conditions, debug, failure, find, progress, shortfall, sweep
from verl_regress.jobs.status import Judgement, Launcher, Status, launcher_of, observe, status_of
from verl_regress.secrets import secret_files

_LOOK_EVERY = 1.0  # seconds between two checks of the job
_TO_FINISH = 4.0  # seconds
_BEFORE_IT_RUNS = {
    Status.SUBMITTING: "submitting it to Ray",
    Status.PENDING: "waiting for Ray to start its launcher",
    Status.QUEUED: "waiting in the queue",
    Status.UNKNOWN: "waiting for Ray to answer",
}


class Deadlines(NamedTuple):
    """How many seconds a job may be PENDING, run without a first step, make no new step, and how many Ray may not answer."""

    pending: float
    start: float
    stall: float
    unreachable: float

    @classmethod
    def parse(cls, text: str) -> "Deadlines":
        """`300,900,900,60`: the knobs PENDING_TIMEOUT, START_TIMEOUT, STALL_TIMEOUT and UNREACHABLE_TIMEOUT. Raises ValueError."""
        pending, start, stall, unreachable = map(float, text.split(","))
        return cls(pending, start, stall, unreachable)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`wait JOB --deadlines S,S,S,S [--attached]`."""
    find.add_job(parser)
    parser.add_argument("--attached", action="store_true", help="the caller is there as long as stdin is open")
    parser.add_argument(
        "--deadlines",
        type=Deadlines.parse,
        required=True,
        metavar="S,S,S,S",
        help="seconds: PENDING_TIMEOUT, START_TIMEOUT, STALL_TIMEOUT, UNREACHABLE_TIMEOUT",
    )


def run(args: argparse.Namespace) -> int:
    """Follow a job from any terminal. Its exit status is also the last line on stdout, by which a remote caller can tell it from a lost
    connection. An attached one first gets the job's id.
    """
    job = find.asked_for(args)
    if args.attached:
        print(f"job {job.ray_id}", flush=True)
        leave_with_the_listener(threading.Lock())
    end = follow_to_the_end(job, args.deadlines)
    print(int(end))
    return int(end)


def follow_to_the_end(job: JobDir, deadlines: Deadlines) -> Exit:
    """Follow a job whose submission may not be over yet; returns how it ended."""
    before = None  # a submission that looks dead is checked twice, as in `follow`
    while job.read_config("resolved.json") is None:
        now = status_of(job, None, reachable=False).status
        if now is not Status.SUBMITTING and now is before:
            break
        before = now
        time.sleep(_LOOK_EVERY)
    end = follow(job, find.api_of(job), deadlines)
    sweep.attempt(job.root, find.plan_of(job).get("cluster"))
    return end


def leave_with_the_listener(busy: threading.Lock, silence: float | None = None) -> None:
    """End this process when stdin ends, because no engine tells a command in a container that its terminal is gone; or after some seconds
    of `silence` (None: never), because a network may die without a word. What holds `busy` may take a few seconds to finish first.
    """

    def leave() -> None:
        end = Exit.UNREACHABLE
        while select.select([0], [], [], silence)[0]:
            if not os.read(0, 4096):
                end = Exit.OWN_ERROR
                break
        busy.acquire(timeout=_TO_FINISH)
        os._exit(int(end))

    threading.Thread(target=leave, daemon=True).start()


def follow(job: JobDir, api: RayApi, deadlines: Deadlines) -> Exit:
    """Print each status change and each step until the job ends or a deadline passes; returns how it ended."""
    follower = _Follower(job, api, deadlines)
    while (end := follower.check()) is None:
        time.sleep(_LOOK_EVERY)
    return end


class _Follower:
    """Follows one job: remembers its last status, when Ray last answered, and when the job last made progress."""

    def __init__(self, job: JobDir, api: RayApi, deadlines: Deadlines) -> None:
        self._job, self._api, self._deadlines = job, api, deadlines
        self._signs = _ProgressSigns(job)
        self._answered = self._moved = time.monotonic()
        self._before: Judgement | None = None
        self._known: Status | None = None  # the last status while Ray answered: an outage is no progress

    def check(self) -> Exit | None:
        """Check the job once, and print what is new; returns how it ended, None while it continues."""
        clock, before = time.monotonic(), self._before
        now = self._before = self._judge(clock)
        _show_change(self._job, before, now)
        self._note_progress(now, clock)
        self._signs.show(now)
        # The files and Ray's answer are not of the same moment: a submission may have finished in between.
        is_certain = now.status not in (Status.NOT_SUBMITTED, Status.LOST) or now == before
        if (end := now.status.exit) is not None and is_certain:
            self._finish(now, end)
            return end
        return self._report_overdue(now, clock)

    def _judge(self, clock: float) -> Judgement:
        """The job's status: from Ray, or from the job's own files if Ray does not answer."""
        try:
            now = ask_ray(self._job, self._api)
        except Unreachable:
            return status_of(self._job, None, reachable=False)
        self._answered = clock
        return now

    def _note_progress(self, now: Judgement, clock: float) -> None:
        """Start to wait again if the job moved. One that waits for a person is not stalled; it keeps its slot."""
        is_new = now.status not in (Status.UNKNOWN, self._known)
        if self._signs.has_moved() or now.debugged is not None or is_new:
            self._moved = clock
        if now.status is not Status.UNKNOWN:
            self._known = now.status

    def _finish(self, now: Judgement, end: Exit) -> None:
        """Take the debug bundle of a failure if nobody did, forget the job's secrets, and show what it did."""
        moment = now.status.value.lower()
        # Its launcher, which makes the bundles, never ran or is gone. A second one would add nothing.
        has_no_bundle = self._job.read_state("ended") is None and not any(self._job.debug.glob(f"*-{moment}"))
        if has_no_bundle and end in (Exit.JOB_FAILED, Exit.LOST):
            debug.attempt(self._job, self._api.address, moment, logs=True)
        secret_files.forget(self._job)
        summarise(self._job, now)

    def _report_overdue(self, now: Judgement, clock: float) -> Exit | None:
        """Report the deadline that has passed, and return its exit status; None if none has."""
        limits, still = self._deadlines, clock - self._moved
        without_step = limits.start if self._signs.is_starting else limits.stall
        if clock - self._answered > limits.unreachable:
            return self._report_unreachable()
        if now.status is Status.PENDING and still > limits.pending:
            return self._report_not_schedulable()
        if now.status is Status.RUNNING and still > without_step:
            return self._report_stalled()
        return None

    def _report_unreachable(self) -> Exit:
        seconds = f"{self._deadlines.unreachable:.0f} s (UNREACHABLE_TIMEOUT)"
        say.error(f"Ray has not answered for {seconds}: the job may run on; see 'make status'.")
        return Exit.UNREACHABLE

    def _report_not_schedulable(self) -> Exit:
        job, api = self._job, self._api
        debug.attempt(job, api.address, "not-schedulable")
        plan = find.plan_of(job)
        wanted = {"CPU": plan["entrypoint_num_cpus"], **plan["entrypoint_resources"]}
        has = {node.name: {key: node.resources.get(key, 0) for key in wanted} for node in api.nodes() if node.alive}
        say.error(
            f"{job.ray_id} got no resources in {self._deadlines.pending:.0f} s (PENDING_TIMEOUT): it asked for {wanted}, the nodes have {has}; "
            "wait for room, or ask for less (resources)."
        )
        return Exit.NOT_SCHEDULABLE

    def _report_stalled(self) -> Exit:
        job, signs, limits = self._job, self._signs, self._deadlines
        bundle = debug.attempt(job, self._api.address, "stalled", logs=True)
        doing = (debug.activity(job, bundle) if bundle else None) or signs.doing
        since = f"{signs.lacks} for {limits.stall:.0f} s (STALL_TIMEOUT), after step {signs.step}"
        if signs.is_starting:
            since = f"made no first step in {limits.start:.0f} s (START_TIMEOUT)"
        say.error(
            f"{job.ray_id} has {since}, while {doing}: it still runs and holds its slot: read 'make logs JOB={job.ray_id}' and "
            f"{bundle or job.debug}, or end it with 'make stop JOB={job.ray_id}'."
        )
        return Exit.STALLED


def ask_ray(job: JobDir, api: RayApi) -> Judgement:
    """Ask Ray, keep its answer for later, and judge. Raises Unreachable."""
    details = api.job(job.ray_id)
    observe(job, details)
    return status_of(job, details)


def _show_change(job: JobDir, before: Judgement | None, now: Judgement) -> None:
    """Print a new status, or a new position in the queue."""
    has_moved_up = now.status is Status.QUEUED and before is not None and before.reason != now.reason
    if before is None or before.status is not now.status or has_moved_up:
        say.info(f"{job.ray_id} is {now.shown}")
    if now.debugged is not None and (before is None or before.debugged != now.debugged):
        say.info(f"{job.ray_id} {now.debugged} and keeps its slot: 'make debugger JOB={job.ray_id}' says how to attach")
    elif now.status is Status.RUNNING and before is not None and before.debugged and now.debugged is None:
        say.info(f"{job.ray_id} has left the breakpoint and continues")


class _ProgressSigns:
    """Signs that a job makes progress: a new step, which is printed; any output, if its loggers write no steps."""

    def __init__(self, job: JobDir) -> None:
        self._job, self._metrics = job, progress.Tail(job.metrics)
        logger = progress.logger_without_file(job)
        self._writes_steps = logger is None
        self.lacks = (
            f"written nothing (its trainer.logger={logger} writes no steps here)" if logger else "made no new step"
        )
        self.step: int = progress.parent_of(job)["step"]  # the last one seen
        self.doing = ""  # in words
        self._total: int | None = None
        self._output = 0  # bytes
        self._is_training = False
        self._is_finite = True
        self._pulse = Pulse(time.monotonic())

    @property
    def is_starting(self) -> bool:
        """Has it made no step yet? Models load and compile before the first one."""
        return self._writes_steps and not self._is_training

    def has_moved(self) -> bool:
        """Was there progress since the last call?"""
        log = self._job.driver_log
        before, self._output = self._output, log.stat().st_size if log.exists() else 0
        if self._total is None and self._output != before:
            self._total = progress.total_steps(self._job)
        steps = progress.training(self._metrics.new_steps())
        for step in steps:
            self.step, self._is_training = step.number, True
            say.info(step.line(self._total))
            problem = progress.not_finite([step])
            if problem is not None and self._is_finite:
                say.warn(f"{self._job.ray_id}: {problem}")
            self._is_finite = problem is None
        return bool(steps) or (not self._writes_steps and self._output != before)

    def show(self, judgement: Judgement) -> None:
        """Show what the job is doing if nothing was printed for a while; before its first step, each change at once."""
        now, status = time.monotonic(), judgement.status
        step = (self.step if self._is_training else 0) if self._writes_steps else None  # a resumed job starts, too
        words = judgement.debugged or doing(self._job, status, step, self._total)
        if words is not None:
            self.doing = words
            is_news = status is Status.RUNNING and not self._is_training and judgement.debugged is None
            self._pulse.beat(words, now, is_news=is_news)


def doing(job: JobDir, status: Status, step: int | None, total: int | None) -> str | None:
    """What it is doing; None if it is over. `step` is its last one, 0 before its first, None if the job records none; it announced `total`."""
    if status is not Status.RUNNING:
        return _BEFORE_IT_RUNS.get(status)
    if job.read_state("ended") is not None:
        return "taking a debug bundle of its end"
    if job.read_state("started") is None:
        is_launched = launcher_of(job) is not Launcher.NOT_YET
        return "proving the code that it imports" if is_launched else "starting its launcher"
    if step is None:
        return "training"
    if not step:
        return "starting the trainer, or in its first step"
    if total is not None and step >= total:
        return "finishing after the last step"
    return f"working on step {step + 1}{f' of {total}' if total else ''}"


def summarise(job: JobDir, judgement: Judgement) -> None:
    """The facts of a finished job, each from where it was recorded."""
    for line in progress.log_lines(job, "MVP_PRECHECK_"):
        say.quote(line)
    driver_ip = judgement.driver_ip or "none was seen (Ray was not asked in time, or the driver never called ray.init)"
    say.info(f"driver_info.node_ip_address: {driver_ip}")
    say.info(f"{progress.summary(job)}, {_kept_checkpoints(job)}")
    if (parent := progress.parent_of(job)["checkpoint"]) is not None:
        say.info(f"continued from {parent}")
    for path, sha256 in find.inputs_of(job).items():
        say.info(f"read {path} (sha256 {(sha256 or '-')[:16]})")
    say.info(f"outputs: {job.path}")
    sentence = f"{job.ray_id} {judgement.status.value} ({judgement.reason or 'no reason was given'})"
    if judgement.status is Status.SUCCEEDED:
        _warn_of_steps(job)
        say.ok(sentence)
    else:
        say.error(f"{sentence}: read 'make logs JOB={job.ray_id}'.")
    if judgement.status in (Status.FAILED, Status.LOST):
        _show_cause(job, judgement)


def _kept_checkpoints(job: JobDir) -> str:
    """The checkpoints that a job has, or why there are none."""
    if names := checkpoints.names(job):
        return ", ".join(f"checkpoints/{name}" for name in names)
    collected = job.read_state("collected")  # verl_regress.store.retention
    return f"no checkpoint any more ('make gc' removed them at {collected['time']})" if collected else "no checkpoint"


def _warn_of_steps(job: JobDir) -> None:
    """Warn of steps that a job which succeeded has not trained, and of trained steps that are worth nothing."""
    if (missing := shortfall.of_job(job)) is not None:
        say.warn(f"{job.ray_id} {missing.words}: {missing.cure}.")
    for words in conditions.of_job(job).values():
        say.warn(f"{job.ray_id}: {words}")


def _show_cause(job: JobDir, judgement: Judgement) -> None:
    """Print the hint for a failed job's root exception, and its traceback or the end of its log."""
    if hint := (judgement.cause or {}).get("hint"):
        say.info(f"hint: {hint}")
    for line in failure.shown(job):
        say.info(f"| {line}")
