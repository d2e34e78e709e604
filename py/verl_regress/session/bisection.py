"""A search for the commit that changed training: its directory `${SHARED_ROOT}/bisect/<time>/`, and what each commit says.

git chooses the commits (scripts/lib/bisect.bash). Each is B of a session whose A is GOOD, so that A's runs are taken over. What was
decided is kept here: a search that was interrupted goes on by telling git the same again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, RegressError, shown
from verl_regress.base.files import now, read_json, write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.jobs import recorded_run
from verl_regress.session import schedule, suites
from verl_regress.session.suites import Suite
from verl_regress.store.sessions import Session, all_of, new_directory
from verl_verdict.diagnosis import counted
from verl_verdict.records import Run

GOOD, BAD, SKIP = "good", "bad", "skip"
ENDS, CONFIRM = (
    "ends",
    "confirm",
)  # roles of sessions; the role of a commit's session is its hash (scripts/lib/bisect.bash)
_HOW_BAD = {"identical": 0, "same": 0, "improved": 1, "changed": 1, "regressed": 2}  # what decides nothing is not in it


@dataclass(frozen=True)
class Bisection:
    """The directory of one search."""

    path: Path

    @classmethod
    def begin(cls, root: SharedRoot, content: Mapping[str, Any]) -> Bisection:
        """Make the directory of a new search, named after the time (UTC)."""
        search = cls(new_directory(root.bisections))
        search.write("begin", content)
        return search

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Record one piece, stamped with the time."""
        text = json.dumps({**content, "time": now()}, indent=1, ensure_ascii=False)
        write_atomically(self.path / f"{name}.json", text + "\n")

    def read(self, name: str) -> dict[str, Any]:
        """One piece; empty if it was not recorded."""
        return read_json(self.path / f"{name}.json") or {}

    @property
    def cluster(self) -> str | None:
        """The cluster that it trains on; None if it cannot be read, because another user closed it."""
        try:
            return self.read("begin").get("cluster")
        except RegressError:
            return None

    @property
    def tried(self) -> dict[str, dict[str, Any]]:
        """What each commit said, by its hash, in the order in which they were tried."""
        found = {path.stem.removeprefix("commit-"): read_json(path) or {} for path in self.path.glob("commit-*.json")}
        return dict(sorted(found.items(), key=lambda each: str(each[1].get("time"))))

    def title(self, role: str) -> str:
        """The title of the session of that role, by which it is found again."""
        return f"bisect {self.path.name}: {role}"

    def session(self, root: SharedRoot, role: str) -> Session | None:
        """The session of that role; None before it began."""
        for session in all_of(root):
            suite = session.begin_if_readable().get("suite") or {}
            if (suite.get("content") or {}).get("title") == self.title(role):
                return session
        return None

    def session_of(self, root: SharedRoot, role: str) -> Session:
        """Like `session`, for a role that has run. Raises RegressError if it was removed."""
        session = self.session(root, role)
        if session is None:
            raise RegressError(
                f"The session '{self.title(role)}' is not in {root.sessions} any more: start a new search."
            )
        return session

    def suite_for(self, role: str) -> dict[str, Any]:
        """The suite of that role's session, without speed and memory; the confirmation trains both commits again."""
        content, signature = self.read("begin")["suite"]["content"], self.read("signature")
        cases = _with_its_source(content["cases"], signature["case"]) if signature else content["cases"]
        cases = {name: {**case, "speed": False, "memory": False} for name, case in cases.items()}
        return {**content, "cases": cases, "title": self.title(role), "reuse": role != CONFIRM}


def of_case(suite: Suite, name: str) -> dict[str, Any]:
    """The content of a suite with this case only, and the one that it continues. Raises BadInput for an unknown case."""
    if not name:
        return dict(suite.content)
    known = [case.name for case in suite.cases]
    if name not in known:
        raise BadInput(
            f"CASE={shown(name)} is not a case of the suite {suite.name}: use one of {', '.join(known)}, or leave it empty for the first one that differs."
        )
    return {**suite.content, "cases": _with_its_source(suite.content["cases"], name)}


def _with_its_source(cases: Mapping[str, Any], name: str) -> dict[str, Any]:
    source = cases[name].get("continues")
    return {**(_with_its_source(cases, source) if source else {}), name: cases[name]}


def found_at_the_ends(session: Session, case: str) -> dict[str, Any]:
    """What GOOD (A) and BAD (B) of a session that is over differ in: `case`, `how_bad` BAD is, the step after which it fails (`failed`), and
    `why` in words.

    Raises BadInput if GOOD fails, or if they do not differ; RegressError if the session does not tell.
    """
    if doubt := _doubt(session):
        raise RegressError(f"{doubt}: read {session.path}/report.md for what to fix, and start a new search.")
    report, evidence = read_json(session.path / "report.json") or {}, session.evidence()
    cases = [each for each in report["cases"] if case in ("", each["case"])]
    found = next((each for each in cases if _HOW_BAD.get(each["word"], 0)), None)
    if found is not None:
        failed = _failed_after(evidence, found["case"])
        how_bad, first = _HOW_BAD[found["word"]], found.get("first")
        where = (
            f"step {first['step']}, {first['metric']}: GOOD {float(first['a']):.6g}, BAD {float(first['b']):.6g}; "
            if first
            else ""
        )
        return {
            "case": found["case"],
            "how_bad": how_bad,
            "failed": failed,
            "why": f"{where}{found['word']}: {found['reason']}",
        }
    for each in cases:
        run = _first_run(evidence, each["case"], "A")
        if run and run.failure:
            raise BadInput(
                f"GOOD itself fails in {each['case']} ({run.failure}), so nothing says what is bad: name a commit that trains to the end."
            )
    summary = "; ".join(f"{each['case']} is {each['word']}: {each['reason']}" for each in cases)
    if all(each["word"] in _HOW_BAD for each in cases):
        raise BadInput(
            f"BAD trains as GOOD does ({summary}), so there is nothing to find: name another range, or a CASE that shows the difference."
        )
    raise RegressError(
        f"It is unclear whether BAD differs from GOOD ({summary}): see {session.path}/report.md, or choose another CASE."
    )


def _first_run(evidence: Mapping[str, Any], case: str, side: str) -> Run | None:
    """The first run of a side; None if it did not run."""
    jobs = schedule.runs_of(suites.of_recorded(evidence["begin"]["suite"]).case(case), side, evidence)
    return next((recorded_run.read(Path(job["job_dir"])) for job in jobs.values()), None)


def _failed_after(evidence: Mapping[str, Any], case: str) -> int | None:
    """The step after which B's first run failed, 0 if verl refuses its config; None if it did not fail."""
    first_b = schedule.first_runs(suites.of_recorded(evidence["begin"]["suite"]).case(case))[1]
    if schedule.refusal_of(first_b, evidence) is not None:
        return 0
    run = _first_run(evidence, case, "B")
    return run.last_step if run and run.failure else None


def of_session(signature: Mapping[str, Any], session: Session) -> tuple[str, str]:
    """What the session of a commit (B) says: good, bad or skip, and why.

    It is bad if its verdict is at least as bad as BAD's. Where BAD fails, a commit is bad that fails after the same step, and good if
    it trains to the end; any other failure decides nothing.
    """
    if doubt := _doubt(session):
        return SKIP, doubt
    report = read_json(session.path / "report.json") or {}
    found = next(each for each in report["cases"] if each["case"] == signature["case"])
    why, how_bad = f"{found['word']}: {found['reason']}", _HOW_BAD.get(found["word"])
    failed = _failed_after(session.evidence(), signature["case"])
    if how_bad is None or failed not in (None, signature["failed"]):
        return SKIP, why
    if signature["failed"] is not None:
        return BAD if failed is not None else GOOD, why
    return BAD if how_bad >= signature["how_bad"] else GOOD, why


def _doubt(session: Session) -> str:
    """Why its runs decide nothing; empty if no check of it failed."""
    failed = session.failed_checks()
    if not failed:
        return ""
    return f"{counted(failed, 'check')} of the session {session.path.name} failed, so its runs may not be of the code that was asked for"
