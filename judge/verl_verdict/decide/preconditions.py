"""What is known before any value is compared: whether the runs may be judged at all, and whether one of them failed."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_verdict.decide import diagnosis, grid
from verl_verdict.decide.diagnosis import Place
from verl_verdict.decide.rules import Evidence, Regime
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import Damage, Problem, Run


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


@dataclass(frozen=True)
class Records:
    """What the records of A and B show on their own. `accept` names facts that may differ."""

    base: Verdict
    runs_a: Sequence[Run]
    runs_b: Sequence[Run]
    accept: Collection[str] = ()

    @property
    def regime(self) -> Regime:
        """Its rules are always tried."""
        return Regime.ONE_SIDED

    def settings_differ(self) -> Evidence | None:
        """A run was asked for something else, or ran on other nodes or with other packages."""
        first = self.runs_a[0]
        for run in (*self.runs_a[1:], *self.runs_b):
            found = [each for each in comparable.facts(first, run) if not comparable.is_accepted(each, self.accept)]
            if found:
                more = f" and {len(found) - 3} more" if len(found) > 3 else ""
                listed = "; ".join(map(str, found[:3])) + more
                said = {"a": first.name, "b": run.name, "differences": listed}
                return Evidence(said, how="what must be equal is not", differs=found)
        return None

    def unusable_baseline(self) -> Evidence | None:
        """A run of A failed, ended early or recorded nonsense."""
        last = max(run.last_step for run in self._runs)
        for run in self.runs_a:
            problem = run.unfinished or self._failed(run, last) or self._problem(run) or self._begins_late(run)
            if problem:
                return Evidence({"run": run.name, "problem": problem}, how="the records of A")
        return None

    def b_failed(self) -> Evidence | None:
        """A run of B failed or ended early, where A did not."""
        return next((_of_b(run, failed) for run, failed, _ in self._broken if failed), None)

    def b_not_finite(self) -> Evidence | None:
        """A value of B is not finite, where all of A are."""
        for run, _, value in self._broken:
            if value is not None:
                return dataclasses.replace(_of_b(run, value.text), first=_where(value, self.runs_a[0], run))
        return None

    def b_lost_steps(self) -> Evidence | None:
        """B lacks a step that another run has, or has one twice."""
        for run in self.runs_b:
            if (lost := _lost_steps(self._problems(run))) and not run.unfinished:
                return _of_b(run, lost)
        return None

    def b_proves_nothing(self) -> Evidence | None:
        """A record of B is damaged otherwise, or its job did not run to its end."""
        for run in self.runs_b:
            if problem := run.unfinished or self._problem(run) or self._begins_late(run):
                return _of_b(run, problem)
        return None

    @property
    def _runs(self) -> tuple[Run, ...]:
        return (*self.runs_a, *self.runs_b)

    @cached_property
    def _does_end_count(self) -> bool:
        return grid.do_ends_count(self._runs)

    @cached_property
    def _steps(self) -> list[int]:
        return grid.steps_of(self._runs)

    @cached_property
    def _broken(self) -> list[tuple[Run, str | None, Problem | None]]:
        """The first run of B that failed, with the reason, or of which a value is not finite, with that; or none."""
        last = max(run.last_step for run in self.runs_a)
        for run in self.runs_b:
            failed, value = self._failed(run, last), _first_not_finite(self._problems(run))
            if (failed or value) and not run.unfinished:
                return [(run, failed, None if failed else value)]
        return []

    def _problems(self, run: Run) -> list[Problem]:
        return grid.counting(run, self._steps, does_end_count=self._does_end_count)

    def _problem(self, run: Run) -> str | None:
        return next((each.text for each in self._problems(run)), None)

    def _failed(self, run: Run, last: int) -> str | None:
        is_ended = run.is_job and self._does_end_count
        return _failure(run) or (_ended_early(run, last) if is_ended else None)

    def _begins_late(self, run: Run) -> str | None:
        """That it lacks the first steps of training, which a run of A has."""
        if not (run.is_job and self._does_end_count):
            return None
        first, mine = min(map(first_step, self.runs_a)), first_step(run)
        return f"the record begins at step {mine}, not at step {first}" if mine > first else None


def _of_b(run: Run, problem: str) -> Evidence:
    return Evidence({"run": run.name, "problem": problem}, how="the records of B")


def why_unusable(run: Run, last: int) -> str | None:
    """Why a run that should have reached the step `last` has no values to rely on; None if it has.

    A plain record may lack steps.
    """
    problems = (each.text for each in grid.compared(run.problems) if run.is_job or each.kind is not Damage.GAP)
    return run.unfinished or _failure(run) or _ended_early(run, last) or next(problems, None)


def first_step(run: Run) -> int:
    """The first step of training."""
    return min(run.trained, default=0)


def _lost_steps(problems: Sequence[Problem]) -> str | None:
    """The steps that the record lacks, or has twice; None if it has each once."""
    found = {each.step: each.text for each in reversed(problems) if each.kind in (Damage.GAP, Damage.DUPLICATE)}
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return next((text + more for _, text in sorted(found.items())), None)


def _first_not_finite(problems: Iterable[Problem]) -> Problem | None:
    """The first value that is not finite: within a step in causal order, whatever the order of the record."""
    found = [each for each in problems if each.kind is Damage.NOT_FINITE]
    return min(found, key=lambda each: (each.step, metrics.causal_rank(each.metric or "")), default=None)


def _failure(run: Run) -> str | None:
    """That its job failed."""
    after = f"after step {run.last_step}" if run.last_step else "before its first step"
    return f"the job failed {after} ({run.failure})" if run.failure else None


def _ended_early(run: Run, last: int) -> str | None:
    """That its record was cut off, or did not reach the step `last`."""
    cut_off = next((each.text for each in run.problems if each.kind is Damage.TRUNCATED), None)
    return cut_off or (f"the record ends at step {run.last_step} of {last}" if run.last_step < last else None)


def _where(broken: Problem, a: Run, b: Run) -> diagnosis.Diagnosis | None:
    """The first value of B that is not finite, beside A's."""
    name = broken.metric or ""
    if name not in a.series or name not in b.series:
        return None
    value_a = a.series[name].get(broken.step, math.nan)
    return diagnosis.at(Place(broken.step, name, value_a, b.series[name][broken.step]), [])
