"""The queue: each job's launcher waits until the job fits next to those before it, first come, first served.

verl fails at once if other jobs have the devices that it needs ("Total available GPUs … is less than"), so jobs must
wait before verl starts. Their launchers wait, using a directory of links on the shared root: this needs no daemon and
no submitter, and Ray remains the only engine. A waiting launcher does not import Ray, and reads one time stamp a
second.

A job may start when all jobs that have a slot, all that wait before it, and the job itself are no more than MAX_RUNNING
and need no more devices than the cluster has. Jobs are ordered by reservation: the time of `config/`, then the name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base import lock
from verl_regress.base.errors import Unreadable
from verl_regress.base.layout import JobDir
from verl_regress.jobs import breakpoints
from verl_regress.jobs.liveness import ENDED_IN_RAY, Launcher, launcher_of

_LOOK_EVERY = 1.0  # seconds between two checks of the queue's time stamp
_LOOK_WHOLE_EVERY = 10.0  # … of the whole queue even if unchanged: a launcher that is killed changes nothing
# Seconds for which a job whose launcher has not started keeps its position: Ray may have no room for it, or its
# submitter died before Ray got it.
_LAUNCHER_SECONDS = 60.0
_LOCK_SECONDS = 300.0  # a launcher has the queue's lock for milliseconds, on a slow NFS for seconds; one that is suspended, for ever


@dataclass(frozen=True)
class QueuePosition:
    """The position of a waiting job, 1 being next, and the job right before it."""

    position: int
    waiting: int
    behind: str

    def __str__(self) -> str:
        return f"position {self.position} of {self.waiting}: behind {self.behind}"


def line_up(job: JobDir, cluster: str) -> Path:
    """Add the job to its cluster's queue if it is not in it; its `config/` is complete. Returns its link there."""
    queue = job.root.queue(cluster)
    queue.mkdir(parents=True, exist_ok=True)
    link = queue / f"{job.config.stat().st_mtime_ns:020d}-{job.ray_id}"
    with suppress(FileExistsError):
        # Relative: the machine with the shared root knows it by another path than the nodes.
        link.symlink_to(os.path.relpath(job.path, queue))
    return link


def leave(job: JobDir, cluster: str) -> None:
    """Remove the job from the queue, if it is in it."""
    for link in job.root.queue(cluster).glob(f"*-{job.ray_id}"):
        if link.name[21:] == job.ray_id:
            link.unlink(missing_ok=True)


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
        queue.await_change(is_next=position.position == 1)


@dataclass(frozen=True)
class _Entry:
    """One unfinished job of the queue."""

    name: str
    ray_id: str
    has_slot: bool
    devices: int
    debugged: str | None = None  # a slot may be taken for hours by a job that waits in a breakpoint

    @property
    def described(self) -> str:
        """Its id, and why it may keep its slot for long."""
        return f"{self.ray_id}, which {self.debugged}" if self.debugged else self.ray_id


class _Queue:
    """The queue of a job's cluster, as its launcher sees it."""

    def __init__(self, job: JobDir, plan: Mapping[str, Any]) -> None:
        self._job, self._cluster = job, str(plan["cluster"])
        self._limit, self._wanted = plan["max_running"], plan["devices"]
        self._directory = job.root.queue(self._cluster)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        self._stamp, self._looked = 0, self._began
        self._counts: dict[str, int] = {}  # devices per job; a job's plan never changes

    def ask(self) -> QueuePosition | None:
        """Take a slot if we can, and return None. Otherwise return our position."""
        who = f"the launcher of {self._job.ray_id}"
        with lock.owning(self._directory / ".lock", who, _LOCK_SECONDS):  # no other job takes a slot
            link = line_up(self._job, self._cluster)  # another launcher may have removed it, if it thought us dead
            self._stamp, self._looked = self._directory.stat().st_mtime_ns, time.monotonic()
            others = [entry for entry in self._entries() if entry.name != link.name]
            before = [entry for entry in others if entry.has_slot or entry.name < link.name]
            if self._in_the_way(before) is None:
                self._job.write_state("turn", {"waited_seconds": round(time.monotonic() - self._began, 1)})
                os.utime(self._directory)  # the jobs behind us have moved up
                return None
        ahead = [entry.ray_id for entry in before if not entry.has_slot]
        behind = (
            ahead[-1] if ahead else f"{', '.join(entry.described for entry in before)} ({self._in_the_way(before)})"
        )
        return QueuePosition(len(ahead) + 1, 1 + sum(not entry.has_slot for entry in others), behind)

    def await_change(self, *, is_next: bool) -> None:
        """Return when we may have got a slot. The next in line checks every launcher before it each time."""
        while True:
            time.sleep(_LOOK_EVERY)
            is_due = is_next or time.monotonic() - self._looked > _LOOK_WHOLE_EVERY
            if is_due or self._directory.stat().st_mtime_ns != self._stamp:
                return

    def _in_the_way(self, before: Sequence[_Entry]) -> str | None:
        """Which limit the jobs before us fill; None if we fit next to them, as every job does if there are none."""
        if self._limit is not None and len(before) >= self._limit:
            return f"MAX_RUNNING={self._limit}"
        taken, has = sum(entry.devices for entry in before), self._wanted["cluster_has"]
        if before and taken + self._wanted["count"] > has:
            return f"{taken} of {has} {self._wanted['resource']} are taken, {self._wanted['count']} are wanted"
        return None

    def _entries(self) -> list[_Entry]:
        """The unfinished jobs in order; removes the links of the others."""
        entries = []
        for link in sorted(link for link in self._directory.iterdir() if not link.name.startswith(".")):
            try:
                job = JobDir(Path(os.path.normpath(self._directory / link.readlink())))
                launcher = launcher_of(job) if job.path.is_relative_to(self._job.root.jobs) else None
            except OSError:  # it left the queue, is no link, or leads to what this user cannot read
                continue
            if launcher is None:  # no submission made this link
                continue
            with suppress(Unreadable):  # damaged: its own launcher cannot read it either
                if launcher is Launcher.ALIVE or (launcher is Launcher.NOT_YET and self._may_come(job, link)):
                    has_slot = launcher is Launcher.ALIVE and (job.state / "turn").exists()
                    debugged = breakpoints.words(job) if has_slot else None
                    entries.append(_Entry(link.name, job.ray_id, has_slot, self._count(job), debugged))
                else:
                    link.unlink(missing_ok=True)
        return entries

    def _may_come(self, job: JobDir, link: Path) -> bool:
        """May its launcher still start? Ray did not refuse it, its end was not observed, and by the file system's clock
        it is young.
        """
        submitted, observed = job.read_state("submitted") or {}, job.read_state("observed") or {}
        if submitted.get("accepted") is False or observed.get("status") in ENDED_IN_RAY:
            return False
        now = self._job.launcher.stat().st_mtime + time.monotonic() - self._began
        return now - link.lstat().st_mtime < _LAUNCHER_SECONDS

    def _count(self, job: JobDir) -> int:
        if job.ray_id not in self._counts:
            plan = job.read_config("resolved.json")
            self._counts[job.ray_id] = plan["devices"]["count"] if plan else 0
        return self._counts[job.ray_id]
