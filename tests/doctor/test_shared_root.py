"""The shared root as nodes see it: threads are the nodes, each with its own files and locks."""

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_regress.doctor import shared_root
from verl_regress.doctor.checks import ALARM, Cluster, Plan

NODES = {"head": "10.0.0.1", "worker-0": "10.0.0.2", "worker-1": "10.0.0.3"}


@pytest.fixture
def alarms(tmp_path, monkeypatch):
    """Runs the nodes' probes on a root, or on one each; returns the alarms as (code, where, seen)."""
    monkeypatch.setattr(shared_root, "_SLOW", 60)  # this machine may be busy
    monkeypatch.setattr(shared_root, "_LATE", 60)
    (tmp_path / "root").mkdir()

    def run(roots=None, profile="cpu", quick=False):
        roots = roots or {}
        plans = [
            Plan(node, NODES, "c", profile, str(roots.get(node, tmp_path / "root")), 6379, quick, False, "now", {"MIN_DISK_GIB": "100"})
            for node in NODES
        ]  # fmt: skip

        def probe(plan):
            threading.current_thread().name = plan.node
            return shared_root.facts(plan)

        with ThreadPoolExecutor(len(plans)) as pool:
            found = dict(zip(NODES, pool.map(probe, plans), strict=True))
        assert list((tmp_path / "root").iterdir()) == []
        cluster = Cluster(NODES, profile, False, {}, ())
        said = [(check.code, seen) for check in shared_root.CHECKS for seen in check.judge(found, cluster)]
        return [(code, seen.where, seen.seen) for code, seen in said if seen.status == ALARM]

    return run


def test_healthy_root_has_no_alarm_and_nothing_is_left(alarms):
    assert alarms() == []


def test_node_that_leaves_may_take_the_directory_from_under_another_one(tmp_path, monkeypatch):
    trial, mkdir, gone = tmp_path / "trial", Path.mkdir, []

    def make(path):
        mkdir(path)
        if not gone:
            gone.append(path.rmdir())

    monkeypatch.setattr(Path, "mkdir", make)
    shared_root._enter(trial, "head")
    shared_root._enter(trial, "worker-0")
    assert (len(gone), {path.name for path in trial.iterdir()}) == (1, {"head.here", "worker-0.here"})
    shared_root._leave(trial, "head")
    shared_root._leave(trial, "worker-0")
    assert not trial.exists()
    shared_root._leave(trial, "worker-1")


def raises(code):
    def act(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    return act


def keeps_mode(path, _mode):
    return None


def other_owner(stat):
    def act(path, **kwargs):
        real = stat(path, **kwargs)
        return SimpleNamespace(st_uid=65534, st_mode=real.st_mode, st_nlink=real.st_nlink, st_mtime=0.0)

    return act


def clock(seconds, node):
    return SimpleNamespace(
        monotonic=time.monotonic,
        sleep=time.sleep,
        time=lambda: time.time() + (seconds if threading.current_thread().name == node else 0),
    )


def room(gib, inodes):
    return lambda _path: SimpleNamespace(f_bavail=int(gib * 2**30), f_frsize=1, f_favail=inodes, f_files=10**6)


# The fault: what is replaced, by what; the code and what was seen on one of the nodes.
FAULTS = {
    "read-only": ("Path.mkdir", raises(errno.EROFS), "VR-ROOT-01", "Read-only file system"),
    "no links": ("os.link", raises(errno.EPERM), "VR-ROOT-03", "it has no hard links"),
    "no modes": ("Path.chmod", keeps_mode, "VR-ROOT-03", "it changes the mode 600 of a file to "),
    "no locks": ("fcntl.flock", raises(errno.ENOLCK), "VR-ROOT-04", "a file cannot be locked"),
    "a lock for two": ("fcntl.flock", lambda *_: None, "VR-ROOT-04", "one lock is given to two processes"),
    "local locks": ("_lock_of_other", lambda _: "it is free", "VR-ROOT-04", "worker-0 does not see the lock that head holds (it is free)"),
    "full": ("Path.write_text", raises(errno.ENOSPC), "VR-ROOT-05", "No space left on device"),
    "nearly full": ("os.statvfs", room(0.05, 20_000), "VR-ROOT-05", "0.05 GiB and 20000 inodes are free, 0.1 and 10000 are needed"),
    "no inodes": ("os.statvfs", room(50, 7), "VR-ROOT-05", "50.00 GiB and 7 inodes are free, 0.1 and 10000 are needed"),
    "root squash": ("Path.stat", other_owner(Path.stat), "VR-ROOT-07", f"what user {os.geteuid()} writes belongs to user 65534"),
    "clock": ("time", clock(600, "worker-1"), "VR-ROOT-09", "the clock of worker-1 is 600 s ahead of that of head"),
}  # fmt: skip


@pytest.mark.parametrize(("what", "by", "code", "seen"), FAULTS.values(), ids=FAULTS)
def test_fault_is_found_by_its_code(alarms, monkeypatch, what, by, code, seen):
    monkeypatch.setattr(f"verl_regress.doctor.shared_root.{what}", by)
    assert any(said.startswith(seen) for of, _, said in alarms() if of == code)


def test_two_directories_are_found_on_both_sides(alarms, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_root, "_PATIENCE", 0.5)
    monkeypatch.setattr(shared_root, "_TOGETHER", -60)  # a busy machine runs one after the other
    (tmp_path / "other").mkdir()
    found = [(code, where) for code, where, _ in alarms({"worker-1": tmp_path / "other"})]
    assert {("VR-ROOT-02", "head, worker-1"), ("VR-ROOT-02", "worker-1, worker-0")} <= set(found)


@pytest.mark.parametrize(("limit", "code"), [("_SLOW", "VR-ROOT-08"), ("_LATE", "VR-ROOT-06")])
def test_slow_root_is_found(alarms, monkeypatch, limit, code):
    monkeypatch.setattr(shared_root, limit, 0)
    assert {of for of, _, _ in alarms()} == {code}


def test_node_that_is_seen_and_does_not_answer_sees_late_unless_it_has_left(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_root, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    now, lock = 0.0, tmp_path / "worker-0.lock"
    lock.touch()
    pair = shared_root._Pair(tmp_path, "head", "worker-0")
    pair.step()
    assert [code for code, _ in pair.problems()] == ["VR-ROOT-04"]  # its lock is free
    now = 9.0
    pair.step()
    assert [code for code, _ in pair.problems()] == ["VR-ROOT-04", "VR-ROOT-06"]
    lock.unlink()
    pair.step()
    assert [code for code, _ in pair.problems()] == ["VR-ROOT-04"]


@pytest.mark.parametrize(("began", "status"), [(0.0, "alarm"), (13.0, "skipped")])
def test_nodes_that_did_not_run_at_the_same_time_may_still_share_a_directory(began, status):
    facts = {"head": {"saw": ["worker-0"], "met": [0.0, 15.0]}, "worker-0": {"saw": [], "met": [began, began + 15.0]}}
    assert [seen.status for seen in shared_root._one_directory(facts, Cluster(NODES, "cpu", True, {}, ()))] == [status]


def test_directories_of_killed_runs_are_removed(tmp_path):
    old, new, trial = (tmp_path / f".verl-regress-doctor-{name}" for name in ("old", "new", "now"))
    for path in (old, new, trial):
        path.mkdir()
        (path / "head.lock").touch()
    os.utime(old, (1, 1))
    shared_root._clean(trial)
    assert set(tmp_path.iterdir()) == {new, trial}


def test_lock_that_is_not_given_is_found(tmp_path, monkeypatch):
    def run(words, timeout, **_options):
        raise shared_root.subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(shared_root.subprocess, "run", run)
    monkeypatch.setattr(shared_root, "_SLOW", 60)
    assert list(shared_root._alone(tmp_path, "head")) == [("VR-ROOT-04", "a free lock is not given in 15 s")]


def test_profile_with_gpus_needs_the_room_of_the_knob_but_not_to_start(alarms, monkeypatch):
    monkeypatch.setattr("verl_regress.doctor.shared_root.os.statvfs", room(50, 20_000))
    assert {code for code, *_ in alarms(profile="gpu")} == {"VR-ROOT-05"}
    assert alarms(profile="gpu", quick=True) == []  # 'make check' warns of that
