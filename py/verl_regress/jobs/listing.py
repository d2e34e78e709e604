"""`jobs`: all jobs, the latest first, from their directories; Ray is asked once, and may be down."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import printable
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import find, progress, unreadable
from verl_regress.jobs.overview import job_table, read_at_once
from verl_regress.jobs.status import Judgement, Status, judge_for

_GOOD = (Status.SUCCEEDED, Status.RUNNING)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`jobs [--cluster NAME] [--json] [--limit N]`."""
    parser.add_argument("--cluster", help="the knob CLUSTER_NAME: whose Ray is asked")
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")
    parser.add_argument("--limit", type=int, default=20, help="how many jobs, the latest first")


def run(args: argparse.Namespace) -> int:
    """Print a line per job."""
    root = SharedRoot(args.shared_root)
    known = None if args.no_ray else _ask_ray()
    jobs = find.newest(root)
    rows = read_at_once(lambda job: _row(job, known, args.cluster), jobs[: max(args.limit, 0)])
    if args.json:
        print(json.dumps({"jobs_total": len(jobs), "ray_answers": known is not None, "jobs": rows}, indent=2))
        return 0
    if known is None:
        say.info("Ray was not asked: this is what the jobs' own files say")
    print(say.shown("\n".join(_page(rows, len(jobs)))))
    return 0


def _ask_ray() -> dict[str, dict[str, Any]] | None:
    try:
        return RayApi(nodes.ADDRESS).jobs()
    except Unreachable as error:
        say.info(str(error))
        return None


def _row(job: JobDir, known: Mapping[str, dict[str, Any]] | None, cluster: str | None) -> dict[str, Any]:
    """The columns of a job: its newest attempt's status, code and steps. What cannot be read is left out."""
    plan: dict[str, Any] = {}
    steps = made = not_finite = None
    try:
        made = datetime.fromtimestamp(find.made(job), timezone.utc).isoformat(timespec="seconds")
        plan = job.read_config("resolved.json") or {}
        judgement = judge_for(cluster, job, known)
        steps, not_finite = progress.so_far(job)
    except unreadable.DAMAGED as error:
        judgement = unreadable.judged(job, error)
    return {
        "submission_id": printable(job.submission_id),
        "workload": find.text_of(plan, "workload"),
        "code_id": find.text_of(plan, "code_id"),
        "owner": plan.get("owner"),
        "status": judgement.status.value,
        "attempts": job.attempt,
        "steps": steps,
        "made": made,
        "reason": None if judgement.status in _GOOD else judgement.reason,
        "cause": judgement.cause,
        "not_finite": not_finite,
        "debugged": judgement.debugged,
    }


def _status(row: dict[str, Any]) -> str:
    return f"{row['status']}, {row['debugged']}" if row["debugged"] else str(row["status"])


def _page(rows: list[dict[str, Any]], total: int) -> list[str]:
    lines: list[tuple[str, ...]] = [("JOB", "WORKLOAD", "CODE", "STATUS", "ATTEMPTS", "STEPS", "MADE", "WHY")]
    for row in rows:
        lines.append(
            (
                row["submission_id"], row["workload"] or "?", row["code_id"] or "?", _status(row),
                str(row["attempts"]), "-" if row["steps"] is None else str(row["steps"]), "?" if row["made"] is None else row["made"].removesuffix("+00:00") + "Z",
                "; ".join(filter(None, (Judgement(Status(row["status"]), row["reason"] or "", cause=row["cause"]).why, row["not_finite"]))),
            )
        )  # fmt: skip
    return job_table(lines, total)
