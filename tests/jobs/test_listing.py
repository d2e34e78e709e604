"""`jobs`: one line per job, from the directories alone if Ray does not answer."""

import json
import os

import pytest
from shared_fixtures import write


def metrics(job, *steps):
    write(job.metrics, "".join(f'{{"step": {step}, "data": {{"actor/lr": 1}}}}\n' for step in steps))


def made_at(job, seconds):
    os.utime(job.config, (seconds, seconds))


@pytest.fixture
def four(make_job, ray):
    """One that succeeded, one that failed, one running its second attempt, one that was never submitted."""
    done = make_job("done", ended={"exit_code": 0, "reason": "the trainer ended"})
    metrics(done, 1, 2, 3)
    failed = make_job("failed", started={"pid": 1}, ended={"exit_code": 7, "reason": "the trainer\nended " + "x" * 200})
    make_job("runs", ended={"exit_code": 1, "reason": "no"})
    read = {"inputs": [{"path": "/own/x.parquet", "sha256": "1"}]}
    second = make_job("runs/attempts/2", started={"pid": 1}, inputs=read)
    write(
        second.config / "resolved.json",
        json.dumps({"workload": "ppo", "code_id": "codeB", "parent": {"attempt": 1, "checkpoint": "c", "step": 4}}),
    )
    never = make_job("never", submitted={"accepted": False, "error": "Ray refused the job: no"})
    for age, job in enumerate((second, failed, done, never)):
        made_at(job, 1e9 - age)
    ray.knows(
        {"submission_id": "done", "status": "SUCCEEDED"},
        {"submission_id": "failed", "status": "FAILED"},
        {"submission_id": "runs", "status": "FAILED"},
        {"submission_id": "runs.a2", "status": "RUNNING"},
    )
    return ray


@pytest.mark.usefixtures("four")
def test_one_line_per_job_the_latest_first(run):
    outcome = run("jobs")
    assert (outcome.status, outcome.err, outcome.created) == (0, "", [])
    why = ("the trainer ended " + "x" * 200)[:99] + "…"
    assert outcome.out.splitlines() == [
        "JOB     WORKLOAD  CODE   STATUS         ATTEMPTS  STEPS  MADE                  WHY",
        "runs    ppo       codeB  RUNNING        2         4      2001-09-09T01:46:40Z",
        f"failed  ppo       codeA  FAILED         1         0      2001-09-09T01:46:39Z  {why}",
        "done    ppo       codeA  SUCCEEDED      1         3      2001-09-09T01:46:38Z",
        "never   ppo       codeA  NOT_SUBMITTED  1         0      2001-09-09T01:46:37Z  never submitted: Ray refused the job: no",
    ]


@pytest.mark.usefixtures("four")
def test_the_same_as_json(run):
    said = json.loads(run("jobs", "JSON=1", "LIMIT=2").out)
    assert (said["jobs_total"], said["ray_answers"], len(said["jobs"])) == (4, True, 2)
    assert said["jobs"][0] == {
        "submission_id": "runs", "attempt": 2, "ray_id": "runs.a2", "workload": "ppo", "code_id": "codeB", "profile": None, "owner": None,
        "status": "RUNNING", "shown": "RUNNING", "reason": None, "cause": None, "why": "", "not_finite": None, "warnings": [], "debugged": None,
        "attempts": 2, "steps": 4, "steps_total": None, "seconds_since_step": None, "made": "2001-09-09T01:46:40+00:00", "driver_ip": None,
        "inputs": {"/own/x.parquet": "1"},
    }  # fmt: skip
    assert said["jobs"][1]["reason"] == "the trainer\nended " + "x" * 200


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("the trainer ended with exit status 1: {}", "ValueError: {} (verl/x.py:3, at step 2)"),
        # the reason is an outside cause; the exception is in the JSON
        ("the trainer ended with exit status 1, and {{}}", "the trainer ended with exit status 1, and {{}}"),
    ],
)
def test_a_failed_job_shows_its_exception_with_location_and_step_in_full(run, make_job, reason, why):
    cause = {
        "type": "ValueError",
        "message": "x" * 120,
        "where": "verl/x.py:3",
        "also": None,
        "step": 2,
        "hint": "do this",
    }
    reason = reason.format(f"ValueError: {'x' * 120} (verl/x.py:3, at step 2)")
    make_job("failed", ended={"exit_code": 1, "reason": reason, "told_to_stop": False, "cause": cause})
    assert run("--no-ray", "jobs").out.splitlines()[1].endswith(f"Z  {why.format('x' * 99 + '…')}")
    [row] = json.loads(run("--no-ray", "jobs", "JSON=1").out)["jobs"]
    assert (row["reason"], row["cause"]) == (reason, cause)


@pytest.mark.parametrize("args", [["--no-ray", "jobs"], ["jobs"]])
def test_without_ray_a_job_without_a_recorded_end_is_unknown(run, four, args):
    four.goes_away()
    outcome = run(*args)
    assert outcome.status == 0
    assert ("Ray was not asked: this is what the jobs' own files say" in outcome.err) == (args[0] == "--no-ray")
    rows = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert "  SUCCEEDED " in rows["done"]
    assert "  FAILED " in rows["failed"]
    assert rows["runs"].endswith("the job recorded no end, and there is no word from Ray")
    assert "  UNKNOWN " in rows["runs"]


def test_no_job_yet(run):
    assert run("--no-ray", "jobs").out == "no job yet: submit one with 'make submit'\n"
