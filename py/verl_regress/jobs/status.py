"""A job's status: one function that reads `state/` and Ray's answer; where it waits for a debugger, and the launcher's lock."""

import contextlib
import enum
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_regress.base import lock
from verl_regress.base.errors import Exit, RegressError, Unreadable
from verl_regress.base.files import now, read_json
from verl_regress.base.layout import JobDir
from verl_regress.jobs import failure

ENDED_IN_RAY = ("SUCCEEDED", "FAILED", "STOPPED")  # Ray's statuses of a job that is over (2.60)


class Status(str, enum.Enum):
    """A job's status; the last four and NOT_SUBMITTED are final."""

    NOT_SUBMITTED = "NOT_SUBMITTED"
    SUBMITTING = "SUBMITTING"
    PENDING = "PENDING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    UNKNOWN = "UNKNOWN"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"

    @property
    def exit(self) -> Exit | None:
        """The exit status of following such a job to its end; None while the job continues."""
        return _EXIT.get(self)


_EXIT = {
    Status.NOT_SUBMITTED: Exit.BAD_INPUT,
    Status.SUCCEEDED: Exit.SUCCEEDED,
    Status.FAILED: Exit.JOB_FAILED,
    Status.STOPPED: Exit.STOPPED,
    Status.LOST: Exit.LOST,
}
# What a directory or a JSON file raises that another user closed, that is being removed, or that was made by hand.
DAMAGED = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, Unreadable, ValueError)
Known = Mapping[str, Mapping[str, Any]] | None  # what Ray says of each of its jobs; None if it does not answer
_LOCK_SECONDS = 30.0  # no other process takes this lock, except for a moment to see whether it is held
_REASON_SHOWN = 100  # characters in a table
_OBSERVED = (
    "status",
    "message",
    "error_type",
    "driver_exit_code",
    "driver_info",
    "driver_node_id",
    "start_time",
    "end_time",
    "metadata",
)


@dataclass(frozen=True)
class Judgement:
    """A status and the sentence that explains it; the root exception of a failed trainer, and in which breakpoint a running job waits."""

    status: Status
    reason: str
    driver_ip: str | None = None
    cause: Mapping[str, Any] | None = None
    debugged: str | None = None

    @property
    def shown(self) -> str:
        """The status in a word, the position of a queued job, and the breakpoint in which a running one waits."""
        if self.debugged is not None:
            return f"{self.status.value}, {self.debugged}"
        return f"{self.status.value} ({self.reason})" if self.status is Status.QUEUED else self.status.value

    @property
    def why(self) -> str:
        """The reason for a cell of a table. If it is an exception: that alone, with its location and step in full."""
        if self.cause is not None and failure.sentence(self.cause) in self.reason:
            return failure.sentence({**self.cause, "also": None}, _REASON_SHOWN)
        reason = " ".join(self.reason.split())
        return reason if len(reason) <= _REASON_SHOWN else f"{reason[: _REASON_SHOWN - 1]}…"


@dataclass(frozen=True)
class Breakpoint:
    """Where a process of a job waits, or is when a debugger is `attached` to it; with an `exception`, after that was raised.

    `task` is Ray's title of the process. `host` and `port` are where the debugger listens, as the processes on `node` see it.
    """

    task: str
    file: str
    line: int
    function: str
    exception: str | None
    node: str | None
    host: str
    port: int
    pid: int
    since: str
    attached: bool

    def place(self, job: JobDir) -> str:
        """`user/code/reward.py:12`: the file relative to the shared root, or to the snapshot."""
        plan = job.read_config("resolved.json") or {}
        for home in (plan.get("code_path"), str(job.root.path)):
            if home is not None and self.file.startswith(f"{home}/"):
                return f"{self.file.removeprefix(f'{home}/')}:{self.line}"
        return f"{self.file}:{self.line}"


class Launcher(enum.Enum):
    """What the lock says of a job's launcher."""

    NOT_YET = "not yet"
    ALIVE = "alive"
    GONE = "gone"


class LaunchedBefore(RegressError):
    """The job has, or had, a launcher."""


def hold_launcher_lock(job: JobDir) -> int:
    """Become the launcher of `job`; returns the descriptor that holds the lock until this process is gone, for any reason.

    Raises LaunchedBefore, and RegressError if the file system has no locks.
    """
    try:
        descriptor = os.open(job.launcher, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise LaunchedBefore(
            f"{job.launcher} exists, so {job.ray_id} was launched before, and a job directory is never used twice: submit "
            "it again with 'make submit'."
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        os.close(descriptor)
        raise RegressError(
            f"{job.state} is on a file system without locks ({error.strerror}), which the queue needs: put SHARED_ROOT on one that "
            "has them (a local disk, NFS 4)."
        ) from error
    os.write(descriptor, json.dumps({"time": now(), "hostname": os.uname().nodename, "pid": os.getpid()}).encode())
    return descriptor


def launcher_of(job: JobDir) -> Launcher:
    """Whether the launcher of `job` is alive, as the file system tells any node: neither clocks nor Ray are involved."""
    try:
        return Launcher.ALIVE if lock.is_held(job.launcher) else Launcher.GONE
    except FileNotFoundError:
        return Launcher.NOT_YET


def status_of(job: JobDir, ray: Mapping[str, Any] | None, *, reachable: bool = True) -> Judgement:
    """The status of a job. `ray` is Ray's details of it, None if Ray does not know it (or is not `reachable`)."""
    submitted, ended = job.read_state("submitted"), job.read_state("ended")
    observed = job.read_state("observed") or {}
    ray_status = (ray or {}).get("status")
    # To Ray, a job that was stopped while PENDING stays FAILED (2.60); our own record says that it was stopped.
    is_final = observed.get("status") == "STOPPED" or (ray is None and observed.get("status") == "FAILED")
    details = observed if is_final else ray
    if ended is not None and ray_status == "RUNNING":
        # Stopped by Ray or ended by itself? The launcher cannot know; Ray reports it a moment later.
        judged = Judgement(Status.RUNNING, f"{ended['reason']}, Ray is about to say how")
    elif ended is not None and "STOPPED" not in (ray_status, observed.get("status")):
        judged = _from_launcher(ended, is_forgotten=ray is None, reachable=reachable)
    elif (queued := _in_queue(job, details)) is not None:
        judged = queued
    elif details is not None:
        judged = _from_ray(details, job)
    else:
        judged = _unknown_to_ray(job, submitted, was_seen=bool(observed), reachable=reachable)
    return replace(judged, driver_ip=_driver_ip(ray) or _driver_ip(observed))


def _from_launcher(ended: Mapping[str, Any], *, is_forgotten: bool, reachable: bool) -> Judgement:
    """What the launcher recorded as the end; `is_forgotten` says that Ray does not know the job, or is not `reachable`."""
    if ended.get("told_to_stop") and is_forgotten:
        # Ray cannot say whether a user stopped it or its node went down.
        status = Status.LOST if reachable else Status.UNKNOWN
        why = failure.FORGOTTEN if reachable else "there is no word from Ray who ended it"
        return Judgement(status, f"{ended['reason']}, and {why}")
    # A failure because a node or the head went away says nothing about the code.
    failed = Status.LOST if ended.get("head_gone") or ended.get("lost_nodes") else Status.FAILED
    status = failed if ended["exit_code"] else Status.SUCCEEDED
    return Judgement(status, str(ended["reason"]), cause=ended.get("cause"))


def _in_queue(job: JobDir, ray: Mapping[str, Any] | None) -> Judgement | None:
    """A job that waits in the queue, with the position that its living launcher recorded; None for any other."""
    is_unfinished = (ray or {}).get("status") in (None, "PENDING", "RUNNING")
    queued = job.read_state("queued") if is_unfinished else None
    if queued is None or (job.state / "turn").exists() or launcher_of(job) is not Launcher.ALIVE:
        return None
    return Judgement(Status.QUEUED, str(queued["reason"]))


def _unknown_to_ray(job: JobDir, submitted: Mapping[str, Any] | None, *, was_seen: bool, reachable: bool) -> Judgement:
    """A job that recorded no end, of which Ray says nothing; `was_seen` says that it once did."""
    # If the submitter died before it could record Ray's answer, an observation still proves that Ray had the job.
    if not was_seen and job.read_state("started") is None:
        never_there = _not_in_ray(job, submitted)
        if never_there is not None:
            return never_there
    if not reachable:
        return Judgement(Status.UNKNOWN, "the job recorded no end, and there is no word from Ray")
    return Judgement(Status.LOST, f"the job recorded no end, and {failure.FORGOTTEN}")


def _not_in_ray(job: JobDir, submitted: Mapping[str, Any] | None) -> Judgement | None:
    """A job that Ray does not have yet, or refused; None if `submitted` says that Ray accepted it."""
    if submitted is not None:
        refusal = f"never submitted: {submitted.get('error')}"
        return None if submitted["accepted"] else Judgement(Status.NOT_SUBMITTED, refusal)
    with contextlib.suppress(OSError):  # no such file (yet), or no locks on the file system
        if lock.is_held(job.submitting):
            return Judgement(Status.SUBMITTING, "the submitter is at work")
    return Judgement(Status.NOT_SUBMITTED, "the submitter has not reached Ray, or ended before it did")


def status_in_list(job: JobDir, known: Known) -> Judgement:
    """The status of a job, from Ray's list of all jobs."""
    return status_of(job, (known or {}).get(job.ray_id), reachable=known is not None)


def status_for_cluster(cluster: str | None, job: JobDir, known: Known) -> Judgement:
    """The status of a job for a list of `cluster`, whose Ray alone was asked. Raises OSError and Unreadable."""
    theirs = (job.read_config("resolved.json") or {}).get("cluster")
    if cluster is None or theirs in (None, cluster):
        return status_in_list(job, known)
    judged = status_of(job, None, reachable=False)
    if judged.status is not Status.UNKNOWN:
        return judged
    if launcher_of(job) is Launcher.ALIVE:
        return Judgement(Status.RUNNING, f"its launcher on the cluster {theirs} is alive")
    return Judgement(Status.UNKNOWN, f"the job recorded no end, and the Ray of its cluster {theirs} was not asked")


def submission_of(job: JobDir) -> contextlib.AbstractContextManager[None]:
    """Hold the lock that marks the job as being submitted; it ends with the process, however that ends."""
    return lock.held(job.submitting, f"the submission of {job.ray_id}", _LOCK_SECONDS)


def _from_ray(ray: Mapping[str, Any], job: JobDir) -> Judgement:
    status = str(ray.get("status"))
    message = str(ray.get("message") or "").strip().splitlines() or [""]
    if status == "RUNNING":
        return Judgement(Status.RUNNING, message[-1], debugged=breakpoint_of(job))
    started = job.read_state("started")
    has_begun = (
        started is not None
        or launcher_of(job) is not Launcher.NOT_YET
        or ray.get("error_type") in failure.SUPERVISOR_GONE
    )
    if status in ("PENDING", "STOPPED") or (status == "FAILED" and not has_begun):
        return Judgement(Status(status), message[-1])
    # A launcher that lives to see the end records it: without that record, it or its node is gone.
    node = (started or {}).get("node") or (started or {}).get("node_ip")
    return Judgement(Status.LOST, failure.loss_of(ray, node))


def breakpoints_of(job: JobDir) -> list[Breakpoint]:
    """One for each process that lives, the longest wait first: its threads wait for the same debugger."""
    records = []
    for file in (job.state / "breakpoints").glob("*.json"):
        with contextlib.suppress(OSError, TypeError, Unreadable):
            if lock.is_held(file):
                records.append(Breakpoint(**(read_json(file) or {}), attached=file.name.endswith(".attached.json")))
    found: dict[tuple[str | None, int], Breakpoint] = {}
    for one in sorted(records, key=lambda one: (one.since, one.node or "", one.pid, one.port)):
        found.setdefault((one.node, one.pid), one)
    return list(found.values())


def breakpoint_of(job: JobDir) -> str | None:
    """`waits in a breakpoint (user/code/reward.py:12)`, or that it is in a debugger; None for any other job."""
    if not (found := breakpoints_of(job)):
        return None
    waiting = [one for one in found if not one.attached]
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"{'waits in a breakpoint' if waiting else 'is in a debugger'} ({(waiting or found)[0].place(job)}{more})"


def _driver_ip(details: Mapping[str, Any] | None) -> str | None:
    return ((details or {}).get("driver_info") or {}).get("node_ip_address") or None


def observe(job: JobDir, ray: Mapping[str, Any] | None) -> None:
    """Record Ray's answer in `state/observed`, only if it changed and never after a final status."""
    before = job.read_state("observed") or {}
    if ray is None or before.get("status") in ENDED_IN_RAY:
        return
    kept = {key: ray.get(key) for key in _OBSERVED}
    if kept != {key: before.get(key) for key in kept}:
        with contextlib.suppress(OSError):  # a full disk must not keep the user from the answer
            job.write_state("observed", kept)
