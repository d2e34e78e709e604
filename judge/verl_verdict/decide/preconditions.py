"""What is decided before any value is compared: whether the runs may be judged at all, and whether one of them failed."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from verl_verdict.decide import diagnosis
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import Kind, Problem, Run


def one_workload(runs_a: Sequence[Run], runs_b: Sequence[Run], perturbed: Sequence[Run]) -> str:
    """The workload of all runs; bad input if they do not share one."""
    if not runs_a or not runs_b:
        raise CannotJudge("There is no run of A or of B: give at least one of each.")
    workloads = {run.workload: run.name for run in (*runs_a, *runs_b, *perturbed) if run.workload}
    if len(workloads) > 1:
        names = " and ".join(f"'{name}' is {workload}" for workload, name in workloads.items())
        raise CannotJudge(f"The runs are of different workloads ({names}): compare runs of one workload.")
    if not workloads:
        raise no_workload(runs_a[0].name)
    return next(iter(workloads))


def no_workload(name: str) -> CannotJudge:
    """The error for a run of which no metric tells the workload."""
    return CannotJudge(
        f"'{name}' has no metric of PPO, GRPO or SFT (critic/score/mean, train/loss): give a metrics.jsonl of verl."
    )


def no_copies(runs: Sequence[Run]) -> None:
    """Two runs never take the same times to the microsecond: such records are copies, and prove nothing."""
    seen: dict[str, str] = {}
    for run in runs:
        if run.fingerprint and run.fingerprint in seen and any(map(metrics.is_time, run.series)):
            raise CannotJudge(
                f"'{run.name}' and '{seen[run.fingerprint]}' are copies of one record (all times are equal): give the records of different runs."
            )
        seen[run.fingerprint] = run.name


def verdict(base: Verdict, a: Sequence[Run], b: Sequence[Run], accept: Collection[str] = ()) -> Verdict | None:
    """The verdict that needs no value to be compared, if there is one."""
    return _incomparable(base, a, b, accept) or _unusable_a(base, a, b) or _failed_b(base, a, b)


def _incomparable(
    base: Verdict, runs_a: Sequence[Run], runs_b: Sequence[Run], accept: Collection[str]
) -> Verdict | None:
    """All runs must have been asked for the same on the same nodes."""
    for run in (*runs_a[1:], *runs_b):
        found = [each for each in comparable.facts(runs_a[0], run) if not comparable.is_accepted(each, accept)]
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            listed = "; ".join(map(str, found[:3]))
            reason = f"'{runs_a[0].name}' and '{run.name}' differ in more than their code: {listed}{more}"
            return dataclasses.replace(
                base, word=Word.INCOMPARABLE, reason=reason, how="what must be equal is not", differs=tuple(found)
            )
    return None


def _unusable_a(base: Verdict, runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Verdict | None:
    """A baseline that failed, ended early or recorded nonsense is not a baseline."""
    last = max(run.last_step for run in (*runs_a, *runs_b))
    for run in runs_a:
        problem = why_unusable(run, last) or _begins_late(run, runs_a)
        if problem:
            reason = f"A cannot be the baseline, because in '{run.name}' {problem}"
            return dataclasses.replace(base, word=Word.INCOMPARABLE, reason=reason, how="the records of A")
    return None


def why_unusable(run: Run, last: int) -> str | None:
    """Why a run that should have reached the step `last` has no values to rely on; None if it has."""
    return run.unfinished or _failed(run, last) or next((each.text for each in _problems(run)), None)


def _failed_b(base: Verdict, runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Verdict | None:
    """B that fails, ends early, loses a step or is not finite where A is: regressed. A record of B that is damaged otherwise proves nothing."""
    base = dataclasses.replace(base, how="the records of B")
    last = max(run.last_step for run in runs_a)
    for run in runs_b:
        broken = _first_not_finite(run)
        failed = None if run.unfinished else _failed(run, last) or (broken.text if broken else None)
        if failed:
            reason = f"A trains to the end, and in B's '{run.name}' {failed}"
            first = _where(broken, runs_a[0], run) if broken else None
            return dataclasses.replace(base, word=Word.REGRESSED, reason=reason, first=first)
    for run in runs_b:
        if (lost := _lost_steps(run)) and not run.unfinished:
            reason = f"A records each step once, and in B's '{run.name}' {lost}"
            return dataclasses.replace(base, word=Word.REGRESSED, reason=reason)
    for run in runs_b:
        problem = run.unfinished or next((each.text for each in _problems(run)), None) or _begins_late(run, runs_a)
        if problem:
            reason = f"B's record proves nothing, because in '{run.name}' {problem}"
            return dataclasses.replace(base, word=Word.INCONCLUSIVE, reason=reason)
    return None


def _problems(run: Run) -> list[Problem]:
    """The problems of a record, except those of times, which nobody compares."""
    return [each for each in run.problems if not each.metric or not metrics.is_time(each.metric)]


def _lost_steps(run: Run) -> str | None:
    """The steps that the record lacks, or has twice; None if it has each once."""
    found = {each.step: each.text for each in reversed(_problems(run)) if each.kind in (Kind.GAP, Kind.DUPLICATE)}
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return next((text + more for _, text in sorted(found.items())), None)


def _first_not_finite(run: Run) -> Problem | None:
    """The first value that is not finite: within a step in causal order, whatever the order of the record."""
    found = [each for each in _problems(run) if each.kind is Kind.NOT_FINITE]
    return min(found, key=lambda each: (each.step, metrics.causal_rank(each.metric or "")), default=None)


def _failed(run: Run, last_step: int) -> str | None:
    """Why a run did not reach the last step, or failed there."""
    if run.failure:
        after = f"after step {run.last_step}" if run.last_step else "before its first step"
        return f"the job failed {after} ({run.failure})"
    cut_off = next((each.text for each in run.problems if each.kind is Kind.TRUNCATED), None)
    return cut_off or (f"the record ends at step {run.last_step} of {last_step}" if run.last_step < last_step else None)


def _begins_late(run: Run, others: Sequence[Run]) -> str | None:
    """That it lacks the first steps of training, which one of the others has."""
    first, mine = (min(map(first_step, runs)) for runs in (others, [run]))
    return f"the record begins at step {mine}, not at step {first}" if mine > first else None


def first_step(run: Run) -> int:
    """The first step of training: verl may validate before it, at step 0 or at the checkpoint's step (0.9.1)."""
    trained = (values for name, values in run.series.items() if not name.startswith(("val-", "val/")))
    return min((step for values in trained for step in values), default=0)


def _where(broken: Problem, a: Run, b: Run) -> diagnosis.Diagnosis | None:
    """The first value of B that is not finite, beside A's."""
    name = broken.metric or ""
    if name not in a.series or name not in b.series:
        return None
    value_a = a.series[name].get(broken.step, math.nan)
    return diagnosis.at(broken.step, name, value_a, b.series[name][broken.step], [])
