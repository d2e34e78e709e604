"""`breakpoints`: where a job waits for Ray's debugger, and how VS Code attaches to it. Changes nothing."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import PurePosixPath

from verl_regress.base.errors import BadInput, printable
from verl_regress.base.layout import JobDir
from verl_regress.jobs import find
from verl_regress.jobs.listing import table
from verl_regress.jobs.status import Breakpoint, breakpoints_of, status_of

_FIRST_PORT = 5678  # where VS Code runs, of the first breakpoint's forward (scripts/lib/tunnel.bash)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`breakpoints JOB [--json | --with-ports]`."""
    find.add_job(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object, also if none waits")
    how.add_argument("--with-ports", action="store_true", help="the page, then lines `NODE PORT`; NUL ends each")


def run(args: argparse.Namespace) -> int:
    """Print the breakpoints. Raises BadInput if the job is over, has no debugger, or waits in none."""
    job = find.asked_for(args)
    status = status_of(job, find.api_of(job).job(job.ray_id)).status
    if status.exit is not None:
        raise BadInput(f"{job.ray_id} is over ({status.value}), so it waits in no breakpoint: submit it again.")
    if find.plan_of(job).get("debugger") is None:
        raise BadInput(
            f"{job.ray_id} was submitted without DEBUGGER, so it has no breakpoints: submit it with DEBUGGER=1."
        )
    waiting = breakpoints_of(job)
    if args.json:
        found = [{**asdict(one), "place": one.place(job)} for one in waiting]
        print(json.dumps({"submission_id": job.ray_id, "breakpoints": found}, indent=2))
        return 0
    if not waiting:
        raise BadInput(f"{job.ray_id} waits in no breakpoint now: 'make wait JOB={job.ray_id}' says when it does.")
    ports = "\n".join(f"{one.node} {one.port}" for one in waiting)
    page = "\n".join(printable(line) for line in _page(job, waiting))
    sys.stdout.write(f"{page}\0{ports}\0" if args.with_ports else f"{page}\n")
    return 0


def _page(job: JobDir, waiting: list[Breakpoint]) -> list[str]:
    rows: list[tuple[str, ...]] = [("TASK", "WAITS IN", "FUNCTION", "NODE", "LISTENS AT", "SINCE", "")]
    for one in waiting:
        remark = "a debugger is attached" if one.attached else f"after {one.exception}" if one.exception else ""
        listens = f"{one.host}:{one.port}"
        rows.append((one.task, one.place(job), one.function, one.node or "?", listens, one.since, remark))
    attach = [
        {
            "name": f"{job.ray_id} {PurePosixPath(one.file).name}:{one.line}",
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": "127.0.0.1", "port": _FIRST_PORT + number},
            "justMyCode": False,  # with True it passes over the breakpoint (Ray 2.60, debugpy 1.8)
            "pathMappings": [{"localRoot": "${workspaceFolder}", "remoteRoot": str(PurePosixPath(one.file).parent)}],
        }
        for number, one in enumerate(waiting)
    ]
    return [*table(rows), "", "VS Code, in launch.json, once the port is forwarded (below):", *map(json.dumps, attach)]
