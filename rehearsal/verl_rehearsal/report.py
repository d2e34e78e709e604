"""Reports that the hooks leave in the directory that ``VERL_REHEARSAL_REPORTS`` names: one file for each kind and process."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

DIRECTORY_VARIABLE = "VERL_REHEARSAL_REPORTS"


def node_ip() -> str:
    """Return this node's IP address as Ray knows it."""
    import ray

    return str(ray.util.get_node_ip_address())


def write(kind: str, payload: Mapping[str, object]) -> None:
    """Write ``<kind>-<hostname>-<pid>.json``, the whole document, in place of this process's earlier report of that kind.

    Does nothing if ``VERL_REHEARSAL_REPORTS`` is unset or empty. A reader sees the old document or the new one, never
    part of one. Raises OSError if the directory cannot be written, and TypeError if ``payload`` is not JSON.
    """
    if not (directory := os.environ.get(DIRECTORY_VARIABLE)):
        return
    reports = Path(directory)
    reports.mkdir(parents=True, exist_ok=True)
    report = reports / f"{kind}-{socket.gethostname()}-{os.getpid()}.json"
    unfinished = report.with_suffix(".json.tmp")
    unfinished.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(report)
