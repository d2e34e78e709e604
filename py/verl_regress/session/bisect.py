"""`bisect begin | open | ask | finish`: a search's steps, for scripts/62_bisect.sh."""

import argparse
import json
import sys
from pathlib import Path

from verl_regress.base import say
from verl_regress.base.errors import BadInput, Exit, shown
from verl_regress.base.files import as_json, write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.session import bisection, suites
from verl_regress.session.bisection import Bisection
from verl_regress.store.sessions import named, need_unfinished

_BEGIN = ("cluster", "repo", "good", "bad", "case")  # case: empty for the first one that differs
_LABELS = {bisection.ENDS: "what tells them apart", bisection.CONFIRM: "the commit against its parent"}
_SHOWN = 2000  # lines of the diff


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Words are printed with a NUL behind each."""
    steps = parser.add_subparsers(dest="step_name", required=True)
    for name, options, text in (
        ("begin", ("name", *_BEGIN), "make a search of the suite on stdin, print its directory"),
        ("open", ("name", "cluster"), "print an unfinished search's directory, repository and ends"),
        ("ask", ("search", "role", "subject", "refused"), "print what a role's session says; or new and its suite, or open and its name"),
        ("finish", ("search", "parent", "about"), "write the report on the commit whose diff is on stdin"),
    ):  # fmt: skip
        step = steps.add_parser(name, help=text)
        for option in options:
            step.add_argument(f"--{option}", required=True, type=Path if option == "search" else str)
    steps.choices["finish"].add_argument("commits", nargs="+", help="the first bad one, or those of which it is one")


def run(args: argparse.Namespace) -> int:
    """Run one step; `finish` returns the search's exit status: 0 for a commit that fresh runs confirm, 11 without one."""
    root = SharedRoot(args.shared_root)
    if args.step_name == "finish":
        return _finish(root, Bisection(args.search), args, sys.stdin.read())
    if args.step_name == "begin":
        print(_begin(root, args).path)
    else:
        words = _open(root, args) if args.step_name == "open" else _ask(root, Bisection(args.search), args)
        sys.stdout.write("".join(f"{word}\0" for word in words))
    return 0


def _begin(root: SharedRoot, args: argparse.Namespace) -> Bisection:
    """A new search. Raises BadInput for a suite that cannot be used, or a case that it does not have."""
    suite = suites.parse(sys.stdin.buffer.read().decode("utf-8", "replace"), args.name)
    known = [case.name for case in suite.cases]
    if args.case not in ("", *known):
        raise BadInput(
            f"CASE={shown(args.case)} is not a case of the suite {suite.name}: use one of {', '.join(known)}, or leave it empty for the first one that differs."
        )
    return Bisection.create(root, {"suite": suite.recorded(), **{name: getattr(args, name) for name in _BEGIN}})


def _open(root: SharedRoot, args: argparse.Namespace) -> tuple[str, ...]:
    """The search of that name; `latest` is the newest of this cluster. Raises BadInput if it is over, or not of this cluster."""
    every = [Bisection(path) for path in sorted(root.bisections.glob("*"), reverse=True)]
    mine = [each.path for each in every if each.begin_if_readable().get("cluster") == args.cluster]
    search = Bisection(named(mine, "BISECT", args.name, f"a search of the cluster {args.cluster}", "a new one"))
    need_unfinished(search.path, "BISECT", args.name)
    begin = search.begin_if_readable()
    return str(search.path), begin["repo"], begin["good"], begin["bad"]


def _ask(root: SharedRoot, search: Bisection, args: argparse.Namespace) -> tuple[str, ...]:
    """What the session of a role says, which is recorded; or what that session needs. Raises like `bisection.found_at_the_ends`."""
    role: str = args.role
    said = search.read(role)
    if said is None:
        session = search.session(root, role)
        if session is None and not args.refused:
            return "new", json.dumps(search.suite_for(role))
        if session is not None and not session.is_over:
            return "open", session.path.name
        found = search.said_by(session, role) if session else {"word": bisection.SKIP, "why": args.refused}
        said = {**found, "subject": args.subject}
        search.write(role, said)
    word = "skipped" if said["word"] == bisection.SKIP else said["word"]
    label = _LABELS.get(role) or f"{role.removeprefix('commit-')[:12]} is {word}"
    say.info(f"{label}: {said['why']}")
    return (said["word"],)


def _finish(root: SharedRoot, search: Bisection, args: argparse.Namespace, diff: str) -> int:
    """Write the reports and say the answer; 0 for a commit that fresh runs confirm, 11 without one."""
    begin, ends, confirm = (search.read(name) or {} for name in ("begin", bisection.ENDS, bisection.CONFIRM))
    subject, *about = args.about.splitlines() or [""]
    short, lines = ", ".join(commit[:12] for commit in args.commits), list[str]()
    is_sure, runs = confirm.get("word") == bisection.BAD, "fresh runs of it and of its parent"
    if confirm:
        page = root.sessions / confirm["session"] / "report.html"
        lines = [f"{_LABELS[bisection.CONFIRM]}: {confirm['why']}", say.shown(f"their curves and code: {page}")]
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
        f"- {_LABELS[bisection.ENDS]}: {ends['why']}",
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
