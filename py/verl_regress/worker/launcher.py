"""The Ray entrypoint of every job: waits in the queue, lets verl train once it has proved its code, keeps its log, records the end."""

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from redaction import Redactor
from verl_regress.base.errors import RegressError, last_line
from verl_regress.base.files import reserve
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.trust import JOB_UIDS, need, of_job
from verl_regress.cluster import nodes
from verl_regress.jobs import conditions, debug, failure, find, hints, shortfall
from verl_regress.jobs.status import LaunchedBefore, hold_launcher_lock
from verl_regress.secrets import secret_files
from verl_regress.store import snapshot
from verl_regress.store.hashes import Hashes
from verl_regress.worker import aftermath, loaded_code, queue

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Tee:
    """Writes bytes to our stdout (Ray's log) and to the driver's log, without the job's secrets; if one cannot be written, to the other."""

    def __init__(self, log: int) -> None:
        self._log, self._redactor = log, Redactor({})

    def hide(self, secrets: Mapping[str, str]) -> None:
        """Replace these values by their names from now on."""
        self._redactor = Redactor(secrets)

    def write(self, chunk: bytes) -> None:
        """Write the bytes, except for an end that may be the start of a secret."""
        self._put(self._redactor.feed(chunk))

    def end(self) -> None:
        """Write what was held back because it might have been the start of a secret."""
        self._put(self._redactor.end())

    def _put(self, chunk: bytes) -> None:
        for log in (1, self._log):
            with contextlib.suppress(OSError):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(log, view) :]

    def move(self, pipe: int) -> bool:
        """Write what is in the pipe; False if every process that could write to it has closed it."""
        chunk = os.read(pipe, 65536)
        self.write(chunk)
        return chunk != b""

    def line(self, text: str) -> None:
        """Write one line of our own."""
        self.write(text.encode("utf-8", "replace") + b"\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The one argument: the job directory with the plan."""
    parser.add_argument("job_dir", type=Path)


def run(args: argparse.Namespace) -> int:
    """Run the job to its end; returns verl's exit status, or 1. Raises RegressError if another user put its plan there."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # blocked until a handler can act on it
    job = JobDir(args.job_dir)
    if JOB_UIDS in os.environ:  # Ray carries who submitted the job; something else that launches it (KubeRay) does not
        parents = [job.first.path, job.path.parent] if job.attempt > 1 else []
        for place in (*parents, job.path, job.config / "resolved.json"):
            need(place, str(place), "and submit the job again", of_job(), alone=True)
    plan = find.plan_of(job)
    with job.driver_log.open("ab", buffering=0) as log:
        tee = Tee(log.fileno())
        try:
            hold_launcher_lock(job)
            tee.hide(secret_files.hold())
        except LaunchedBefore:
            raise  # the files in this directory belong to the other launcher
        except RegressError as error:
            return _fail(job, plan, tee, error)
        try:
            reserve(job.state / "ended")
            (job.state / "stacks_asked").touch()
            return _run(job, plan, tee)
        finally:
            queue.leave(job, plan["cluster"])


def _run(job: JobDir, plan: Mapping[str, Any], tee: Tee) -> int:
    """From waiting in the queue to the record of the end."""
    try:
        trainer, imported = _start(job, plan, tee)
    except _Stopped as stopped:
        reason = f"stopped while it waited for {stopped.waited_for}"
        job.write_state("ended", {"exit_code": -stopped.number, "reason": reason, "told_to_stop": True})
        return 128 + stopped.number
    except (RegressError, OSError) as error:
        return _fail(job, plan, tee, error)
    here = {"node": nodes.own_name(), "node_ip": nodes.own_address(), "hostname": socket.gethostname()}
    job.write_state("started", {**here, "pid": os.getpid(), **imported})
    threading.Thread(target=debug.attempt, args=(job, plan["address"], "running"), daemon=True).start()
    end = _train(trainer, job, tee)
    tee.end()
    ended = _ended(end, job, plan, tee)
    job.write_state("ended", ended)
    # Ray reports the job's end when this process exits: whoever sees that must find the bundle.
    code = int(ended["exit_code"])
    is_failed = code != 0 and not end.told_to_stop
    debug.attempt(job, plan["address"], "failed" if is_failed else "ended", logs=is_failed)
    return code if code >= 0 else 128 - code


def _fail(job: JobDir, plan: Mapping[str, Any], tee: Tee, error: RegressError | OSError) -> int:
    """End the job before training, and record why."""
    tee.line(f"verl-regress: {error}")
    job.write_state("ended", {"exit_code": 1, "reason": str(error)})
    debug.attempt(job, plan["address"], "failed", logs=True)
    return 1


class _Stopped(BaseException):
    """A signal came before there was a trainer to forward it to, while the job waited for something."""

    def __init__(self, number: int, waited_for: str) -> None:
        super().__init__(number, waited_for)
        self.number, self.waited_for = number, waited_for


@contextlib.contextmanager
def _stoppable(waits_for: str) -> Iterator[None]:
    """In this block a signal that asks us to stop raises _Stopped, once; outside, none ends the launcher before its end is recorded."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _STOPPING:
            signal.signal(each, signal.SIG_IGN)  # the end is being recorded
        raise _Stopped(number, waits_for)

    for number in _STOPPING:
        signal.signal(number, stop)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)


def _await_turn(job: JobDir, plan: Mapping[str, Any], tee: Tee) -> None:
    """Wait in the queue. Raises RegressError if the submission was reported as failed (Ray did not answer): that must stay true."""
    submitted = job.read_state("submitted")
    if submitted is not None and not submitted["accepted"]:
        raise RegressError(
            f"{job.ray_id} is marked as never submitted ({submitted['error']}), but Ray got it later: submit it again."
        )

    def record(position: str) -> None:
        if job.read_state("queued") is None:
            tee.line(f"verl-regress: waits for a slot, {position}")
        job.write_state("queued", {"reason": position})

    queue.wait(job, plan, record)


def check_paths(plan: Mapping[str, Any]) -> None:
    """Raise RegressError if a path of the plan leads out of the shared root by now, or if another user can change one by now."""
    root = SharedRoot(Path(plan["shared_root"]))
    cure, trusted = "and submit the job again", plan.get("trusted_uids")
    code = {"named": f"code_path={plan['code_path']}", "path": plan["code_path"], "outside": False}
    for each in (code, *(plan.get("inputs") or ())):
        escape = None if each["outside"] else root.escape_of(Path(each["path"]))
        if escape is not None:
            raise RegressError(f"{each['named']} was changed after the job was submitted: {escape}; submit it again.")
    for each in plan.get("inputs") or ():
        if root.has(Path(each["path"])):
            need(Path(each["path"]), each["named"], cure, trusted)
    for key, alone in (("code_dirs", False), ("caches", True)):
        for folder in plan.get(key) or ():
            need(Path(folder), folder, cure, trusted, alone=alone)


def check_inputs(job: JobDir, plan: Mapping[str, Any]) -> None:
    """Record what the inputs contain, in `state/inputs`. Raise RegressError for one that is missing here, or was changed since the submission."""
    hashes, found = Hashes(job.root), []
    for each in plan.get("inputs") or ():
        try:
            is_code = each.get("is_code", False)
            sha256 = hashes.content_of(Path(each["path"]), is_read=each["fact"] is not None, is_code=is_code)
        except OSError as error:
            raise RegressError(
                f"{each['named']} was changed, or cannot be read, while it was hashed ({error}): submit the job again."
            ) from None
        is_missing = each["needed"] and not Path(each["path"]).exists()
        if each["sha256"] not in (None, sha256) or (is_missing and not each["outside"]):
            raise RegressError(f"{each['named']} was changed or removed after the job was submitted: submit it again.")
        if is_missing:
            raise RegressError(
                f"{each['named']} is missing on {nodes.own_name()}: put it on the shared root, which every node has, and submit the job again."
            )
        found.append({**each, "sha256": sha256})
    job.write_state("inputs", {"inputs": found})


def check_code(job: JobDir, plan: Mapping[str, Any]) -> None:
    """Raise RegressError if the snapshot was removed or changed while the job waited, or became another user's."""
    if (record := job.read_config("code.json")) is None:
        raise RegressError(f"{job.config}/code.json was removed after the job was submitted: submit it again.")
    use = snapshot.Use("the job was submitted", ", and submit the job again", RegressError)
    named = f"The snapshot {plan['code_id']}"
    snapshot.need_whole(Path(plan["code_path"]), record, named, use, trusted=plan.get("trusted_uids"))


def need_trained(job: JobDir, plan: Mapping[str, Any]) -> None:
    """Raise RegressError if the trainer ended well and trained none of its steps, or if they meet a condition of FAIL_ON."""
    missing = shortfall.has_trained_nothing(job)
    if missing is not None:
        raise RegressError(f"the trainer ended without an error, but {missing.words}: {missing.cure}.")
    met = conditions.of_job(job)
    found = next((f"{met[name]} (FAIL_ON={name})" for name in plan.get("fail_on") or () if name in met), None)
    if found is not None:
        raise RegressError(f"the trainer ended without an error, but {found}.")


class _Trainer:
    """verl's process, in its own process group, which waits for `let_train`. Raises RegressError if py/hooks/proof.py would not run there.

    Needs signals that are blocked and no thread beside this one: between fork and exec the child runs Python.
    """

    def __init__(self, argv: list[str], job: JobDir) -> None:
        ours = Path(__file__).parents[2] / "hooks" / "sitecustomize.py"
        loaded = getattr(sys.modules.get("sitecustomize"), "__file__", None)
        if loaded is None or Path(loaded).resolve() != ours.resolve():
            raise RegressError(
                f"Nothing would prove the job's code: Python loads {loaded or 'no sitecustomize'}, but {ours} was asked for: "
                "something is before it on PYTHONPATH."
            )
        self._proof, theirs = socket.socketpair()
        command = [sys.executable if argv[0] == "python3" else argv[0], *argv[1:]]
        environ = {**os.environ, "VERL_REGRESS_PROOF": str(theirs.fileno())}
        with theirs:
            self.process = subprocess.Popen(
                command,
                cwd=job.path,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()

    def prove_code(self, code_path: Path, code_id: str, tee: Tee) -> dict[str, str]:
        """Print where it has imported verl and the marker from, and return it; raise RegressError if that is wrong."""
        reads, said = [self._proof.fileno(), self.output], b""
        while not said.endswith(b"\n"):
            ready = select.select(reads, [], [], 0.2)[0]
            if self.output in ready and not tee.move(self.output):
                reads.remove(self.output)
            if self._proof.fileno() in ready and (chunk := self._proof.recv(65536)):
                said += chunk
            elif self._proof.fileno() in ready or self.process.poll() is not None:
                said = json.dumps({"error": f"the process {failure.ending(self.kill(tee))}"}).encode() + b"\n"
        imported: dict[str, str] = json.loads(said)
        if "error" in imported:
            raise RegressError(
                f"verl cannot be imported from {code_path} ({last_line(imported['error'])}): fix the snapshot, or the image that it needs."
            )
        tee.line(f"MVP_PRECHECK_VERL_FILE: {imported['verl_file']}")
        tee.line(f"MVP_PRECHECK_MARKER: {imported['marker']}")
        wanted = str(code_path / "verl" / "__init__.py")
        if imported["verl_file"] != wanted or imported["marker"] != code_id:
            raise RegressError(
                f"The job imported verl from {imported['verl_file']} with marker {imported['marker']}, but {wanted} with "
                f"marker {code_id} was asked for: something is before the snapshot on PYTHONPATH."
            )
        return imported

    def let_train(self) -> None:
        """Let the process go on from the hook to verl's main module, unless it was killed meanwhile."""
        with self._proof, contextlib.suppress(BrokenPipeError):
            self._proof.sendall(b"\n")

    def kill(self, tee: Tee) -> int:
        """End the process group, copy what it had written to the logs; the exit status."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self._proof.close()
        self.drain(tee)
        return code

    def drain(self, tee: Tee) -> None:
        """Copy what the ended process left in the pipe. A grandchild may keep it open, so we do not wait for its end."""
        end = time.monotonic() + 5
        while time.monotonic() < end and select.select([self.output], [], [], 0)[0] and tee.move(self.output):
            pass


def _start(job: JobDir, plan: Mapping[str, Any], tee: Tee) -> tuple[_Trainer, dict[str, str]]:
    """The trainer, when the job has a slot and its code is proved, and where it has imported that from.

    Raises RegressError, OSError, or _Stopped.
    """
    with _stoppable("a slot"):
        _await_turn(job, plan, tee)
    with _stoppable("the proof of its code"):
        check_paths(plan)
        check_code(job, plan)
        check_inputs(job, plan)
    trainer = _Trainer(plan["argv"], job)
    try:
        with _stoppable("the proof of its code"):
            return trainer, trainer.prove_code(Path(plan["code_path"]), plan["code_id"], tee)
    except (RegressError, OSError, _Stopped):
        trainer.kill(tee)
        raise


@dataclass(frozen=True)
class _End:
    """How a trainer ended."""

    pid: int
    code: int  # negative: the signal
    told_to_stop: bool  # by a signal to the launcher
    lost_nodes: tuple[str, ...]  # for which it waited, and was ended


def _train(trainer: _Trainer, job: JobDir, tee: Tee) -> _End:
    """Let verl train, to its end; signals are forwarded to its whole process group."""
    child, told_to_stop = trainer.process, False

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal told_to_stop
        told_to_stop = True
        if child.poll() is None:
            os.killpg(child.pid, number)

    for number in _STOPPING:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    trainer.let_train()
    watch = aftermath.Watch(job, child)
    is_open = True
    while is_open and child.poll() is None:
        if select.select([trainer.output], [], [], 0.2)[0]:
            is_open = tee.move(trainer.output)
    code = child.wait()
    watch.stop()
    trainer.drain(tee)
    return _End(child.pid, code, told_to_stop, watch.lost if code != 0 else ())


def _ended(end: _End, job: JobDir, plan: Mapping[str, Any], tee: Tee) -> dict[str, Any]:
    """What `state/ended` records of a trainer's end."""
    problem = _problem_of(end, job, plan)
    if problem is not None:
        tee.line(f"verl-regress: {problem}")
    code = 1 if problem is not None and end.code == 0 else end.code
    reason = problem or f"the trainer {failure.ending(code)}"
    ended = {"exit_code": code, "reason": reason, "told_to_stop": end.told_to_stop, "cause": None}
    if end.lost_nodes:
        return {**ended, "lost_nodes": end.lost_nodes}
    if code == 0:
        return ended
    if problem is None and not end.told_to_stop:
        return {**ended, **_why_failed(end, job, plan)}
    return {**ended, **aftermath.explain_failure(job, plan, reason, told_to_stop=end.told_to_stop)}


def _problem_of(end: _End, job: JobDir, plan: Mapping[str, Any]) -> str | None:
    """What the launcher itself finds wrong: the trainer waited for lost nodes, or ended well with other code or without training."""
    if end.lost_nodes:
        return f"the trainer waited for {' and '.join(end.lost_nodes)}, which Ray had given up, and was ended"
    if end.code != 0 or end.told_to_stop:
        return None
    try:
        loaded_code.check(job, plan, end.pid)
        need_trained(job, plan)
    except (RegressError, OSError) as error:
        return str(error)
    return None


def _why_failed(end: _End, job: JobDir, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of a trainer that failed and was not stopped: the reason, the exception behind it, and what was lost outside it."""
    reason = f"the trainer {failure.ending(end.code)}"
    if end.code == -signal.SIGKILL:
        reason += aftermath.explain_sigkill(job, end.pid)
    cause = failure.root_cause(job, plan, end.code)
    found = {"reason": reason, "cause": cause, **aftermath.explain_failure(job, plan, reason, told_to_stop=False)}
    if cause is not None and found["reason"] == reason:
        found["reason"] = f"{reason}: {failure.sentence(cause)}"
    elif cause is not None:  # an outside cause says more than the trainer's own words
        found["cause"] = {**cause, "hint": hints.find("", found["reason"])}
    return found


def _prepare_child() -> None:
    """The child dies with the launcher, because nothing would record its end, and does not block the launcher's signals."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
