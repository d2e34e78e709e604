"""Which run of A an earlier session left that this one may take over, and what has changed since if it may not."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_regress.base.layout import SharedRoot
from verl_regress.session import checks, schedule
from verl_regress.session.schedule import ScheduledRun
from verl_regress.session.suites import Case
from verl_regress.session.verdict import judged
from verl_regress.store.hashes import digest
from verl_regress.store.sessions import Session, all_of, jobs_of
from verl_verdict.decide import memory
from verl_verdict.read import comparable
from verl_verdict.read.records import Run as JudgedRun


def earlier_run_of_a(
    root: SharedRoot, session: Session, case: Case, run: ScheduledRun
) -> tuple[Session, dict[str, Any]] | None:
    """An earlier session's run of A that this run of B can be compared with; None if there is none.

    It has the same tree of A's code, every fact that makes runs comparable, and the seed. No check of its session failed. Times vary
    between sessions, so a case whose speed is judged runs A itself.
    """
    evidence, b = session.evidence(), _run_of_b(session, case, run)
    mine = judged(b)
    if case.speed or mine is None:
        return None
    if run.kind == schedule.PERTURBED:
        mine = dataclasses.replace(mine, facts={**mine.facts, comparable.PERTURBED: "True"})
    taken = {job["submission_id"] for job in jobs_of(evidence).values()}
    for earlier, job in _runs_of_a(root, evidence["begin"]["trees"]["A"]):
        if earlier.path == session.path or job["submission_id"] in taken or earlier.is_doubtful:
            continue
        if _fits(job, mine, case.memory):
            return earlier, job
    return None


def changed_inputs(root: SharedRoot, session: Session, case: Case, run: ScheduledRun) -> tuple[str, list[str]] | None:
    """The newest earlier run of A that this run of B could be compared with if what both read had not changed since: its job, and the
    paths of what has changed. None if there is none.
    """
    b = _run_of_b(session, case, run)
    now, asked = b.get("inputs") or {}, _asked(b)
    for _, job in _runs_of_a(root, session.evidence()["begin"]["trees"]["A"]):
        changed = [path for path, sha256 in (job.get("inputs") or {}).items() if now.get(path, sha256) != sha256]
        if changed and asked and _asked(job) == asked:
            return job["submission_id"], changed
    return None


def _run_of_b(session: Session, case: Case, run: ScheduledRun) -> Mapping[str, Any]:
    """The session's run of B that this run of A is for; nothing if there is none yet."""
    name = ScheduledRun(case.name, "B", run.seed, run.pair).name
    found: Mapping[str, Any] = schedule.runs_of(case, "B", session.evidence()).get(name, {})
    return found


def _runs_of_a(root: SharedRoot, tree: str) -> Iterator[tuple[Session, dict[str, Any]]]:
    """The jobs that trained that tree to the end, each in the session that made it, the newest session first."""
    for earlier in all_of(root):
        for job in jobs_of(earlier.evidence_if_readable()).values():
            is_own = "reused_from" not in job
            if is_own and (job.get("code") or {}).get("tree_sha256") == tree and checks.has_succeeded(job):
                yield earlier, job


def _asked(job: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides a run, without the content of what it read."""
    run = judged(job)
    if run is None:
        return ()
    return run.workload, run.seed, {name: fact for name, fact in run.facts.items() if not name.endswith(" sha256")}


def _fits(job: Mapping[str, Any], b: JudgedRun, needs_memory: bool) -> bool:
    """Whether a job is unchanged since, and is comparable with this run of B in every fact that either has recorded.

    Where memory is judged, it must have recorded its own.
    """
    run = judged(job)
    if run is None or (needs_memory and memory.unusable(run)):
        return False
    # What has no hash may have changed since.
    is_known = {"model sha256", "data sha256"} <= run.facts.keys() and all((job.get("inputs") or {}).values())
    same_start = not b.steps or run.steps[:1] == b.steps[:1]
    is_equal = is_known and run.workload == b.workload and run.seed == b.seed and run.facts == b.facts and same_start
    return is_equal and digest(Path(job["job_dir"])) == job["digest"]
