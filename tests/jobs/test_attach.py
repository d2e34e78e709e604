"""`make debugger`: the breakpoints of a job, and why there are none."""

import fcntl
import json

import pytest
from shared_fixtures import write

RECORD = {
    "task": "ray::Rewards.score", "line": 12, "function": "compute_score", "exception": None, "node": "worker-0",
    "host": "10.0.0.2", "port": 4711, "pid": 7, "since": "2026-11-23T01:00:00+00:00",
}  # fmt: skip


@pytest.fixture
def job(make_job, ray):
    """A running job with the debugger on; `job.waits(**record)` adds a process that waits."""
    job, held = make_job(), []
    plan = json.loads((job.config / "resolved.json").read_text())

    def submitted(debugger):
        write(job.config / "resolved.json", json.dumps(plan | {"address": ray.address, "debugger": debugger}))

    def waits(attached=False, **given):
        file = job.state / "breakpoints" / f"{len(held)}{'.attached' if attached else ''}.json"
        write(file, json.dumps({**RECORD, "file": f"{job.root.path}/user/code/mine.py", **given}))
        held.append(file.open())
        fcntl.flock(held[-1], fcntl.LOCK_EX)

    submitted("1")
    ray.knows({"submission_id": "job", "status": "RUNNING", "message": "it runs"})
    job.__dict__.update(submitted=submitted, waits=waits)
    yield job
    for file in held:
        file.close()


def test_what_waits_and_how_vs_code_attaches(run, job):
    job.waits()
    job.waits(since="2026-11-23T01:00:02+00:00")  # another thread of the same process, which needs no second debugger
    job.waits(port=4712, node="worker-1", host="10.0.0.3", since="2026-11-23T01:00:01+00:00", attached=True)
    outcome = run("breakpoints", "job")
    assert outcome.status == 0
    assert run("--shown-root=/of/this/host", "breakpoints", "job").out == outcome.out  # a node's paths
    lines = outcome.out.splitlines()
    assert lines[1].split() == [
        "ray::Rewards.score", "user/code/mine.py:12", "compute_score", "worker-0", "10.0.0.2:4711", "2026-11-23T01:00:00+00:00",
    ]  # fmt: skip
    assert lines[2].endswith("2026-11-23T01:00:01+00:00  a debugger is attached")
    assert lines[3] == ""
    attach = [json.loads(line) for line in lines if line.startswith("{")]
    assert [one["connect"] for one in attach] == [{"host": "127.0.0.1", "port": port} for port in (5678, 5679)]
    assert attach[0]["pathMappings"] == [
        {"localRoot": "${workspaceFolder}", "remoteRoot": f"{job.root.path}/user/code"}
    ]
    page, ports, _ = run("breakpoints", "job", "--with-ports").out.split("\0")
    assert (page + "\n", ports) == (outcome.out, "worker-0 4711\nworker-1 4712")
    [first, _] = json.loads(run("breakpoints", "job", "--json").out)["breakpoints"]
    assert first["place"] == "user/code/mine.py:12"


def test_status_and_jobs_say_where_it_waits(run, job):
    job.waits()
    waits = "RUNNING, waits in a breakpoint (user/code/mine.py:12)"
    assert waits in run("status", "--profile=cpu", "CLUSTER_NAME=c").out
    assert waits in run("jobs").out
    job.waits(since="2026-11-23T02", port=1, pid=8)
    [row] = json.loads(run("jobs", "JSON=1").out)["jobs"]
    assert (row["status"], row["debugged"]) == ("RUNNING", "waits in a breakpoint (user/code/mine.py:12 and 1 more)")


@pytest.mark.parametrize(
    ("debugger", "status", "sentence"),
    [
        ("1", "RUNNING", "job waits in no breakpoint now: 'make wait JOB=job' says when it does."),
        (
            None,
            "RUNNING",
            "job was submitted without DEBUGGER, so it has no breakpoints: submit it with DEBUGGER=1.",
        ),
        ("1", "STOPPED", "job is over (STOPPED), so it waits in no breakpoint: submit it again."),
    ],
)
def test_none_waits(run, job, ray, debugger, status, sentence):
    job.submitted(debugger)
    ray.knows({"submission_id": "job", "status": status, "message": ""})
    outcome = run("breakpoints", "job")
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"error   {sentence}\n")


def test_json_of_a_job_in_which_none_waits(run, job):
    assert json.loads(run("breakpoints", "job", "--json").out) == {"submission_id": "job", "breakpoints": []}
