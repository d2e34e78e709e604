"""The shared root: each node tries it alone, then all look for each other's files there, so that a second directory shows."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_regress.doctor.checks import ALARM, LATE, DoctorCheck, Facts, ProbePlan, Seen

_PATIENCE = 15.0  # seconds in which the probes of all nodes begin
_LOOKED = 2.0  # seconds in which all nodes look for files before there are any: a cache may then show these late (NFS)
_TOGETHER = 3.0  # seconds in which two probes must have waited for each other
_CLOCK = 5.0  # seconds between two clocks
_INODES = 10_000
_REHEARSAL_GIB = 0.1  # several times what the snapshot and a PPO job of a rehearsal take


def facts(plan: ProbePlan) -> dict[str, Any]:
    """What this node `saw` of the others (_meet), unless it cannot write. It writes files of this run, of which it leaves nothing."""
    try:
        _see_room(plan)
        _see_alone(plan, _file(plan, plan.node, ""))
        return _meet(plan)
    except OSError as error:
        code = "VR-ROOT-05" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "VR-ROOT-01"
        plan.see(code, error.strerror or str(error))
        return {}
    finally:
        for path in Path(plan.knobs["SHARED_ROOT"]).glob(_file(plan, plan.node, "*").name):
            _does(path.unlink)


def _file(plan: ProbePlan, node: str, what: str) -> Path:
    return Path(plan.knobs["SHARED_ROOT"], f".verl-regress-doctor-{plan.run}.{node}.{what}")


def _does(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def _lock(file: Any, kind: int = fcntl.LOCK_EX) -> bool:
    return _does(lambda: fcntl.flock(file, kind | fcntl.LOCK_NB))


def _see_room(plan: ProbePlan) -> None:
    room = os.statvfs(plan.knobs["SHARED_ROOT"])
    gib, inodes = room.f_bavail * room.f_frsize / 2**30, room.f_favail if room.f_files else _INODES
    need = _REHEARSAL_GIB if plan.quick or plan.knobs["PROFILE"] == "cpu" else float(plan.knobs["MIN_DISK_GIB"] or 0)
    if gib < need or inodes < _INODES:
        plan.see("VR-ROOT-05", f"{gib:.2f} GiB and {inodes} inodes are free, {need:g} and {_INODES} are needed")


def _see_alone(plan: ProbePlan, base: Path) -> None:
    """Tries files whose names begin so. Raises OSError if it cannot write."""
    one, two, three = (base.with_name(f"{base.name}{name}") for name in ("One", "two", "three"))
    for path in (one, three):
        path.write_text(path.name)
    if not _does(lambda: os.link(one, two)) or one.stat().st_nlink != 2:
        plan.see("VR-ROOT-03", "it has no hard links")
    if not _does(lambda: three.replace(two)) or (one.read_text(), two.read_text()) != (one.name, three.name):
        plan.see("VR-ROOT-03", "a rename does not replace a file")
    if base.with_name(f"{base.name}one").exists():
        plan.see("VR-ROOT-03", "it is case-insensitive")
    if (owner := one.stat().st_uid) != os.geteuid():
        plan.see("VR-ROOT-03", f"what user {os.geteuid()} writes belongs to user {owner}")
    elif not _does(lambda: one.chmod(0o600)) or one.stat().st_mode & 0o777 != 0o600:
        plan.see("VR-ROOT-03", "it does not keep the mode of a file")
    with one.open("r+") as file:
        if not _lock(file):
            plan.see("VR-ROOT-04", "a file cannot be locked")


def _meet(plan: ProbePlan) -> dict[str, Any]:
    """Wait until every node has seen every other node's locked file. Raises OSError. Returns which nodes it `saw`,
    and between which times it `looked`, by the clock that gives files their times. A file says how much its node's clock is ahead of that."""
    if not (plan.quick or any(_file(plan, peer, "lock").exists() for peer in plan.peers)):
        time.sleep(_LOOKED)
    end = time.monotonic() + _PATIENCE
    saw = set[str]()
    mine = _file(plan, plan.node, "lock")
    new = mine.with_suffix(".new")
    new.touch()
    began = new.stat().st_mtime
    ahead = time.time() - began
    new.write_text(str(ahead))
    with new.open("r+") as held:
        _lock(held)
        new.replace(mine)
        while time.monotonic() < end:
            saw |= {peer for peer in {*plan.peers} - saw if _meet_peer(plan, peer, ahead)}
            if len(saw) == len(plan.peers):
                mine.with_suffix(".saw").touch()
                if _all_saw(plan):
                    break
            time.sleep(0.01)
        mine.unlink()  # before the lock ends
    return {"saw": [*saw], "looked": [began, time.time() - ahead]}


def _meet_peer(plan: ProbePlan, peer: str, ahead: float) -> bool:
    """Is the peer's file there? If so, check its lock and its clock; this node's clock is `ahead` of the one that gives files their times."""
    try:
        theirs = _file(plan, peer, "lock").open()
    except FileNotFoundError:
        return False
    with theirs:
        where, seconds = f"{plan.node}, {peer}", float(theirs.read() or 0) - ahead
        if _lock(theirs, fcntl.LOCK_SH):
            plan.see("VR-ROOT-04", f"{plan.node} does not see the lock that {peer} holds", where)
        if seconds > _CLOCK:
            plan.see("VR-ROOT-09", f"the clock of {peer} is {seconds:.0f} s ahead of that of {plan.node}", where)
    return True


def _all_saw(plan: ProbePlan) -> bool:
    """Has every peer seen all other nodes, or ended?"""
    locks = [_file(plan, peer, "lock") for peer in plan.peers]
    return not any(lock.exists() and not lock.with_suffix(".saw").exists() for lock in locks)


def _judge_directory(facts: Mapping[str, Facts], _plan: ProbePlan) -> Iterator[Seen]:
    known = {node: found for node, found in facts.items() if "saw" in found}  # the nodes that could write
    for node, found in known.items():
        for peer in known.keys() - {node, *found["saw"]}:
            (began, ended), (met, left) = found["looked"], known[peer]["looked"]
            status, what = ALARM, f"{node} does not see what {peer} writes, after {_PATIENCE:.0f} s"
            if min(ended, left) - max(began, met) < _TOGETHER:
                status, what = LATE, "their probes did not run at the same time"
            yield Seen("VR-ROOT-02", status, f"{node}, {peer}", what)


_NFS = "mount SHARED_ROOT everywhere by NFS 4, without nolock and local_lock, or put it on a local disk (docs/shared-root.md)"
CHECKS = (
    DoctorCheck(
        "VR-ROOT-01",
        "write to the shared root",
        "no job can be recorded there",
        "mount SHARED_ROOT on that node, writable for the user who runs Ray",
    ),
    DoctorCheck(
        "VR-ROOT-02",
        "find there what another node wrote",
        "jobs miss code, data and checkpoints",
        "mount the same directory on all nodes, with lookupcache=positive (docs/shared-root.md)",
        _judge_directory,
    ),
    DoctorCheck(
        "VR-ROOT-03",
        "link, replace, protect and own files there",
        "records of jobs are lost, or refused as another user's",
        f"{_NFS}; export it without root_squash and all_squash",
    ),
    DoctorCheck(
        "VR-ROOT-04",
        "lock files there, across nodes",
        "two jobs get one slot, and running jobs are taken for lost ones",
        _NFS,
    ),
    DoctorCheck(
        "VR-ROOT-05",
        "room for a job there",
        "a checkpoint or a log cannot be written, and the job fails",
        "free some space ('make gc' removes old checkpoints), or lower MIN_DISK_GIB",
    ),
    DoctorCheck(
        "VR-ROOT-09",
        "the same time on all nodes",
        "times in records are wrong, and jobs are taken for stalled or lost",
        "synchronise the clocks of the hosts (NTP)",
    ),
)
