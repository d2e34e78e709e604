"""The Ray entrypoint of every job: waits in the queue, proves the code, runs verl as a child, copies its output to both
logs, checks what every process loaded, records the end.

It reads its plan from the job directory, so that no part of it ever passes through a shell.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from verl_regress.base import this_node
from verl_regress.base.errors import RegressError, last_line
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import causes, debug, failure, find, liveness
from verl_regress.secrets import job_secrets
from verl_regress.spec import reward_fn
from verl_regress.store import snapshot
from verl_regress.worker import aftermath, identity, queue
from verl_regress.worker.lost_nodes import Watch
from verl_regress.worker.tee import Tee

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Imports what the training processes will import, in an interpreter and environment like theirs.
_PROBE = """
import json, verl, mvp_marker
print(json.dumps({"verl_file": verl.__file__, "marker": mvp_marker.MARKER}))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The one argument: the job directory with the plan."""
    parser.add_argument("job_dir", type=Path)


def run(args: argparse.Namespace) -> int:
    """Run the job to its end; returns verl's exit status, or 1 if a process ran other code than requested."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # blocked until a handler can act on it
    job = JobDir(args.job_dir)
    plan = find.plan_of(job)
    with job.driver_log.open("ab", buffering=0) as log:
        tee = Tee(log.fileno())
        try:
            liveness.hold(job)
            tee.hide(job_secrets.hold())
        except liveness.LaunchedBefore:
            raise  # the files in this directory belong to the other launcher
        except RegressError as error:
            return _fail(job, plan, tee, error)
        try:
            job.reserve_state("ended")
            return _run(job, plan, tee)
        finally:
            queue.leave(job, plan["cluster"])


def _run(job: JobDir, plan: Mapping[str, Any], tee: Tee) -> int:
    """From waiting in the queue to the record of the end."""
    waits_for = "a slot"
    try:
        with _stoppable():
            _need_submission(job)
            queue.wait(job, plan, partial(_record_position, job, tee))
            waits_for = "the proof of its code"
            check_paths(plan)
            check_code(job, plan)
            imported = prove_code(Path(plan["code_path"]), plan["code_id"], job, tee)
    except (RegressError, OSError) as error:
        return _fail(job, plan, tee, error)
    except _Stopped as stopped:
        reason = f"stopped while it waited for {waits_for}"
        job.write_state("ended", {"exit_code": -stopped.number, "reason": reason, "told_to_stop": True})
        return 128 + stopped.number
    job.write_state(
        "started",
        {
            "node": this_node.name(),
            "node_ip": this_node.address(),
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            **imported,
        },
    )
    running = partial(debug.attempt_beside, job, plan["address"], "running")
    pid, code, told_to_stop, lost_nodes = _run_child(plan["argv"], job, tee, running)
    tee.end()
    reason, is_trainers = f"the trainer {causes.ending(code)}", code != 0 and not lost_nodes
    if lost_nodes:
        reason = f"the trainer waited for {' and '.join(lost_nodes)}, which Ray had given up, and was ended"
        tee.line(f"verl-regress: {reason}")
    if code == 0 and not told_to_stop:
        try:
            identity.check(job, plan, pid)
        except (RegressError, OSError) as error:
            tee.line(f"verl-regress: {error}")
            code, reason = 1, str(error)
    cause = failure.of_job(job, plan, code) if is_trainers and not told_to_stop else None
    ended: dict[str, Any] = {"exit_code": code, "reason": reason, "told_to_stop": told_to_stop, "cause": cause}
    if lost_nodes:
        ended["lost_nodes"] = lost_nodes
    elif code != 0:
        ended |= aftermath.of_failure(job, plan, reason, told_to_stop=told_to_stop)
        if cause is not None and ended["reason"] == reason:  # an outside cause says more than the trainer's own words
            ended["reason"] = f"{reason}: {failure.sentence(cause)}"
    job.write_state("ended", ended)
    # Ray reports the job's end when this process exits: whoever sees that must find the bundle.
    is_failed = code != 0 and not told_to_stop
    debug.attempt(job, plan["address"], "failed" if is_failed else "ended", logs=is_failed)
    return code if code >= 0 else 128 - code


def _fail(job: JobDir, plan: Mapping[str, Any], tee: Tee, error: RegressError | OSError) -> int:
    """End the job before training, and record why."""
    tee.line(f"verl-regress: {error}")
    job.write_state("ended", {"exit_code": 1, "reason": str(error)})
    debug.attempt(job, plan["address"], "failed", logs=True)
    return 1


class _Stopped(BaseException):
    """A signal came before there was a trainer to forward it to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _stoppable() -> Iterator[None]:
    """In this block a signal that asks us to stop raises _Stopped, once; one that came earlier does so at once.

    Outside, signals are blocked: one that comes between two steps is delivered in the next block that handles it. So
    there is no moment at which it would end the launcher before `state/ended` is written. Only a signal before `run`
    begins (while Python still starts) ends the process like any program, without a record.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _STOPPING:
            signal.signal(each, signal.SIG_IGN)  # the end is being recorded
        raise _Stopped(number)

    for number in _STOPPING:
        signal.signal(number, stop)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)


def _need_submission(job: JobDir) -> None:
    """Raise RegressError if the user was told that the job was not submitted (Ray did not answer): that must stay true."""
    submitted = job.read_state("submitted")
    if submitted is not None and not submitted["accepted"]:
        raise RegressError(
            f"{job.ray_id} is marked as never submitted ({submitted['error']}), but Ray got it later: submit it again."
        )


def _record_position(job: JobDir, tee: Tee, position: queue.QueuePosition) -> None:
    """Record the queue position for `judge`, and log it the first time."""
    if job.read_state("queued") is None:
        tee.line(f"verl-regress: waits for a slot, {position}")
    job.write_state("queued", {"reason": str(position), "position": position.position, "waiting": position.waiting})


def check_paths(plan: Mapping[str, Any]) -> None:
    """Raise RegressError if a path of the plan now leads out of the shared root, or if the reward function is another user's.

    The paths were checked at submission, but the job may have waited for hours, and `common/` and `user/` are writable
    by all users.
    """
    root = SharedRoot(Path(plan["shared_root"]))
    for name in ("code_path", "model", "dataset", "reward_fn", "reward_file"):
        given = plan.get(name)  # older plans have no reward_file
        escape = root.escape_of(Path(given)) if given is not None else None
        if escape is not None:
            raise RegressError(f"{name}={given} was changed after the job was submitted: {escape}; submit it again.")
    reward = plan.get("reward_file") or plan["reward_fn"]
    if reward is not None:
        _check_reward(Path(reward), plan.get("trusted_uids"))


def _check_reward(path: Path, trusted: Iterable[int] | None) -> None:
    try:
        with path.open("rb") as file:
            foreign = reward_fn.foreign_owner(path, file, trusted)
    except OSError as error:
        raise RegressError(
            f"The reward function {path} cannot be read ({error.strerror}): put it there again, and submit the job again."
        ) from error
    if foreign is not None:
        raise RegressError(f"The reward function {path} is refused, {foreign}, and submit the job again.")


def check_code(job: JobDir, plan: Mapping[str, Any]) -> None:
    """Raise RegressError if the snapshot was removed or changed while the job waited, or became another user's.

    Reads every file of it.
    """
    record = job.read_config("code.json")
    if record is None:
        raise RegressError(f"{job.config}/code.json was removed after the job was submitted: submit it again.")
    snapshot.need_unchanged(Path(plan["code_path"]), record, trusted=plan.get("trusted_uids"))


def prove_code(code_path: Path, code_id: str, job: JobDir, tee: Tee) -> dict[str, str]:
    """Import verl and the marker as the job will; print where they came from; raise RegressError if that is wrong."""
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE], cwd=job.path, capture_output=True, text=True, errors="replace", check=False
    )
    if probe.returncode != 0:
        last = last_line(probe.stderr)
        tee.line(probe.stderr.rstrip())
        raise RegressError(
            f"verl cannot be imported from {code_path} ({last}): fix the snapshot, or the image that it needs."
        )
    imported: dict[str, str] = json.loads(probe.stdout.strip().splitlines()[-1])
    tee.line(f"MVP_PRECHECK_VERL_FILE: {imported['verl_file']}")
    tee.line(f"MVP_PRECHECK_MARKER: {imported['marker']}")
    wanted = str(code_path / "verl" / "__init__.py")
    if imported["verl_file"] != wanted or imported["marker"] != code_id:
        raise RegressError(
            f"The job imported verl from {imported['verl_file']} with marker {imported['marker']}, but {wanted} with "
            f"marker {code_id} was asked for: something is before the snapshot on PYTHONPATH."
        )
    return imported


class _Trained(NamedTuple):
    """How verl ended. A negative `code` is the signal that ended it; with `lost_nodes` we ended it, because it waited for them."""

    pid: int
    code: int
    told_to_stop: bool
    lost_nodes: tuple[str, ...]


def _run_child(argv: list[str], job: JobDir, tee: Tee, on_start: Callable[[], object]) -> _Trained:
    """Run verl in its own process group; signals are forwarded to the whole group.

    `on_start` is called once it runs: there must be no thread before, because the fork runs Python in the child.
    """
    child = subprocess.Popen(
        [sys.executable if argv[0] == "python3" else argv[0], *argv[1:]],
        cwd=job.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_prepare_child,
    )

    told_to_stop = False

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal told_to_stop
        told_to_stop = True
        if child.poll() is None:
            os.killpg(child.pid, number)

    for number in _STOPPING:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    on_start()
    watch = Watch(job, child)
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    is_open = True
    while is_open and child.poll() is None:
        if select.select([pipe], [], [], 0.2)[0]:
            is_open = tee.move(pipe)
    code = child.wait()
    watch.stop()
    # A grandchild may keep the pipe open and write to it after verl has ended, so we wait for the child, not for the
    # pipe. Everything that the child wrote is in the pipe by now.
    end = time.monotonic() + 5
    while time.monotonic() < end and select.select([pipe], [], [], 0)[0] and tee.move(pipe):
        pass
    return _Trained(child.pid, code, told_to_stop, watch.lost if code != 0 else ())


def _prepare_child() -> None:
    """Make the child die with the launcher, because nothing would record its end; unblock the launcher's blocked signals."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
