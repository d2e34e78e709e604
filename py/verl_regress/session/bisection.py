"""A search for the commit that changed training: what it looks for, and what each commit that was tried says.

Its directory is `${SHARED_ROOT}/bisect/<time>/`. git chooses the commits (scripts/lib/bisect.bash); everything that was decided is
here, so a search that was interrupted goes on by telling git the same again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, RegressError, shown
from verl_regress.base.files import now, read_json, write_atomically
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.session import schedule, suites
from verl_regress.session.suites import Suite
from verl_regress.store.sessions import Session, all_of, new_directory
from verl_verdict import comparable, jobdir
from verl_verdict.diagnosis import counted, number
from verl_verdict.errors import BadInput as Unreadable
from verl_verdict.exact import ROUNDING
from verl_verdict.records import Run
from verl_verdict.verdicts import Word

GOOD, BAD, SKIP = "good", "bad", "skip"
ENDS, CONFIRM = "ends", "confirm"  # roles of sessions; that of a commit is its hash (scripts/lib/bisect.bash)
_DIFFERENT = (Word.REGRESSED.value, Word.CHANGED.value, Word.IMPROVED.value)
_EQUAL = (Word.IDENTICAL.value, Word.SAME.value)


@dataclass(frozen=True)
class Signature:
    """What tells a bad commit from a good one.

    `kind` is value: the metric's value at that step is nearer to `bad` than to `good`, or not finite if `bad` is not; failure: the
    run ends after `step`, as BAD does; verdict: the session's verdict on the case.
    """

    case: str
    kind: str
    step: int = 0
    metric: str = ""
    good: float = math.nan
    bad: float = math.nan

    def __str__(self) -> str:
        if self.kind == "value":
            return f"{self.case}, step {self.step}, {self.metric}: GOOD {number(self.good)}, BAD {number(self.bad)}"
        if self.kind == "failure":
            return f"{self.case}: BAD fails {_after(self.step)}, and GOOD does not"
        return f"{self.case}: BAD does not train as GOOD does, by the verdict on all its pairs"


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
    def suite(self) -> Suite:
        """The cases that are searched: the one of CASE, or all."""
        return suites.of_recorded(self.read("begin")["suite"])

    @property
    def knows_signature(self) -> bool:
        """Both ends were tried, and differ."""
        return (self.path / "signature.json").exists()

    @property
    def signature(self) -> Signature:
        """What it looks for, when both ends were tried."""
        return Signature(**{name: value for name, value in self.read("signature").items() if name != "time"})

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
        """The suite of that role's session: the confirmation trains both commits again."""
        content = dict(self.suite.content)
        if self.knows_signature:
            content["cases"] = _with_its_source(content["cases"], self.signature.case)
        return {**content, "title": self.title(role), "reuse": role != CONFIRM}


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


def found_at_the_ends(session: Session, case: str, metric: str) -> Signature:
    """What GOOD (A) and BAD (B) of a session that is over differ in.

    Raises BadInput if GOOD fails, if they do not differ, or not in `metric`; RegressError if the session does not tell.
    """
    if doubt := _doubt(session):
        raise RegressError(f"{doubt}: read {session.path}/report.md for what to fix, and start a new search.")
    report, evidence = read_json(session.path / "report.json") or {}, session.evidence()
    trained = [each.name for each in suites.of_recorded(evidence["begin"]["suite"]).cases]  # not their speed and memory
    cases = [each for each in report.get("cases", []) if each["case"] in trained and case in ("", each["case"])]
    differing = next((each for each in cases if each["word"] in _DIFFERENT), None)
    if differing is None:
        _need_good(evidence, [each["case"] for each in cases])
    if metric:
        chosen = differing or next(iter(cases), {"case": case})
        if chosen.get("deterministic") is False:
            raise BadInput(
                f"METRIC={shown(metric)} cannot be followed in {chosen['case']}, whose runs with GOOD do not repeat themselves: leave METRIC empty, and the verdict on all pairs decides."
            )
        return _of_metric(evidence, chosen["case"], metric)
    if differing is None:
        summary = "; ".join(f"{each['case']} is {each['word']}: {each['reason']}" for each in cases)
        if all(each["word"] in _EQUAL for each in cases):
            raise BadInput(
                f"BAD trains as GOOD does ({summary}), so there is nothing to find: name another range, or a CASE that shows the difference."
            )
        raise RegressError(
            f"It is unclear whether BAD differs from GOOD ({summary}): see {session.path}/report.md, or choose another CASE."
        )
    name, first = differing["case"], differing.get("first")
    failed = _failed_after(evidence, name)
    if failed is not None:
        return Signature(name, "failure", failed)
    if first is None or differing.get("deterministic") is False or not _is_finite(first["b"]):
        return Signature(name, "verdict")
    return Signature(name, "value", first["step"], first["metric"], first["a"], first["b"])


def _need_good(evidence: Mapping[str, Any], cases: Sequence[str]) -> None:
    """GOOD trains to the end. Raises BadInput if a run of it failed."""
    for case in cases:
        job = first_job(evidence, case, "A")
        failure = jobdir.read(job.path).failure if job else None
        if failure:
            raise BadInput(
                f"GOOD itself fails in {case} ({failure}), so nothing says what is bad: name a commit that trains to the end."
            )


def _of_metric(evidence: Mapping[str, Any], case: str, metric: str) -> Signature:
    """The signature that the user named: that metric, at the first step at which it differs."""
    good, bad = (_first_run(evidence, case, side).series.get(metric, {}) for side in "AB")
    if not good or not bad:
        lacks = " and ".join(side for side, values in (("GOOD", good), ("BAD", bad)) if not values)
        raise BadInput(
            f"METRIC={shown(metric)} does not appear in the run of {case} with {lacks}: name a metric of its metrics.jsonl."
        )
    for step in sorted(good.keys() & bad.keys()):
        is_news = math.isfinite(good[step]) and not math.isfinite(bad[step])
        if is_news or abs(good[step] - bad[step]) > ROUNDING * max(abs(good[step]), abs(bad[step])):
            return Signature(case, "value", step, metric, good[step], bad[step])
    raise BadInput(
        f"METRIC={shown(metric)} is the same with GOOD and BAD at steps {_range(good)} of {case}: name one that differs, or leave it empty."
    )


def _range(values: Mapping[int, float]) -> str:
    return f"{min(values)} to {max(values)}"


def first_job(evidence: Mapping[str, Any], case: str, side: str) -> JobDir | None:
    """The job of the first run of a side; None if it did not run."""
    jobs = schedule.runs_of(suites.of_recorded(evidence["begin"]["suite"]).case(case), side, evidence)
    return next((JobDir(Path(job["job_dir"])) for job in jobs.values()), None)


def _first_run(evidence: Mapping[str, Any], case: str, side: str) -> Run:
    """The first run of a side. Raises BadInput if it did not run."""
    job = first_job(evidence, case, side)
    if job is None:
        raise BadInput(f"The case {case} has no run with {'GOOD' if side == 'A' else 'BAD'}: see the session's report.")
    return jobdir.read(job.path)


def _failed_after(evidence: Mapping[str, Any], case: str) -> int | None:
    """The step after which BAD's run failed, where GOOD's did not; None if it did not fail."""
    first_b = schedule.first_runs(suites.of_recorded(evidence["begin"]["suite"]).case(case))[1]
    if schedule.refusal_of(first_b, evidence) is not None:
        return 0
    run = _first_run(evidence, case, "B")
    return run.last_step if run.failure else None


def of_job(signature: Signature, job: JobDir, good: JobDir) -> tuple[str, str]:
    """What a commit's job says: good, bad or skip, and why."""
    try:
        run, reference = jobdir.read(job.path), jobdir.read(good.path)
    except Unreadable as error:
        return SKIP, str(error)
    if other := comparable.facts(reference, run):
        return SKIP, f"it differs from GOOD in more than its code: {other[0]}"
    if signature.kind == "failure":
        return _of_end(signature, run)
    value = run.series.get(signature.metric, {}).get(signature.step)
    if value is None:
        return SKIP, f"its run did not record {signature.metric} at step {signature.step}{_ended(run)}"
    return of_value(signature, value)


def of_value(signature: Signature, value: float) -> tuple[str, str]:
    """Good or bad is the value that is nearer: other changes of the range may move both a little. BAD's may not be finite."""
    measured = f"{signature.metric} at step {signature.step} is {number(value)}"
    if not math.isfinite(signature.bad):
        is_good = math.isfinite(value)
        return (GOOD, f"{measured}, finite as with GOOD") if is_good else (BAD, f"{measured}, not finite as with BAD")
    to_good, to_bad = abs(value - signature.good), abs(value - signature.bad)
    if not math.isfinite(value) or to_good == to_bad:
        return SKIP, f"{measured}, which is neither nearer to GOOD nor to BAD"
    word, end, nearest = (GOOD, "GOOD", to_good) if to_good < to_bad else (BAD, "BAD", to_bad)
    return word, f"{measured}, {'as' if nearest == 0 else 'nearer to that'} with {end}"


def _of_end(signature: Signature, run: Run) -> tuple[str, str]:
    if run.unfinished:
        return SKIP, run.unfinished
    if not run.failure:
        return GOOD, f"it trains to the end (step {run.last_step})"
    word = BAD if run.last_step == signature.step else SKIP
    return word, f"it fails {_after(run.last_step)}: {run.failure}"


def of_refusal(signature: Signature, why: str) -> tuple[str, str]:
    """What it says that a commit cannot run at all: bad if that is how BAD fails."""
    return (BAD if signature.kind == "failure" and signature.step == 0 else SKIP), f"it does not run: {why}"


def of_session(signature: Signature, session: Session) -> tuple[str, str]:
    """What the verdict of a commit's session says."""
    if doubt := _doubt(session):
        return SKIP, doubt
    report = read_json(session.path / "report.json") or {}
    found = next((each for each in report.get("cases", []) if each["case"] == signature.case), None)
    if found is None:
        return SKIP, f"the session {session.path.name} has no verdict on {signature.case}"
    word = {**dict.fromkeys(_DIFFERENT, BAD), **dict.fromkeys(_EQUAL, GOOD)}.get(found["word"], SKIP)
    return word, f"{found['word']}: {found['reason']}"


def _doubt(session: Session) -> str:
    """Why its runs decide nothing; empty if no check of it failed."""
    failed = session.failed_checks()
    if not failed:
        return ""
    return f"{counted(failed, 'check')} of the session {session.path.name} failed, so its runs may not be of the code that was asked for"


def confirmed(signature: Signature, session: Session) -> tuple[bool, list[str]]:
    """Whether fresh runs of the parent (A) and of the commit (B) say good and bad, and what each said."""
    word, why = of_session(signature, session)
    if signature.kind == "verdict":
        return word == BAD, [f"commit against its parent: {why}"]
    evidence = session.evidence()
    case = suites.of_recorded(evidence["begin"]["suite"]).case(signature.case)
    refused = schedule.refusal_of(schedule.first_runs(case)[1], evidence)
    parent = first_job(evidence, signature.case, "A")
    said = []
    for side, name, expected in (("A", "parent", GOOD), ("B", "commit", BAD)):
        job = first_job(evidence, signature.case, side)
        if side == "B" and refused is not None:
            answer = of_refusal(signature, refused)
        elif job is None or parent is None:
            answer = (SKIP, "it did not run")
        else:
            answer = of_job(signature, job, parent)
        said.append((answer[0] == expected, f"{name}: {answer[0]}, {answer[1]}"))
    is_sure = not session.failed_checks() and all(each[0] for each in said)
    return is_sure, [each[1] for each in said] + [f"commit against its parent: {why}"]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _after(step: int) -> str:
    return f"after step {step}" if step else "before its first step"


def _ended(run: Run) -> str:
    why = run.failure or run.unfinished
    return f" ({why})" if why else ""
