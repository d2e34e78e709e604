"""`jobs`, `status` and `live`: jobs by their directories and one answer of Ray, which may be down. Change nothing."""

import argparse
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from verl_regress.base import files, say
from verl_regress.base.errors import RegressError, Unreadable, printable
from verl_regress.base.knobs import Knobs
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import Node, RayApi
from verl_regress.jobs import conditions, find, progress, shortfall
from verl_regress.jobs.status import (
    DAMAGED,
    Judgement,
    Known,
    Launcher,
    Status,
    launcher_of,
    status_for_cluster,
    status_in_list,
)

_AT_WORK = (Status.SUBMITTING, Status.PENDING, Status.QUEUED, Status.RUNNING)
_IN_RAY = ("PENDING", "RUNNING")  # Ray's statuses of a job that would end with it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`jobs [--knobs JSON]`; CLUSTER_NAME, JSON and LIMIT count."""
    parser.add_argument("--knobs", type=Knobs.parse, default="{}", metavar="JSON", help="all that are set")


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """`status --profile P`, and the arguments of `jobs`."""
    parser.add_argument("--profile", required=True, help="as the head of the page names it")
    add_arguments(parser)


def add_live_arguments(parser: argparse.ArgumentParser) -> None:
    """`live --cluster NAME`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME")


def run(args: argparse.Namespace) -> int:
    """Print a line per job; only the jobs that are printed are read."""
    ray = _ask_ray(args)
    total, rows = _read_jobs(args, ray.jobs)
    if args.knobs.is_on("JSON"):
        print(json.dumps({"jobs_total": total, "ray_answers": ray.jobs is not None, "jobs": rows}, indent=2))
        return 0
    if ray.problem:
        say.info(ray.problem)
    heading = ("JOB", "WORKLOAD", "CODE", "STATUS", "ATTEMPTS", "STEPS", "MADE", "WHY")
    print(say.shown("\n".join(_job_table([heading, *map(_cells, rows)], total))))
    return 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A job's line in `make jobs`."""
    return (
        row["submission_id"],
        row["workload"] or "?",
        row["code_id"] or "?",
        row["shown"],
        str(row["attempts"]),
        "-" if row["steps"] is None else str(row["steps"]),
        "?" if row["made"] is None else row["made"].removesuffix("+00:00") + "Z",
        row["why"],
    )


def run_status(args: argparse.Namespace) -> int:
    """Print the cluster and its jobs; if Ray does not answer, it says so and prints the rest."""
    ray = _ask_ray(args)
    total, rows = _read_jobs(args, ray.jobs)
    names = {node.address: node.name for node in ray.nodes}
    for row in rows:
        row["driver_node"] = names.get(row["driver_ip"] or "")
    there, cluster = _current(ray.nodes), args.knobs["CLUSTER_NAME"]
    if args.knobs.is_on("JSON"):
        listed = [
            {"name": each.name, "address": each.address, "state": _state(each), "resources": each.resources}
            for each in there
        ]
        facts = {"profile": args.profile, "cluster": cluster, "ray_problem": ray.problem, "nodes": listed}
        print(json.dumps({**facts, "jobs_total": total, "jobs": rows}, indent=2, ensure_ascii=False))
        return 0
    head = [f"profile {args.profile}, cluster {cluster}", "", *([ray.problem, ""] if ray.problem else [])]
    heading = ("JOB", "CODE", "STATUS", "DRIVER", "WHY")
    jobs = _job_table([heading, *map(_status_cells, rows)], total)
    print(say.shown("\n".join([*head, *_node_table(there), "", *jobs])))
    return 0


def _status_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A job's line in `make status`."""
    driver = f"{row['driver_node'] or '?'} ({row['driver_ip']})" if row["driver_ip"] else "-"
    shown = ", ".join(filter(None, (row["shown"], _since_step(row))))
    return row["ray_id"], row["code_id"] or "?", shown, driver, row["why"]


def _current(listed: Sequence[Node]) -> list[Node]:
    """The nodes without a dead one that is back, the head first."""
    alive = {node.name for node in listed if node.alive}
    current = [node for node in listed if node.alive or node.name not in alive]
    return sorted(current, key=lambda node: (not node.is_head, node.name))


def _state(node: Node) -> str:
    return "ALIVE" if node.alive else "DEAD"


def _node_table(there: Sequence[Node]) -> list[str]:
    """The nodes as lines, with their CPUs, accelerators and slots for drivers, under their heading."""
    # Never GPUs and NPUs in one cluster, and the head has neither.
    accelerator = max((nodes.accelerators(node.resources)[0] for node in there), default="GPU")
    kinds = ("CPU", accelerator, "worker_node")
    rows: list[tuple[str, ...]] = [("NODE", "ADDRESS", "STATE", *map(str.upper, kinds))]
    for node in there:
        amounts = [f"{node.resources.get(kind, 0):g}" for kind in kinds]
        rows.append((node.name, node.address, _state(node), *amounts))
    return table(rows)


class _Ray(NamedTuple):
    """Ray's jobs and nodes; or None, no nodes, and why Ray does not tell."""

    jobs: Known
    nodes: Sequence[Node]
    problem: str | None


def _ask_ray(args: argparse.Namespace) -> _Ray:
    if args.no_ray:
        return _Ray(None, (), "Ray was not asked: this is what the jobs' own files say")
    api = RayApi(nodes.ADDRESS)
    try:
        return _Ray(api.jobs(), api.nodes(), None)
    except RegressError as error:
        return _Ray(None, (), str(error))


def _read_jobs(args: argparse.Namespace, known: Known) -> tuple[int, list[dict[str, Any]]]:
    """How many jobs there are, and the rows to show: those of the latest LIMIT jobs."""
    jobs = find.newest(SharedRoot(args.shared_root))
    cluster, most = args.knobs["CLUSTER_NAME"], args.knobs.number("LIMIT")
    return len(jobs), [_row(job, known, cluster) for job in jobs[:most]]


def _row(job: JobDir, known: Known, cluster: str | None) -> dict[str, Any]:
    """What is shown of a job's newest attempt. What cannot be read is left out."""
    plan: dict[str, Any] = {}
    made = inputs = None
    trained = _Trained()
    try:
        made = datetime.fromtimestamp(find.reserved_at(job), timezone.utc).isoformat(timespec="seconds")
        plan = job.read_config("resolved.json") or {}
        judgement = status_for_cluster(cluster, job, known)
        trained = _trained(job, plan, judgement.status)
        inputs = find.inputs_of(job)
    except DAMAGED as error:  # another user closed it, or a file of it is damaged
        why = f"cannot be read: its files are not as a submission writes them ({type(error).__name__})"
        if isinstance(error, OSError):
            error = files.unreadable(Path(error.filename or job.path), error)
        judgement = Judgement(Status.UNKNOWN, error.why if isinstance(error, Unreadable) else why)
    is_good = judgement.status in (Status.SUCCEEDED, Status.RUNNING)
    return {
        "submission_id": printable(job.submission_id),
        "attempt": job.attempt,
        "attempts": job.attempt,
        "ray_id": printable(job.ray_id),
        "workload": plan.get("workload"),
        "code_id": plan.get("code_id"),
        "profile": plan.get("profile"),
        "owner": plan.get("owner"),
        "status": judgement.status.value,
        "shown": ", ".join(filter(None, (judgement.status.value, judgement.debugged))),
        "reason": None if is_good else judgement.reason,
        "cause": judgement.cause,
        "why": "; ".join(filter(None, ("" if is_good else judgement.why, *_unsaid(trained, judgement)))),
        "not_finite": trained.not_finite,
        "warnings": trained.warnings,
        "debugged": judgement.debugged,
        "steps": trained.step,
        "steps_total": trained.total,
        "seconds_since_step": trained.seconds,
        "made": made,
        "inputs": inputs,
        "driver_ip": judgement.driver_ip,
    }


@dataclass(frozen=True)
class _Trained:
    """The training of an attempt: its last step; while it runs, how many there will be and the seconds since the last; what is wrong with its steps."""

    step: int | None = None
    total: int | None = None
    seconds: int | None = None
    not_finite: str | None = None
    warnings: Sequence[str] = ()


def _trained(job: JobDir, plan: Mapping[str, Any], status: Status) -> _Trained:
    """Nothing if its loggers write no steps here. Raises OSError and Unreadable."""
    if progress.logger_without_file(job) is not None:
        return _Trained()
    found = progress.rows(job)
    steps, last = progress.training(found), progress.last_of(job, found)
    not_finite = progress.not_finite(steps)
    missing = shortfall.of_job(job) if status is Status.SUCCEEDED else None
    met = conditions.of_steps(steps, plan.get("sampling") or {}).values()
    said = [missing.words if missing else None, not_finite, *met]
    warnings = dict.fromkeys(words for words in said if words is not None)
    total = seconds = None
    if steps and status is Status.RUNNING:
        seconds = max(0, round(time.time() - job.metrics.stat().st_mtime))
        total = (plan.get("steps") or {}).get("last") or progress.total_steps(job)
    return _Trained(last, total, seconds, not_finite, tuple(warnings))


def _unsaid(trained: _Trained, judgement: Judgement) -> list[str]:
    """What is wrong with its steps, without what its reason says already (FAIL_ON)."""
    return [words for words in trained.warnings if words not in judgement.reason]


def _since_step(row: Mapping[str, Any]) -> str | None:
    """`step 3 of 10 12 s ago`, of a job that runs and has made a step."""
    if row["seconds_since_step"] is None:
        return None
    total = f" of {row['steps_total']}" if row["steps_total"] else ""
    return f"step {row['steps']}{total} {row['seconds_since_step']} s ago"


def _job_table(rows: list[tuple[str, ...]], total: int) -> list[str]:
    """The latest jobs as lines, under their heading, and how many of all are not shown."""
    if not total:
        return ["no job yet: submit one with 'make submit'"]
    hidden = total - len(rows[1:])
    return [*table(rows), *([f"… {hidden} earlier jobs are not shown (LIMIT={total} shows all)"] if hidden else [])]


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """The rows as lines, every column as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def run_live(args: argparse.Namespace) -> int:
    """Print `ID STATUS` of each job that would end with the cluster, the latest first. If Ray does not answer, the locks decide.

    A job that Ray knows and that has no directory here was submitted another way, and is live if Ray says so.
    """
    known: Known = None
    with contextlib.suppress(RegressError, OSError):  # after its token was removed, Ray does not run either
        known = RayApi(nodes.ADDRESS).jobs()
    in_ray = {ray_id: each["status"] for ray_id, each in (known or {}).items() if each.get("status") in _IN_RAY}
    for job in find.newest(SharedRoot(args.shared_root)):
        is_in_ray = in_ray.pop(job.ray_id, None) is not None
        try:
            status = _status_on(args.cluster, job, known)
        except DAMAGED:  # another user's, who has another cluster; or damaged, and Ray still tells
            status = Status.RUNNING if is_in_ray else Status.UNKNOWN
        if status in _AT_WORK:
            print(job.ray_id, status.value)
    for ray_id in sorted(in_ray):
        print(ray_id, in_ray[ray_id])
    return 0


def _status_on(cluster: str, job: JobDir, known: Known) -> Status:
    """The status of a job of this cluster; UNKNOWN for that of another one, which may share the root. Raises what DAMAGED lists."""
    if (job.read_config("resolved.json") or {}).get("cluster", cluster) != cluster:
        return Status.UNKNOWN
    status = status_in_list(job, known).status
    is_uncertain = status in (Status.UNKNOWN, Status.LOST)
    return Status.RUNNING if is_uncertain and launcher_of(job) is Launcher.ALIVE else status
