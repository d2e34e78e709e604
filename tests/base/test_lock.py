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
from verl_regress.worker import queue

HERE = os.uname().nodename
CURE = "wait until that process ends, or stop it on that machine, then run this again."

# Holds the lock of a file until it is killed, after it printed a line.
HOLDER = """\
import sys, time
from pathlib import Path
from verl_regress.base import lock
with lock.held(Path(sys.argv[1]), sys.argv[2], 9, shared=sys.argv[3] == "shared"):
    print(flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder():
    """Starts a process that holds a lock; returns its Popen."""
    started = []

    def hold(path, who, how="alone"):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), who, how],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(Path(lock.__file__).parents[2])},
        )
        started.append(process)
        assert process.stdout.readline() == b"\n"
        return process

    yield hold
    for process in started:
        kill(process)
        process.stdout.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def refused(*args, **options):
    with pytest.raises(RegressError) as caught, lock.held(*args, **options):
        pass
    return re.sub(r"since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "since T", str(caught.value))


@pytest.mark.parametrize(("how", "shared"), [("alone", False), ("alone", True), ("shared", False)])
def test_who_has_the_lock_is_named_to_who_waits(tmp_path, holder, how, shared):
    file = tmp_path / "file"
    first = holder(file, "the launcher of job-1", how)
    assert refused(file, "me", 0.3, shared=shared) == (
        f"{file} has been locked for 0 s by the launcher of job-1 (pid {first.pid} on {HERE}, since T): {CURE}"
    )
    assert lock.is_held(file, fcntl.LOCK_EX)
    kill(first)
    with lock.held(file, "me", 0, shared=shared):  # what it recorded is there, and holds nothing
        assert re.fullmatch(rf"me \(pid {os.getpid()} on {HERE}, since \S+\)\n", file.read_text())
        assert lock.is_held(file) is not shared
    assert not lock.is_held(file, fcntl.LOCK_EX)


def test_several_share_a_lock_and_a_long_wait_is_reported_with_its_holder(tmp_path, monkeypatch, capsys):
    file = tmp_path / "file"
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)
    with lock.held(file, "one", 0, shared=True), lock.held(file, "two", 0, shared=True):
        refused(file, "me", 0.3)
    assert re.fullmatch(rf" +waiting for two \(pid .*\), which has locked {file}\n", capsys.readouterr().err)


@pytest.mark.parametrize(("record", "name"), [("", "another process"), ("evil\x1b[2J" + "x" * 5000, "evil\\x1b[2Jxxx")])
def test_a_record_shows_nothing_that_a_terminal_acts_on(tmp_path, record, name):
    file = tmp_path / "file"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(record)
        held.flush()
        sentence = refused(file, "me", 0)
    assert f" by {name}" in sentence
    assert len(sentence) < 600


def test_a_launcher_that_hangs_is_named_to_the_job_that_waits(shared, make_job, holder, monkeypatch):
    job = make_job("job-2")
    (shared.queue("c")).mkdir(parents=True)
    hanging = holder(shared.queue("c") / ".lock", "the launcher of job-1")
    monkeypatch.setattr(queue, "_LOCK_SECONDS", 0.3)
    plan = {"cluster": "c", "max_running": 1, "devices": {"count": 1, "cluster_has": 1, "resource": "GPU"}}
    with pytest.raises(RegressError, match=rf" locked for 0 s by the launcher of job-1 \(pid {hanging.pid} "):
        queue.wait(job, plan, print)


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EROFS, "mount it read-write"),
        (
            errno.ENOLCK,
            "its directory must exist and be yours to write, on a file system that has locks (a local disk, NFS 4)",
        ),
    ],
)
def test_a_file_that_cannot_be_locked(tmp_path, monkeypatch, number, cure):
    def flock(*_args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert refused(tmp_path / "file", "gc", 9) == (f"{tmp_path}/file cannot be locked ({os.strerror(number)}): {cure}.")


def test_a_lock_is_never_taken_through_a_link_nor_in_a_directory_that_is_not_there(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused(tmp_path / "link", "gc", 0)
    refused(tmp_path / "no" / "file", "gc", 0)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_costs_only_the_name(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with lock.held(tmp_path / "file", "me", 0):
        assert lock.is_held(tmp_path / "file")
