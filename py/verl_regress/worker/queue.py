"""The queue: each job's launcher waits until the job fits next to those before it, first come, first served.

A job may start when all jobs that have a slot, all that wait before it, and the job itself are no more than MAX_RUNNING
and need no more devices than the cluster has. The directory has an empty file for each job that is not over, named
`<time of its config/>-<devices>-<Ray id>`: in the order of the names, jobs get their slots. `state/turn` says that a job has one.
"""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from verl_regress.base import lock
from verl_regress.base.errors import Unreadable
from verl_regress.base.layout import JobDir
from verl_regress.jobs import find
from verl_regress.jobs.status import ENDED_IN_RAY, Launcher, breakpoint_of, launcher_of

_LOOK_EVERY = 2.0  # seconds between two checks of the queue
_LAUNCHER_SECONDS = 60.0  # for which a job keeps its position although its launcher has not started
_ENTRY = re.compile(r"\d{20}-(?P<devices>\d+)-(?P<ray_id>.+)")
_LOCK = ".lock"
_LOCK_SECONDS = 300.0  # a launcher has the queue's lock for milliseconds, on a slow NFS for seconds; one that is suspended, for ever


def line_up(job: JobDir, cluster: str, devices: int) -> None:
    """Add the job, which takes so many devices, to its cluster's queue if it is not in it; its `config/` is complete."""
    queue = job.root.queue(cluster)
    queue.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (queue / _name_of(job, devices)).touch(exist_ok=False)


def leave(job: JobDir, cluster: str) -> None:
    """Remove the job from the queue, if it is in it."""
    for path in job.root.queue(cluster).glob(f"*-{job.ray_id}"):
        if (entry := _ENTRY.fullmatch(path.name)) and entry["ray_id"] == job.ray_id:
            path.unlink(missing_ok=True)


def _name_of(job: JobDir, devices: int) -> str:
    return f"{job.config.stat().st_mtime_ns:020d}-{devices}-{job.ray_id}"


def wait(job: JobDir, plan: Mapping[str, Any], on_position: Callable[[str], object]) -> None:
    """Wait for a slot, which `state/turn` then records; the caller holds the launcher's lock.

    `on_position` is called with the first queue position and with each new one, as in `position 2 of 3: behind a`.
    """
    cluster, began, said = str(plan["cluster"]), time.monotonic(), None
    while True:
        line_up(job, cluster, plan["devices"]["count"])  # another launcher may have removed us, if it thought us dead
        with lock.held(job.root.queue(cluster) / _LOCK, f"the launcher of {job.ray_id}", _LOCK_SECONDS):
            position = _position(job, plan, _others(job, job.root.queue(cluster)))
            if position is None:
                job.write_state("turn", {"waited_seconds": round(time.monotonic() - began, 1)})
                return
        if position != said:
            said = position
            on_position(position)
        time.sleep(_LOOK_EVERY)


class _Entry(NamedTuple):
    """Another job of the queue that is not over."""

    name: str
    ray_id: str
    devices: int
    has_slot: bool
    debugged: str | None  # a person may keep it in a breakpoint, and so its slot, for hours

    def __str__(self) -> str:
        return f"{self.ray_id}, which {self.debugged}" if self.debugged else self.ray_id


def _others(job: JobDir, queue: Path) -> list[_Entry]:
    """The other jobs of the queue in order. Removes jobs that are over, and jobs that will get no launcher."""
    others = []
    for path in sorted(queue.iterdir()):
        entry = _ENTRY.fullmatch(path.name)
        if entry is None or entry["ray_id"] == job.ray_id:
            continue
        other = find.of_ray_id(job.root, entry["ray_id"])
        with suppress(OSError, Unreadable):  # it is damaged, and its own launcher cannot read it either
            launcher = launcher_of(other)
            if launcher is Launcher.GONE or (launcher is Launcher.NOT_YET and not _may_come(other, path)):
                path.unlink(missing_ok=True)
                continue
            has_slot = launcher is Launcher.ALIVE and (other.state / "turn").exists()
            debugged = breakpoint_of(other) if has_slot else None
            others.append(_Entry(path.name, other.ray_id, int(entry["devices"]), has_slot, debugged))
    return others


def _position(job: JobDir, plan: Mapping[str, Any], others: list[_Entry]) -> str | None:
    """The position of a job that must wait; None if it fits next to those before it, as every job does if there are none."""
    limit, wanted = plan["max_running"], plan["devices"]
    name = _name_of(job, wanted["count"])
    before = [entry for entry in others if entry.has_slot or entry.name < name]
    taken, has = sum(entry.devices for entry in before), wanted["cluster_has"]
    if limit is not None and len(before) >= limit:
        full = f"MAX_RUNNING={limit}"
    elif before and taken + wanted["count"] > has:
        full = f"{taken} of {has} {wanted['resource']} are taken, {wanted['count']} are wanted"
    else:
        return None
    ahead = [entry.ray_id for entry in before if not entry.has_slot]
    behind = ahead[-1] if ahead else f"{', '.join(str(entry) for entry in before)} ({full})"
    return f"position {len(ahead) + 1} of {1 + sum(not entry.has_slot for entry in others)}: behind {behind}"


def _may_come(job: JobDir, entry: Path) -> bool:
    """May its launcher still start? Ray did not refuse it, its end was not observed, and it is young by the file system's clock."""
    submitted, observed = job.read_state("submitted") or {}, job.read_state("observed") or {}
    if submitted.get("accepted") is False or observed.get("status") in ENDED_IN_RAY:
        return False
    now = entry.with_name(_LOCK).stat().st_mtime  # its holder has just written its name there
    return now - entry.stat().st_mtime < _LAUNCHER_SECONDS
