"""report.html of a session: what the judge's page shows, from the evidence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_regress.base.layout import JobDir
from verl_regress.session import codes, schedule, suites, verdict
from verl_regress.session.checks import Verdict as Checked
from verl_regress.session.checks import end_of, seconds
from verl_regress.store.sessions import Session, jobs_of
from verl_verdict import page
from verl_verdict.diagnosis import doubt
from verl_verdict.errors import BadInput
from verl_verdict.records import Run
from verl_verdict.verdicts import Verdict


def as_html(
    session: Session,
    evidence: Mapping[str, Any],
    answer: tuple[str, str],
    found: Sequence[Verdict],
    checks: Sequence[Checked],
    remarks: Sequence[str],
) -> str:
    """The page. `answer` is the worst verdict's word, empty if there is no answer, and the sentence for the top; without verdicts
    there are checks only.
    """
    begin = evidence["begin"]
    cases = suites.of_recorded(begin["suite"]).cases if found else ()
    lines, note = _code(evidence)
    failed = [check.claim for check in checks if check.failed]
    return page.html(
        page.Page(
            answer=answer[1],
            word=answer[0],
            facts={
                "A, the baseline": begin["codes"]["A"],
                "B, the change": begin["codes"]["B"],
                "suite": begin["suite"]["name"],
                "profile": begin["profile"],
                "cluster": begin["cluster"],
                "time": begin["time"],
            },
            warnings=[f"{doubt(len(failed))}: {'; '.join(failed)}."] if failed else [],
            cases=[case_of(session, case, evidence, found) for case in cases],
            checks=[_check(check) for check in checks],
            remarks=remarks,
            code=lines,
            code_note=note,
        )
    )


def case_of(session: Session, case: suites.Case, evidence: Mapping[str, Any], found: Sequence[Verdict]) -> page.Case:
    """A card of the page: the verdicts on a case, and its runs."""
    jobs = jobs_of(evidence)
    runs = {
        side: [run for job in schedule.runs_of(case, side, evidence).values() if (run := _run(job))] for side in "AB"
    }
    return page.Case(
        name=case.name,
        verdicts=[each for each in found if each.case in (case.name, case.speed_name, case.memory_name)],
        runs_a=runs["A"],
        runs_b=runs["B"],
        decisive=verdict.decisive_of(case),
        jobs=[_job(session, run.name, run.side, jobs[run.name]) for run in schedule.all_runs(case) if run.name in jobs],
    )


def _run(job: Mapping[str, Any]) -> Run | None:
    try:
        return verdict.run_of(job)
    except BadInput:  # the verdict says so
        return None


def _job(session: Session, name: str, side: str, job: Mapping[str, Any]) -> page.Job:
    return page.Job(
        run=name,
        side=side,
        submission_id=job["submission_id"],
        href=os.path.relpath(JobDir(Path(job["job_dir"])).driver_log, session.path),
        steps=len(job["steps"]),
        seconds=seconds(job),
        failure=end_of(job)["reason"],
    )


def _check(check: Checked) -> page.Check:
    return page.Check(check.word, check.claim, str(check.skipped or check.checked), check.problems)


def _code(evidence: Mapping[str, Any]) -> tuple[list[str], str]:
    """The diff of the snapshots that the jobs ran with."""
    paths = {job["plan"]["code_id"]: job["plan"].get("code_path") for job in jobs_of(evidence).values()}
    a, b = (paths.get(evidence["begin"]["codes"][side]) for side in "AB")
    return codes.difference(Path(a), Path(b)) if a and b else ([], "")
