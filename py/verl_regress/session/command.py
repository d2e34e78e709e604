"""`verify begin | prepared | next | record | search | search-node | judge`: a session's steps, for scripts/60_verify.sh."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import BadInput, Exit
from verl_regress.base.layout import SharedRoot
from verl_regress.cluster import nodes, ray_api
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find
from verl_regress.session import checks, evidence, report
from verl_regress.store.sessions import Session, jobs_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every step but the first takes the session's directory, which `begin` prints."""
    steps = parser.add_subparsers(dest="step", required=True)
    begin = steps.add_parser("begin", help="make a session, keep what there is before it")
    begin.add_argument("--profile", required=True)
    begin.add_argument("--cluster", required=True)
    begin.add_argument("--head-identity", required=True, help="the head's container id, as its engine says")
    begin.add_argument("--head-address", required=True)
    begin.add_argument("--code-a", required=True, help="the code id of A")
    begin.add_argument("--code-b", required=True, help="the code id of B")
    begin.add_argument("--only", default="", help="lines to check, separated by commas; empty: all")
    for name, text in (
        ("prepared", "keep what the second prepare said (stdin) and left"),
        ("next", "print the next job: its name, workload, A or B, and overrides, each ended by a NUL"),
        ("record", "gather the evidence of a job that has ended"),
        ("search", "search the shared root and Ray's answers for the session's secret (stdin)"),
        ("search-node", "search this node for it"),
        ("judge", "gather the rest, judge every line, write the reports"),
    ):
        step = steps.add_parser(name, help=text)
        step.add_argument("--session", type=Path, required=True)
    steps.choices["record"].add_argument("--name", required=True)
    steps.choices["record"].add_argument("--job", required=True)
    steps.choices["search-node"].add_argument("--node", required=True, help="this node's name")
    steps.choices["judge"].add_argument("--json", action="store_true", help="print report.json instead of the table")


def run(args: argparse.Namespace) -> int:
    """Run one step; `judge` returns 9 if a check fails."""
    root, api = SharedRoot(args.shared_root), RayApi(nodes.ADDRESS)
    if args.step == "begin":
        return _begin(root, api, args)
    session = Session(args.session)
    if args.step == "prepared":
        session.write("prepare", {"log": sys.stdin.read(), "artefacts": evidence.artefacts(root)})
    elif args.step == "next":
        _next(session)
    elif args.step == "record":
        session.write(f"job-{args.name}", evidence.job(find.find(root, args.job), api))
    elif args.step == "search":
        session.write("canary", _search(root, api, session, sys.stdin.read()))
    elif args.step == "search-node":
        session.write(f"canary-{args.node}", evidence.canary_search_here(sys.stdin.read()))
    else:
        return _judge(root, api, session, print_json=args.json)
    return 0


def chosen(only: str) -> set[str]:
    """The names in ONLY. Raises BadInput for an unknown name."""
    names = {name for name in only.replace(",", " ").split() if name}
    known = [check.name for check in checks.CHECKS]
    for name in sorted(names):
        if name not in known:
            raise BadInput(f"ONLY={name} is not a check of verify: use one or more of {', '.join(known)}.")
    return names


def _begin(root: SharedRoot, api: RayApi, args: argparse.Namespace) -> int:
    only = chosen(args.only)
    table = evidence.nodes(api)
    session = Session.begin(root)
    session.write(
        "begin",
        {
            "profile": args.profile,
            "cluster": args.cluster,
            "only": sorted(only),
            "codes": {"A": args.code_a, "B": args.code_b},
            "head": {"identity": args.head_identity, "address": args.head_address},
            "nodes": table,
            "digests": evidence.job_digests(root),
            "artefacts": evidence.artefacts(root),
        },
    )
    print(session.path)
    return 0


def _only(session: Session) -> set[str]:
    return set((session.read("begin") or {}).get("only", []))


def _next(session: Session) -> None:
    only = _only(session)
    wanted = {name for check in checks.CHECKS if not only or check.name in only for name in check.jobs}
    job = session.next_job(wanted)
    if job is not None:
        words = [job.name, job.workload, job.code, *session.overrides_of(job)]
        sys.stdout.write("".join(f"{word}\0" for word in words))


def _search(root: SharedRoot, api: RayApi, session: Session, canary: str) -> dict[str, Any]:
    recorded = [job["submission_id"] for job in jobs_of(session.evidence()).values()]
    cluster = (session.read("begin") or {})["cluster"]
    return evidence.canary_search(root, api, cluster, session.path, recorded, canary)


def _judge(root: SharedRoot, api: RayApi, session: Session, *, print_json: bool) -> int:
    before = session.read("begin") or {}
    recorded = [job["submission_id"] for job in jobs_of(session.evidence()).values()]
    token = ray_api.token() or ""
    session.write(
        "end",
        {
            "nodes": evidence.nodes(api),
            "digests": evidence.job_digests(root, [*before["digests"], *recorded]),
            "token": evidence.token_search(root, api, recorded, token),
        },
    )
    gathered = session.evidence()
    verdicts = checks.judge(gathered, _only(session))
    report.write(session, gathered, verdicts)
    if print_json:
        print(json.dumps(report.as_json(session, gathered, verdicts), indent=2, ensure_ascii=False))
    else:
        reports = f"reports: {session.path}/report.md, report.json, junit.xml"
        print(say.shown("\n".join([*report.table(verdicts), *report.about_packages(gathered), reports])))
    return 0 if verdicts and all(verdict.passed for verdict in verdicts) else int(Exit.CHECK_FAILED)
