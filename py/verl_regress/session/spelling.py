"""Refuses a misspelt metric of a suite or a search before any run: no job has recorded the name, and one that they did record, or that
decides a case by default, is almost the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from contextlib import suppress
from itertools import islice

from verl_regress.base.errors import BadInput, RegressError, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.jobs import find, progress
from verl_regress.session.suites import Suite
from verl_verdict import metrics

_JOBS = 50  # the newest ones that are read
_ALMOST = 0.9  # of difflib: one or two letters
# Another data set or another number is no mistake.
_OF_DATA = "val-"
_NUMBER = re.compile(r"\d+")
_STATISTIC = re.compile(r"(max|mean|min)$")  # verl writes several of a value, of which one decides


def need_known(root: SharedRoot, suite: Suite, metric: str = "") -> None:
    """Raises BadInput for a misspelt metric of the suite, or for METRIC of `make bisect`.

    A name that resembles none is taken as it is: the verdict says if no run has it.
    """
    wanted = {
        name: f"which decides the case '{case.name}' of the suite {suite.name}"
        for case in suite.cases
        for name in case.decisive
    }
    if metric:
        wanted[metric] = "which METRIC names"
    known = _recorded(root) | _deciding() if wanted else set()
    for name, where in wanted.items():
        if meant := _meant(name, known):
            raise BadInput(
                f"No job has recorded {shown(name)}, {where}: did you mean {meant}? If not, submit one job that records it first."
            )


def _meant(metric: str, known: Collection[str]) -> str | None:
    if metric in known or metric.startswith(_OF_DATA):
        return None
    nearest = difflib.get_close_matches(metric, sorted(known), n=1, cutoff=_ALMOST)
    return next((name for name in nearest if _NUMBER.sub("", name) != _NUMBER.sub("", metric)), None)


def _deciding() -> set[str]:
    """The metrics that decide by default, and those that verl writes beside them under almost the same name.

    Without training/rollout_probs_diff_mean: _max, _std and _valid, which releases write beside it, would be taken for misspelt.
    """
    names = {each.pattern for of_workload in metrics.DECISIVE.values() for each in of_workload}
    names = {name for name in names if not name.endswith("_mean")}
    return names | {_STATISTIC.sub(other, name) for name in names for other in ("max", "mean", "min")}


def _recorded(root: SharedRoot) -> set[str]:
    """The metrics of the newest jobs, as verl and as the judge name them."""
    found: set[str] = set()
    for job in islice(find.newest(root), _JOBS):
        with suppress(OSError, RegressError, ValueError):  # another user's, or damaged
            for step in progress.training(progress.rows(job))[-1:]:
                found |= step.metrics.keys()
    return found
