"""The shared root: each node tries it alone, then all exchange files there, so that a second directory or a cache shows."""

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.doctor.checks import Check, Cluster, Facts, Plan, Seen, alarm, probed, skipped

_PATIENCE = 15.0  # seconds in which the probes of all nodes begin
_TOGETHER = 3.0  # seconds in which two probes must have waited for each other
_ROUNDS = 3  # the fastest counts, because a node may be busy
_LATE, _SLOW, _CLOCK = 1.0, 0.05, 5.0  # seconds: another node's write, a small file, between two clocks
_SNAPSHOT = 500  # files of verl
_INODES = 10_000
_REHEARSAL_GIB = 0.1  # several times what the snapshot and a PPO job of a rehearsal take
_VALUE = "x" * 1000
_PREFIX = ".verl-regress-doctor-"
_OLD = 3600.0  # seconds: a directory of a run whose nodes were killed
_GRANTED = 15.0  # seconds until a free lock is given
_LOCK_AND_DIE = "import fcntl, os, sys; fcntl.flock(open(sys.argv[1], 'r+'), fcntl.LOCK_EX); os.kill(os.getpid(), 9)"


def facts(plan: Plan) -> dict[str, Any]:
    """What is wrong for this node, by code, and which other nodes it saw. It tries a directory of this run, of which it leaves nothing."""
    trial = Path(plan.shared_root, f"{_PREFIX}{plan.run}")
    found: dict[str, Any] = {}
    problems: list[tuple[str, str, str]] = []
    try:
        problems += _room(plan)
        _enter(trial, plan.node)
        _clean(trial)
        problems += [(code, plan.node, seen) for code, seen in _alone(trial, plan.node)]
        began = time.time()
        pairs = _meet(trial, plan)
        found["met"] = began, time.time()
        found["saw"] = [pair.peer for pair in pairs if pair.is_here]
        problems += [(code, f"{plan.node}, {pair.peer}", seen) for pair in pairs for code, seen in pair.problems()]
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problems.append(("VR-ROOT-05" if is_full else "VR-ROOT-01", plan.node, error.strerror or str(error)))
    _leave(trial, plan.node)
    return {"problems": problems, **found}


def _room(plan: Plan) -> Iterator[tuple[str, str, str]]:
    room = os.statvfs(plan.shared_root)
    gib, inodes = room.f_bavail * room.f_frsize / 2**30, room.f_favail if room.f_files else _INODES
    need = _REHEARSAL_GIB if plan.quick or plan.profile == "cpu" else float(plan.knobs["MIN_DISK_GIB"] or 0)
    if gib < need or inodes < _INODES:
        yield "VR-ROOT-05", plan.node, f"{gib:.2f} GiB and {inodes} inodes are free, {need:g} and {_INODES} are needed"


def _does(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def _enter(trial: Path, node: str) -> None:
    """Make the directory and a file of this node, which keeps it there. Raises OSError."""
    for _ in range(100):  # another node that leaves may remove it in between
        with contextlib.suppress(FileExistsError):
            trial.mkdir()
        with contextlib.suppress(FileNotFoundError):
            (trial / f"{node}.here").write_text("")
            return


def _clean(trial: Path) -> None:
    """Remove what killed nodes of earlier runs left. The age is by the clock that wrote both."""
    for path in trial.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another node may remove it, or it is another user's
            if trial.stat().st_mtime - path.stat().st_mtime > _OLD:
                shutil.rmtree(path)


def _leave(trial: Path, node: str) -> None:
    """Remove what is this node's, and the directory if no other node has files there."""
    with contextlib.suppress(OSError):  # another node may remove it first
        for path in list(trial.iterdir()):
            if path.name.startswith(f"{node}."):
                _does(path.unlink)
        trial.rmdir()


def _alone(trial: Path, node: str) -> Iterator[tuple[str, str]]:
    """Raises OSError if it cannot write."""
    one, two, three = (trial / f"{node}.{name}" for name in ("One", "two", "three"))
    for path in (one, three):
        path.write_text(path.suffix)
    if not _does(lambda: os.link(one, two)) or one.stat().st_nlink != 2:
        yield "VR-ROOT-03", "it has no hard links"
    if not _does(lambda: three.replace(two)) or (one.read_text(), two.read_text()) != (".One", ".three"):
        yield "VR-ROOT-03", "a rename does not replace a file"
    if (trial / f"{node}.one").exists():
        yield "VR-ROOT-03", "it is case-insensitive"
    one.chmod(0o600)
    if (mode := one.stat().st_mode & 0o777) != 0o600:
        yield "VR-ROOT-03", f"it changes the mode 600 of a file to {mode:o}"
    if (owner := one.stat().st_uid) != os.geteuid():
        yield "VR-ROOT-07", f"what user {os.geteuid()} writes belongs to user {owner}"
    with one.open("r+") as first, one.open("r+") as second:
        if not _does(lambda: fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            yield "VR-ROOT-04", "a file cannot be locked"
        elif _does(lambda: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            yield "VR-ROOT-04", "one lock is given to two processes"
    try:
        subprocess.run([sys.executable, "-c", _LOCK_AND_DIE, two], check=False, timeout=_GRANTED)
    except subprocess.TimeoutExpired:
        yield "VR-ROOT-04", f"a free lock is not given in {_GRANTED:.0f} s"
    with two.open("r+") as file:
        end = time.monotonic() + 2
        while (
            not (is_free := _does(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))) and time.monotonic() < end
        ):
            time.sleep(0.05)
    if not is_free:
        yield "VR-ROOT-04", "the lock of a process that was killed is kept"
    if (seconds := min(_seconds_of_file(trial, node) for _ in range(_ROUNDS))) > _SLOW:
        yield (
            "VR-ROOT-08",
            f"a small file takes {1000 * seconds:.0f} ms, a snapshot of verl {_SNAPSHOT * seconds:.0f} s",
        )


def _seconds_of_file(trial: Path, node: str) -> float:
    """What a small file takes that is made, renamed, read and removed."""
    began = time.monotonic()
    for number in range(5):
        path = trial / f"{node}.{number}"
        path.write_text(_VALUE)
        path = path.rename(f"{path}.done")
        path.read_text()
        path.unlink()
    return (time.monotonic() - began) / 5


def _meet(trial: Path, plan: Plan) -> "list[_Pair]":
    """Wait for each other node, with a lock in hand that all should see."""
    pairs = [_Pair(trial, plan.node, peer) for peer in plan.peers]
    end = time.monotonic() + _PATIENCE
    new, lock, over = (trial / f"{plan.node}.{name}" for name in ("new", "lock", "over"))
    with new.open("w") as file:
        _does(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
        new.rename(lock)
        while time.monotonic() < end and not all(pair.is_over() for pair in pairs):
            for pair in pairs:
                pair.step()
            if all(pair.round == _ROUNDS for pair in pairs):
                _put(over, "")
            time.sleep(0.01)
        _does(lock.unlink)  # before the rest: then what is missing is not a problem
    return pairs


@dataclass
class _Pair:
    """This node asks another one a few questions, and answers its questions. They are files, so the clocks need not agree."""

    trial: Path
    node: str
    peer: str
    is_here: bool = False
    lock: str = ""  # what is wrong with the lock that it holds
    round: int = 0  # of our questions
    answered: int = 0
    asked: tuple[float, float] = (0.0, 0.0)
    late: float = 0.0  # seconds until its files are seen; until the first answer, how long it has been missing from a node that is there
    ahead: float = 0.0  # of its clock

    def step(self) -> None:
        """Do what can be done now."""
        lock = self.trial / f"{self.peer}.lock"
        if not self.is_here and lock.exists():
            self.is_here, self.lock = True, _lock_of_other(lock)
            self._ask()
        if (self.trial / f"{self.peer}.asks.{self.node}.{self.answered}").exists():
            _put(self.trial / f"{self.node}.answers.{self.peer}.{self.answered}", str(time.time()))
            self.answered += 1
        late = (time.monotonic() - self.asked[0]) / 2
        if answer := _text(self.trial / f"{self.peer}.answers.{self.node}.{self.round}"):
            if not self.round or late < self.late:
                self.late, self.ahead = late, float(answer) - self.asked[1] - late
            self.round += 1
            self._ask()
        elif self.is_here and not self.round:
            self.late = late if lock.exists() else 0.0

    def _ask(self) -> None:
        self.asked = time.monotonic(), time.time()
        if self.round < _ROUNDS:
            _put(self.trial / f"{self.node}.asks.{self.peer}.{self.round}", "?")

    def is_over(self) -> bool:
        """Has this node all answers, and the other one too?"""
        has_all = not (self.trial / f"{self.peer}.lock").exists() or (self.trial / f"{self.peer}.over").exists()
        return self.round == _ROUNDS and has_all

    def problems(self) -> Iterator[tuple[str, str]]:
        """What this node saw of the other one; that it did not see it is known when all have answered."""
        if self.lock:
            yield "VR-ROOT-04", f"{self.node} does not see the lock that {self.peer} holds ({self.lock})"
        if self.late > _LATE:
            yield "VR-ROOT-06", f"{self.node} sees what {self.peer} writes {self.late:.1f} s later"
        if self.ahead > _CLOCK:
            yield "VR-ROOT-09", f"the clock of {self.peer} is {self.ahead:.0f} s ahead of that of {self.node}"


def _put(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _lock_of_other(path: Path) -> str:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return "it is free"


def _one_directory(nodes: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    saw = {node: found["saw"] for node, found in nodes.items() if "saw" in found}  # those that could write
    for node in saw:
        for peer in saw.keys() - {node, *saw[node]}:
            (began, ended), (met, left) = nodes[node]["met"], nodes[peer]["met"]
            if min(ended, left) - max(began, met) < _TOGETHER:
                yield skipped(f"{node}, {peer}", "their probes did not run at the same time, or their clocks differ")
                continue
            yield alarm(f"{node}, {peer}", f"{node} does not see what {peer} writes, after {_PATIENCE:.0f} s")


_NFS = "put SHARED_ROOT on a local disk or NFS 4 (docs/shared-root.md)"
CHECKS = (
    probed(
        "VR-ROOT-01",
        "write to the shared root",
        "no job can be recorded there",
        "mount SHARED_ROOT on that node, writable for the user who runs Ray",
    ),
    Check(
        "VR-ROOT-02",
        "find there what another node wrote",
        _one_directory,
        "SHARED_ROOT is not one directory, so jobs miss code, data and checkpoints",
        "mount the same directory on all nodes",
        quick=True,
    ),
    probed(
        "VR-ROOT-03",
        "link, replace and protect files there",
        "records of jobs are lost, or read while they are written",
        _NFS,
    ),
    probed(
        "VR-ROOT-04",
        "lock files there, across nodes",
        "two jobs get one slot, and a running job is taken for a lost one",
        "mount SHARED_ROOT everywhere by NFS 4, without the options nolock and local_lock",
    ),
    probed(
        "VR-ROOT-05",
        "room for a job there",
        "a checkpoint or a log cannot be written, and the job fails",
        "free some space ('make gc' removes old checkpoints), or lower MIN_DISK_GIB",
    ),
    probed(
        "VR-ROOT-06",
        "see there within a second what another node writes",
        "commands report an old state of a job, and may take it for stalled or lost",
        "mount SHARED_ROOT with lookupcache=positive (docs/shared-root.md)",
    ),
    probed(
        "VR-ROOT-07",
        "own there what one writes",
        "a job refuses its own files as those of another user",
        "export it without root_squash or all_squash, or set RUN_AS to a user whom the server keeps",
    ),
    probed(
        "VR-ROOT-08",
        "write small files there",
        "each start of a job waits for its code",
        "put SHARED_ROOT on a faster disk, or on a server nearer to the nodes",
    ),
    probed(
        "VR-ROOT-09",
        "the same time on all nodes",
        "times in logs and records are wrong, and a job may count as stalled or lost",
        "synchronise the clocks of the hosts (NTP)",
    ),
)
