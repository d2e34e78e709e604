"""What a job is doing now, in a few words, from its state files and its recorded steps."""

from verl_regress.base.layout import JobDir
from verl_regress.jobs.launcher_lock import Launcher, launcher_of
from verl_regress.jobs.status import Status

_BEFORE = {
    Status.SUBMITTING: "submitting it to Ray",
    Status.PENDING: "waiting for Ray to start its launcher",
    Status.QUEUED: "waiting in the queue",
    Status.UNKNOWN: "waiting for Ray to answer",
}


def words(job: JobDir, status: Status, step: int | None, total: int | None) -> str | None:
    """What it is doing; None if it is over. `step` is the last recorded one, None if the job records none, `total` how many it announced."""
    if status is not Status.RUNNING:
        return _BEFORE.get(status)
    if job.read_state("ended") is not None:
        return "taking a debug bundle of its end"
    if job.read_state("started") is None:
        is_launched = launcher_of(job) is not Launcher.NOT_YET
        return "proving the code that it imports" if is_launched else "starting its launcher"
    if step is None:
        return "training"
    if not step:
        return "starting the trainer, or in its first step"
    if total is None:
        return f"working on step {step + 1}"
    return f"working on step {step + 1} of {total}" if step < total else "finishing after the last step"
