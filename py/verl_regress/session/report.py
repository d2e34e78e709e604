"""The output of a session: report.json, report.md (for a pull request's comment), report.html and junit.xml, from the same verdicts and
checks.
"""

import json
import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base import files
from verl_regress.base.errors import printable
from verl_regress.base.files import write_atomically
from verl_regress.base.layout import JobDir
from verl_regress.cluster import packages
from verl_regress.jobs.progress import shown_value
from verl_regress.session import checks, schedule, suites
from verl_regress.session.checks import Result, end_of, seconds
from verl_regress.session.verdict import decisive_of, judged
from verl_regress.store import mismatch, snapshot
from verl_regress.store.sessions import Session, jobs_of
from verl_verdict.decide import verdicts
from verl_verdict.decide.diagnosis import counted, doubt_of_checks
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.show import junit, verdict_page, verdict_text

_MOST_LINES = 2000  # of the diff
_MEANING = {
    Word.IDENTICAL: "B trains exactly as A does",
    Word.SAME: "B trains as A does",
    Word.IMPROVED: "B trains better than A",
    Word.CHANGED: "B does not train as A does, and no metric tells whether that is better or worse",
    Word.REGRESSED: "B breaks what A does",
    Word.INCONCLUSIVE: "these runs do not decide whether B trains as A does",
    Word.INCOMPARABLE: "A and B cannot be compared",
}


@dataclass(frozen=True)
class SessionOutcome:
    """All that a session found: the checks, the verdicts on its cases (none with ONLY), and what the user allows."""

    session: Session
    evidence: Mapping[str, Any]
    checks: Sequence[Result]
    verdicts: Sequence[Verdict] = ()
    allow: Collection[Word] = ()

    @property
    def status(self) -> int:
        """The exit status: 9 for a failed check, else what the verdicts say."""
        if self.failed or not (self.verdicts or self.checks):
            return verdicts.STATUS[Word.REGRESSED]
        return verdicts.status(self.verdicts, self.allow) if self.verdicts else 0

    @property
    def failed(self) -> list[str]:
        """The names of failed checks, and without verdicts (ONLY) of skipped ones: with any there is no answer."""
        return [check.name for check in self.checks if check.failed or not (check.passed or self.verdicts)]

    @property
    def word(self) -> str:
        """The worst verdict; empty without an answer."""
        return verdicts.worst(self.verdicts).value if self.verdicts and not self.failed else ""

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        if (failed := self.failed) and self.verdicts:
            return f"no answer: {', '.join(failed)} failed, so the runs were not what was asked for; {checks.summary(self.checks)}"
        if not self.verdicts:
            return checks.summary(self.checks)
        worst = verdicts.worst(self.verdicts)
        first, *others = (verdict for verdict in self.verdicts if verdict.word is worst)
        cases = counted(len(self.evidence["begin"]["suite"]["content"]["cases"]), "case")
        also = f"; also {', '.join(verdict.case for verdict in others)}" if others else ""
        return f"{worst.value}: {_MEANING[worst]} ({first.case}: {first.shown}{also}; {cases} judged)"


def write(outcome: SessionOutcome) -> None:
    """Write the four reports into the session's directory."""
    directory = outcome.session.path
    write_atomically(directory / "report.md", as_markdown(outcome))
    write_atomically(directory / "junit.xml", as_junit(outcome))
    write_atomically(directory / "report.html", as_html(outcome))
    # The last one: it says that the session is over.
    write_atomically(directory / "report.json", files.as_json(as_json(outcome)))


def as_json(outcome: SessionOutcome) -> dict[str, Any]:
    """The verdicts, the checks, the jobs and the seconds as plain data."""
    evidence = outcome.evidence
    return {
        "session": str(outcome.session.path),
        "profile": evidence["begin"]["profile"],
        "cluster": evidence["begin"]["cluster"],
        "suite": evidence["begin"]["suite"]["name"],
        "codes": evidence["begin"]["codes"],
        "status": outcome.status,
        "headline": outcome.headline,
        "verdict": outcome.word or None,
        "cases": json.loads(verdict_text.as_json(outcome.verdicts, outcome.allow))["cases"] if outcome.verdicts else [],
        "passed": bool(outcome.checks) and not outcome.failed,
        "checks": [check.as_dict for check in outcome.checks],
        "packages": about_packages(evidence),
        "jobs": {
            name: {
                "submission_id": job["submission_id"],
                "code_id": job["plan"]["code_id"],
                "steps": len(job["steps"]),
                "seconds": seconds(job),
                "reused_from": job.get("reused_from"),
                "inputs": job.get("inputs") or {},
                **end_of(job),
            }
            for name, job in jobs_of(evidence).items()
        },
    }


def as_html(outcome: SessionOutcome) -> str:
    """The page for people. Without verdicts there are checks only."""
    begin = outcome.evidence["begin"]
    suite = suites.of_recorded(begin["suite"])
    groups = [suite.group(case) for case in suite.cases if not case.equals] if outcome.verdicts else []
    lines, note = _code(outcome.evidence)
    failed = [check.claim for check in outcome.checks if check.failed]
    return verdict_page.html(
        verdict_page.VerdictPage(
            answer=outcome.headline.removeprefix(f"{outcome.word}: "),
            word=outcome.word,
            facts={
                "A, the baseline": begin["codes"]["A"],
                "B, the change": begin["codes"]["B"],
                "suite": begin["suite"]["name"],
                "profile": begin["profile"],
                "cluster": begin["cluster"],
                "time": begin["time"],
            },
            warnings=[f"{doubt_of_checks(len(failed))}: {'; '.join(failed)}."] if failed else [],
            cases=[_case_of(outcome.session, group, outcome.evidence, outcome.verdicts) for group in groups],
            checks=[
                verdict_page.CheckLine(check.word, check.claim, str(check.skipped or check.checked), check.problems)
                for check in outcome.checks
            ],
            remarks=about_packages(outcome.evidence),
            code=lines,
            code_note=note,
        )
    )


def _case_of(
    session: Session, group: Sequence[suites.Case], evidence: Mapping[str, Any], found: Sequence[Verdict]
) -> verdict_page.CaseCard:
    """A card of the page: the verdicts on a case, and its runs, without the metrics that the case ignores. Of the others that must train
    as it does, the jobs.
    """
    jobs, case = jobs_of(evidence), group[0]
    runs = {
        side: [
            run.without(case.ignore) for job in schedule.runs_of(case, side, evidence).values() if (run := judged(job))
        ]
        for side in "AB"
    }
    return verdict_page.CaseCard(
        name=case.name,
        verdicts=[each for each in found if each.case in (case.name, *map(case.part, ("rollout", "speed", "memory")))],
        runs_a=runs["A"],
        runs_b=runs["B"],
        decisive=decisive_of(case),
        jobs=[
            verdict_page.Job(
                run=run.name,
                side=run.side,
                submission_id=job["submission_id"],
                href=os.path.relpath(JobDir(Path(job["job_dir"])).driver_log, session.path),
                steps=len(job["steps"]),
                seconds=seconds(job),
                failure=end_of(job)["reason"],
            )
            for each in group
            for run in schedule.all_runs(each)
            if (job := jobs.get(run.name))
        ],
    )


def _code(evidence: Mapping[str, Any]) -> tuple[list[str], str]:
    """The diff of the snapshots that the jobs ran with."""
    paths = {job["plan"]["code_id"]: job["plan"].get("code_path") for job in jobs_of(evidence).values()}
    a, b = (paths.get(evidence["begin"]["codes"][side]) for side in "AB")
    return difference(Path(a), Path(b)) if a and b else ([], "")


def difference(a: Path, b: Path) -> tuple[list[str], str]:
    """The diff of two snapshots in lines, and a sentence about it that says whether it is cut."""
    if gone := [str(path) for path in (a, b) if not path.is_dir()]:
        return [], f"The code cannot be compared: {' and '.join(gone)} no longer exists."
    ours = (f"--exclude={name}" for name in (snapshot.BYTECODE, snapshot.MARKER_FILE, snapshot.RECORD_FILE))
    argv = ["diff", "-urN", *ours, a.name, os.path.relpath(b, a.parent)]
    found = subprocess.run(argv, cwd=a.parent, env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE, check=False)
    lines = found.stdout.decode("utf-8", "replace").splitlines()
    number = sum(line.startswith(("diff -urN ", "Binary files ")) for line in lines)
    if not number:
        return [], "A and B are the same code."
    lines = [line for line in lines if not line.startswith("diff -urN ")]
    cut = f" The diff is cut after {_MOST_LINES} lines." if len(lines) > _MOST_LINES else ""
    return lines[:_MOST_LINES], f"{number} {'file differs' if number == 1 else 'files differ'}.{cut}"


def text(outcome: SessionOutcome) -> list[str]:
    """What `make verify` prints: the checks, then the verdicts, the answer last."""
    lines = [*checks.rows(outcome.checks), checks.summary(outcome.checks), *about_packages(outcome.evidence)]
    if outcome.verdicts:
        lines += ["", *verdict_text.text(outcome.verdicts, outcome.allow).splitlines()]
        if outcome.failed:
            lines[-1] = f"{outcome.headline} (exit status {outcome.status})"  # in the place of a verdict with its own
    return [printable(line) for line in lines]


def about_packages(evidence: Mapping[str, Any]) -> list[str]:
    """Whether A and B ran with the same packages, and which differ. Not a check: nodes are not the code under test."""
    jobs = jobs_of(evidence)
    cases = suites.of_recorded(evidence["begin"]["suite"]).cases
    pairs = [[jobs[run.name] for run in schedule.first_runs(case) if run.name in jobs] for case in cases]
    pair = next((pair for pair in pairs if len(pair) == 2), None)
    return _packages_of_pair(*(job.get("packages") for job in pair)) if pair else []


def _packages_of_pair(of_a: Mapping[str, Any] | None, of_b: Mapping[str, Any] | None) -> list[str]:
    records = {"A": of_a, "B": of_b}
    known = {code: record for code, record in records.items() if record and record["sha256"]}
    if len(known) < len(records):
        unknown = " and ".join(code for code in records if code not in known)
        return [f"Which packages {unknown} ran with was not recorded."]
    a, b = (packages.in_job(record) for record in known.values())
    same = f"A and B ran with the same {len(a) - 1} packages (sha256 {known['A']['sha256'][:12]})."
    other = mismatch.differences_between(a, b)
    allowed = [
        f"{code} was submitted with {mismatch.ALLOW}: {problem}."
        for code, record in known.items()
        for problem in record["mismatch"]
    ]
    return [f"A and B ran with different packages: {other}." if other else same, *allowed]


def as_markdown(outcome: SessionOutcome) -> str:
    """The report for a pull request's comment: the answer, the cases, every check and every job."""
    evidence = outcome.evidence
    begin = evidence["begin"]
    lines = [
        f"# {outcome.headline}",
        "",
        f"A is `{begin['codes']['A']}`, B is `{begin['codes']['B']}`. Suite {begin['suite']['name']}, profile {begin['profile']}, "
        f"cluster {begin['cluster']}, {begin['time']}.",
    ]
    if outcome.verdicts:
        lines += ["", "| case | verdict | why | since |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {verdict.case} | **{verdict.word.value}** | {verdict.reason} | {verdict.first or '-'} |"
        for verdict in outcome.verdicts
    ]
    for verdict in outcome.verdicts:
        how = verdict_text.text([verdict], ()).splitlines()[1:-2]
        summary = f"<details><summary>{verdict.case}: how it was decided</summary>"
        lines += ["", summary, "", "```", *how, "```", "</details>"]
    lines += [line for about in about_packages(evidence) for line in ("", about)]
    lines += ["", f"## {checks.summary(outcome.checks)}", "", "| | check | what was checked |", "| --- | --- | --- |"]
    for check in outcome.checks:
        problems = "".join(f"<br>**{problem}**" for problem in check.problems)
        word = "**FAIL**" if check.failed else check.word
        lines.append(f"| {word} | {check.claim}{problems} | {check.skipped or check.checked} |")
    return "\n".join([*lines, *_jobs(evidence)]) + "\n"


def _jobs(evidence: Mapping[str, Any]) -> list[str]:
    """Every job, and why it failed if it did."""
    jobs = jobs_of(evidence)
    page = ["", "## Jobs", "", "| run | submission id | code | steps | seconds |", "| --- | --- | --- | --- | --- |"]
    for name, job in jobs.items():
        when = f" (of the session {job['reused_from']})" if "reused_from" in job else ""
        page.append(
            f"| {name}{when} | `{job['submission_id']}` | {job['plan']['code_id']} | {len(job['steps'])} | {shown_value(seconds(job), 1, none='-')} |"
        )
    failed = {name: end for name, job in jobs.items() if (end := end_of(job))["reason"] is not None}
    if failed:
        page += ["", "## Why jobs failed", ""]
    for name, end in failed.items():
        page.append(f"- {name}: {end['reason']}")
        if end["cause"] is not None and end["cause"]["hint"] is not None:
            page.append(f"  - hint: {end['cause']['hint']}")
    return page


def as_junit(outcome: SessionOutcome) -> str:
    """One test per verdict and per check. A verdict that the user does not allow is a failure. If a check failed, no verdict passes."""
    of_checks = [
        junit.Test("verify", name, check.problems or [str(check.skipped)])
        if check.name in outcome.failed
        else junit.Test("verify", name, skipped=check.skipped or "")
        for check in outcome.checks
        for name in (f"{check.name}: {check.claim}",)
    ]
    of_verdicts = junit.verdict_tests(outcome.verdicts, outcome.allow, outcome.headline if outcome.failed else "")
    return junit.document("verl-regress verify", [*of_verdicts, *of_checks])
