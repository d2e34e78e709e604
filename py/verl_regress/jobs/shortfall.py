"""The training steps that an attempt recorded, against those that it was to train."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_regress.base.layout import JobDir
from verl_regress.jobs import checkpoints, progress

# The cure for a checkpoint from the end of an epoch, from which make resume alone cannot get away: it takes the newest.
FROM_WITHIN = (
    "begin a job at a checkpoint from within an epoch, with 'make submit' and OVERRIDES='trainer.resume_mode=resume_path "
    "trainer.resume_from_path=…/global_step_N', or take a verl that goes on to the next epoch"
)


@dataclass(frozen=True)
class Shortfall:
    """An attempt recorded only `trained` of the steps after `after` up to `last`: the last that it was asked for, or, if it trained none, that
    its data allows. `skipped` of them were known to be left out (plan/steps.py).
    """

    after: int
    last: int
    trained: int
    skipped: int = 0

    @property
    def is_whole(self) -> bool:
        """Was none of them trained?"""
        return self.trained == 0

    @property
    def words(self) -> str:
        """`trained 3 of 8 steps (9 to 16)`."""
        count = self.last - self.after
        return f"trained {self.trained or 'none'} of {'the ' if self.is_whole else ''}{count} steps ({self.after + 1} to {self.last})"

    @property
    def cure(self) -> str:
        """The likely cause, and what to do about it."""
        if self.skipped:
            return f"its verl looked for more data in the epoch that ended with step {self.after}: {FROM_WITHIN}"
        return "its data ended before (raise trainer.total_epochs), or its metrics could not be written (is the disk full?)"


def of_job(job: JobDir) -> Shortfall | None:
    """The shortfall of an attempt that is over; None if it trained all, or had none to train, or if that is not known: with loggers that write
    no steps here, for one. Raises OSError and Unreadable.
    """
    if progress.logger_without_file(job) is not None:
        return None
    plan: Mapping[str, Any] = (job.read_config("resolved.json") or {}).get("steps") or {}
    after = int(plan.get("after", progress.parent_of(job)["step"]))
    asked = [end for end in (plan.get("total"), progress.total_steps(job)) if end is not None]
    ends = [end for end in (plan.get("last"), *asked) if end is not None]
    if not ends or min(ends) <= after:  # a validation, or a checkpoint of the last step
        return None
    trained = len({step.number for step in progress.training(progress.rows(job)) if step.number > after})
    last = min(asked or ends) if trained else min(ends)
    if trained >= last - after:
        return None
    return Shortfall(after, last, trained, plan.get("skipped", 0))


def has_trained_nothing(job: JobDir) -> Shortfall | None:
    """The shortfall of an attempt that recorded no step and saved none; None for any other. Raises OSError and Unreadable."""
    found = of_job(job)
    if found is None or not found.is_whole:
        return None
    is_saved = any(checkpoints.step_of(name) > found.after for name in checkpoints.names(job))
    return None if is_saved else found
