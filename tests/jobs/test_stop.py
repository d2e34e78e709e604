"""Stopping against a Ray that does what the test says when it is asked to stop."""

import json
import sys
import types

import pytest
from shared_fixtures import write

from verl_regress.base.errors import Exit
from verl_regress.jobs import stop
from verl_regress.jobs.status import Status, status_of

ACTORS = "/api/v0/actors?limit=1000&detail=1&filter_keys=job_id&filter_predicates=%3D&filter_values=01"


@pytest.fixture
def job(make_job, ray):
    job = make_job()
    plan = json.loads((job.config / "resolved.json").read_text())
    write(job.config / "resolved.json", json.dumps(plan | {"address": ray.address}))
    return job


@pytest.fixture
def says(ray, monkeypatch):
    """Ray's answers about the job, one after another, the last one repeated; the clock runs fast."""
    monkeypatch.setattr(stop, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(stop, "_ABOUT_TO_RUN", 0.05)
    ray.answers["/api/jobs/job/stop"] = (200, {"stopped": True})

    def says(*statuses, job_id=None):
        left = list(statuses)

        def answer():
            status = left.pop(0) if len(left) > 1 else left[0]
            return {"submission_id": "job", "status": status, "job_id": job_id, "message": f"Ray's words on {status}"}

        ray.answers["/api/jobs/job"] = (200, answer)

    return says


@pytest.fixture
def cluster(monkeypatch):
    """The part of Ray that only a driver has: its named actors, and which were killed."""
    fake = types.ModuleType("ray")
    fake.actors, fake.killed, fake.inits, fake.on_kill = [], [], [], lambda: None

    def get_actor(name, namespace):
        if name not in fake.actors:
            raise ValueError
        return f"{namespace}/{name}"

    fake.init = lambda **how: fake.inits.append(how)
    fake.shutdown = lambda: fake.inits.append("shut down")
    fake.get_actor = get_actor
    fake.kill = lambda actor, no_restart: (fake.killed.append((actor, no_restart)), fake.on_kill())
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_a_job_that_runs(job, ray, says, run):
    says("RUNNING", "RUNNING", "STOPPED")
    outcome = run("stop", "job", "--deadline=5")
    assert (outcome.status, outcome.out) == (0, f"job\n{job.path}\n")
    assert outcome.err == "changed job was RUNNING, is STOPPED (Ray's words on STOPPED)\n"
    assert [path for path, _ in ray.seen].count("/api/jobs/job/stop") == 1
    assert job.read_state("observed")["status"] == "STOPPED"


def test_it_is_over_when_its_processes_are_gone(job, ray, says, run):
    says("RUNNING", "STOPPED", job_id="01")
    states = ["ALIVE", "ALIVE", "DEAD"]
    ray.answers[ACTORS] = (200, lambda: {"data": {"result": {"result": [{"state": states.pop(0)}]}}})
    assert run("stop", "job", "--deadline=5").status == 0
    assert states == []


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_a_job_that_is_over_is_left_as_it_is(job, ray, says, run, status):
    job.write_state("ended", {"exit_code": int(status == "FAILED"), "reason": "so"})
    says(status)
    reason = "Ray's words on STOPPED" if status == "STOPPED" else "so"
    outcome = run("stop", "job", "--deadline=5")
    assert (outcome.status, outcome.err) == (0, f"skip    job is over: {status} ({reason})\n")
    assert outcome.out == f"job\n{job.path}\n"
    assert "/api/jobs/job/stop" not in [path for path, _ in ray.seen]


def test_a_pending_job_is_cancelled_and_is_stopped_not_failed(job, says, run, cluster):
    """Ray ignores a stop request for such a job (2.60), and calls it FAILED when its supervisor is killed."""
    says("PENDING")
    cluster.actors = ["_ray_internal_job_actor_job"]
    seen_by_others = []

    def on_kill():
        says("PENDING", "FAILED")
        seen_by_others.append(status_of(job, {"status": "FAILED"}).status)

    cluster.on_kill = on_kill
    outcome = run("stop", "job", "--deadline=5")
    assert outcome.err == "changed job was PENDING, is STOPPED (stopped while it waited for resources)\n"
    assert cluster.killed == [("SUPERVISOR_ACTOR_RAY_NAMESPACE/_ray_internal_job_actor_job", True)]
    assert (cluster.inits[0]["address"], cluster.inits[-1]) == ("auto", "shut down")
    assert seen_by_others == [Status.STOPPED]
    judgement = status_of(job, {"status": "FAILED", "message": "Job supervisor actor died"})
    assert (judgement.status, judgement.status.exit) == (Status.STOPPED, Exit.STOPPED)


def test_a_job_that_was_just_starting_is_stopped_as_a_running_one(job, says, run, cluster):
    says("PENDING", "PENDING", "RUNNING", "STOPPED")
    outcome = run("stop", "job", "--deadline=5")
    assert outcome.err == "changed job was PENDING, is STOPPED (Ray's words on STOPPED)\n"
    assert cluster.inits == []


def test_a_job_that_does_not_end(job, says, run):
    says("RUNNING")
    outcome = run("stop", "job", "--deadline=0.2")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == (
        "error   job is still RUNNING 0 s after it was asked to stop: see 'make status', and "
        "'make debug JOB=job' for what it still does.\n"
    )


def test_a_stop_while_the_cluster_is_down(job, ray, run):
    ray.goes_away()
    outcome = run("stop", "job", "--deadline=1")
    assert outcome.status == 8
    assert outcome.err.startswith(f"error   Ray does not answer at {ray.address} as seen from the head (")
