"""What a job is doing now, in a few words, from its state files, its driver's log and its actors in Ray."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from verl_regress.base.layout import JobDir
from verl_regress.jobs import progress
from verl_regress.jobs.liveness import Launcher, launcher_of
from verl_regress.jobs.status import Status

# What verl's drivers print before the first step (0.7.1 to 0.9.1; PPO and GRPO, then SFT where it differs).
_STARTUP = (
    re.compile(rb"Connected to Ray cluster"),
    re.compile(rb"Using dataset class|dataset len: "),
    re.compile(rb"colocated worker base class|Size of train dataloader"),
    re.compile(
        rb"Checkpoint tracker file does not exist|Training from scratch|all initialize finished|Training Progress:|Epoch \d+/\d+:"
    ),
)
_CONNECTED, _DATA, _WORKERS, _TRAINING = range(1, 5)
# The V0 trainer's words, SFT's, and the V1 trainer's (0.9.1 and main at 1dda039b). V1 does not say when it validates.
_LOADS_CHECKPOINT = re.compile(
    rb"(?:Load from checkpoint folder:|Found latest checkpoint:|Resuming from) \S*(global_step_\d+)"
)
_VALIDATES = re.compile(rb"test_gen_batch meta info: .*'global_steps': (\d+)")
_SAVES = re.compile(rb"(local_global_step_folder:|Saving checkpoint to:?) \S*global_step_(\d+)")
_SFT_SAVES = b"Saving checkpoint to:"
_IS_DONE = re.compile(
    rb"Initial validation metrics|Updated checkpoint tracker|Setting global step to|all initialize finished"
)
_WORKER = ("WorkerDict", "TrainingWorker")  # the actors that hold the model, RL's and SFT's
_LATE_WORDS = (b"(WorkerDict", b"(TrainingWorker", b"(AgentLoopWorker")  # Ray forwards these with a delay


class Driver:
    """The driver's progress so far; feed it the lines of its log as they come."""

    def __init__(self) -> None:
        self.total: int | None = None  # the number of steps it announced
        self._startup = 0
        self._has_stepped = False
        self._busy = ""  # with something other than a step
        self._busy_until: int | None = None  # the step whose record ends it

    def feed(self, line: bytes) -> None:
        """Take in the next line of the log."""
        self.total = progress.total_in(line) or self.total
        if any(word in line for word in _LATE_WORDS):
            return
        reached = [number for number, pattern in enumerate(_STARTUP, start=1) if pattern.search(line)]
        self._startup = max([self._startup, *reached])
        if (match := _LOADS_CHECKPOINT.search(line)) is not None:
            self._set_busy(f"loading the checkpoint {match[1].decode()}")
        elif (match := _VALIDATES.search(line)) is not None:
            step = int(match[1])  # the next step to be recorded; before the first one, the checkpoint's
            words = f"validating after step {step}" if step else "validating before step 1"
            self._set_busy(words, step if self._has_stepped else None)
        elif (match := _SAVES.search(line)) is not None:
            step = int(match[2])
            self._has_stepped = True
            # RL records a step when its checkpoint is saved, SFT before that.
            self._set_busy(f"saving a checkpoint after step {step}", None if match[1] == _SFT_SAVES else step)
        elif _IS_DONE.search(line):
            self._set_busy("")
        elif (row := progress.of_console(line)) is not None:
            self._set_busy("")
            self._has_stepped |= row.is_training

    def _set_busy(self, words: str, until: int | None = None) -> None:
        self._busy, self._busy_until = words, until

    def does(self, step: int, actors: Iterable[Mapping[str, Any]] | None) -> str:
        """What it is doing, if `step` is the last recorded one; `actors` are Ray's, None if they are not known."""
        if self._busy and (self._busy_until is None or step < self._busy_until):
            return self._busy
        if self.total is not None and step >= self.total:
            return "finishing after the last step"
        if self._startup >= _TRAINING or step:
            return f"training step {step + 1}" + (f" of {self.total}" if self.total else "")
        if self._startup < _CONNECTED:
            return "starting verl's driver"
        if self._startup < _DATA:
            return "starting verl's trainer"
        if self._startup < _WORKERS and not actors:
            return "reading the data"
        return _starting(list(actors)) if actors is not None else "starting Ray workers and loading the model"

    @property
    def is_starting(self) -> bool:
        """It has not reached its first step yet."""
        return self._startup < _TRAINING


def _starting(actors: list[Mapping[str, Any]]) -> str:
    """What a driver with these actors is waiting for (Ray's state API: class_name, state)."""
    living = [actor for actor in actors if actor["state"] != "DEAD"]
    alive = [actor for actor in living if actor["state"] == "ALIVE"]
    workers = [actor for actor in living if str(actor["class_name"]).endswith(_WORKER)]
    count = f"({len(alive)} of {len(living)} actors alive)"
    if not workers:
        return "starting Ray workers"
    if any(actor["state"] != "ALIVE" for actor in workers):
        return f"starting Ray workers {count}"
    if len(alive) < len(living):
        return f"starting the rollout {count}"
    return f"loading the model on {len(workers)} workers"


def before_training(job: JobDir, status: Status) -> str | None:
    """What a job is doing before its trainer starts; None once it has, and for a job that is over."""
    if status is Status.SUBMITTING:
        return "submitting it to Ray"
    if status is Status.PENDING:
        return "waiting for Ray to start its launcher"
    if status is Status.QUEUED:
        return "waiting in the queue"
    if status is Status.UNKNOWN:
        return "waiting for Ray to answer"
    if status is not Status.RUNNING:
        return None
    if job.read_state("ended") is not None:
        return "taking a debug bundle of its end"
    if job.read_state("started") is not None:
        return None
    is_launched = launcher_of(job) is not Launcher.NOT_YET
    return "proving the code that it imports" if is_launched else "starting its launcher"
