"""What a session will cost: how many runs, and how long they take if they take as long as earlier ones."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from verl_regress.base.layout import SharedRoot
from verl_regress.session import checks, schedule, suites
from verl_regress.session.schedule import Evidence, Run, Wants
from verl_regress.session.suites import Case, Suite
from verl_regress.store.sessions import all_of, jobs_of


@dataclasses.dataclass(frozen=True)
class _Left:
    """What a case may still run: at least, at most, and how many runs of A earlier sessions have, of the least and of all."""

    spec: str
    least: int
    most: int
    known_of_least: int = 0
    known: int = 0


def described(root: SharedRoot, evidence: Evidence, budget: int | None = None) -> str:
    """One sentence for the user, before the first run of a session, or of the rest of one that is continued."""
    begin = evidence["begin"]
    suite = suites.of_recorded(begin["suite"])
    earlier = [(session, session.evidence_if_readable()) for session in all_of(root)]
    sessions = [theirs for _, theirs in earlier]
    reusable = [theirs for session, theirs in earlier if not session.is_doubtful]
    left, done = _left(reusable, suite, evidence), len(jobs_of(evidence))
    # The budget goes to the first cases.
    most_specs = [each.spec for each in left for _ in range(each.most)]
    least_specs = [each.spec for each in left for _ in range(each.least)]
    new_specs = [each.spec for each in left for _ in range(each.least - each.known_of_least)]
    if budget is not None:
        rest = max(0, budget - schedule.spent(evidence))
        most_specs, least_specs, new_specs = most_specs[:rest], least_specs[:rest], new_specs[:rest]
    if not most_specs:
        return f"this session makes no {'further ' if done else ''}run{_why_none(budget, evidence, left)}"
    runs = f"this session makes {_runs(len(least_specs), len(most_specs), 'more ' if done else '')} ({_of(len(left), 'case')})"
    if done:
        runs += f", {done} done already"
    if budget is not None:
        runs += f", within BUDGET={budget}"
    if known := sum(each.known for each in left):
        runs += f", less up to {_of(known, 'run')} of A that earlier sessions made"
    known_seconds = _seconds(sessions, begin["profile"])
    unknown = [spec for spec in dict.fromkeys(most_specs) if spec not in known_seconds]
    if unknown:
        return f"{runs}; how long {', '.join(Path(spec).stem for spec in unknown)} takes is not known yet"
    times = [sum(known_seconds[spec] for spec in specs) for specs in (new_specs, most_specs)]
    gpus = sum(node["resources"].get("GPU", 0) for node in begin["nodes"] if not node["is_head"])
    is_rehearsal = not gpus or begin["profile"].startswith("cpu")
    hours = "" if is_rehearsal else f", {times[0] / 3600 * gpus:.1f} to {times[1] / 3600 * gpus:.1f} GPU-hours"
    return f"{runs}: about {times[0] / 60:.0f} to {times[1] / 60:.0f} minutes{hours}, as earlier runs took"


def _why_none(budget: int | None, evidence: Evidence, left: list[_Left]) -> str:
    if budget is not None and any(each.most for each in left):
        return f": BUDGET={budget} runs are used up ({schedule.spent(evidence)} made)"
    if jobs_of(evidence):
        return f" ({len(jobs_of(evidence))} done already)"
    return ", because its checks need none" if evidence["begin"].get("only") else ", because B refuses what A takes"


def _runs(least: int, most: int, more: str) -> str:
    return f"{least} to {most} {more}runs" if least != most else f"{most} {more}{'run' if most == 1 else 'runs'}"


def _of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _left(sessions: Sequence[Evidence], suite: Suite, evidence: Evidence) -> list[_Left]:
    """What is left to run, of each case that may still run."""
    only = set(evidence["begin"].get("only", []))
    if only:
        lacking = Counter(name.split("_")[0] for name in checks.runs_for(suite, only) - jobs_of(evidence).keys())
        return [_Left(case.spec, count, count) for case in suite.cases if (count := lacking[case.name])]
    return [left for case in suite.cases if (left := _of_case(sessions, case, suite, evidence)).most]


def _of_case(sessions: Sequence[Evidence], case: Case, suite: Suite, evidence: Evidence) -> _Left:
    recorded = {run.name for run in schedule.all_runs(case)} & jobs_of(evidence).keys()
    first = [run for run in schedule.first_runs(case) if run.name not in recorded]
    waits = case.continues is not None and any(
        schedule.source_of(run, case).name not in jobs_of(evidence) for run in first
    )
    if not waits and _next(case, suite, evidence) is None:
        return _Left(case.spec, 0, 0)
    known = _known_of_a(sessions, case, evidence)
    wanted = Counter(
        map(_kind, (run for run in schedule.all_runs(case) if run.side == "A" and run.name not in recorded))
    )
    return _Left(
        spec=case.spec,
        least=max(1, len(first)),
        most=case.most_runs - len(recorded),
        known_of_least=sum(run.side == "A" and known[_kind(run)] > 0 for run in first),
        known=sum((wanted & known).values()),
    )


def _kind(run: Run) -> tuple[int, bool]:
    """Runs of A of one kind are as good as each other."""
    return run.seed, run.perturbed


def _next(case: Case, suite: Suite, evidence: Evidence) -> Run | None:
    """The next run of a case. What a verdict lacks is asked only if there are runs to judge: numpy and scipy take half a second to load."""

    def wants(case: Case) -> Wants:
        from verl_regress.session import verdict

        return verdict.wants(case, evidence)

    return schedule.next_run(dataclasses.replace(suite, cases=(case,)), evidence, wants)


def _known_of_a(sessions: Sequence[Evidence], case: Case, evidence: Evidence) -> Counter[tuple[int, bool]]:
    """How many runs of A of each kind earlier sessions made of the same case. Whether they fit is known when B has run."""
    begin = evidence["begin"]
    found: Counter[tuple[int, bool]] = Counter()
    taken = {job["submission_id"] for job in jobs_of(evidence).values()}
    for theirs in sessions if not case.speed else ():
        before = theirs.get("begin") or {}
        if before.get("profile") != begin["profile"] or "suite" not in before:
            continue
        for other in suites.of_recorded(before["suite"]).cases:
            if _recipe(other) == _recipe(case):
                jobs = {run: jobs_of(theirs).get(run.name) for run in schedule.all_runs(other)}
                found.update(
                    _kind(run)
                    for run, job in jobs.items()
                    if job and checks.may_be_reused(job, begin["trees"]["A"], taken) and Path(job["job_dir"]).is_dir()
                )
    return found


def _recipe(case: Case) -> tuple[object, ...]:
    return case.spec, case.overrides, case.steps, case.continues


def _seconds(sessions: Sequence[Evidence], profile: str) -> dict[str, float]:
    """The median seconds of earlier runs under this profile, by the JobSpec's file."""
    found: dict[str, list[float]] = {}
    for evidence in sessions:
        begin = evidence.get("begin") or {}
        if begin.get("profile") != profile or "suite" not in begin:
            continue
        specs = {case.name: case.spec for case in suites.of_recorded(begin["suite"]).cases if not case.continues}
        for run, job in jobs_of(evidence).items():
            took = seconds(job)
            if run.split("_")[0] in specs and took is not None:
                found.setdefault(specs[run.split("_")[0]], []).append(took)
    return {spec: median(values) for spec, values in found.items()}


def seconds(job: Mapping[str, Any]) -> float | None:
    """Seconds from Ray's start of a job to its end; None if Ray did not say."""
    ray = job["ray"] or {}
    if not ray.get("start_time") or not ray.get("end_time"):
        return None
    return float(ray["end_time"] - ray["start_time"]) / 1000
