"""What the launcher finds around it when the trainer has failed: a full disk, a head or a node that is gone, a killed process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import causes, debug

PROBE_BYTES = 2**20  # less may fit where a checkpoint did not
_GCS_SECONDS = 3.0
_ASK_SECONDS = 4.0  # for Ray's answer about its nodes


def of_failure(job: JobDir, plan: Mapping[str, Any], reason: str, *, told_to_stop: bool) -> dict[str, Any]:
    """What `state/ended` says besides, or instead of, the trainer's own `reason`: reason, head_gone, lost_nodes."""
    return _circumstances(job, reason) or ({} if told_to_stop else _taken_down(job, plan, reason))


def _circumstances(job: JobDir, reason: str) -> dict[str, str | bool]:
    """Why a trainer may have failed, seen from outside it at once: the job's disk is full, or Ray's head has gone."""
    if (problem := _disk_problem(job)) is not None:
        return {"reason": f"{reason}, and nothing can be written to {job.path} ({problem}): free some space there"}
    gcs = os.environ.get("RAY_ADDRESS", "")
    if ":" in gcs and not _answers(gcs):
        return {"reason": f"{reason}, and Ray's head, whose GCS was at {gcs}, is gone", "head_gone": True}
    return {}


def _taken_down(job: JobDir, plan: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Why a trainer may have failed that nobody told to stop: it lost a node, or one of its processes was killed."""
    try:
        blow = causes.of_failure(RayApi(debug.seen_from_here(plan["address"], os.environ), _ASK_SECONDS), job.ray_id)
    except RegressError as error:  # over ssh the dashboard listens on the head alone
        say.info(f"whether a node or a process was lost is not known: {error}")
        return {}
    return {"reason": f"{reason}{blow.words}", "lost_nodes": blow.lost_nodes}


def _disk_problem(job: JobDir) -> str | None:
    """What stands in the way of writing where the job writes (a full disk, a spent quota), or None."""
    probe = job.state / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    finally:
        probe.unlink(missing_ok=True)
    return None


def _answers(address: str) -> bool:
    """Does somebody listen at HOST:PORT?"""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_GCS_SECONDS).close()
    except OSError:
        return False
    return True
