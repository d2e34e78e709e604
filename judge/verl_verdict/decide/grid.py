"""The grid of steps on which runs are compared: all have the same steps, or are cut to those that all have.

How a job ended is known, so where its record ends counts. A plain file may still be written, so only what it has counts, and plain files of
other steps are refused.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence

from verl_verdict.decide.diagnosis import counted
from verl_verdict.errors import CannotJudge
from verl_verdict.read import metrics, records
from verl_verdict.read.records import Damage, Problem, Run

_OF_THE_END = (Damage.TRUNCATED, Damage.GAP)  # they count only where the end of a record does
_RANGES = 3  # of steps that a message names


def on_one_grid(
    runs_a: Sequence[Run], runs_b: Sequence[Run], perturbed: Sequence[Run], *, common: bool
) -> tuple[list[Run], list[Run], list[Run], list[str]]:
    """The runs of A, of B, and the perturbed ones, as they can be compared step by step; and what to say of that.

    Runs of other steps are refused if one of them is a plain record, because it may still be written. With `common`
    only the steps that all have are left. Problems that do not count are left out. Raises CannotJudge.
    """
    everyone = [*runs_a, *runs_b, *perturbed]
    whole = [run for run in everyone if not (run.failure or run.unfinished)]
    grids = {run.trained for run in whole}
    shared = frozenset[int]().union(*grids).intersection(*grids)
    if not ((shared or len(grids) < 2) if common else do_ends_count(whole)):
        raise _other_steps(whole, shared)
    steps = steps_of(everyone)
    found = [
        dataclasses.replace(run, problems=tuple(counting(run, steps, does_end_count=not common))) for run in everyone
    ]
    if common and len(grids) > 1:
        found = _cut(found, shared, _validated(whole))
    said = f"judged over the {counted(len(shared), 'step')} that all runs have (--steps common)"
    of_b, of_perturbed = len(runs_a), len(runs_a) + len(runs_b)
    return found[:of_b], found[of_b:of_perturbed], found[of_perturbed:], [said] if common else []


def _cut(runs: Sequence[Run], trained: Collection[int], validated: Collection[int]) -> list[Run]:
    """The runs with these steps of training and of validation alone; without hashes, which are those of whole runs."""

    def is_left(name: str, step: int) -> bool:
        return step in (validated if records.is_of_validation(name) else trained)

    return [_only(run, is_left) for run in runs]


def _only(run: Run, is_left: Callable[[str, int], bool]) -> Run:
    left = {
        name: {step: value for step, value in values.items() if is_left(name, step)}
        for name, values in run.series.items()
    }
    series = {name: values for name, values in left.items() if values}
    problems = tuple(each for each in run.problems if is_left(each.metric or "", each.step))
    return dataclasses.replace(run, series=series, problems=problems, hashes={})


def _validated(runs: Sequence[Run]) -> set[int]:
    """The steps whose validations are compared: those that all runs have.

    verl validates after its last step. Where not all validated at the last step of a shorter run, that is left out.
    """
    last = max(run.last_step for run in runs)
    ends = {run.last_step for run in runs if run.last_step < last}
    of_each = [
        {step for name, values in run.series.items() if records.is_of_validation(name) for step in values}
        for run in runs
    ]
    alone = {step for step in ends if not all(step in steps for steps in of_each)}
    return set(runs[0].steps).intersection(*(run.steps for run in runs)) - alone


def _other_steps(runs: Sequence[Run], shared: Collection[int]) -> CannotJudge:
    """The error for runs of which the one with the fewest steps lacks some that another one has."""
    trained = [run.trained for run in runs]
    short = min(range(len(runs)), key=lambda at: len(trained[at]))
    other = next(at for at in range(len(runs)) if trained[at] - trained[short])
    last = max(trained[short], default=-1)
    is_begun = not runs[short].is_job and trained[short] == {step for step in trained[other] if step <= last}
    why, cure = "values of other steps cannot be compared", "Give records of the same steps"
    if is_begun:
        why, cure = "it may still be written, or have failed", "Give whole records"
    if shared:
        cure += f", or --steps common judges the {counted(len(shared), 'step')} that all have"
    names = [f"'{runs[at].name}'" for at in (short, other)]
    return CannotJudge(f"{names[0]} has {_said(trained[short])} and {names[1]} {_said(trained[other])}: {why}. {cure}.")


def _said(steps: Collection[int]) -> str:
    """`the steps 1 to 12, 14 to 30`; how many there are, if these are many ranges."""
    ordered = sorted(steps)
    if not ordered:
        return "no step of training"
    ranges = [
        [step for _, step in group]
        for _, group in itertools.groupby(enumerate(ordered), lambda each: each[1] - each[0])
    ]
    if len(ranges) > _RANGES:
        return f"{len(ordered)} steps from {ordered[0]} to {ordered[-1]}"
    named = (str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in ranges)
    return f"the {'step' if len(ordered) == 1 else 'steps'} {', '.join(named)}"


def do_ends_count(runs: Sequence[Run]) -> bool:
    """Does it count where a job's record ends, and which steps it lacks? Not beside a plain record of other steps."""
    return all(run.is_job for run in runs) or len({run.trained for run in runs}) == 1


def steps_of(runs: Iterable[Run]) -> list[int]:
    """The steps that any of the runs has, ascending."""
    return sorted({step for run in runs for step in run.steps})


def counting(run: Run, steps: Sequence[int], *, does_end_count: bool) -> list[Problem]:
    """The problems of a record that count among runs that have these `steps`."""
    found = compared(run.problems)
    if not (run.is_job and does_end_count):
        return [each for each in found if each.kind not in _OF_THE_END]
    mine = run.steps
    return [each for each in found if each.kind is not Damage.GAP or _next(steps, each.step) < _next(mine, each.step)]


def _next(steps: Sequence[int], step: int) -> float:
    """The first of the steps that is not before `step`; infinity if there is none."""
    at = bisect.bisect_left(steps, step)
    return steps[at] if at < len(steps) else math.inf


def compared(problems: Iterable[Problem]) -> list[Problem]:
    """The problems without those of times, which nobody compares."""
    return [each for each in problems if not each.metric or not metrics.is_time(each.metric)]
