"""`status`: profile, nodes with their resources, jobs with code id, status and driver node. Changes nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import RegressError, printable
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import Node, RayApi
from verl_regress.jobs import find, progress, unreadable
from verl_regress.jobs.status import Judgement, Status, judge_for

_READERS = 16  # jobs that are read at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`status --profile P --cluster NAME [--json] [--limit N]`."""
    parser.add_argument("--profile", required=True, help="as the head of the page names it")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")
    parser.add_argument("--limit", type=int, default=20, help="how many jobs, the latest first")


def run(args: argparse.Namespace) -> int:
    """Print the cluster and its jobs; if Ray does not answer, it says so and prints the rest."""
    api = None if args.no_ray else RayApi(nodes.ADDRESS)
    facts = collect(SharedRoot(args.shared_root), args.profile, args.cluster, args.limit, api)
    if args.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        print(say.shown("\n".join(_page(facts))))
    return 0


def collect(root: SharedRoot, profile: str, cluster: str, limit: int, api: RayApi | None) -> dict[str, Any]:
    """The facts of `status`: one request to Ray for the nodes, one for all jobs, the rest from the shared root.

    Changes nothing. Without an `api`, Ray is not asked.
    """
    known: dict[str, dict[str, Any]] | None = None
    listed: list[Node] = []
    problem: str | None = "Ray was not asked: this is what the jobs' own files say"
    if api is not None:
        try:
            known, listed, problem = api.jobs(), api.nodes(), None
        except RegressError as error:
            problem = str(error)
    names = {node.address: node.name for node in listed}
    jobs = find.newest(root)
    return {
        "profile": profile,
        "cluster": cluster,
        "ray_problem": problem,
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "state": "ALIVE" if node.alive else "DEAD",
                "resources": dict(node.resources),
            }
            for node in sorted(listed, key=lambda node: (not node.is_head, node.name))
            if node.alive or not any(other.alive and other.name == node.name for other in listed)
        ],
        "jobs_total": len(jobs),
        "jobs": read_at_once(lambda job: _job(job, known, names, cluster), jobs[: max(limit, 0)]),
    }


def _job(job: JobDir, known: dict[str, dict[str, Any]] | None, names: dict[str, str], cluster: str) -> dict[str, Any]:
    plan: dict[str, Any] = {}
    not_finite = None
    try:
        plan = job.read_config("resolved.json") or {}
        judgement = judge_for(cluster, job, known)
        not_finite = progress.so_far(job)[1]
    except unreadable.DAMAGED as error:
        judgement = unreadable.judged(job, error)
    return {
        "submission_id": printable(job.submission_id),
        "attempt": job.attempt,
        "ray_id": printable(job.ray_id),
        "workload": find.text_of(plan, "workload"),
        "code_id": find.text_of(plan, "code_id"),
        "profile": find.text_of(plan, "profile"),
        "status": judgement.status.value,
        "reason": judgement.reason,
        "cause": judgement.cause,
        "not_finite": not_finite,
        "debugged": judgement.debugged,
        "driver_ip": judgement.driver_ip,
        "driver_node": names.get(judgement.driver_ip or ""),
    }


def _page(facts: dict[str, Any]) -> list[str]:
    lines = [f"profile {facts['profile']}, cluster {facts['cluster']}", ""]
    if facts["ray_problem"]:
        lines += [facts["ray_problem"], ""]
    rows: list[tuple[str, ...]] = [("NODE", "ADDRESS", "STATE", "CPU", "GPU", "WORKER_NODE")]
    for node in facts["nodes"]:
        amounts = [f"{node['resources'].get(kind, 0):g}" for kind in ("CPU", "GPU", "worker_node")]
        rows.append((node["name"], node["address"], node["state"], *amounts))
    lines += [*table(rows), ""]
    jobs_rows: list[tuple[str, ...]] = [("JOB", "CODE", "STATUS", "DRIVER", "")]
    for job in facts["jobs"]:
        judgement = Judgement(Status(job["status"]), job["reason"], cause=job["cause"], debugged=job["debugged"])
        driver = f"{job['driver_node'] or '?'} ({job['driver_ip']})" if job["driver_ip"] else "-"
        is_worth_saying = judgement.status in (Status.FAILED, Status.LOST) or unreadable.is_unreadable(judgement)
        why = "; ".join(filter(None, (judgement.why if is_worth_saying else "", job["not_finite"])))
        jobs_rows.append((job["ray_id"], job["code_id"] or "?", judgement.shown, driver, why))
    if any(row[-1] for row in jobs_rows):
        jobs_rows[0] = (*jobs_rows[0][:-1], "WHY")
    return [*lines, *job_table(jobs_rows, facts["jobs_total"])]


def read_at_once(read: Callable[[JobDir], dict[str, Any]], jobs: Iterable[JobDir]) -> list[dict[str, Any]]:
    """What `read` returns for each job, in order; several are read at once, because a slow NFS answers one call in 5 ms."""
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(read, jobs))


def job_table(rows: list[tuple[str, ...]], total: int) -> list[str]:
    """The latest jobs as lines, under their heading, and how many of all are not shown."""
    if not total:
        return ["no job yet: submit one with 'make submit'"]
    hidden = total - len(rows[1:])
    rest = [f"… {hidden} earlier jobs are not shown (LIMIT={total} shows all)"] if hidden else []
    return [*table(rows), *rest]


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """The rows as lines, every column as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
