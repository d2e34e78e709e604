"""`bisect begin | open | session | replay | decide | finish`: a search's steps, for scripts/62_bisect.sh."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from verl_regress.base import files, say
from verl_regress.base.errors import Exit
from verl_regress.base.files import write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.session import bisection, suites
from verl_regress.session.bisection import Bisection
from verl_regress.store.sessions import named, need_unfinished

_SHOWN = 2000  # lines of the diff


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every step but the first two takes the search's directory, which `begin` and `open` print."""
    steps = parser.add_subparsers(dest="step_name", required=True)
    begin = steps.add_parser("begin", help="make a search of the suite on stdin, print its directory")
    for option, text in (
        ("name", "the suite's file as the user knows it"),
        ("cluster", "the cluster"),
        ("repo", "the repository as the user named it"),
        ("good", "the commit that is good"),
        ("bad", "the commit that is bad"),
    ):
        begin.add_argument(f"--{option}", required=True, help=text)
    begin.add_argument("--case", default="", help="the suite's case; empty: the first one that differs")
    opened = steps.add_parser(
        "open", help="print an unfinished search's directory, repository and ends, each ended by a NUL"
    )
    opened.add_argument("--name", required=True, help="its name, or latest")
    opened.add_argument("--cluster", required=True)
    for name, text in (
        ("session", "print new and the suite of a role's session; or open, or over, and its name; each ended by a NUL"),
        ("replay", "say what GOOD and BAD differ in, and print what is known of each commit, as git needs it"),
        ("decide", "record and print what the session of a commit says"),
        ("finish", "write the report on the commit whose diff is on stdin"),
    ):
        step = steps.add_parser(name, help=text)
        step.add_argument("--search", type=Path, required=True)
    steps.choices["session"].add_argument("--role", required=True)
    steps.choices["decide"].add_argument("--commit", required=True)
    steps.choices["decide"].add_argument("--subject", default="", help="the first line of its message")
    steps.choices["decide"].add_argument("--refused", default="", help="why it has no session")
    finish = steps.choices["finish"]
    finish.add_argument("--commit", default="")
    finish.add_argument("--parent", default="")
    finish.add_argument("--about", default="", help="the commit's author, date and message")
    finish.add_argument("--possible", default="", help="the commits of which it is one, if skipped ones are left")


def run(args: argparse.Namespace) -> int:
    """Run one step; `finish` returns the search's exit status: 0 for a commit that fresh runs confirm, 11 without one."""
    root = SharedRoot(args.shared_root)
    if args.step_name == "begin":
        _begin(root, args)
    elif args.step_name == "open":
        _open(root, args)
    elif args.step_name == "session":
        _session(root, Bisection(args.search), args.role)
    elif args.step_name == "replay":
        _replay(root, Bisection(args.search))
    elif args.step_name == "decide":
        _decide(root, Bisection(args.search), args)
    else:
        return _finish(root, Bisection(args.search), args, sys.stdin.read())
    return 0


def _begin(root: SharedRoot, args: argparse.Namespace) -> None:
    suite = suites.parse(sys.stdin.buffer.read().decode("utf-8", "replace"), args.name)
    content = bisection.of_case(suite, args.case)
    kept = {name: getattr(args, name) for name in ("cluster", "repo", "good", "bad", "case")}
    print(Bisection.begin(root, {"suite": {"name": suite.name, "content": content}, **kept}).path)


def _open(root: SharedRoot, args: argparse.Namespace) -> None:
    """The search of that name; `latest` is the newest of this cluster. Raises BadInput if it is over, or not of this cluster."""
    every = [Bisection(path) for path in sorted(root.bisections.glob("*"), reverse=True)]
    mine = [each.path for each in every if each.cluster == args.cluster]
    search = Bisection(named(mine, "BISECT", args.name, f"a search of the cluster {args.cluster}", "a new one"))
    need_unfinished(search.path, "BISECT", args.name)
    begin = search.read("begin")
    sys.stdout.write("".join(f"{word}\0" for word in (search.path, begin["repo"], begin["good"], begin["bad"])))


def _session(root: SharedRoot, search: Bisection, role: str) -> None:
    session = search.session(root, role)
    words = (
        ("new", json.dumps(search.suite_for(role)))
        if session is None
        else ("over" if session.is_over else "open", session.path.name)
    )
    sys.stdout.write("".join(f"{word}\0" for word in words))


def _replay(root: SharedRoot, search: Bisection) -> None:
    """Raises BadInput if GOOD and BAD do not differ."""
    signature = search.read("signature")
    if not signature:
        signature = bisection.found_at_the_ends(search.session_of(root, bisection.ENDS), search.read("begin")["case"])
        search.write("signature", signature)
    say.info(f"what tells them apart: {signature['case']}, {signature['why']}")
    print("".join(f"{said['word']} {commit}\n" for commit, said in search.tried.items()), end="")


def _decide(root: SharedRoot, search: Bisection, args: argparse.Namespace) -> None:
    word, why, name = bisection.SKIP, args.refused, None
    if not args.refused:
        session = search.session_of(root, args.commit)
        word, why = bisection.of_session(search.read("signature"), session)
        name = session.path.name
    said = {"word": word, "why": why, "session": name, "subject": args.subject}
    search.write(f"commit-{args.commit}", said)
    say.info(f"{args.commit[:12]} is {'skipped' if word == bisection.SKIP else word}: {why}")
    print(word)


def _finish(root: SharedRoot, search: Bisection, args: argparse.Namespace, diff: str) -> int:
    """Write the reports and say the answer; 0 for a commit that fresh runs confirm, 11 without one."""
    begin, signature, possible = search.read("begin"), search.read("signature"), args.possible.split()
    subject, is_sure, lines = (args.about.splitlines() or [""])[0], False, []
    if args.commit:
        session = search.session_of(root, bisection.CONFIRM)
        word, why = bisection.of_session(signature, session)
        is_sure = word == bisection.BAD
        lines = [
            f"the commit against its parent: {why}",
            say.shown(f"their curves and code: {session.path}/report.html"),
        ]
        runs = "fresh runs of it and of its parent"
        if is_sure:
            answer = f"the first bad commit is {args.commit[:12]} ({subject}); {runs} confirm it"
        else:
            answer = f"the first bad commit seems to be {args.commit[:12]} ({subject}), but {runs} do not confirm it"
    else:
        answer = f"not found: it is one of {len(possible)} commits, of which those in between could not be judged: {', '.join(each[:12] for each in possible)}"
    report = {
        "search": str(search.path),
        "found": args.commit or None,
        "parent": args.parent or None,
        "about": args.about,
        "possible": possible,
        "confirmed": is_sure,
        "said": lines,
        "signature": f"{signature['case']}, {signature['why']}",
        "answer": answer,
        **{name: begin[name] for name in ("repo", "good", "bad", "cluster")},
        "commits": search.tried,
    }
    page = [
        f"# {answer}",
        "",
        *(f"- {line}" for line in (*args.about.splitlines()[1:], *lines)),
        f"- what tells them apart: {report['signature']}",
        f"- GOOD {begin['good']}, BAD {begin['bad']}, in {begin['repo']}",
        "",
        "| commit | is | because | subject |",
        "| --- | --- | --- | --- |",
        *(
            f"| {commit[:12]} | {said['word']} | {_cell(said['why'])} | {_cell(said['subject'])} |"
            for commit, said in search.tried.items()
        ),
        "",
        *(["```diff", *diff.splitlines()[:_SHOWN], "```"] if diff else []),
    ]
    write_atomically(search.path / "report.md", "\n".join(page) + "\n")
    write_atomically(search.path / "report.json", files.as_json(report))  # the last one: the search is over
    for line in lines:
        say.info(line)
    print(answer)
    print(say.shown(f"reports: {search.path}/report.md, report.json"))
    return int(Exit.SUCCEEDED if is_sure else Exit.INCONCLUSIVE)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
