"""Reports that a job's processes leave in its directory: one writer per file, the whole document every time."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

JOB_DIR_VARIABLE = "VERL_REGRESS_JOB_DIR"
hostname = socket.gethostname  # unlike the node's address, it is the same before and after Ray starts


def job_dir() -> Path | None:
    """The directory of the job that this process belongs to; None outside a job."""
    named = os.environ.get(JOB_DIR_VARIABLE)
    return Path(named) if named else None


def process() -> str:
    """``<hostname>-<pid>``, which begins the name of a file that only this process writes."""
    return f"{hostname()}-{os.getpid()}"


def write(kind: str, payload: Mapping[str, object]) -> None:
    """Write ``<job dir>/state/reports/<kind>-<hostname>-<pid>.json``, with both in it; does nothing outside a job. Raises OSError."""
    if (job := job_dir()) is None:
        return
    report = job / "state" / "reports" / f"{kind}-{process()}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    unfinished = report.with_suffix(".json.tmp")
    content = {"hostname": hostname(), "pid": os.getpid(), **payload}
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(report)
