"""`bisect begin | open | ask | finish`: a search for the commit that changed training, for scripts/62_bisect.sh.

git chooses the commits (scripts/lib/bisect.bash). Each is B of a session whose A is GOOD, so that A's runs are taken over. What a session
says is kept in `${SHARED_ROOT}/bisect/<time>/`, by its role: `ends` for GOOD and BAD, `commit-HASH`, and `confirm` for the commit that was found.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import BadInput, Exit, RegressError, shown
from verl_regress.base.files import as_json, read_json, write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.session import suites
from verl_regress.store.sessions import Session, all_of, named, need_unfinished, new_directory
from verl_verdict.decide.diagnosis import counted

GOOD, BAD, SKIP = "good", "bad", "skip"
ENDS, CONFIRM, _COMMIT = "ends", "confirm", "commit-"
_HOW_BAD = {"identical": 0, "same": 0, "improved": 1, "changed": 1, "regressed": 2}  # what decides nothing is not in it
_BEGIN = ("cluster", "repo", "good", "bad", "case")  # case: empty for the first one that differs
_PATHS = ("search", "suite-file")
_LABELS = {ENDS: "what tells them apart", CONFIRM: "the commit against its parent"}
_SHOWN = 2000  # lines of the diff


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Words are printed with a NUL behind each."""
    steps = parser.add_subparsers(dest="step_name", required=True)
    for name, options, text in (
        ("begin", ("name", "suite-file", *_BEGIN), "make a search of the suite on stdin, print its directory"),
        ("open", ("name", "cluster"), "print an unfinished search's directory, repository and ends"),
        (
            "ask",
            ("search", "role", "subject", "refused"),
            "print what a role's session says; or new and its suite, or open and its name",
        ),
        ("finish", ("search", "parent", "about"), "write the report on the commit whose diff is on stdin"),
    ):
        step = steps.add_parser(name, help=text)
        for option in options:
            step.add_argument(f"--{option}", required=True, type=Path if option in _PATHS else str)
    steps.choices["finish"].add_argument("commits", nargs="+", help="the first bad one, or those of which it is one")


def run(args: argparse.Namespace) -> int:
    """Run one step; `finish` returns the search's exit status: 0 for a commit that fresh runs confirm, 11 without one."""
    root = SharedRoot(args.shared_root)
    if args.step_name == "finish":
        return _finish(root, Bisection(args.search), args, sys.stdin.read())
    if args.step_name == "begin":
        print(_begin(root, args))
    else:
        words = _open(root, args) if args.step_name == "open" else _ask(root, Bisection(args.search), args)
        sys.stdout.write("".join(f"{word}\0" for word in words))
    return 0


class Bisection(Session):
    """The directory of one search, which records as a session does."""

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

    @property
    def tried(self) -> dict[str, dict[str, Any]]:
        """What each commit said, by its hash, in the order in which they were tried."""
        every = self.evidence().items()
        found = {role.removeprefix(_COMMIT): said for role, said in every if role.startswith(_COMMIT)}
        return dict(sorted(found.items(), key=lambda each: str(each[1].get("time"))))

    def _title(self, role: str) -> str:
        return f"bisect {self.path.name}: {role}"


def _with_its_source(cases: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The case of that name, after the one that it continues."""
    source = cases[name].get("continues")
    return {**(_with_its_source(cases, source) if source else {}), name: cases[name]}


def _begin(root: SharedRoot, args: argparse.Namespace) -> Path:
    """A new search. Raises BadInput for a suite that cannot be used, or a case that it does not have."""
    suite = suites.parse(sys.stdin.buffer.read().decode("utf-8", "replace"), args.name, args.suite_file.parent)
    known = [case.name for case in suite.cases]
    if args.case not in ("", *known):
        raise BadInput(
            f"CASE={shown(args.case)} is not a case of the suite {suite.name}: use one of {', '.join(known)}, or leave it empty for the first one that differs."
        )
    search = Bisection(new_directory(root.bisections))
    search.evidence_dir.mkdir()
    search.write("begin", {"suite": suite.recorded(), **{name: getattr(args, name) for name in _BEGIN}})
    return search.path


def _open(root: SharedRoot, args: argparse.Namespace) -> tuple[str, ...]:
    """The search of that name; `latest` is the newest of this cluster. Raises BadInput if it is over, or not of this cluster."""
    every = [Bisection(path) for path in sorted(root.bisections.glob("*"), reverse=True)]
    mine = [each.path for each in every if each.begin_if_readable().get("cluster") == args.cluster]
    search = Bisection(named(mine, "BISECT", args.name, f"a search of the cluster {args.cluster}", "a new one"))
    need_unfinished(search.path, "BISECT", args.name)
    begin = search.begin_if_readable()
    return str(search.path), begin["repo"], begin["good"], begin["bad"]


def _ask(root: SharedRoot, search: Bisection, args: argparse.Namespace) -> tuple[str, ...]:
    """What the session of a role says, which is recorded; or what that session needs. Raises like `found_at_the_ends`."""
    role: str = args.role
    said = search.read(role)
    if said is None:
        session = search.session(root, role)
        if session is None and not args.refused:
            return "new", json.dumps(search.suite_for(role))
        if session is not None and not session.is_over:
            return "open", session.path.name
        if session is None:
            said = {"word": SKIP, "why": args.refused}
        elif role == ENDS:
            said = {"word": "differ", **found_at_the_ends(session, search.begin_if_readable()["case"])}
        else:
            word, why = said_of_commit(search.read(ENDS) or {}, session)
            said = {"word": word, "why": why, "session": session.path.name}
        said = {**said, "subject": args.subject}
        search.write(role, said)
    word = "skipped" if said["word"] == SKIP else said["word"]
    label = _LABELS.get(role) or f"{role.removeprefix(_COMMIT)[:12]} is {word}"
    say.info(f"{label}: {said['why']}")
    return (said["word"],)


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
            why = f"{each['case']}, {_where(each.get('first'))}{each['word']}: {each['reason']}"
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


def _where(first: Mapping[str, Any] | None) -> str:
    """Where a verdict's values first differ, as the beginning of a sentence; empty if it names no place."""
    if not first:
        return ""
    a, b = (float(first[side]) for side in "ab")  # a value that is not finite is a word
    return f"step {first['step']}, {first['metric']}: GOOD {a:.6g}, BAD {b:.6g}; "


def _failed_after(report: Mapping[str, Any], case: str) -> int | None:
    """How many steps B's first run made before it failed, 0 if verl refuses its config; None if it did not fail."""
    job = report["jobs"].get(f"{case}_b", {"steps": 0, "reason": "refused"})
    return job["steps"] if job["reason"] else None


def said_of_commit(ends: Mapping[str, Any], session: Session) -> tuple[str, str]:
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


def _finish(root: SharedRoot, search: Bisection, args: argparse.Namespace, diff: str) -> int:
    """Write the reports and say the answer; 0 for a commit that fresh runs confirm, 11 without one."""
    begin, ends, confirm = (search.read(name) or {} for name in ("begin", ENDS, CONFIRM))
    subject, *about = args.about.splitlines() or [""]
    short, lines = ", ".join(commit[:12] for commit in args.commits), list[str]()
    is_sure, runs = confirm.get("word") == BAD, "fresh runs of it and of its parent"
    if confirm:
        page = root.sessions / confirm["session"] / "report.html"
        lines = [f"{_LABELS[CONFIRM]}: {confirm['why']}", say.shown(f"their curves and code: {page}")]
        answer = f"the first bad commit seems to be {short} ({subject}), but {runs} do not confirm it"
    else:
        answer = f"not found: it is one of {len(args.commits)} commits, of which those in between could not be judged: {short}"
    if is_sure:
        answer = f"the first bad commit is {short} ({subject}); {runs} confirm it"
    report = {
        "found": args.commits[0] if confirm else None,
        "parent": args.parent or None,
        "about": args.about,
        "possible": [] if confirm else args.commits,
        "confirmed": is_sure,
        "said": lines,
        "signature": ends["why"],
        "answer": answer,
        **{name: begin[name] for name in ("repo", "good", "bad", "cluster")},
        "commits": search.tried,
    }
    rows = ((commit[:12], said["word"], said["why"], said["subject"]) for commit, said in search.tried.items())
    text = [
        f"# {answer}",
        "",
        *(f"- {line}" for line in (*about, *lines)),
        f"- {_LABELS[ENDS]}: {ends['why']}",
        f"- GOOD {begin['good']}, BAD {begin['bad']}, in {begin['repo']}",
        "",
        "| commit | is | because | subject |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
        "",
        *(["```diff", *diff.splitlines()[:_SHOWN], "```"] if diff else []),
    ]
    write_atomically(search.path / "report.md", "\n".join(text) + "\n")
    write_atomically(search.path / "report.json", as_json(report))  # the last one: the search is over
    print(answer, *lines[1:], say.shown(f"reports: {search.path}/report.md, report.json"), sep="\n")
    return int(Exit.SUCCEEDED if is_sure else Exit.INCONCLUSIVE)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
