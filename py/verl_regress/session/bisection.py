"""A search for the commit that changed training: its directory `${SHARED_ROOT}/bisect/<time>/`, and what each of its sessions says.

git chooses the commits (scripts/lib/bisect.bash). Each is B of a session whose A is GOOD, so that A's runs are taken over. What a session
says is kept here, by its role: `ends` for GOOD and BAD, `commit-HASH`, and `confirm` for the commit that was found.
"""

from collections.abc import Mapping
from typing import Any

from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.files import read_json
from verl_regress.base.layout import SharedRoot
from verl_regress.store.sessions import Session, all_of, new_directory
from verl_verdict.diagnosis import counted

GOOD, BAD, SKIP, DIFFER = "good", "bad", "skip", "differ"
ENDS, CONFIRM, _COMMIT = "ends", "confirm", "commit-"
_HOW_BAD = {"identical": 0, "same": 0, "improved": 1, "changed": 1, "regressed": 2}  # what decides nothing is not in it


class Bisection(Session):
    """The directory of one search, which records as a session does."""

    @classmethod
    def create(cls, root: SharedRoot, content: Mapping[str, Any]) -> "Bisection":
        """Make the directory of a new search, named after the time (UTC)."""
        search = cls(new_directory(root.bisections))
        search.evidence_dir.mkdir()
        search.write("begin", content)
        return search

    @property
    def tried(self) -> dict[str, dict[str, Any]]:
        """What each commit said, by its hash, in the order in which they were tried."""
        every = self.evidence().items()
        found = {role.removeprefix(_COMMIT): said for role, said in every if role.startswith(_COMMIT)}
        return dict(sorted(found.items(), key=lambda each: str(each[1].get("time"))))

    def _title(self, role: str) -> str:
        return f"bisect {self.path.name}: {role}"

    def session(self, root: SharedRoot, role: str) -> Session | None:
        """The session of that role, which has its title; None before it began."""
        for session in all_of(root):
            suite = session.begin_if_readable().get("suite") or {}
            if (suite.get("content") or {}).get("title") == self._title(role):
                return session
        return None

    def suite_for(self, role: str) -> dict[str, Any]:
        """The suite of that role's session, without speed and memory; the confirmation trains both commits again."""
        begin = self.begin_if_readable()
        content, name = begin["suite"]["content"], (self.read(ENDS) or begin)["case"]
        cases = _with_its_source(content["cases"], name) if name else content["cases"]
        cases = {name: {**case, "speed": False, "memory": False} for name, case in cases.items()}
        return {**content, "cases": cases, "title": self._title(role), "reuse": role != CONFIRM}

    def said_by(self, session: Session, role: str) -> dict[str, Any]:
        """What the session of that role, which is over, says: a `word` and `why`. Raises like `found_at_the_ends`."""
        if role == ENDS:
            return {"word": DIFFER, **found_at_the_ends(session, self.begin_if_readable()["case"])}
        word, why = of_session(self.read(ENDS) or {}, session)
        return {"word": word, "why": why, "session": session.path.name}


def _with_its_source(cases: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The case of that name, after the one that it continues."""
    source = cases[name].get("continues")
    return {**(_with_its_source(cases, source) if source else {}), name: cases[name]}


def found_at_the_ends(session: Session, case: str) -> dict[str, Any]:
    """What GOOD (A) and BAD (B) of a session that is over differ in: `case`, `how_bad` BAD is, the step after which it fails (`failed`), and
    `why` in words.

    Raises BadInput if GOOD fails, or if they do not differ; RegressError if the session does not tell.
    """
    if doubt := _doubt(session):
        raise RegressError(f"{doubt}: read {session.path}/report.md for what to fix, and start a new search.")
    report = read_json(session.path / "report.json") or {}
    cases = [each for each in report["cases"] if case in ("", each["case"])]
    for each in cases:
        if how_bad := _HOW_BAD.get(each["word"], 0):
            where, first = "", each.get("first")
            if first:
                a, b = (float(first[side]) for side in "ab")  # a value that is not finite is a word
                where = f"step {first['step']}, {first['metric']}: GOOD {a:.6g}, BAD {b:.6g}; "
            why = f"{each['case']}, {where}{each['word']}: {each['reason']}"
            return {"case": each["case"], "how_bad": how_bad, "failed": _failed_after(report, each["case"]), "why": why}
    for each in cases:
        if reason := (report["jobs"].get(f"{each['case']}_a") or {}).get("reason"):
            raise BadInput(
                f"GOOD itself fails in {each['case']} ({reason}), so nothing says what is bad: name a commit that trains to the end."
            )
    summary = "; ".join(f"{each['case']} is {each['word']}: {each['reason']}" for each in cases)
    if all(each["word"] in _HOW_BAD for each in cases):
        raise BadInput(
            f"BAD trains as GOOD does ({summary}), so there is nothing to find: name another range, or a CASE that shows the difference."
        )
    raise RegressError(
        f"It is unclear whether BAD differs from GOOD ({summary}): see {session.path}/report.md, or choose another CASE."
    )


def _failed_after(report: Mapping[str, Any], case: str) -> int | None:
    """How many steps B's first run made before it failed, 0 if verl refuses its config; None if it did not fail."""
    job = report["jobs"].get(f"{case}_b", {"steps": 0, "reason": "refused"})
    return job["steps"] if job["reason"] else None


def of_session(ends: Mapping[str, Any], session: Session) -> tuple[str, str]:
    """What the session of a commit (B) says: good, bad or skip, and why.

    It is bad if its verdict is at least as bad as BAD's. Where BAD fails, a commit is bad that fails after the same step, and good if
    it trains to the end; any other failure decides nothing.
    """
    if doubt := _doubt(session):
        return SKIP, doubt
    report = read_json(session.path / "report.json") or {}
    found = next(each for each in report["cases"] if each["case"] == ends["case"])
    why, how_bad = f"{found['word']}: {found['reason']}", _HOW_BAD.get(found["word"])
    failed = _failed_after(report, ends["case"])
    if how_bad is None or failed not in (None, ends["failed"]):
        return SKIP, why
    is_bad = how_bad >= ends["how_bad"] if ends["failed"] is None else failed is not None
    return BAD if is_bad else GOOD, why


def _doubt(session: Session) -> str:
    """Why its runs decide nothing; empty if no check of it failed."""
    failed, name = session.failed_checks(), session.path.name
    so = "so its runs may not be of the code that was asked for"
    return f"{counted(failed, 'check')} of the session {name} failed, {so}" if failed else ""
