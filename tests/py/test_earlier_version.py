"""Job directories that version 1.0 wrote (tests/recorded/jobs): today's commands read, follow, stop and collect them."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import write

from verl_regress.base.layout import JobDir
from verl_regress.jobs import stop

RECORDED = Path(__file__).parents[1] / "recorded" / "jobs"
WHY = "the trainer ended with exit status 1"


@pytest.fixture
def old(shared, ray):
    """The three jobs on this shared root, and the Ray that ran them: it answers where their plans say."""
    shutil.copytree(RECORDED, shared.jobs, dirs_exist_ok=True)
    jobs = {name: JobDir(shared.jobs / f"old-{name}") for name in ("sft", "failed", "lost")}
    for age, job in enumerate(jobs.values()):
        plan = job.read_config("resolved.json")
        assert "owner" not in plan
        write(job.config / "resolved.json", json.dumps(plan | {"address": ray.address}))
        os.utime(job.config, (1e9 - age, 1e9 - age))
    return jobs


def knows(ray, status, message=""):
    """Ray's answer about the job that recorded no end."""
    ray.knows({"submission_id": "old-lost", "status": status, "message": message})


@pytest.mark.usefixtures("old")
def test_listed_from_their_files(run, ray):
    ray.goes_away()
    outcome = run("jobs")
    assert (outcome.status, outcome.created) == (0, [])
    assert [" ".join(line.split()) for line in outcome.out.splitlines()] == [
        "JOB WORKLOAD CODE STATUS ATTEMPTS STEPS MADE WHY",
        "old-sft sft codeA SUCCEEDED 1 2 2001-09-09T01:46:40Z",
        f"old-failed ppo codeA FAILED 1 0 2001-09-09T01:46:39Z {WHY}",
        "old-lost ppo codeA UNKNOWN 1 3 2001-09-09T01:46:38Z the job recorded no end, and there is no word from Ray",
    ]


@pytest.mark.usefixtures("old")
def test_status_shows_them_and_changes_nothing(run, ray):
    knows(ray, "RUNNING")
    outcome = run("status", "--profile=cpu", "--cluster=oldone")
    assert (outcome.status, outcome.err, outcome.created) == (0, "", [])
    assert [" ".join(line.split()) for line in outcome.out.splitlines()[-4:]] == [
        "JOB CODE STATUS DRIVER WHY",
        "old-sft codeA SUCCEEDED ? (192.168.16.2)",
        f"old-failed codeA FAILED ? (192.168.16.2) {WHY}",
        "old-lost codeA RUNNING -",
    ]


def test_their_logs_and_steps(run, old):
    assert run("logs", "old-sft").out.encode() == old["sft"].driver_log.read_bytes()
    assert [json.loads(line)["step"] for line in run("logs", "old-lost", "--metrics").out.splitlines()] == [1, 2, 3]


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    ("job", "status", "sentence"),
    [
        ("old-sft", 0, "ok      old-sft SUCCEEDED (the trainer ended)"),
        ("old-failed", 3, f"error   old-failed FAILED ({WHY}): read 'make logs JOB=old-failed'."),
        ("old-lost", 4, "error   old-lost STOPPED (by hand): read 'make logs JOB=old-lost'."),
    ],
)
def test_followed_to_their_end(run, ray, job, status, sentence):
    knows(ray, "STOPPED", "by hand")
    outcome = run("wait", job, "--deadlines=1,2,3")
    assert outcome.status == status
    assert sentence in outcome.err.splitlines()


@pytest.mark.usefixtures("old")
def test_one_that_runs_is_stopped(run, ray, monkeypatch):
    monkeypatch.setattr(stop, "_LOOK_EVERY", 0.01)
    knows(ray, "RUNNING")
    ray.answers["/api/jobs/old-lost/stop"] = (200, lambda: knows(ray, "STOPPED", "by hand") or {"stopped": True})
    outcome = run("stop", "old-lost", "--deadline=5")
    assert (outcome.status, outcome.err) == (0, "changed old-lost was RUNNING, is STOPPED (by hand)\n")
