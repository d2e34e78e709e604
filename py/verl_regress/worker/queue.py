"""The queue: each job's launcher waits until the job fits next to those before it, first come, first served.

verl fails at once if other jobs have the devices that it needs ("Total available GPUs … is less than"), so jobs must
wait before verl starts. Their launchers wait, using a directory of links on the shared root: this needs no daemon and
no submitter, and Ray remains the only engine. A waiting launcher does not import Ray.

A job may start when all jobs that have a slot, all that wait before it, and the job itself are no more than MAX_RUNNING
and need no more devices than the cluster has. Jobs are ordered by reservation: the time of `config/`, then the name.

Waiting costs the same however many jobs wait. Next to each link is a mark, an empty file whose name says whether the job
waits or has a slot, and how many devices it takes. So one listing of the directory tells a launcher whether it may start
and its position. It then checks only that the one before it is alive, which does the same for its own. The first in line
checks those that have a slot. A link without a mark is of version 1.1, and is checked by all who ask for a slot.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verl_regress.base import lock
from verl_regress.base.errors import Unreadable
from verl_regress.base.layout import JobDir
from verl_regress.jobs import breakpoints
from verl_regress.jobs.liveness import ENDED_IN_RAY, Launcher, launcher_of

_LOOK_EVERY = 1.0  # seconds between two checks of the queue's time stamp, and for the first in line of the queue itself
# … of the queue even if unchanged, for the tenth in line and all behind it; the second looks every 2 s, and so on. NFS
# may show an old time stamp for a minute, and a launcher that is killed changes nothing.
_LOOK_AT_LEAST_EVERY = 10.0
# Seconds for which a job whose launcher has not started keeps its position: Ray may have no room for it, or its
# submitter died before Ray got it.
_LAUNCHER_SECONDS = 60.0
_WAITS, _RUNS = "waits", "runs"
_LINK = re.compile(r"\d{20}-.+")
_MARK = re.compile(rf"\.(?P<kind>{_WAITS}|{_RUNS})-(?P<devices>\d+)-(?P<link>{_LINK.pattern})")
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
    queue, link = job.root.queue(cluster), _name_of(job)
    queue.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        # Relative: the machine with the shared root knows it by another path than the nodes.
        (queue / link).symlink_to(os.path.relpath(job.path, queue))
    (queue / _mark(_WAITS, devices, link)).touch()


def leave(job: JobDir, cluster: str) -> None:
    """Remove the job from the queue, if it is in it."""
    with suppress(FileNotFoundError):
        for path in list(job.root.queue(cluster).iterdir()):
            marked = _MARK.fullmatch(path.name)
            if (marked["link"] if marked else path.name)[21:] == job.ray_id:
                path.unlink(missing_ok=True)


def _name_of(job: JobDir) -> str:
    """The name of the job's link."""
    return f"{job.config.stat().st_mtime_ns:020d}-{job.ray_id}"


def _mark(kind: str, devices: int, link: str) -> str:
    return f".{kind}-{devices}-{link}"


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
        queue.await_change(position.position)


@dataclass(frozen=True)
class _Entry:
    """One job of the queue: its link, and what its mark says."""

    name: str
    kind: str | None = None  # None without a mark
    devices: int = 0
    has_slot: bool = False
    debugged: str | None = None  # a slot may be taken for hours by a job that waits in a breakpoint

    @property
    def ray_id(self) -> str:
        """The job's id in Ray."""
        return self.name[21:]

    @property
    def described(self) -> str:
        """Its id, and why it may keep its slot for long."""
        return f"{self.ray_id}, which {self.debugged}" if self.debugged else self.ray_id


class _Queue:
    """The queue of a job's cluster, as its launcher sees it."""

    def __init__(self, job: JobDir, plan: Mapping[str, Any]) -> None:
        self._job, self._cluster, self._name = job, str(plan["cluster"]), _name_of(job)
        self._limit, self._wanted = plan["max_running"], plan["devices"]
        self._directory = job.root.queue(self._cluster)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        self._stamp, self._looked = 0, self._began
        self._counts: dict[str, int] = {}  # devices per job without a mark; a job's plan never changes

    def ask(self) -> QueuePosition | None:
        """Take a slot if we can, and return None. Otherwise return our position."""
        listed = self._listed()
        if self._must_wait(listed):
            return self._position(listed)
        with lock.owning(self._directory / ".lock", f"the launcher of {self._job.ray_id}", _LOCK_SECONDS):
            # No other job takes a slot now. Another launcher may have removed our link, if it thought us dead.
            line_up(self._job, self._cluster, self._wanted["count"])
            others = self._unfinished()
            if self._in_the_way(self._before(others)) is None:
                self._take_slot()
                return None
        return self._position(others)

    def await_change(self, position: int) -> None:
        """Return when we may have got a slot. The next in line checks every launcher before it each time."""
        due = min(position * _LOOK_EVERY, _LOOK_AT_LEAST_EVERY)
        while True:
            time.sleep(_LOOK_EVERY)
            if time.monotonic() - self._looked >= due or self._directory.stat().st_mtime_ns != self._stamp:
                return

    def _take_slot(self) -> None:
        """The caller has the queue's lock. The mark changes first: whoever is marked as waiting has no slot."""
        waits, runs = (self._directory / _mark(kind, self._wanted["count"], self._name) for kind in (_WAITS, _RUNS))
        waits.replace(runs)  # which tells the jobs behind us, because it changes the directory
        self._job.write_state("turn", {"waited_seconds": round(time.monotonic() - self._began, 1)})

    def _listed(self) -> list[_Entry]:
        """All jobs in order, ours too, as the names in the directory say; a launcher among them may be dead."""
        self._looked, self._stamp = time.monotonic(), self._directory.stat().st_mtime_ns
        names = [path.name for path in self._directory.iterdir()]
        marks = {found["link"]: found for name in names if (found := _MARK.fullmatch(name))}
        return [
            _Entry(name, mark["kind"], int(mark["devices"]), has_slot=mark["kind"] == _RUNS)
            if (mark := marks.get(name))
            else _Entry(name, devices=self._counts.get(name, 0))
            for name in sorted(filter(_LINK.fullmatch, names))
        ]

    def _must_wait(self, listed: Sequence[_Entry]) -> bool:
        """Do those before us leave no room, and does a live launcher that waits in front of us check that they are alive?"""
        is_listed = any(entry.name == self._name and entry.kind == _WAITS for entry in listed)
        before = self._before(listed)
        if not is_listed or self._in_the_way(before) is None:
            return False
        for entry in reversed([entry for entry in before if not entry.has_slot]):
            found = self._launcher_of(entry) if entry.kind == _WAITS else None
            if found is None or found[1] is Launcher.GONE:
                return False
            if found[1] is Launcher.ALIVE:
                return True
        return False

    def _unfinished(self) -> list[_Entry]:
        """The other unfinished jobs in order; removes the links of those that are over. The caller has the queue's lock."""
        entries, is_behind_a_live_one = [], False
        for entry in reversed(self._listed()):
            if entry.name == self._name:
                continue
            if entry.kind == _WAITS and (is_behind_a_live_one or entry.name > self._name):
                entries.append(entry)  # it has no slot, and the one behind it checks that it is alive
            elif found := self._launcher_of(entry):
                job, launcher = found
                if launcher is Launcher.GONE:
                    self._remove(entry)
                    continue
                is_behind_a_live_one |= entry.kind == _WAITS and launcher is Launcher.ALIVE
                with suppress(Unreadable):  # damaged: its own launcher cannot read it either
                    entries.append(self._seen(entry, job, is_alive=launcher is Launcher.ALIVE))
        return entries[::-1]

    def _launcher_of(self, entry: _Entry) -> tuple[JobDir, Launcher] | None:
        """The entry's job, and its launcher: GONE if it will not come, either. None if no submission made this link."""
        link = self._directory / entry.name
        try:
            job = JobDir(Path(os.path.normpath(self._directory / link.readlink())))
            if not job.path.is_relative_to(self._job.root.jobs):
                return None
            launcher = launcher_of(job)
            if launcher is Launcher.NOT_YET and not self._may_come(job, link):
                launcher = Launcher.GONE
        except (OSError, Unreadable):  # it left the queue, is no link, or leads to what this user cannot read
            return None
        return job, launcher

    def _seen(self, entry: _Entry, job: JobDir, *, is_alive: bool) -> _Entry:
        """The entry with what only the job's files say."""
        has_slot = is_alive and (entry.has_slot or (entry.kind is None and (job.state / "turn").exists()))
        return replace(
            entry,
            has_slot=has_slot,
            devices=self._count(entry, job) if entry.kind is None else entry.devices,
            debugged=breakpoints.words(job) if has_slot else None,
        )

    def _remove(self, entry: _Entry) -> None:
        if entry.kind is not None:
            (self._directory / _mark(entry.kind, entry.devices, entry.name)).unlink(missing_ok=True)
        (self._directory / entry.name).unlink(missing_ok=True)

    def _before(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """Those that go first: all that have a slot, and all that were reserved earlier."""
        return [entry for entry in entries if entry.name != self._name and (entry.has_slot or entry.name < self._name)]

    def _position(self, entries: Sequence[_Entry]) -> QueuePosition:
        before = self._before(entries)
        ahead = [entry.ray_id for entry in before if not entry.has_slot]
        behind = (
            ahead[-1] if ahead else f"{', '.join(entry.described for entry in before)} ({self._in_the_way(before)})"
        )
        waiting = sum(entry.name != self._name and not entry.has_slot for entry in entries)
        return QueuePosition(len(ahead) + 1, 1 + waiting, behind)

    def _in_the_way(self, before: Sequence[_Entry]) -> str | None:
        """Which limit the jobs before us fill; None if we fit next to them, as every job does if there are none."""
        if self._limit is not None and len(before) >= self._limit:
            return f"MAX_RUNNING={self._limit}"
        taken, has = sum(entry.devices for entry in before), self._wanted["cluster_has"]
        if before and taken + self._wanted["count"] > has:
            return f"{taken} of {has} {self._wanted['resource']} are taken, {self._wanted['count']} are wanted"
        return None

    def _may_come(self, job: JobDir, link: Path) -> bool:
        """May its launcher still start? Ray did not refuse it, its end was not observed, and by the file system's clock it is young."""
        submitted, observed = job.read_state("submitted") or {}, job.read_state("observed") or {}
        if submitted.get("accepted") is False or observed.get("status") in ENDED_IN_RAY:
            return False
        now = self._job.launcher.stat().st_mtime + time.monotonic() - self._began
        return now - link.lstat().st_mtime < _LAUNCHER_SECONDS

    def _count(self, entry: _Entry, job: JobDir) -> int:
        if entry.name not in self._counts:
            plan = job.read_config("resolved.json")
            self._counts[entry.name] = plan["devices"]["count"] if plan else 0
        return self._counts[entry.name]
