"""`verify suite | begin | open | canary | next | record | refused | search | search-node | judge`: a session's steps, for scripts/60_verify.sh."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from functools import partial
from pathlib import Path

import deps
from verl_regress.base import say
from verl_regress.base.errors import BadInput, Exit, RegressError
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import find, status
from verl_regress.session import checks, evidence, schedule, suites
from verl_regress.session.schedule import Run
from verl_regress.session.suites import Suite
from verl_regress.store import snapshot
from verl_regress.store.removal import uncollected
from verl_regress.store.sessions import Session, all_of, named, need_unfinished

_LOSSES = 2  # how often a run is repeated because it was stopped or lost a node


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every step but the first three takes the session's directory, which `begin` and `open` print."""
    steps = parser.add_subparsers(dest="step", required=True)
    suite = steps.add_parser(
        "suite", help="check the suite on stdin, print the JobSpec files that it needs, each ended by a NUL"
    )
    begin = steps.add_parser("begin", help="make a session of the suite on stdin, print its directory")
    for each in (suite, begin):
        each.add_argument("--name", required=True, help="the suite's file as the user knows it")
        each.add_argument("--only", default="", help="checks to make, separated by commas; empty: all, and the verdict")
    begin.add_argument("--profile", required=True)
    begin.add_argument("--cluster", required=True)
    begin.add_argument("--code-a", required=True, help="the code id of A")
    begin.add_argument("--code-b", required=True, help="the code id of B")
    opened = steps.add_parser("open", help="print an unfinished session's directory, A and B, each ended by a NUL")
    opened.add_argument("--name", required=True, help="its name, or latest")
    opened.add_argument("--cluster", required=True)
    for name, text in (
        ("canary", "print the secret that the session's jobs get"),
        (
            "next",
            "print the next run: its name, submit or follow, JobSpec, A or B, submission id, seed, 1 if perturbed, overrides, each ended by a NUL",
        ),
        ("record", "gather the evidence of a job that has ended"),
        ("refused", "keep why verl refused the config of a run of B (stdin) that it takes with A"),
        ("search", "search the shared root and Ray's answers for the session's secret and Ray's token"),
        ("search-node", "search this node for them"),
        ("judge", "gather the rest, make every check and every verdict, write the reports"),
    ):
        step = steps.add_parser(name, help=text)
        step.add_argument("--session", type=Path, required=True)
    for each in (begin, steps.choices["next"], steps.choices["judge"]):
        each.add_argument("--budget", type=int, help="the most runs of this session")
    for name in ("record", "refused"):
        steps.choices[name].add_argument("--name", required=True)
    steps.choices["record"].add_argument("--job", required=True)
    steps.choices["record"].add_argument("--outcome", type=int, default=0, help="the exit status of following it")
    steps.choices["record"].add_argument("--image", default="", help="the digest of the nodes' image, if they have one")
    steps.choices["search-node"].add_argument("--node", required=True, help="this node's name")
    steps.choices["judge"].add_argument("--json", action="store_true", help="print report.json instead of the table")
    steps.choices["judge"].add_argument("--allow", default="", help="verdicts that exit with 0, separated by commas")


def run(args: argparse.Namespace) -> int:
    """Run one step; `judge` returns the session's exit status: 9 if a check failed, else what the verdicts say."""
    root, api = SharedRoot(args.shared_root), RayApi(nodes.ADDRESS)
    if args.step == "suite":
        sys.stdout.write("".join(f"{spec}\0" for spec in _suite(args).specs))
        return 0
    if args.step == "begin":
        return _begin(root, args)
    if args.step == "open":
        return _open(root, args)
    session = Session(args.session)
    deps.use("judge")  # only the head has them
    if args.step == "canary":
        print(session.canary())
    elif args.step == "next":
        _next(root, api, session, args.budget)
    elif args.step == "record":
        _record(root, api, session, args)
    elif args.step == "refused":
        _need_code(root, session, "B")
        session.write(f"refused-{args.name}", {"reason": sys.stdin.read().strip()})
    elif args.step == "search":
        known = session.evidence()
        recorded = [job["submission_id"] for job in checks.own_jobs(known).values()]
        session.write("canary", evidence.search(root, api, known["begin"]["cluster"], session, recorded))
    elif args.step == "search-node":
        session.write(f"canary-{args.node}", evidence.search_here(session))
    else:
        return _judge(root, api, session, args)
    return 0


def _suite(args: argparse.Namespace) -> Suite:
    """The suite on stdin. Raises BadInput for one that cannot be used, or that has no run for a check in ONLY."""
    suite = suites.parse(sys.stdin.buffer.read().decode("utf-8", "replace"), args.name)
    for check in checks.CHECKS:
        if check.name in _chosen(args) and check.runs(suite) is None:
            raise BadInput(
                f"ONLY={check.name} checks nothing in the suite {args.name}, where no case continues another one: leave it out."
            )
    return suite


def _begin(root: SharedRoot, args: argparse.Namespace) -> int:
    suite = _suite(args)
    codes = {"A": args.code_a, "B": args.code_b}
    records = {side: snapshot.load(root, code, f"CODE_{side}") for side, code in codes.items()}
    for side, code in codes.items():
        snapshot.need_whole(root.snapshots / code, records[side], f"CODE_{side}={code}")
    with uncollected(root):  # `make gc` keeps what a session has recorded
        session = Session.begin(root)
        session.write(
            "begin",
            {
                "profile": args.profile,
                "cluster": args.cluster,
                "only": sorted(_chosen(args)),
                "suite": suite.recorded(),
                "codes": codes,
                "trees": {side: record["tree_sha256"] for side, record in records.items()},
                "sources": {side: record["source"] for side, record in records.items()},
            },
        )
    if not args.only:
        most = min(sum(case.most_runs for case in suite.cases), args.budget or sys.maxsize)
        least = min(2 * len(suite.cases), most)
        reused = ", less those of A that earlier sessions made" if suite.reuse else ""
        say.info(f"this session makes {least} to {most} runs{reused}")
    print(session.path)
    return 0


def _open(root: SharedRoot, args: argparse.Namespace) -> int:
    """The session of that name; `latest` is the newest of this cluster. Raises BadInput if it is over or not of this cluster."""
    mine = [each.path for each in all_of(root) if each.begin_if_readable().get("cluster") == args.cluster]
    session = Session(named(mine, "SESSION", args.name, f"a session of the cluster {args.cluster}", "a new one"))
    need_unfinished(session.path, "SESSION", args.name)
    begin = session.read("begin") or {}
    codes = begin["codes"]
    sys.stdout.write("".join(f"{word}\0" for word in (session.path, codes["A"], codes["B"])))
    return 0


def _chosen(args: argparse.Namespace) -> set[str]:
    return set(args.only.replace(",", " ").split())


def _next(root: SharedRoot, api: RayApi, session: Session, budget: int | None) -> None:
    """Print the next run's words; nothing if none is lacking, or the budget is used up. Earlier runs of A are taken over."""
    from verl_regress.session import reuse, verdict  # here, because numpy and scipy take half a second to load

    while True:
        known = session.evidence()
        suite, only = suites.of_recorded(known["begin"]["suite"]), set(known["begin"]["only"])
        runs = checks.runs_for(suite, only) if only else None
        following = schedule.next_run(suite, known, partial(verdict.wants, evidence=known), runs)
        if following is None:
            return
        case = suite.case(following.case)
        may_reuse = following.side == "A" and suite.reuse and not only
        earlier = reuse.earlier_run_of_a(root, session, case, following) if may_reuse else None
        if earlier is not None:
            before, job = earlier
            session.write_job(following.name, {**job, "reused_from": before.path.name})
            say.skip(f"{following.name} (the run {job['submission_id']} of the session {before.path.name} is the same)")
            continue
        if budget is not None and schedule.spent(known) >= budget:
            say.info(f"BUDGET={budget} runs are used up: the verdict is about the runs made so far")
            return
        if may_reuse and (changed := reuse.changed_inputs(root, session, case, following)):
            say.info(f"{following.name} runs again: since {changed[0]} ran, {' and '.join(changed[1])} changed")
        _print(root, api, session, suite, following)
        return


def _print(root: SharedRoot, api: RayApi, session: Session, suite: Suite, following: Run) -> None:
    """The words of a run. A job of it that exists is followed, unless Ray never had it or it was lost: then another one is submitted."""
    number = 1
    while (job := JobDir(root.jobs / _job_id(session, following, number))).path.exists() and _is_void(
        job, api, session
    ):
        number += 1
    if not job.path.exists():
        _need_code(root, session, following.side)
    words = [
        following.name,
        "follow" if job.path.exists() else "submit",
        suite.case(following.case).spec,
        following.side,
        job.path.name,
        str(following.seed),
        "1" if following.perturbed else "",
        *schedule.overrides_of(following, suite, session.evidence()),
    ]
    sys.stdout.write("".join(f"{word}\0" for word in words))


def _need_code(root: SharedRoot, session: Session, side: str) -> None:
    """The snapshot of that side is the one that the session began with: what goes wrong without it says nothing about the code."""
    begin = session.read("begin") or {}
    record = {"tree_sha256": begin["trees"][side], "source": begin.get("sources", {}).get(side, "…")}
    target, then = root.snapshots / begin["codes"][side], ", and continue the session"
    named = f"The snapshot {target.name}"
    snapshot.need_whole(target, record, named, since="the session began", then=then, error=RegressError)


def _job_id(session: Session, following: Run, number: int) -> str:
    """A session's jobs have ids of their own, so that an interrupted session finds them again."""
    return f"{following.name.replace('_', '-')}-{session.path.name}" + (f"-{number}" if number > 1 else "")


def _is_void(job: JobDir, api: RayApi, session: Session) -> bool:
    """The job is over and says nothing about the run."""
    was_refused = status.judge(job, api.job(job.ray_id)).status is status.Status.NOT_SUBMITTED
    return was_refused or session.read(f"lost-{job.submission_id}") is not None


def _record(root: SharedRoot, api: RayApi, session: Session, args: argparse.Namespace) -> None:
    """The evidence of a run's job.

    One that was stopped, or lost a node, says nothing about the code: the run is repeated, twice at most. So is one that outlived its
    head, because half of its evidence went with that. One that failed after its snapshot was removed or changed says nothing
    either: then the user must act first.
    """
    job = find.find(root, args.job)
    ray = api.job(job.ray_id)
    now = status.judge(job, ray)
    if now.status.exit is None:
        raise RegressError(
            f"The job {args.job} of {args.name} is {now.shown}, and is recorded only when it is over: wait for that, then continue with 'make verify SESSION={session.path.name}'."
        )
    known = session.evidence()
    losses = sum(name.startswith("lost-") and each["run"] == args.name for name, each in known.items())
    # The head that is there now does not know it, and the one before went away before it saw the end.
    outlived = ray is None and (job.read_state("observed") or {}).get("status") in ("PENDING", "RUNNING")
    if (outlived or args.outcome in (Exit.STOPPED, Exit.LOST, Exit.NOT_SCHEDULABLE)) and losses < _LOSSES:
        session.write(f"lost-{args.job}", {"run": args.name, "outcome": args.outcome})
        what = "lost" if outlived or args.outcome == Exit.LOST else "stopped"
        say.info(f"{args.name}: {args.job} was {what}, which says nothing about the code: the run is repeated")
        return
    if args.outcome in (Exit.JOB_FAILED, Exit.STALLED):
        try:
            _need_code(root, session, schedule.side_of(args.name))
        except RegressError:
            session.write(f"lost-{args.job}", {"run": args.name, "outcome": args.outcome})
            raise
    more = {
        "artefacts": evidence.artefact_hashes(job),
        "image": args.image or None,
        "stalled": args.outcome == Exit.STALLED,
    }
    known = (session.read("used") or {}).get("artefacts", {})
    session.write("used", {"artefacts": evidence.read_by(job) | known})  # as the first job that used it
    session.write_job(args.name, {**evidence.job(job, api), **more})


def _judge(root: SharedRoot, api: RayApi, session: Session, args: argparse.Namespace) -> int:
    from verl_regress.session import report, verdict  # as above
    from verl_verdict.verdicts import Word

    gathered = session.evidence()
    used = list(gathered.get("used", {}).get("artefacts", {}))
    end = {
        "nodes": evidence.nodes(api),
        "digests": evidence.job_digests(root, [job["submission_id"] for job in checks.own_jobs(gathered).values()]),
        "prepared": {path: evidence.prepared(path) for path in used},
        "artefacts": evidence.artefacts(root, used),
    }
    with contextlib.suppress(OSError):  # a full disk must not hide the answer; writing the reports reports it
        session.write("end", end)
    gathered, only = {**gathered, "end": end}, set(gathered["begin"]["only"])
    outcome = report.Outcome(
        session,
        gathered,
        checks.judge(gathered, only),
        [] if only else verdict.of_session(gathered, args.budget),
        [Word(word) for word in args.allow.replace(",", " ").split()],
    )
    as_json = json.dumps(report.as_json(outcome), indent=2, ensure_ascii=False)
    print(as_json if args.json else say.shown("\n".join(report.text(outcome))), flush=True)
    try:
        report.write(outcome)
    except OSError as error:
        say.error(
            f"The reports of the session {session.path.name} are not written ({error}): fix that, then 'make verify SESSION={session.path.name}' writes them."
        )
        return outcome.status or Exit.OWN_ERROR
    if not args.json:
        print(say.shown(f"reports: {session.path}/report.md, report.html, report.json, junit.xml"))
    return outcome.status
