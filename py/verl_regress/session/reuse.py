"""Which run of A an earlier session left that this one may take over, and what has changed since if it may not."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from verl_regress.base.layout import SharedRoot
from verl_regress.session import checks, schedule
from verl_regress.session.schedule import Evidence, Run
from verl_regress.session.suites import Case
from verl_regress.session.verdict import run_of
from verl_regress.store.hashes import digest
from verl_regress.store.sessions import Session, all_of, jobs_of
from verl_verdict import comparable, memory
from verl_verdict import records as judged
from verl_verdict.errors import CannotJudge


def earlier_run_of_a(root: SharedRoot, session: Session, case: Case, run: Run) -> tuple[Session, dict[str, Any]] | None:
    """An earlier session's run of A that this run of B can be compared with; None if there is none.

    It has the same tree of A's code, every fact that makes runs comparable, and the seed. No check of its session failed. Times vary
    between sessions, so a case whose speed is judged runs A itself.
    """
    evidence = session.evidence()
    b, tree = _run_of_b(case, run, evidence), evidence["begin"]["trees"]["A"]
    if case.speed or b is None:
        return None
    try:
        mine = run_of(b)
    except CannotJudge:
        return None
    if run.perturbed:
        mine = dataclasses.replace(mine, facts={**mine.facts, comparable.PERTURBED: "True"})
    taken = {job["submission_id"] for job in jobs_of(evidence).values()}
    for earlier in all_of(root):
        if earlier.path == session.path or earlier.is_doubtful:
            continue
        theirs = earlier.evidence_if_readable()
        for job in jobs_of(theirs).values():
            if _may_be_reused(job, tree, taken) and _fits(job, mine, case.memory):
                return earlier, job
    return None


def changed_inputs(root: SharedRoot, session: Session, case: Case, run: Run) -> tuple[str, list[str]] | None:
    """The newest earlier run of A that this run of B could be compared with if what both read had not changed since: its job, and the
    paths of what has changed. None if there is none.
    """
    evidence = session.evidence()
    b, tree = _run_of_b(case, run, evidence), evidence["begin"]["trees"]["A"]
    if b is None:
        return None
    now, asked = b.get("inputs") or {}, _asked(b)
    for earlier in all_of(root):
        for job in jobs_of(earlier.evidence_if_readable()).values():
            changed = [path for path, sha256 in (job.get("inputs") or {}).items() if now.get(path, sha256) != sha256]
            if changed and _may_be_reused(job, tree, ()) and _asked(job) == asked:
                return job["submission_id"], changed
    return None


def _run_of_b(case: Case, run: Run, evidence: Evidence) -> Mapping[str, Any] | None:
    """The session's run of B that this run of A is for; None if there is none yet."""
    jobs = schedule.runs_of(case, "B", evidence)
    found: Mapping[str, Any] | None = jobs.get(Run(case.name, "B", run.seed, run.pair).name)
    return found


def _may_be_reused(job: Mapping[str, Any], tree: str, taken: Collection[str]) -> bool:
    """Whether a later session, which has `taken` these jobs already, may take this one over as a run of that tree."""
    return (
        "reused_from" not in job
        and job["submission_id"] not in taken
        and (job.get("code") or {}).get("tree_sha256") == tree
        and checks.has_succeeded(job)
    )


def _asked(job: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides a run, without the content of what it read."""
    try:
        run = run_of(job)
    except (CannotJudge, LookupError, OSError):
        return ()
    facts = {name: fact for name, fact in run.facts.items() if not name.endswith(" sha256")}
    return run.workload, run.seed, facts


def _fits(job: Mapping[str, Any], b: judged.Run, needs_memory: bool) -> bool:
    """Whether a job is unchanged since, and is comparable with this run of B in every fact that either has recorded.

    Where memory is judged, it must have recorded its own.
    """
    try:
        run = run_of(job)
    except (CannotJudge, LookupError, OSError):  # files were removed, another user closed them, or evidence is missing
        return False
    # What has no hash may have changed since.
    is_known = {"model sha256", "data sha256"} <= run.facts.keys() and all((job.get("inputs") or {}).values())
    same_start = not b.steps or run.steps[:1] == b.steps[:1]
    if needs_memory and memory.unusable(run):
        return False
    is_equal = is_known and run.workload == b.workload and run.seed == b.seed and run.facts == b.facts and same_start
    return is_equal and digest(Path(job["job_dir"])) == job["digest"]
