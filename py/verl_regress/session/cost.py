"""What a session will cost: how many runs, and how long they take if they take as long as earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from verl_regress.base.layout import SharedRoot
from verl_regress.session import suites
from verl_regress.session.schedule import Evidence
from verl_regress.store.sessions import all_of, jobs_of


def described(root: SharedRoot, evidence: Evidence) -> str:
    """One sentence for the user, before the first run."""
    begin = evidence["begin"]
    suite = suites.of_recorded(begin["suite"])
    least, most = 2 * len(suite.cases), sum(case.most_runs for case in suite.cases)
    runs = f"{least} to {most} runs ({len(suite.cases)} cases), less the runs of A that earlier sessions made"
    known = _seconds(root, begin["profile"])
    unknown = [case.name for case in suite.cases if case.spec not in known]
    if unknown:
        return f"this session makes {runs}; how long {', '.join(unknown)} takes is not known yet"
    times = (
        sum(2 * known[case.spec] for case in suite.cases),
        sum(case.most_runs * known[case.spec] for case in suite.cases),
    )
    gpus = sum(node["resources"].get("GPU", 0) for node in begin["nodes"] if not node["is_head"])
    is_rehearsal = not gpus or begin["profile"].startswith("cpu")
    hours = "" if is_rehearsal else f", {times[0] / 3600 * gpus:.1f} to {times[1] / 3600 * gpus:.1f} GPU-hours"
    return f"this session makes {runs}: about {times[0] / 60:.0f} to {times[1] / 60:.0f} minutes{hours}, as earlier runs took"


def _seconds(root: SharedRoot, profile: str) -> dict[str, float]:
    """The median seconds of earlier runs under this profile, by the JobSpec's file."""
    found: dict[str, list[float]] = {}
    for session in all_of(root):
        evidence = session.evidence()
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
