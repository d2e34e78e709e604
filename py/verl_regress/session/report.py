"""The output of a session: report.json, report.md (A and B side by side) and junit.xml, from the same verdicts."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from verl_regress.base import layout
from verl_regress.base.layout import write_atomically
from verl_regress.cluster import packages
from verl_regress.session.checks import Verdict
from verl_regress.store import mismatch
from verl_regress.store.sessions import Session, jobs_of


def write(session: Session, evidence: Mapping[str, Any], verdicts: Sequence[Verdict]) -> None:
    """Write the three reports into the session's directory."""
    write_atomically(session.path / "report.json", layout.as_json(as_json(session, evidence, verdicts)))
    write_atomically(session.path / "report.md", "\n".join(as_markdown(evidence, verdicts)) + "\n")
    write_atomically(session.path / "junit.xml", as_junit(verdicts))


def as_json(session: Session, evidence: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts, the jobs and the seconds as plain data."""
    return {
        "session": str(session.path),
        "profile": evidence["begin"]["profile"],
        "cluster": evidence["begin"]["cluster"],
        "holds": bool(verdicts) and all(verdict.passed for verdict in verdicts),
        "lines": [
            {
                "name": one.name,
                "claim": one.claim,
                "holds": one.passed,
                "looked_at": one.checked,  # rule-ok: a key of report.json
                "problems": one.problems,
            }
            for one in verdicts
        ],
        "packages": about_packages(evidence),
        "jobs": {
            name: {
                "submission_id": job["submission_id"],
                "code_id": job["plan"]["code_id"],
                "steps": len(job["steps"]),
                "seconds": seconds(job),
                **_end(job),
            }
            for name, job in jobs_of(evidence).items()
        },
    }


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """The checks as a text table, and how many passed."""
    width = max((len(verdict.name) for verdict in verdicts), default=0)
    rows = []
    for verdict in verdicts:
        rows.append(
            f"{'ok' if verdict.passed else 'FAIL':<6}  {verdict.name:<{width}}  {verdict.claim} (checked {verdict.checked})"
        )
        rows += [f"{'':<6}  {'':<{width}}  - {problem}" for problem in verdict.problems]
    good = sum(verdict.passed for verdict in verdicts)
    return [*rows, f"{good} of {len(verdicts)} checks passed"]


def about_packages(evidence: Mapping[str, Any]) -> list[str]:
    """Whether A and B ran with the same packages, and which differ. Not a check: nodes are not the code under test."""
    jobs = jobs_of(evidence)
    if not {"ppo_a", "ppo_b"} <= jobs.keys():
        return []
    records = {code: jobs[f"ppo_{code.lower()}"].get("packages") for code in "AB"}
    unknown = [code for code, record in records.items() if not record or not record["sha256"]]
    if unknown:
        return [f"Which packages {' and '.join(unknown)} ran with was not recorded."]
    a, b = (packages.in_job(record) for record in records.values())
    other = mismatch.differences_between(a, b)
    found = [
        f"A and B ran with other packages: {other}."
        if other
        else f"A and B ran with the same {len(a) - 1} packages (sha256 {records['A']['sha256'][:12]})."
    ]
    for code, record in records.items():
        found += [f"{code} was submitted with {mismatch.ALLOW}: {problem}." for problem in record["mismatch"]]
        found += [f"{code} declares what it does not need: {text}." for text in record["harmless"]]
    return found


def as_markdown(evidence: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[str]:
    """The report for people: verdicts first, then A and B step by step, then every job."""
    begin, jobs = evidence["begin"], jobs_of(evidence)
    good = sum(verdict.passed for verdict in verdicts)
    page = [
        f"# {good} of {len(verdicts)} checks passed",
        "",
        f"Profile {begin['profile']}, cluster {begin['cluster']}, {begin['time']}.",
        "",
        "| | check | what was checked |",
        "| --- | --- | --- |",
    ]
    for verdict in verdicts:
        problems = "".join(f"<br>**{problem}**" for problem in verdict.problems)
        page.append(f"| {'ok' if verdict.passed else '**FAIL**'} | {verdict.claim}{problems} | {verdict.checked} |")
    page += [line for text in about_packages(evidence) for line in ("", text)]
    if {"ppo_a", "ppo_b"} <= jobs.keys():
        page += ["", *_side_by_side(jobs["ppo_a"], jobs["ppo_b"])]
    page += ["", "## Jobs", "", "| job | submission id | code | steps | seconds |", "| --- | --- | --- | --- | --- |"]
    page += [
        f"| {name} | `{job['submission_id']}` | {job['plan']['code_id']} | {len(job['steps'])} | {_shown(seconds(job), 1)} |"
        for name, job in jobs.items()
    ]
    failed = {name: end for name, job in jobs.items() if (end := _end(job))["reason"] is not None}
    if failed:
        page += ["", "## Why jobs failed", ""]
    for name, end in failed.items():
        page.append(f"- {name}: {end['reason']}")
        if end["cause"] is not None and end["cause"]["hint"] is not None:
            page.append(f"  - hint: {end['cause']['hint']}")
    return page


def _end(job: Mapping[str, Any]) -> dict[str, Any]:
    """Why a job failed: its reason and the root exception; both None if it did not."""
    ended = job["state"]["ended"] or {"exit_code": None, "reason": "it recorded no end"}
    return {
        "reason": ended["reason"] if ended["exit_code"] != 0 else None,
        "cause": ended.get("cause"),
    }


def _side_by_side(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Reward and loss of PPO with A and with B, and their differences, step by step."""
    page = [
        f"## PPO with A ({a['plan']['code_id']}) and with B ({b['plan']['code_id']})",
        "",
        "| step | reward A | reward B | B - A | loss A | loss B | B - A |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [dict(zip(job["steps"], zip(job["scores"], job["losses"], strict=True), strict=True)) for job in (a, b)]
    for step in sorted(set(rows[0]) | set(rows[1])):
        (score_a, loss_a), (score_b, loss_b) = (row.get(step, (None, None)) for row in rows)
        values = (score_a, score_b, _difference(score_a, score_b), loss_a, loss_b, _difference(loss_a, loss_b))
        page.append(f"| {step} | " + " | ".join(_shown(value, 4) for value in values) + " |")
    return page


def seconds(job: Mapping[str, Any]) -> float | None:
    """Seconds from Ray's start of a job to its end; None if Ray did not say."""
    ray = job["ray"] or {}
    if not ray.get("start_time") or not ray.get("end_time"):
        return None
    return float(ray["end_time"] - ray["start_time"]) / 1000


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """One test case per check."""
    failed = sum(not verdict.passed for verdict in verdicts)
    suite = ET.Element("testsuite", name="verl-regress verify", tests=str(len(verdicts)), failures=str(failed))
    for verdict in verdicts:
        case = ET.SubElement(suite, "testcase", classname="verify", name=f"{verdict.name}: {verdict.claim}")
        if not verdict.passed:
            ET.SubElement(case, "failure", message=verdict.problems[0]).text = "\n".join(verdict.problems)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
