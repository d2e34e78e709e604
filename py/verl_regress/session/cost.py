"""What a session will cost: how many runs, and how long they take if they take as long as earlier ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from verl_regress.base.errors import RegressError
from verl_regress.base.layout import SharedRoot
from verl_regress.jobs.status import DAMAGED
from verl_regress.session import checks, schedule, suites
from verl_regress.session.schedule import Evidence, Run, Wants
from verl_regress.session.suites import Case, Suite
from verl_regress.store.sessions import all_of, jobs_of
from verl_verdict.diagnosis import counted


def described(root: SharedRoot, evidence: Evidence, budget: int | None = None) -> str:
    """One sentence for the user, before the first run of a session, or of the rest of one that is continued."""
    begin, done = evidence["begin"], len(jobs_of(evidence))
    suite = suites.of_recorded(begin["suite"])
    left = [(case.spec, *_left(case, suite, evidence)) for case in suite.cases]
    least, most = ([spec for spec, *counts in left for _ in range(counts[which])] for which in (0, 1))
    if budget is not None:  # it goes to the first cases
        rest = max(0, budget - schedule.spent(evidence))
        if most and not rest:
            return f"this session makes no further run: BUDGET={budget} runs are used up ({budget} made)"
        least, most = least[:rest], most[:rest]
    if not most:
        return f"this session makes no further run ({done} done already)" if done else "this session makes no run"
    more, to = "more " if done else "", f"{len(least)} to " if len(least) != len(most) else ""
    reused = ", less those of A that earlier sessions made" if suite.reuse and not begin["only"] else ""
    runs = f"this session makes {to}{counted(len(most), f'{more}run')}{reused}"
    known = _seconds([session.evidence_if_readable() for session in all_of(root)], begin["profile"])
    unknown = [Path(spec).stem for spec in dict.fromkeys(most) if spec not in known]
    if unknown:
        return f"{runs}; how long {', '.join(unknown)} takes is not known yet"
    times = [sum(known[spec] for spec in specs) for specs in (least, most)]
    gpus = sum(node["resources"].get("GPU", 0) for node in begin["nodes"] if not node["is_head"])
    is_rehearsal = not gpus or begin["profile"].startswith("cpu")
    hours = "" if is_rehearsal else f", {times[0] / 3600 * gpus:.1f} to {times[1] / 3600 * gpus:.1f} GPU-hours"
    return f"{runs}: about {times[0] / 60:.0f} to {times[1] / 60:.0f} minutes{hours}, as earlier runs took"


def _left(case: Case, suite: Suite, evidence: Evidence) -> tuple[int, int]:
    """How many runs the case still needs, and may still take."""
    recorded, only = jobs_of(evidence), set(evidence["begin"]["only"])
    first = [run for run in schedule.first_runs(case) if run.name not in recorded]
    if only:
        count = sum(run.name in checks.runs_for(suite, only) for run in first)
        return count, count
    waits = case.continues and any(schedule.source_of(run, case).name not in recorded for run in first)
    if not waits and _next(case, suite, evidence) is None:
        return 0, 0
    made = sum(run.name in recorded for run in schedule.all_runs(case))
    return max(1, len(first)), case.most_runs - made


def _next(case: Case, suite: Suite, evidence: Evidence) -> Run | None:
    """The next run of a case. Only if there are runs to judge numpy and scipy are loaded, which takes half a second."""

    def wants(case: Case) -> Wants:
        from verl_regress.session import verdict

        return verdict.wants(case, evidence)

    return schedule.next_run(dataclasses.replace(suite, cases=(case,)), evidence, wants)


def _seconds(sessions: Sequence[Evidence], profile: str) -> dict[str, float]:
    """The median seconds of earlier runs under this profile, by the JobSpec's file; a session that cannot be read says nothing."""
    found: dict[str, list[float]] = {}
    for evidence in sessions:
        begin = evidence.get("begin") or {}
        if begin.get("profile") != profile:
            continue
        with suppress(*DAMAGED, RegressError):
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
