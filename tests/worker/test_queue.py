"""The queue, with real locks: each launcher is a real process that holds its job's lock, or waits for a slot as ours do."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shared_fixtures import write

from verl_regress.base.errors import RegressError
from verl_regress.jobs.status import LaunchedBefore, Launcher, hold_launcher_lock, launcher_of
from verl_regress.worker import queue

pytestmark = pytest.mark.slow

HELPER = Path(queue.__file__).parents[2]
# A launcher that launches nothing: it prints each position, then that it has a slot, and runs until it is ended.
LAUNCHER = """
import sys, time
from pathlib import Path
from verl_regress.base.layout import JobDir
from verl_regress.jobs import find
from verl_regress.jobs.status import hold_launcher_lock
from verl_regress.worker import queue
queue._LOOK_EVERY = 0.02
job = JobDir(Path(sys.argv[1]))
hold_launcher_lock(job)
queue.wait(job, find.plan_of(job), lambda position: print(position, flush=True))
assert "ray" not in sys.modules
print("slot", flush=True)
time.sleep(60)
"""


class Jobs:
    """Jobs of one cluster, and their launchers."""

    def __init__(self, make_job):
        self._make_job, self._processes, self._made = make_job, {}, 0

    def make(self, name, *, limit=None, count=1, has=8, cluster="c", **state):
        """Reserve a job after all earlier ones, by the file system's time."""
        job = self._make_job(name, **state)
        devices = {"resource": "GPU", "count": count, "cluster_has": has}
        write(job.config / "resolved.json", json.dumps({"cluster": cluster, "max_running": limit, "devices": devices}))
        self._made += 1
        moment = job.config.stat().st_mtime_ns + self._made * 1000
        os.utime(job.config, ns=(moment, moment))
        queue.line_up(job, cluster, count)
        return job

    def launch(self, job):
        self._processes[job] = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, job.path],
            env={"PYTHONPATH": str(HELPER)},
            stdout=subprocess.PIPE,
            text=True,
        )
        return job

    def says(self, job):
        return self._processes[job].stdout.readline().strip()

    def says_at_last(self, job):
        """What it prints once all launchers that were still starting are up."""
        while (said := self.says(job)).startswith("position ") and not said.endswith(")"):
            pass
        return said

    def has_nothing_to_say(self, job):
        return select.select([self._processes[job].stdout], [], [], 0.3)[0] == []

    def end(self, job, number=signal.SIGKILL):
        process = self._processes.pop(job)
        process.send_signal(number)
        process.wait()
        process.stdout.close()

    def end_all(self):
        for job in list(self._processes):
            self.end(job)


@pytest.fixture
def jobs(make_job):
    several = Jobs(make_job)
    yield several
    several.end_all()


def queue_of(job):
    return sorted(path.name.split("-", 2)[2] for path in job.root.queue("c").iterdir() if path.name != ".lock")


def test_first_come_first_served_whichever_launcher_starts_first(jobs):
    """Jobs are ordered by reservation: c's launcher is up before b's, and waits for it."""
    a, b, c = (jobs.make(name, limit=1) for name in "abc")
    jobs.launch(a)
    assert jobs.says(a) == "slot"
    jobs.launch(c)
    assert jobs.says(c) == "position 2 of 2: behind b"
    jobs.launch(b)
    assert jobs.says(b) == "position 1 of 2: behind a (MAX_RUNNING=1)"
    jobs.end(a)
    assert jobs.says(b) == "slot"
    assert jobs.says(c) == "position 1 of 1: behind b (MAX_RUNNING=1)"
    jobs.end(b)
    assert jobs.says(c) == "slot"


def test_a_paused_launcher_keeps_its_slot(jobs):
    a, b = (jobs.make(name, limit=1) for name in "ab")
    jobs.launch(a)
    assert jobs.says(a) == "slot"
    jobs._processes[a].send_signal(signal.SIGSTOP)
    jobs.launch(b)
    assert jobs.says(b) == "position 1 of 1: behind a (MAX_RUNNING=1)"
    assert jobs.has_nothing_to_say(b)


def test_attempts_wait_as_jobs_do(jobs):
    first = jobs.make("a", limit=1)
    attempt = first.numbered(2)
    for directory in (attempt.config, attempt.state):
        directory.mkdir(parents=True)
    write(attempt.config / "resolved.json", (first.config / "resolved.json").read_text())
    jobs.launch(first)
    assert jobs.says(first) == "slot"
    jobs.launch(attempt)
    assert jobs.says(attempt) == "position 1 of 1: behind a (MAX_RUNNING=1)"
    assert queue_of(first) == ["a", "a.a2"]


def test_two_clusters_do_not_wait_for_each_other(jobs):
    a, b = jobs.launch(jobs.make("a", limit=1)), jobs.launch(jobs.make("b", limit=1, cluster="d"))
    assert (jobs.says(a), jobs.says(b)) == ("slot", "slot")


def test_many_at_once_are_served_one_by_one_in_order(jobs):
    names = [f"job{number:02}" for number in range(8)]
    waiting = [jobs.make(name, limit=1) for name in names]
    for job in reversed(waiting):
        jobs.launch(job)
    for job in waiting:
        while jobs.says_at_last(job) != "slot":
            pass
        having = [
            other for other in waiting if (other.state / "turn").exists() and launcher_of(other) is Launcher.ALIVE
        ]
        assert having == [job]
        jobs.end(job)


def test_the_lock_says_whether_a_launcher_lives(make_job, jobs):
    job = make_job("x")
    assert launcher_of(job) is Launcher.NOT_YET
    job = jobs.launch(jobs.make("a"))
    assert jobs.says(job) == "slot"
    assert launcher_of(job) is launcher_of(job) is Launcher.ALIVE
    assert json.loads(job.launcher.read_text())["pid"] == jobs._processes[job].pid
    jobs.end(job)
    assert launcher_of(job) is Launcher.GONE
    assert [path.name for path in job.state.iterdir() if path.name.startswith(".")] == []


def test_a_job_is_launched_once(make_job):
    job = make_job("a")
    os.close(hold_launcher_lock(job))
    with pytest.raises(LaunchedBefore) as caught:
        hold_launcher_lock(job)
    assert str(caught.value) == (
        f"{job.launcher} exists, so a was launched before, and a job directory is never used twice: submit it again with "
        "'make submit'."
    )


def test_a_file_system_without_locks(make_job, monkeypatch):
    job = make_job("a")

    def flock(_descriptor, _operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RegressError) as caught:
        hold_launcher_lock(job)
    assert str(caught.value) == (
        f"{job.state} is on a file system without locks (No locks available), which the queue needs: put SHARED_ROOT on one that has "
        "them (a local disk, NFS 4)."
    )
