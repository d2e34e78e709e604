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
from verl_regress.doctor.checks import ALARM, ProbePlan

NODES = {"head": "10.0.0.1", "worker-0": "10.0.0.2", "worker-1": "10.0.0.3"}


@pytest.fixture
def alarms(tmp_path, monkeypatch):
    """Runs the nodes' probes on a root, or on one each; returns the alarms as (code, where, seen)."""
    monkeypatch.setattr(shared_root, "_LOOKED", 0.0)
    (tmp_path / "root").mkdir()

    def run(roots=None, profile="cpu", quick=False):
        def probe(node):
            threading.current_thread().name = node
            root = str((roots or {}).get(node, tmp_path / "root"))
            knobs = {"MIN_DISK_GIB": "100", "PROFILE": profile, "SHARED_ROOT": root}
            plan = ProbePlan(NODES, knobs, quick, "now", node)
            return shared_root.facts(plan), plan.seen

        with ThreadPoolExecutor(len(NODES)) as pool:
            found = dict(zip(NODES, pool.map(probe, NODES), strict=True))
        assert list((tmp_path / "root").iterdir()) == []
        said = [*shared_root._judge_directory({node: facts for node, (facts, _) in found.items()}, None)]
        said += [one for _, seen in found.values() for one in seen]
        return [(seen.code, seen.where, seen.seen) for seen in said if seen.status == ALARM]

    return run


def test_healthy_root_has_no_alarm_and_nothing_is_left(alarms):
    assert alarms() == []


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
    "read-only": ("Path.write_text", raises(errno.EROFS), "VR-ROOT-01", "Read-only file system"),
    "no links": ("os.link", raises(errno.EPERM), "VR-ROOT-03", "it has no hard links"),
    "no modes": ("Path.chmod", keeps_mode, "VR-ROOT-03", "it does not keep the mode of a file"),
    "no locks": ("fcntl.flock", raises(errno.ENOLCK), "VR-ROOT-04", "a file cannot be locked"),
    "a lock for two": ("fcntl.flock", lambda *_: None, "VR-ROOT-04", "worker-0 does not see the lock that head holds"),
    "full": ("Path.write_text", raises(errno.ENOSPC), "VR-ROOT-05", "No space left on device"),
    "nearly full": ("os.statvfs", room(0.05, 20_000), "VR-ROOT-05", "0.05 GiB and 20000 inodes are free, 0.1 and 10000 are needed"),
    "no inodes": ("os.statvfs", room(50, 7), "VR-ROOT-05", "50.00 GiB and 7 inodes are free, 0.1 and 10000 are needed"),
    "root squash": ("Path.stat", other_owner(Path.stat), "VR-ROOT-03", f"what user {os.geteuid()} writes belongs to user 65534"),
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


def test_nodes_look_for_each_other_before_there_is_a_file(alarms, monkeypatch):
    slept = []
    monkeypatch.setattr(shared_root, "_LOOKED", 0.4)
    monkeypatch.setattr(
        shared_root.time, "sleep", lambda seconds, sleep=time.sleep: (slept.append(seconds), sleep(seconds))
    )
    assert alarms() == []
    assert 0.4 in slept
    slept.clear()
    assert alarms(quick=True) == []
    assert 0.4 not in slept


@pytest.mark.parametrize(("began", "status"), [(0.0, "alarm"), (13.0, "late")])
def test_nodes_that_did_not_run_at_the_same_time_may_still_share_a_directory(began, status):
    facts = {
        "head": {"saw": ["worker-0"], "looked": [0.0, 15.0]},
        "worker-0": {"saw": [], "looked": [began, began + 15.0]},
    }
    assert [seen.status for seen in shared_root._judge_directory(facts, None)] == [status]


def test_profile_with_gpus_needs_the_room_of_the_knob_but_not_to_start(alarms, monkeypatch):
    monkeypatch.setattr("verl_regress.doctor.shared_root.os.statvfs", room(50, 20_000))
    assert {code for code, *_ in alarms(profile="gpu")} == {"VR-ROOT-05"}
    assert alarms(profile="gpu", quick=True) == []  # 'make check' warns of that
