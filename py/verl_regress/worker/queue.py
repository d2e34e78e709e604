"""The queue: each job's launcher waits until the job fits next to those before it, first come, first served.

verl fails at once if other jobs have the devices that it needs ("Total available GPUs … is less than"), so jobs must
wait before verl starts. Their launchers wait, using a directory on the shared root: this needs no daemon and no
submitter, and Ray remains the only engine. A waiting launcher does not import Ray.

A job may start when all jobs that have a slot, all that wait before it, and the job itself are no more than MAX_RUNNING
and need no more devices than the cluster has. The directory has an empty file for each job that is not over, named
`<time of its config/>-<devices>-<Ray id>`: in the order of the names, jobs get their slots. `state/turn` says that a job has one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base import lock
from verl_regress.base.errors import Unreadable
from verl_regress.base.layout import JobDir
from verl_regress.jobs import breakpoints, find
from verl_regress.jobs.liveness import ENDED_IN_RAY, Launcher, launcher_of

# The job in position N lists the queue every N seconds, but at least every 10.
_LOOK_EVERY, _LOOK_AT_LEAST_EVERY = 1.0, 10.0
# Seconds for which a job whose launcher has not started keeps its position: Ray may have no room for it, or its
# submitter died before Ray got it.
_LAUNCHER_SECONDS = 60.0
_ENTRY = re.compile(r"\d{20}-(?P<devices>\d+)-(?P<ray_id>.+)")
_LOCK_SECONDS = 300.0  # a launcher has the queue's lock for milliseconds, on a slow NFS for seconds; one that is suspended, for ever


@dataclass(frozen=True)
class QueuePosition:
    """The position of a waiting job, 1 being next, and the job right before it."""

    position: int
    waiting: int
    behind: str

    def __str__(self) -> str:
        return f"position {self.position} of {self.waiting}: behind {self.behind}"


def line_up(job: JobDir, cluster: str, devices: int) -> None:
    """Add the job, which takes so many devices, to its cluster's queue if it is not in it; its `config/` is complete."""
    queue = job.root.queue(cluster)
    queue.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (queue / _name_of(job, devices)).touch(exist_ok=False)


def leave(job: JobDir, cluster: str) -> None:
    """Remove the job from the queue, if it is in it."""
    with suppress(FileNotFoundError):
        for path in list(job.root.queue(cluster).iterdir()):
            entry = _ENTRY.fullmatch(path.name)
            if entry is not None and entry["ray_id"] == job.ray_id:
                path.unlink(missing_ok=True)


def _name_of(job: JobDir, devices: int) -> str:
    return f"{job.config.stat().st_mtime_ns:020d}-{devices}-{job.ray_id}"


def wait(job: JobDir, plan: Mapping[str, Any], on_position: Callable[[QueuePosition], object]) -> None:
    """Wait for a slot, which `state/turn` then records; the caller holds the launcher's lock.

    `plan` is its config/resolved.json. `on_position` is called with the first queue position and with each new one.
    """
    queue = _Queue(job, plan)
    position: QueuePosition | None = None
    while (now := queue.ask()) is not None:
        if now != position:
            position = now
            on_position(position)
        time.sleep(min(position.position * _LOOK_EVERY, _LOOK_AT_LEAST_EVERY))


@dataclass(frozen=True)
class _Entry:
    """Another job of the queue that is not over."""

    name: str
    ray_id: str
    devices: int
    has_slot: bool
    debugged: str | None  # a slot may be taken for hours by a job that waits in a breakpoint

    @property
    def described(self) -> str:
        """Its id, and why it may keep its slot for long."""
        return f"{self.ray_id}, which {self.debugged}" if self.debugged else self.ray_id


class _Queue:
    """The queue of a job's cluster, as its launcher sees it."""

    def __init__(self, job: JobDir, plan: Mapping[str, Any]) -> None:
        self._job, self._cluster = job, str(plan["cluster"])
        self._limit, self._wanted = plan["max_running"], plan["devices"]
        self._name = _name_of(job, self._wanted["count"])
        self._directory = job.root.queue(self._cluster)
        self._began = time.monotonic()

    def ask(self) -> QueuePosition | None:
        """Take a slot if we can, and return None. Otherwise return our position."""
        self._line_up()
        others = self._others()
        if self._in_the_way(others) is None:
            with lock.held(self._directory / ".lock", f"the launcher of {self._job.ray_id}", _LOCK_SECONDS):
                self._line_up()  # no other job takes a slot, or removes us, now
                others = self._others(is_locked=True)
                if self._in_the_way(others) is None:
                    self._job.write_state("turn", {"waited_seconds": round(time.monotonic() - self._began, 1)})
                    return None
        return self._position(others)

    def _line_up(self) -> None:
        """Another launcher may have removed us from the queue, if it thought us dead."""
        line_up(self._job, self._cluster, self._wanted["count"])

    def _others(self, *, is_locked: bool = False) -> list[_Entry]:
        """The other jobs of the queue in order, without those that are over or whose launcher will not come.

        With the queue's lock it removes these: without, one that comes just now would have a slot and no entry.
        """
        others = []
        for path in sorted(self._directory.iterdir()):
            entry = _ENTRY.fullmatch(path.name)
            if entry is None or entry["ray_id"] == self._job.ray_id:
                continue
            job = find.of_ray_id(self._job.root, entry["ray_id"])
            with suppress(
                OSError, Unreadable
            ):  # it has just left the queue; or is damaged, and its own launcher cannot read it either
                launcher = launcher_of(job)
                if launcher is Launcher.GONE or (launcher is Launcher.NOT_YET and not self._may_come(job, path)):
                    if is_locked:
                        path.unlink(missing_ok=True)
                    continue
                has_slot = launcher is Launcher.ALIVE and (job.state / "turn").exists()
                debugged = breakpoints.words(job) if has_slot else None
                others.append(_Entry(path.name, job.ray_id, int(entry["devices"]), has_slot, debugged))
        return others

    def _before(self, others: Sequence[_Entry]) -> list[_Entry]:
        """Those that go first: all that have a slot, and all that were reserved earlier."""
        return [entry for entry in others if entry.has_slot or entry.name < self._name]

    def _position(self, others: Sequence[_Entry]) -> QueuePosition:
        before = self._before(others)
        ahead = [entry.ray_id for entry in before if not entry.has_slot]
        behind = (
            ahead[-1] if ahead else f"{', '.join(entry.described for entry in before)} ({self._in_the_way(others)})"
        )
        waiting = sum(not entry.has_slot for entry in others)
        return QueuePosition(len(ahead) + 1, 1 + waiting, behind)

    def _in_the_way(self, others: Sequence[_Entry]) -> str | None:
        """Which limit the jobs before us fill; None if we fit next to them, as every job does if there are none."""
        before = self._before(others)
        if self._limit is not None and len(before) >= self._limit:
            return f"MAX_RUNNING={self._limit}"
        taken, has = sum(entry.devices for entry in before), self._wanted["cluster_has"]
        if before and taken + self._wanted["count"] > has:
            return f"{taken} of {has} {self._wanted['resource']} are taken, {self._wanted['count']} are wanted"
        return None

    def _may_come(self, job: JobDir, entry: Path) -> bool:
        """May its launcher still start? Ray did not refuse it, its end was not observed, and by the file system's clock it is young."""
        submitted, observed = job.read_state("submitted") or {}, job.read_state("observed") or {}
        if submitted.get("accepted") is False or observed.get("status") in ENDED_IN_RAY:
            return False
        now = self._job.launcher.stat().st_mtime + time.monotonic() - self._began
        return now - entry.stat().st_mtime < _LAUNCHER_SECONDS
