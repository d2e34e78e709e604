"""`verify suite | open | run`: a regression session, for scripts/60_verify.sh."""

import argparse
import contextlib
import json
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import deps
from verl_regress.base import files, lock, pulse, say
from verl_regress.base.errors import BadInput, Exit, RegressError
from verl_regress.base.knobs import Knobs
from verl_regress.base.layout import SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import watch
from verl_regress.plan.request import Request
from verl_regress.secrets import secret_files
from verl_regress.session import checks, composition, evidence, replay, schedule, suites
from verl_regress.session.driver import SessionDriver
from verl_regress.session.schedule import ScheduledRun
from verl_regress.session.suites import Suite
from verl_regress.store import snapshot
from verl_regress.store.retention import uncollected
from verl_regress.store.sessions import Session, all_of, named, need_unfinished
from verl_regress.submit import submit

_SUITE = "suite"  # a member of the stream
_SILENCE = 4.5  # seconds
_LEAVES_WITHIN = 10.0  # seconds in which a `run` is gone whose terminal or network is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`run` does a session; the others answer what its script must know."""
    steps = parser.add_subparsers(dest="step", required=True)
    suite = steps.add_parser(
        "suite", help="check the suite on stdin, print the JobSpec files that it needs, each ended by a NUL"
    )
    opened = steps.add_parser(
        "open", help="print an unfinished session's name and its JobSpec files, each ended by a NUL"
    )
    opened.add_argument("--name", required=True, help="its name, or latest")
    opened.add_argument("--cluster", required=True)
    run = steps.add_parser(
        "run",
        help="do a session. On stdin: for each JobSpec its secrets, ended by a NUL, then a tar of ray_config, job_spec0, job_spec1 … and the suite of a new session",
    )
    suite.add_argument("--knobs", type=Knobs.parse, required=True, metavar="JSON", help="all that are set")
    for step in (suite, run):
        step.add_argument(
            "--suite-file",
            type=Path,
            default=Path(),
            help="the whole path of a new session's suite on the caller's machine",
        )
    submit.add_request_arguments(run)
    run.add_argument("--session", help="the name of one that has begun")
    run.add_argument("--profile-title", default="")
    run.add_argument("--code-a", help="the code id of A")
    run.add_argument("--code-b", help="the code id of B")
    run.add_argument("--spec-name", action="append", default=[], help="a JobSpec's file as the suite names it")
    run.add_argument("--image", help="the digest of the nodes' image, if they have one")
    run.add_argument("--deadlines", type=watch.Deadlines.parse, required=True)
    run.add_argument("--caller", default="another script", help="who waits for it, for messages")
    run.add_argument("--attached", action="store_true", help="the caller is there as long as stdin is open")
    run.add_argument("--far", action="store_true", help="over a network, on which the caller sends a byte each second")
    run.add_argument("--again", action="store_true", help="the same caller ran this session before")


def run(args: argparse.Namespace) -> int:
    """One step. Returns the exit status; `run` says it in its last line on stdout."""
    root = SharedRoot(args.shared_root)
    if args.step == "suite":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
        sys.stdout.write("".join(f"{spec}\0" for spec in _suite(text, args).specs))
        return 0
    if args.step == "open":
        return _open(root, args)
    return _run(root, args)


def _run(root: SharedRoot, args: argparse.Namespace) -> int:
    """A session from where it is to its end, or until every node must act. On stdout: `session NAME`, what `judge` prints, and as the last
    line `end STATUS`, or `stop JOB DIRECTORY` (end what is left of the job on every node).
    """
    session, busy = None, threading.Lock()
    try:
        secrets = {spec: secret_files.read_values(sys.stdin.buffer) for spec in args.spec_name}
        members = {f"job_spec{number}": spec for number, spec in enumerate(args.spec_name)}
        texts = submit.read_stream({**members, submit.BASE: args.knobs["RAY_BASE_CONFIG"], _SUITE: args.knobs["SUITE"]})
        if args.attached:
            watch.leave_with_the_listener(busy, _SILENCE if args.far else None)
        requests = {
            spec: submit.request_of(args, spec, texts[member], texts[submit.BASE]) for member, spec in members.items()
        }
        session = Session(root.sessions / args.session) if args.session else _begin(root, args, texts[_SUITE], requests)
        print(f"session {session.path.name}", flush=True)
        with _alone(session, args.caller):
            last = _drive(SessionDriver(root, RayApi(nodes.ADDRESS), session, requests, secrets, args, busy))
    except RegressError as error:
        say.error(str(error))
        if session is not None and error.status is not Exit.BAD_INPUT:
            say.info(f"the session can be continued: 'make verify SESSION={session.path.name}'")
        last = f"end {int(error.status)}"
    print(last)
    return int(last.removeprefix("end ")) if last.startswith("end ") else 0


@contextmanager
def _alone(session: Session, caller: str) -> Iterator[None]:
    """No other process drives the session meanwhile. Raises BadInput if one does."""
    with (session.path / "driver").open("a+", encoding="utf-8") as file:
        if not lock.take_within(file.fileno(), _LEAVES_WITHIN):
            raise BadInput(
                f"The session {session.path.name} is driven by {lock.holder(file.fileno())}: wait until that process ends, or stop it, then run this again."
            )
        file.truncate(0)
        file.write(f"{caller}, since {files.now()}")
        file.flush()
        yield


def _drive(driver: SessionDriver) -> str:
    """Make the runs that the verdict lacks, and judge them; returns the last line. Raises RegressError."""
    args = driver.args
    if not args.again:
        a, b = (driver.code(side) for side in "AB")
        say.step(f"regression session {driver.session.path} (profile {args.knobs['PROFILE']}): A is {a}, B is {b}")
    driver.decide_replays()
    deps.use("judge")  # only the head has them
    while (following := _next(driver, args.knobs.number("BUDGET"))) is not None:
        stopped = driver.make(following)
        if stopped is not None:
            return f"stop {stopped.ray_id} {stopped.path}"
    return f"end {_judge(driver)}"


def _suite(text: str, args: argparse.Namespace) -> Suite:
    """The suite in this text. Raises BadInput for one that cannot be used, or that has no run for a check in ONLY."""
    suite = suites.parse(text, args.knobs["SUITE"], args.suite_file.parent)
    for check in checks.CHECKS:
        if check.name in _chosen(args) and not check.runs(suite):
            raise BadInput(
                f"ONLY={check.name} checks nothing in the suite {suite.name}, where no case continues another one: leave it out."
            )
    return suite


def _begin(root: SharedRoot, args: argparse.Namespace, text: str, requests: Mapping[str, Request]) -> Session:
    """A new session of the suite in this text, whose JobSpecs make these requests. Raises BadInput."""
    suite = _suite(text, args)
    codes = {"A": args.code_a, "B": args.code_b}
    records = {side: snapshot.load(root, code, f"CODE_{side}") for side, code in codes.items()}
    for side, code in codes.items():
        snapshot.need_whole(root.snapshots / code, records[side], f"CODE_{side}={code}")
    with uncollected(root):  # `make gc` keeps what a session has recorded
        with pulse.during("composing the cases with A and with B"):
            refusals = composition.refusals_of_b(root, suite, requests, codes)
        session = Session.begin(root)
        session.write(
            "begin",
            {
                "profile": args.profile_title,
                "cluster": args.knobs["CLUSTER_NAME"],
                "only": sorted(_chosen(args)),
                "replay": args.knobs.is_on("REPLAY") and not args.knobs["ONLY"],
                "suite": suite.recorded(),
                "codes": codes,
                "trees": {side: record["tree_sha256"] for side, record in records.items()},
                "sources": {side: record["source"] for side, record in records.items()},
                "revisions": {side: record["revision"] for side, record in records.items()},
            },
        )
        for name, reason in refusals.items():
            composition.record_refusal(session, name, reason)
    if not args.knobs["ONLY"]:
        _say_how_many_runs(suite, requests, args.knobs)
    return session


def _say_how_many_runs(suite: Suite, requests: Mapping[str, Request], knobs: Knobs) -> None:
    replays = {spec for spec, each in requests.items() if knobs.is_on("REPLAY") and each.workload.samples_key}
    most = sum(case.most_runs(is_replayed=case.spec in replays) for case in suite.cases)
    most = min(most, knobs.number("BUDGET") or sys.maxsize)
    least = min(2 * len(suite.cases), most)
    may_reuse = suite.reuse and any(case.spec not in replays or case.speed or case.memory for case in suite.cases)
    reused = ", less those of A that earlier sessions made" if may_reuse else ""
    say.info(f"this session makes {least} to {most} runs{reused}")


def _open(root: SharedRoot, args: argparse.Namespace) -> int:
    """The session of that name; `latest` is the newest of this cluster. Raises BadInput if it is over or not of this cluster."""
    mine = [each.path for each in all_of(root) if each.begin_if_readable().get("cluster") == args.cluster]
    session = Session(named(mine, "SESSION", args.name, f"a session of the cluster {args.cluster}", "a new one"))
    need_unfinished(session.path, "SESSION", args.name)
    begin = session.read("begin") or {}
    words = (session.path.name, *suites.of_recorded(begin["suite"]).specs)
    sys.stdout.write("".join(f"{word}\0" for word in words))
    return 0


def _chosen(args: argparse.Namespace) -> set[str]:
    return set(args.knobs["ONLY"].replace(",", " ").split())


def _next(driver: SessionDriver, budget: int | None) -> ScheduledRun | None:
    """The next run; None if nothing is lacking, or the budget is used up. Earlier runs of A are taken over."""
    from verl_regress.session import verdict  # here, because numpy and scipy take half a second to load

    while True:
        known = driver.session.evidence()
        only = set(known["begin"]["only"])
        runs = checks.runs_for(driver.suite, only) if only else None
        following = schedule.next_run(driver.suite, known, partial(verdict.wants, evidence=known), runs)
        if following is None:
            return None
        may_reuse = not only and _may_reuse(following, driver.suite, known)
        if may_reuse and _take_over(following, driver):
            continue
        if schedule.is_used_up(budget, known):
            say.info(f"BUDGET={budget} runs are used up: the verdict is about the runs made so far")
            return None
        if may_reuse:
            _say_why_again(following, driver)
        return following


def _may_reuse(run: ScheduledRun, suite: Suite, known: schedule.Evidence) -> bool:
    """May an earlier session's run be recorded as this one? Only a run of A, and only if it does not train on this session's rollouts."""
    is_replayed = run.kind == schedule.ROLLOUT or schedule.recording_of(run, known) is not None
    return suite.reuse and run.side == "A" and not is_replayed


def _take_over(run: ScheduledRun, driver: SessionDriver) -> bool:
    """Record a run of an earlier session as this one; False if no run there is the same."""
    from verl_regress.session import reuse  # as above

    earlier = reuse.earlier_run_of_a(driver.root, driver.session, driver.suite.case(run.case), run)
    if earlier is None:
        return False
    before, job = earlier
    driver.session.write_job(run.name, {**job, "reused_from": before.path.name})
    say.skip(f"{run.name} (the run {job['submission_id']} of the session {before.path.name} is the same)")
    return True


def _say_why_again(run: ScheduledRun, driver: SessionDriver) -> None:
    """Say which inputs of an earlier run have changed, if it could be reused but for that."""
    from verl_regress.session import reuse  # as above

    changed = reuse.changed_inputs(driver.root, driver.session, driver.suite.case(run.case), run)
    if changed is not None:
        say.info(f"{run.name} runs again: since {changed[0]} ran, {' and '.join(changed[1])} changed")


def _judge(driver: SessionDriver) -> int:
    from verl_regress.session import report, verdict  # as above
    from verl_verdict.decide import verdicts

    session, args, gathered = driver.session, driver.args, driver.session.evidence()
    end = {
        "nodes": evidence.nodes(driver.api),
        "digests": evidence.job_digests(
            driver.root, [job["submission_id"] for job in checks.own_jobs(gathered).values()]
        ),
    }
    with contextlib.suppress(OSError):  # a full disk must not hide the answer; writing the reports reports it
        session.write("end", end)
    gathered, only = {**gathered, "end": end}, set(gathered["begin"]["only"])
    outcome = report.SessionOutcome(
        session,
        gathered,
        checks.judge(gathered, only),
        [] if only else verdict.of_session(gathered, args.knobs.number("BUDGET")),
        verdicts.allowed(args.knobs["ALLOW"].replace(" ", ",")),
    )
    as_json = json.dumps(report.as_json(outcome), indent=2, ensure_ascii=False)
    print(as_json if args.knobs.is_on("JSON") else say.shown("\n".join(report.text(outcome))), flush=True)
    try:
        report.write(outcome)
    except OSError as error:
        say.error(
            f"The reports of the session {session.path.name} are not written ({error}): fix that, then 'make verify SESSION={session.path.name}' writes them."
        )
        return outcome.status or Exit.OWN_ERROR
    shutil.rmtree(session.path / replay.DIRECTORY, ignore_errors=True)
    if not args.knobs.is_on("JSON"):
        print(say.shown(f"reports: {session.path}/report.md, report.html, report.json, junit.xml"))
    return outcome.status
