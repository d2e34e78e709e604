"""`live`: what would end with a cluster, according to Ray, or to the locks if Ray does not answer."""

import fcntl
import json
import os
import shutil
from contextlib import ExitStack

import pytest

from verl_regress.jobs.status import hold_launcher_lock


@pytest.fixture
def held():
    """Keeps files open, and so their locks."""
    with ExitStack() as stack:
        yield stack


def in_cluster(job, name="c"):
    plan = json.loads((job.config / "resolved.json").read_text())
    (job.config / "resolved.json").write_text(json.dumps(plan | {"cluster": name}))
    return job


def launched(job, held):
    held.callback(os.close, hold_launcher_lock(job))
    return job


def being_submitted(job, held):
    fcntl.flock(held.enter_context((job.state / "submitting").open("w")), fcntl.LOCK_EX)
    return job


@pytest.fixture
def jobs(make_job, held):
    """One of each kind, all but one in the cluster `c`."""
    over = {"exit_code": 0, "reason": "the trainer ended"}
    in_cluster(make_job("done", started={"pid": 1}, ended=over))
    in_cluster(make_job("pending"))
    launched(in_cluster(make_job("queued", queued={"reason": "position 1 of 1: behind runs"})), held)
    launched(in_cluster(make_job("runs", started={"pid": 1}, turn={})), held)
    being_submitted(in_cluster(make_job("sent", submitted=None)), held)
    launched(in_cluster(make_job("elsewhere", started={"pid": 1}, turn={}), "d"), held)
    in_cluster(make_job("orphan", started={"pid": 1}))


@pytest.mark.usefixtures("jobs")
def test_running_waiting_and_submitting_jobs_are_live(run, ray):
    ray.knows(
        {"submission_id": "done", "status": "SUCCEEDED"},
        {"submission_id": "pending", "status": "PENDING"},
        {"submission_id": "queued", "status": "RUNNING"},
        {"submission_id": "runs", "status": "RUNNING"},
        {"submission_id": "by-hand", "status": "RUNNING"},
        {"submission_id": "by-hand-over", "status": "STOPPED"},
        {"submission_id": None, "status": "RUNNING"},  # a driver that was not submitted has no id
    )
    outcome = run("live", "--cluster=c")
    assert (outcome.status, outcome.err, outcome.created) == (0, "", [])
    assert sorted(outcome.out.splitlines()) == [
        "by-hand RUNNING", "pending PENDING", "queued QUEUED", "runs RUNNING", "sent SUBMITTING",
    ]  # fmt: skip
    assert run("live", "--cluster=d").out.splitlines() == ["elsewhere RUNNING", "by-hand RUNNING"]


@pytest.mark.usefixtures("jobs")
def test_without_ray_the_locks_decide_which_jobs_are_live(run):
    outcome = run("live", "--cluster=c")
    assert (outcome.status, outcome.err, outcome.created) == (0, "", [])
    assert sorted(outcome.out.splitlines()) == ["queued QUEUED", "runs RUNNING", "sent SUBMITTING"]


def test_a_submission_without_a_plan_yet_is_live(run, make_job, held, ray):
    job = being_submitted(make_job("sent", submitted=None), held)
    (job.config / "resolved.json").unlink()
    ray.knows()
    assert run("live", "--cluster=c").out == "sent SUBMITTING\n"


def test_an_attempt_is_live_whatever_the_attempts_before_it_recorded(run, make_job, held, ray):
    over = {"exit_code": 1, "reason": "the trainer ended"}
    job = in_cluster(make_job("job", ended=over))
    for number in (2, 3):
        attempt = job.numbered(number)
        for directory in (attempt.config, attempt.state):
            directory.mkdir(parents=True)
        shutil.copy(job.config / "resolved.json", attempt.config)
    job.numbered(2).write_state("ended", over)
    attempt.write_state("submitted", {"accepted": True})
    launched(attempt, held)
    assert run("live", "--cluster=c").out == "job.a3 RUNNING\n"
    busy = ("job", "job.a2", "job.a3", "other")  # Ray's word counts for each attempt, and for jobs that are not ours
    ray.knows(*({"submission_id": name, "status": "RUNNING"} for name in busy))
    assert sorted(run("live", "--cluster=c").out.splitlines()) == sorted(f"{name} RUNNING" for name in busy)


def test_live_jobs_are_listed_with_the_latest_first(run, make_job, held):
    for name, seconds in (("b", 300), ("a", 200), ("c", 400), ("d", 300)):
        job = launched(in_cluster(make_job(name, started={"pid": 1}, turn={})), held)
        os.utime(job.config, (seconds, seconds))
    assert [line.split()[0] for line in run("live", "--cluster=c").out.splitlines()] == ["c", "d", "b", "a"]
