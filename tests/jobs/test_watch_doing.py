"""What a job is doing, from its state files and its steps."""

import os

import pytest

from verl_regress.jobs import watch
from verl_regress.jobs.status import Status, hold_launcher_lock


@pytest.mark.parametrize(
    ("step", "total", "words"),
    [
        (None, 2, "training"),
        (0, None, "starting the trainer, or in its first step"),
        (0, 2, "starting the trainer, or in its first step"),
        (1, None, "working on step 2"),
        (2, 2, "finishing after the last step"),
    ],
)
def test_the_trainers_work(make_job, step, total, words):
    job = make_job()
    job.write_state("started", {})
    assert watch.doing(job, Status.RUNNING, step, total) == words


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.SUBMITTING, "submitting it to Ray"),
        (Status.PENDING, "waiting for Ray to start its launcher"),
        (Status.QUEUED, "waiting in the queue"),
        (Status.UNKNOWN, "waiting for Ray to answer"),
        (Status.RUNNING, "starting its launcher"),
        (Status.SUCCEEDED, None),
    ],
)
def test_before_it_trains(make_job, status, words):
    assert watch.doing(make_job(), status, 0, None) == words


def test_the_launchers_own_work(make_job):
    job = make_job()
    lock = hold_launcher_lock(job)
    assert watch.doing(job, Status.RUNNING, 0, None) == "proving the code that it imports"
    job.write_state("ended", {"exit_code": 0, "reason": "the trainer ended"})
    assert watch.doing(job, Status.RUNNING, 0, None) == "taking a debug bundle of its end"
    os.close(lock)
