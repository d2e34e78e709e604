"""`breakpoints`: where a job waits for Ray's debugger, and how VS Code attaches to it. Changes nothing."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import BadInput
from verl_regress.base.layout import JobDir
from verl_regress.jobs import breakpoints, find
from verl_regress.jobs.breakpoints import Breakpoint
from verl_regress.jobs.overview import table
from verl_regress.jobs.status import judge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`breakpoints JOB [--json | --ports | --with-ports | --legacy-node] [--first-port P]`."""
    find.add_job(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object, also if none waits")
    how.add_argument("--ports", action="store_true", help="print `NODE PORT` of each, one per line, for forwards")
    how.add_argument("--with-ports", action="store_true", help="the page, then what --ports prints; NUL ends each item")
    how.add_argument(
        "--legacy-node", action="store_true", help="print the node of the first that `ray debug` can reach"
    )
    parser.add_argument("--first-port", type=int, default=5678, help="the knob DEBUGGER_PORT")


def run(args: argparse.Namespace) -> int:
    """Print the breakpoints. Raises BadInput if the job is over, has no debugger, or waits in none."""
    job = find.asked_for(args)
    waiting = _asked_for(job, none_is_fine=args.json)
    if args.json:
        print(json.dumps({"submission_id": job.ray_id, "breakpoints": [_facts(job, one) for one in waiting]}, indent=2))
        return 0
    legacy = [one for one in waiting if one.kind == breakpoints.LEGACY]
    if args.legacy_node:
        if not legacy:
            raise BadInput(
                f"{job.ray_id} was submitted with DEBUGGER={find.plan_of(job)['debugger']}, and 'ray debug' reaches only jobs "
                f"with DEBUGGER=legacy: attach as 'make debugger JOB={job.ray_id}' says."
            )
        print(legacy[0].node)
        return 0
    reachable = [one for one in waiting if one.kind != breakpoints.LEGACY]
    if args.ports:
        if not reachable:
            raise BadInput(f"{job.ray_id} waits for 'ray debug', not for VS Code: run {_legacy_command(job)}.")
        for one in reachable:
            print(one.node, one.port)
        return 0
    page = say.shown("\n".join(_page(job, waiting, reachable, args.first_port)))
    if args.with_ports:
        sys.stdout.write("".join(f"{item}\0" for item in (page, *(f"{one.node} {one.port}" for one in reachable))))
    else:
        print(page)
    return 0


def _asked_for(job: JobDir, *, none_is_fine: bool) -> list[Breakpoint]:
    judgement = judge(job, find.api_of(job).job(job.ray_id))
    if judgement.status.exit is not None:
        raise BadInput(
            f"{job.ray_id} is over ({judgement.status.value}), so it waits in no breakpoint: submit it again with DEBUGGER=1."
        )
    if find.plan_of(job).get("debugger") is None:
        raise BadInput(
            f"{job.ray_id} was submitted without DEBUGGER, so it waits in no breakpoint: submit it with DEBUGGER=1."
        )
    found = breakpoints.of(job)
    if not found and not none_is_fine:
        raise BadInput(
            f"{job.ray_id} ({judgement.shown}) waits in no breakpoint now: 'make wait JOB={job.ray_id}' says when it does."
        )
    return found


def _facts(job: JobDir, one: Breakpoint) -> dict[str, Any]:
    return {**asdict(one), "place": one.place(job)}


def _page(job: JobDir, waiting: list[Breakpoint], reachable: list[Breakpoint], first_port: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("TASK", "WAITS IN", "FUNCTION", "NODE", "LISTENS AT", "SINCE", "")]
    for one in waiting:
        rows.append(
            (
                one.task, one.place(job), one.function, one.node or "?", f"{one.host}:{one.port}", one.since,
                "a debugger is attached" if one.attached else f"after {one.exception}" if one.exception else "",
            )
        )  # fmt: skip
    lines = table(rows)
    if reachable:
        lines += ["", "VS Code, in launch.json, once the port is forwarded (below):"]
        lines += [json.dumps(_attach(job, one, first_port + number)) for number, one in enumerate(reachable)]
    if len(reachable) < len(waiting):
        lines += ["", f"In a terminal: {_legacy_command(job)}"]
    return lines


def _attach(job: JobDir, one: Breakpoint, port: int) -> dict[str, Any]:
    """A configuration of VS Code's Python debugger; the folder that is open there is that of the file."""
    return {
        "name": f"{job.ray_id} {PurePosixPath(one.file).name}:{one.line}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "justMyCode": False,  # with True it passes over the breakpoint (Ray 2.60, debugpy 1.8)
        "pathMappings": [{"localRoot": "${workspaceFolder}", "remoteRoot": str(PurePosixPath(one.file).parent)}],
    }


def _legacy_command(job: JobDir) -> str:
    return f"'make debugger LEGACY=1 JOB={job.ray_id}'"
