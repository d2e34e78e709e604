"""Waits for locks end, and name who holds the lock; what a killed process recorded never counts as one."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from verl_regress.base import lock
from verl_regress.base.errors import RegressError
from verl_regress.jobs.status import submission_of
from verl_regress.store import removal
from verl_regress.submit import submit
from verl_regress.worker import queue

HERE = os.uname().nodename
CURE = "wait until that process ends, or stop it on that machine, then run this again."

# Holds a lock until it is killed: HOW PATH, after which it prints a line.
HOLDER = """\
import sys, time
from pathlib import Path
from verl_regress.base import lock
how, path = sys.argv[1], Path(sys.argv[2])
held = {"owning": lambda: lock.owning(path, "the launcher of job-1", 9), "alone": lambda: lock.alone(path, "gc", 9),
        "sharing": lambda: lock.sharing(path, 9)}[how]()
with held:
    print(flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder():
    """Starts a process that holds a lock; returns its Popen."""
    started = []

    def hold(how, path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, how, str(path)],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(Path(lock.__file__).parents[2])},
        )
        started.append(process)
        assert process.stdout.readline() == b"\n"
        return process

    yield hold
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def said(caught):
    return re.sub(r"since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "since T", str(caught.value))


def test_a_file_that_another_process_owns(tmp_path, holder):
    file = tmp_path / "file"
    first = holder("owning", file)
    with pytest.raises(RegressError) as caught, lock.owning(file, "me", 0.3):
        pass
    assert said(caught) == (
        f"{file} has been locked for 0 s by the launcher of job-1 (pid {first.pid} on {HERE}, since T): {CURE}"
    )
    kill(first)
    with lock.owning(file, "me", 0):  # what it recorded is there, and holds nothing
        assert re.fullmatch(rf"me \(pid {os.getpid()} on {HERE}, since \S+\)\n", file.read_text())


def test_a_holder_without_a_record(tmp_path):
    file = tmp_path / "file"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RegressError) as caught, lock.owning(file, "me", 0):
            pass
    assert said(caught) == f"{file} has been locked for 0 s by another process: {CURE}"


def test_a_record_shows_nothing_that_a_terminal_acts_on(tmp_path):
    file = tmp_path / "file"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("evil\x1b[2J" + "x" * 5000)
        held.flush()
        with pytest.raises(RegressError) as caught, lock.owning(file, "me", 0):
            pass
    assert "by evil\\x1b[2Jxxx" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_gc_that_hangs_is_named_to_who_submits(shared, holder, monkeypatch):
    hanging = holder("alone", shared.jobs)
    monkeypatch.setattr(submit, "_LOCK_SECONDS", 0.3)
    with pytest.raises(RegressError) as caught, submit.uncollected(shared):
        pass
    assert said(caught) == f"{shared.jobs} has been locked for 0 s by gc (pid {hanging.pid} on {HERE}, since T): {CURE}"
    kill(hanging)
    with submit.uncollected(shared) as has_lock:
        assert has_lock


def test_a_submission_that_hangs_is_named_to_gc(shared, make_job, monkeypatch):
    """By what it recorded in its job, on whatever machine it is."""
    monkeypatch.setattr(removal, "_LOCK_SECONDS", 0.3)
    with submit.uncollected(shared), submission_of(make_job("job-1")), pytest.raises(RegressError) as caught:
        removal.Removal(shared)
    assert said(caught) == (
        f"{shared.jobs} has been locked for 0 s by the submission of job-1 (pid {os.getpid()} on {HERE}, since T): {CURE}"
    )


def test_who_has_no_job_yet_is_named_by_the_kernel_of_this_machine(shared, holder, monkeypatch):
    planning = holder("sharing", shared.jobs)
    monkeypatch.setattr(removal, "_LOCK_SECONDS", 0.3)
    with pytest.raises(RegressError) as caught:
        removal.Removal(shared)
    assert re.fullmatch(
        rf"{re.escape(str(shared.jobs))} has been locked for 0 s by {re.escape(sys.executable)} -c import sys, time.*… "
        rf"\(\d+ characters\) \(pid {planning.pid} on {HERE}\): {re.escape(CURE)}",
        str(caught.value),
    )


def test_a_launcher_that_hangs_is_named_to_the_job_that_waits(shared, make_job, holder, monkeypatch):
    job = make_job("job-2")
    (shared.queue("c")).mkdir(parents=True)
    hanging = holder("owning", shared.queue("c") / ".lock")
    monkeypatch.setattr(queue, "_LOCK_SECONDS", 0.3)
    plan = {"cluster": "c", "max_running": 1, "devices": {"count": 1, "cluster_has": 1, "resource": "GPU"}}
    with pytest.raises(RegressError) as caught:
        queue.wait(job, plan, print)
    assert said(caught) == (
        f"{shared.queue('c')}/.lock has been locked for 0 s by the launcher of job-1 (pid {hanging.pid} on {HERE}, since T): "
        f"{CURE}"
    )


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EROFS, "mount it read-write"),
        (errno.ENOSPC, "free some space and some inodes there ('make gc' removes old checkpoints)"),
        (errno.EACCES, "ask its owner to let you write there"),
    ],
)
def test_a_directory_whose_lock_file_cannot_be_opened(tmp_path, monkeypatch, number, cure):
    """Before: it was said to have no locks."""

    def refused(_directory):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock, "_lock_file", refused)
    with pytest.raises(RegressError) as caught, lock.alone(tmp_path, "gc", 9):
        pass
    assert str(caught.value) == f"{tmp_path} cannot be locked ({os.strerror(number)}): {cure}."


def test_a_directory_that_cannot_be_locked(tmp_path, monkeypatch):
    with pytest.raises(RegressError) as caught, lock.alone(tmp_path / "no", "gc", 9):
        pass
    where = "it must exist, on a file system that has locks (a local disk, NFS 4)."
    assert str(caught.value) == f"{tmp_path}/no cannot be locked (No such file or directory): {where}"

    def flock(_descriptor, _operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RegressError) as caught, lock.alone(tmp_path, "gc", 9):
        pass
    assert str(caught.value) == f"{tmp_path} cannot be locked (No locks available): {where}"
    with lock.sharing(tmp_path, 9) as has_lock:  # who submits can do without
        assert not has_lock


def test_a_full_disk_costs_only_the_name(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with lock.alone(tmp_path, "gc", 0), lock.owning(tmp_path / "file", "me", 0):
        assert lock.is_held(lock.file_of(tmp_path))
        assert lock.is_held(tmp_path / "file")
