"""What all sessions of the shared root have recorded, as points of the judge's history, and what cannot be used."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs.status import DAMAGED
from verl_regress.session import schedule, suites, verdict
from verl_regress.session.schedule import Evidence
from verl_regress.session.suites import Case
from verl_regress.store.sessions import Session, all_of, jobs_of
from verl_verdict.errors import CannotJudge
from verl_verdict.history.history import Ended, Left, Point
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import Run


def collect(root: SharedRoot) -> tuple[list[Point], list[Left]]:
    """The runs of all sessions in the order of time, each once although later sessions have reused it."""
    points: list[Point] = []
    left: list[Left] = []
    seen: set[str] = set()
    for session in reversed(all_of(root)):
        try:
            evidence = session.evidence()
            runs, failed = _runs(evidence), session.failed_checks()
        except (CannotJudge, *DAMAGED) as error:
            left.append(Left(session.path.name, _why_not(error)))
            continue
        for run in sorted(runs, key=lambda each: each.side):  # A first: its code is mostly the older one
            try:
                if run.job["submission_id"] not in seen:
                    seen.add(run.job["submission_id"])
                    point = _point(root, session, evidence["begin"]["time"], run)
                    points.append(replace(point, failed_checks=failed))
            except (CannotJudge, *DAMAGED) as error:
                left.append(Left(f"{run.name} of {session.path.name}", _why_not(error)))
    return points, left


def reports(root: SharedRoot) -> dict[str, str]:
    """The page of each session that has one, relative to `verify/`."""
    pages = [session.path / "report.html" for session in all_of(root)]
    return {page.parent.name: f"{page.parent.name}/{page.name}" for page in pages if page.is_file()}


def ended(root: SharedRoot) -> list[Ended]:
    """The sessions that are over and whose report can be read, the oldest first, whether their runs can be drawn or not."""
    found = []
    for session in reversed(all_of(root)):
        report, begin = session.report_if_readable(), session.begin_if_readable()
        if report.get("headline") and begin:
            code = str((begin.get("codes") or {}).get("B", "?"))
            word, said = str(report.get("verdict") or ""), str(report["headline"])
            found.append(Ended(session.path.name, str(begin["time"]), code, word, said))
    return found


def _why_not(error: Exception) -> str:
    is_said = isinstance(error, CannotJudge)
    return str(error) if is_said else f"its evidence is damaged ({type(error).__name__}: {error})"


class _Recorded(NamedTuple):
    """A run that a session has recorded: what it is a run of, and its evidence."""

    name: str
    case: Case
    side: str
    job: Mapping[str, Any]


def _runs(evidence: Evidence) -> list[_Recorded]:
    """The recorded runs of the suite's cases in their order. Raises CannotJudge if there is none."""
    if "begin" not in evidence:
        raise CannotJudge("it has no evidence/begin.json: it is not a session, or was cut off")
    if not jobs_of(evidence):
        raise CannotJudge("it has recorded no run")
    cases = suites.of_recorded(evidence["begin"]["suite"]).cases
    of_cases = [case for case in cases if not case.is_in_group]  # those train a single step
    known = {run: (case, side) for case in of_cases for side in "AB" for run in schedule.runs_of(case, side, evidence)}
    return [_Recorded(run, *known[run], job) for run, job in jobs_of(evidence).items() if run in known]


def _point(root: SharedRoot, session: Session, time: str, run: _Recorded) -> Point:
    job = run.job
    recorded = JobDir(Path(job["job_dir"]))
    here = JobDir(root.path / recorded.path.relative_to(recorded.root.path))  # a host sees it at another path
    if not here.path.is_dir():
        raise CannotJudge(f"its job's directory {here.path} is gone")
    code = job["code"] or {}
    return Point(
        run=_of_any_session(verdict.run_of({**job, "job_dir": str(here.path)})),
        case=run.case.name,
        side=run.side,
        name=run.name,
        session=session.path.name,
        time=time,
        code=job["plan"]["code_id"],
        tree=code.get("tree_sha256") or job["plan"]["code_id"],
        source=str(code.get("source") or ""),
        revision=_revision(code),
        log=os.path.relpath(here.driver_log, root.sessions),
        decisive=tuple(verdict.decisive_of(run.case)),
        ignore=run.case.ignore,
    )


def _of_any_session(run: Run) -> Run:
    """A replayed run like those of other sessions, and without its times: most such runs generated nothing."""
    if comparable.REPLAY not in run.facts:
        return run
    untimed = run.without([name for name in run.series if metrics.is_time(name)])
    return replace(untimed, facts={**run.facts, comparable.REPLAY: "True"})


def _revision(code: Mapping[str, Any]) -> str:
    """What the source alone does not say: `commit 0123456789ab, with changes`; empty for a release."""
    revision = str(code.get("revision") or "")
    is_said = str(code.get("source") or "").endswith(revision)
    parts = [*([] if is_said else [f"commit {revision[:12]}"]), *(["with changes"] if code.get("dirty") else [])]
    return ", ".join(parts)
