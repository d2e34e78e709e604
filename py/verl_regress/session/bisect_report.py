"""The end of a search: report.md, report.json and report.html, with the commit, its diff, and what each commit said."""

from __future__ import annotations

import argparse
from typing import Any

from verl_regress.base import files, say
from verl_regress.base.errors import Exit
from verl_regress.base.files import write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.session import bisection, page, suites
from verl_regress.session.bisection import Bisection
from verl_verdict import page as web

_SHOWN = 2000  # lines of the diff


def finish(root: SharedRoot, search: Bisection, args: argparse.Namespace, diff: str) -> int:
    """Write the reports and say the answer; 0 for a commit that fresh runs confirm, 11 without one."""
    begin, tried = search.read("begin"), search.tried
    is_sure, said, cases = _confirmed(root, search) if args.commit else (False, [], [])
    lines = diff.splitlines()
    report = {
        "search": str(search.path),
        "found": args.commit or None,
        "parent": args.parent or None,
        "about": args.about,
        "possible": args.possible.split(),
        "confirmed": is_sure,
        "said": said,
        "signature": str(search.signature),
        "answer": _answer(args, is_sure),
        **{name: begin[name] for name in ("repo", "good", "bad", "cluster")},
        "commits": {
            commit: {name: each.get(name) for name in ("word", "why", "subject", "job")}
            for commit, each in tried.items()
        },
    }
    write_atomically(search.path / "report.md", "\n".join(_markdown(report, lines)) + "\n")
    write_atomically(search.path / "report.html", _html(report, lines, cases))
    write_atomically(search.path / "report.json", files.as_json(report))  # the last one: the search is over
    for line in said:
        say.info(line)
    print(report["answer"])
    print(say.shown(f"reports: {search.path}/report.md, report.html, report.json"))
    return int(Exit.SUCCEEDED if is_sure else Exit.INCONCLUSIVE)


def _confirmed(root: SharedRoot, search: Bisection) -> tuple[bool, list[str], list[web.Case]]:
    """Whether the fresh runs agree, what they said, and their curves."""
    from verl_regress.session import verdict

    session = search.session_of(root, bisection.CONFIRM)
    is_sure, said = bisection.confirmed(search.signature, session)
    evidence = session.evidence()
    found = verdict.of_session(evidence)
    return (
        is_sure,
        said,
        [page.case_of(session, case, evidence, found) for case in suites.of_recorded(evidence["begin"]["suite"]).cases],
    )


def _answer(args: argparse.Namespace, is_sure: bool) -> str:
    subject = (args.about.splitlines() or [""])[0]
    if not args.commit:
        return f"not found: it is one of {len(args.possible.split())} commits, of which those in between could not be judged: {', '.join(each[:12] for each in args.possible.split())}"
    if is_sure:
        return f"the first bad commit is {args.commit[:12]} ({subject}); fresh runs of it and of its parent confirm it"
    return f"the first bad commit seems to be {args.commit[:12]} ({subject}), but fresh runs of it and of its parent do not confirm it"


def _markdown(report: dict[str, Any], diff: list[str]) -> list[str]:
    rows = [
        f"| {commit[:12]} | {said['word']} | {_cell(said['why'])} | {_cell(said['subject'] or '')} |"
        for commit, said in report["commits"].items()
    ]
    code = ["```diff", *diff[:_SHOWN], "```"] if diff else []
    return [
        f"# {report['answer']}",
        "",
        *(f"- {line}" for line in (*report["about"].splitlines()[1:], *report["said"])),
        f"- what tells them apart: {report['signature']}",
        f"- GOOD {report['good']}, BAD {report['bad']}, in {report['repo']}",
        "",
        "| commit | is | because | subject |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        *code,
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _html(report: dict[str, Any], diff: list[str], cases: list[web.Case]) -> str:
    about = report["about"].splitlines()
    return web.html(
        web.Page(
            answer=report["answer"],
            word="changed" if report["confirmed"] else "inconclusive",
            facts={
                "what tells them apart": report["signature"],
                "GOOD": report["good"],
                "BAD": report["bad"],
                "repository": report["repo"],
                **(
                    {
                        "commit": report["found"],
                        "A, its parent": report["parent"] or "unknown",
                        "message": " ".join(about[:1]),
                        "author": " ".join(about[1:3]),
                    }
                    if report["found"]
                    else {}
                ),
            },
            cases=cases,
            tried=[
                web.Check(said["word"], f"{commit[:12]} {said['subject'] or ''}", said["why"])
                for commit, said in report["commits"].items()
            ],
            remarks=report["said"],
            code=diff[:_SHOWN],
            code_note="" if len(diff) <= _SHOWN else f"The diff is cut after {_SHOWN} of {len(diff)} lines.",
        )
    )
