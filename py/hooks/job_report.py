"""Reports that a job's processes leave in its directory: one writer per file, the whole document every time."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

JOB_DIR_VARIABLE = "VERL_REGRESS_JOB_DIR"


def hostname() -> str:
    """Return the node's own name; unlike its address, it is the same before and after Ray starts."""
    return socket.gethostname()


def write(kind: str, payload: Mapping[str, object]) -> None:
    """Write ``<job dir>/state/reports/<kind>-<hostname>-<pid>.json``, replacing this process's earlier report of that
    kind.

    Does nothing if ``VERL_REGRESS_JOB_DIR`` is unset or empty. A reader sees the old document or the new one, never
    part of one. Raises OSError if the job directory cannot be written, and TypeError if ``payload`` is not JSON.
    """
    job_dir = os.environ.get(JOB_DIR_VARIABLE)
    if not job_dir:
        return
    reports = Path(job_dir) / "state" / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    report = reports / f"{kind}-{hostname()}-{os.getpid()}.json"
    unfinished = report.with_suffix(".json.tmp")
    unfinished.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(report)
