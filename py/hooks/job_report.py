"""Reports that a job's processes leave in its directory: one writer per file, the whole document every time."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from node_memory import node_name

JOB_DIR_VARIABLE = "VERL_REGRESS_JOB_DIR"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def job_dir() -> Path | None:
    """The directory of the job that this process belongs to; None outside a job."""
    named = os.environ.get(JOB_DIR_VARIABLE)
    return Path(named) if named else None


def process() -> str:
    """``<node>-<pid>``, which begins the name of a file that only this process writes."""
    return f"{node_name()}-{os.getpid()}"


def boot() -> str:
    """The id of this boot of the kernel (random(4)): process ids and times of another boot mean other processes."""
    return _BOOT.read_text(encoding="ascii").strip()


def write(kind: str, payload: Mapping[str, object]) -> None:
    """Write ``<job dir>/state/reports/<kind>-<node>-<pid>.json``; does nothing outside a job. Raises OSError.

    It begins with what tells this process from every other: `node`, `pid`, `boot`, and `started`, in clock ticks since then.
    """
    if (job := job_dir()) is None:
        return
    report = job / "state" / "reports" / f"{kind}-{process()}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    unfinished = report.with_suffix(".json.tmp")
    content = {"node": node_name(), "pid": os.getpid(), "boot": boot(), "started": _started(), **payload}
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(report)


def _started() -> int:
    """When this process started: field 22 of proc_pid_stat(5), of which the second may contain spaces and brackets."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(") ")[2].split()[19])
