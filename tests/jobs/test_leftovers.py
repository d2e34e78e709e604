"""What is left of a job on a node, with real processes."""

import json
import os
import signal
import subprocess
import sys

import pytest
from shared_fixtures import write

import job_report
from verl_regress.base import processes
from verl_regress.jobs import leftovers

pytestmark = pytest.mark.slow

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)",
]
# A child with its own environment.
PARENT = [
    sys.executable,
    "-c",
    f"import subprocess, sys; sys.exit(subprocess.Popen({SLEEP!r}, env={{}}).wait())",
]


@pytest.fixture
def start():
    started = []

    def start(argv, **environ):
        process = subprocess.Popen(argv, env={**os.environ, **environ}, stdout=subprocess.PIPE, start_new_session=True)
        process.stdout.readline()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(autouse=True)
def no_grace(monkeypatch):
    monkeypatch.setattr(leftovers, "_GRACE", 0.0)


def ended(process):
    """It has exited; only we have not collected its status yet."""
    return process.wait(10) is not None


# promise: stops a process by its name, or runs `ray stop`
def test_processes_of_the_job_and_their_children_are_ended_and_counted(run, make_job, start):
    job, other = make_job("me"), make_job("other")
    attempt = job.numbered(2)
    mine = start(PARENT, VERL_REGRESS_JOB_DIR=str(job.path))
    spared = [start(SLEEP, VERL_REGRESS_JOB_DIR=str(path)) for path in (other.path, attempt.path)] + [start(SLEEP)]
    assert len(leftovers.find(job, "worker-0")) == 2
    outcome = run("leftovers", job.path, "--node", "worker-0")
    assert (outcome.status, outcome.out) == (0, "2\n")
    assert f"        left of me on worker-0: {mine.pid} " in outcome.err
    assert ended(mine)
    assert [process.poll() for process in spared] == [None] * 3
    assert run("leftovers", job.path, "--node", "worker-0").out == "0\n"


def test_a_process_that_exits_by_itself_is_not_counted(run, make_job, start, monkeypatch):
    monkeypatch.setattr(leftovers, "_GRACE", 10.0)
    job = make_job()
    short = [sys.executable, "-c", "import time; print(flush=True); time.sleep(0.5)"]
    process = start(short, VERL_REGRESS_JOB_DIR=str(job.path))
    assert run("leftovers", job.path, "--node", "worker-0").out == "0\n"
    assert process.wait(5) == 0


def test_a_process_that_ignores_sigterm_is_killed(run, make_job, start, monkeypatch):
    monkeypatch.setattr("verl_regress.base.processes._GRACE", 1.0)
    job = make_job()
    process = start(STUBBORN, VERL_REGRESS_JOB_DIR=str(job.path))
    assert run("leftovers", job.path, "--node", "worker-0").out == "1\n"
    assert process.wait(5) == -signal.SIGKILL


@pytest.mark.quick
def test_a_process_is_known_by_its_own_report_and_by_no_other(make_job, start):
    """Before: a report named a hostname, which two nodes may share, and a pid, which the other node has given to another process."""
    job = make_job()
    process = start(SLEEP)
    row = processes.table()[process.pid]
    report = {"node": "worker-0", "pid": process.pid, "boot": job_report.boot(), "started": row.started}

    def found(**changes):
        write(job.reports / f"identity-worker-0-{process.pid}.json", json.dumps({**report, **changes}))
        return list(leftovers.find(job, "worker-0"))

    write(job.reports / "identity-worker-0-1.json", '{"node": ')
    assert found() == [process.pid]
    assert found(node="worker-1") == found(boot="of yesterday") == found(started=row.started - 1) == []
