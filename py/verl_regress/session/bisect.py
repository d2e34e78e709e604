"""`bisect begin | open | suite | session | signature | replay | known | try | decide | finish`: a search's steps, for scripts/62_bisect.sh."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import deps
from verl_regress.base import say
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import status
from verl_regress.session import bisection, schedule, suites
from verl_regress.session.bisection import Bisection
from verl_regress.store.sessions import Session, named, need_unfinished


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
        ("good-tree", "the tree of its folder verl"),
        ("bad-tree", "the tree of its folder verl"),
    ):
        begin.add_argument(f"--{option}", required=True, help=text)
    begin.add_argument("--case", default="", help="the suite's case; empty: the first one that differs")
    begin.add_argument("--metric", default="", help="the metric that tells; empty: the first one that differs")
    opened = steps.add_parser(
        "open", help="print an unfinished search's directory, repository and ends, each ended by a NUL"
    )
    opened.add_argument("--name", required=True, help="its name, or latest")
    opened.add_argument("--cluster", required=True)
    for name, text in (
        ("suite", "print the suite of a role's session"),
        ("session", "print whether a role's session is new, unfinished or over, and its name"),
        ("signature", "say what GOOD and BAD differ in"),
        ("replay", "print what is known of each commit, as git needs it"),
        ("known", "print what a commit's tree has said before; nothing if it was not tried"),
        (
            "try",
            "print how to try a commit: session or job, its id, JobSpec, seed, step, overrides, each ended by a NUL",
        ),
        ("decide", "record and print what a commit says"),
        ("finish", "write the report on the commit whose diff is on stdin"),
    ):
        step = steps.add_parser(name, help=text)
        step.add_argument("--search", type=Path, required=True)
    for name in ("suite", "session"):
        steps.choices[name].add_argument("--role", required=True)
    for name in ("known", "try", "decide", "finish"):
        steps.choices[name].add_argument("--commit", required=name != "finish", default="")
    for name in ("known", "decide"):
        steps.choices[name].add_argument("--tree", required=True, help="the tree of its folder verl; empty without one")
        steps.choices[name].add_argument("--subject", default="", help="the first line of its message")
    steps.choices["decide"].add_argument("--refused", default="", help="why it cannot run at all")
    steps.choices["decide"].add_argument("--job", default="", help="its job")
    steps.choices["finish"].add_argument("--parent", default="")
    steps.choices["finish"].add_argument("--about", default="", help="the commit's author, date and message")
    steps.choices["finish"].add_argument(
        "--possible", default="", help="the commits of which it is one, if skipped ones are left"
    )


def run(args: argparse.Namespace) -> int:
    """Run one step; `finish` returns the search's exit status: 0 for a commit that fresh runs confirm, 11 without one."""
    root = SharedRoot(args.shared_root)
    if args.step_name == "begin":
        return _begin(root, args)
    if args.step_name == "open":
        return _open(root, args)
    search = Bisection(args.search)
    if args.step_name == "suite":
        print(json.dumps(search.suite_for(args.role), indent=1))
    elif args.step_name == "session":
        print(_state(search.session(root, args.role)))
    elif args.step_name == "signature":
        _signature(root, search)
    elif args.step_name == "replay":
        print("".join(f"{said['word']} {commit}\n" for commit, said in search.tried.items()), end="")
    elif args.step_name == "known":
        _known(search, args)
    elif args.step_name == "try":
        _try(root, search, args.commit)
    elif args.step_name == "decide":
        _decide(root, search, args)
    else:
        deps.use("judge")  # only the head has them
        from verl_regress.session import bisect_report

        return bisect_report.finish(root, search, args, sys.stdin.read())
    return 0


def _begin(root: SharedRoot, args: argparse.Namespace) -> int:
    suite = suites.parse(sys.stdin.buffer.read().decode("utf-8", "replace"), args.name)
    content = bisection.of_case(suite, args.case)
    if args.good_tree == args.bad_tree:
        raise BadInput(
            f"The folder verl of GOOD={args.good[:12]} and of BAD={args.bad[:12]} is the same (tree {args.good_tree[:12] or 'none'}), so no commit between them can have changed training: name commits that differ in it."
        )
    kept = ("cluster", "repo", "good", "bad", "good_tree", "bad_tree", "case", "metric")
    search = bisection.Bisection.begin(
        root, {"suite": {"name": suite.name, "content": content}, **{name: getattr(args, name) for name in kept}}
    )
    print(search.path)
    return 0


def _open(root: SharedRoot, args: argparse.Namespace) -> int:
    """The search of that name; `latest` is the newest of this cluster. Raises BadInput if it is over, or not of this cluster."""
    every = [Bisection(path) for path in sorted(root.bisections.glob("*"), reverse=True)]
    mine = [each.path for each in every if each.cluster == args.cluster]
    search = Bisection(named(mine, "BISECT", args.name, f"a search of the cluster {args.cluster}", "a new one"))
    need_unfinished(search.path, "BISECT", args.name)
    begin = search.read("begin")
    sys.stdout.write("".join(f"{word}\0" for word in (search.path, begin["repo"], begin["good"], begin["bad"])))
    return 0


def _state(session: Session | None) -> str:
    if session is None:
        return "new"
    return f"{'over' if session.is_over else 'open'} {session.path.name}"


def _signature(root: SharedRoot, search: Bisection) -> None:
    """Record and print what tells GOOD from BAD. Raises BadInput if GOOD and BAD do not differ in it."""
    if not search.knows_signature:
        begin, session = search.read("begin"), search.session_of(root, bisection.ENDS)
        found = bisection.found_at_the_ends(session, begin["case"], begin["metric"])
        # JSON has no NaN.
        content = {
            name: value for name, value in asdict(found).items() if not (isinstance(value, float) and math.isnan(value))
        }
        search.write("signature", content)
    say.info(f"what tells them apart: {search.signature}")


def _known(search: Bisection, args: argparse.Namespace) -> None:
    """A commit whose folder verl is that of another one says what that one said."""
    begin, tried = search.read("begin"), search.tried
    same = {said["tree"]: (commit, said["word"]) for commit, said in reversed(tried.items()) if said["word"] != "skip"}
    same |= {begin["good_tree"]: (begin["good"], "good"), begin["bad_tree"]: (begin["bad"], "bad")}
    if args.tree in same:
        commit, word = same[args.tree]
        _record(search, args, word, f"its folder verl is that of {commit[:12]}", job="")


def _try(root: SharedRoot, search: Bisection, commit: str) -> None:
    """Where the case is exact one job is enough, as far as the step that tells; else a session with all its pairs."""
    signature = search.signature
    case = search.suite.case(signature.case)
    if signature.kind == "verdict" or case.continues is not None:
        sys.stdout.write("session\0")
        return
    number, api = 1, RayApi(nodes.ADDRESS)
    while (job := JobDir(root.jobs / _job_id(search, commit, number))).path.exists():
        now = status.judge(job, api.job(job.ray_id)).status
        if now is not status.Status.NOT_SUBMITTED:
            break
        number += 1
    run = schedule.first_runs(case)[1]
    words = [
        "job",
        "follow" if job.path.exists() else "submit",
        job.path.name,
        case.spec,
        str(run.seed),
        str(signature.step if signature.kind == "value" else 0),
        *schedule.overrides_of(run, search.suite, {}),
    ]
    sys.stdout.write("".join(f"{word}\0" for word in words))


def _job_id(search: Bisection, commit: str, number: int) -> str:
    return f"bisect-{commit[:12]}-{search.path.name}" + (f"-{number}" if number > 1 else "")


def _decide(root: SharedRoot, search: Bisection, args: argparse.Namespace) -> None:
    if args.refused:
        word, why = bisection.of_refusal(search.signature, args.refused)
    elif args.job:
        word, why = bisection.of_job(search.signature, JobDir(root.jobs / args.job), _job_of_good(root, search))
    else:
        session = search.session_of(root, args.commit)
        word, why = bisection.of_session(search.signature, session)
    _record(search, args, word, why, args.job)


def _record(search: Bisection, args: argparse.Namespace, word: str, why: str, job: str) -> None:
    """Keep, say and print what a commit is."""
    said = {"word": word, "why": why, "tree": args.tree, "job": job, "subject": args.subject}
    search.write(f"commit-{args.commit}", said)
    say.info(f"{args.commit[:12]} is {'skipped' if word == bisection.SKIP else word}: {why}")
    print(word)


def _job_of_good(root: SharedRoot, search: Bisection) -> JobDir:
    session = search.session_of(root, bisection.ENDS)
    job = bisection.first_job(session.evidence(), search.signature.case, "A")
    if job is None:
        raise RegressError(f"The session {session.path.name} has no run of GOOD any more: start a new search.")
    return job
