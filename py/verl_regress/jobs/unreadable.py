"""Jobs that a list cannot read: another user closed the directory, or a file of it is cut off. Each is one line of the list."""

from __future__ import annotations

from pathlib import Path

from verl_regress.base.errors import Unreadable
from verl_regress.base.files import unreadable
from verl_regress.base.layout import JobDir
from verl_regress.jobs.status import Judgement, Status

# What a directory or a JSON file raises that another user closed, that is being removed, or that was made by hand or by another version.
DAMAGED = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, Unreadable, ValueError)
_WHY = "cannot be read: "


def judged(job: JobDir, error: Exception) -> Judgement:
    """UNKNOWN, with what is in the way. `error` is one of DAMAGED."""
    if isinstance(error, OSError):
        error = unreadable(Path(error.filename or job.path), error)
    if isinstance(error, Unreadable):
        return Judgement(Status.UNKNOWN, error.why)
    return Judgement(Status.UNKNOWN, f"{_WHY}its files are not as a submission writes them ({type(error).__name__})")


def is_unreadable(judgement: Judgement) -> bool:
    """Is it one of `judged`?"""
    return judgement.reason.startswith(_WHY)
