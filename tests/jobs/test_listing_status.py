"""`status`: the nodes and the latest jobs."""

import json
import os
import re
import time

import pytest
from shared_fixtures import node_row, write

from verl_regress.base.layout import JobDir


@pytest.fixture
def cluster(ray, make_job):
    """A head, a worker that died and came back, another that did not; three jobs."""
    ray.has_nodes(
        node_row("worker-1", "10.0.0.3", state="DEAD", CPU=64.0),
        node_row("worker-0", "10.0.0.9", state="DEAD", CPU=64.0),
        node_row("worker-0", "10.0.0.2", CPU=64.0, GPU=4.0, worker_node=100.0),
        node_row("head", "10.0.0.1", memory=5.0),
    )
    make_job("a-done", ended={"exit_code": 0, "reason": "the trainer ended"})
    make_job("b-refused", submitted={"accepted": False, "error": "Ray refused the job: no"})
    make_job("c-running", started={"node_ip": "10.0.0.2"})
    ray.knows(
        {"submission_id": "a-done", "status": "SUCCEEDED", "driver_info": {"node_ip_address": "10.0.0.7"}},
        {"submission_id": "c-running", "status": "RUNNING", "driver_info": {"node_ip_address": "10.0.0.2"}},
    )
    return ray


@pytest.fixture(autouse=True)
def order_of_names(monkeypatch):
    """Orders jobs by name, as if all were made within one tick of the file system's clock."""
    from verl_regress.jobs import find

    monkeypatch.setattr(find, "reserved_at", lambda _job: 0)


@pytest.mark.usefixtures("cluster")
def test_the_page(run):
    outcome = run("status", "--profile=cpu (rehearsal: no GPU)", "CLUSTER_NAME=mvp11")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == (
        "profile cpu (rehearsal: no GPU), cluster mvp11\n"
        "\n"
        "NODE      ADDRESS   STATE  CPU  GPU  WORKER_NODE\n"
        "head      10.0.0.1  ALIVE  0    0    0\n"
        "worker-0  10.0.0.2  ALIVE  64   4    100\n"
        "worker-1  10.0.0.3  DEAD   64   0    0\n"
        "\n"
        "JOB        CODE   STATUS         DRIVER               WHY\n"
        "c-running  codeA  RUNNING        worker-0 (10.0.0.2)\n"
        "b-refused  codeA  NOT_SUBMITTED  -                    never submitted: Ray refused the job: no\n"
        "a-done     codeA  SUCCEEDED      ? (10.0.0.7)\n"
    )


@pytest.mark.usefixtures("cluster")
def test_the_same_as_json(run):
    outcome = run("status", "--profile=gpu", "CLUSTER_NAME=mvp11", "JSON=1", "LIMIT=1")
    facts = json.loads(outcome.out)
    assert {key: facts[key] for key in ("profile", "cluster", "ray_problem", "jobs_total")} == {
        "profile": "gpu", "cluster": "mvp11", "ray_problem": None, "jobs_total": 3,
    }  # fmt: skip
    assert [(node["name"], node["state"]) for node in facts["nodes"]] == [
        ("head", "ALIVE"),
        ("worker-0", "ALIVE"),
        ("worker-1", "DEAD"),
    ]
    assert facts["nodes"][1]["resources"] == {"CPU": 64.0, "GPU": 4.0, "worker_node": 100.0}
    [job] = facts["jobs"]
    assert (job["submission_id"], job["status"], job["driver_ip"], job["driver_node"]) == (
        "c-running",
        "RUNNING",
        "10.0.0.2",
        "worker-0",
    )


@pytest.mark.usefixtures("cluster")
def test_a_gpu_run_is_not_called_a_rehearsal_and_earlier_jobs_are_counted(run):
    out = run("status", "--profile=gpu", "CLUSTER_NAME=mvp11", "LIMIT=2").out.splitlines()
    assert out[0] == "profile gpu, cluster mvp11"
    assert out[-1] == "… 1 earlier jobs are not shown (LIMIT=3 shows all)"
    assert not any(line.startswith("a-done") for line in out)


@pytest.mark.parametrize("status", [401, 500])
def test_without_an_answer_from_ray(run, cluster, status):
    cluster.answers["/api/jobs/"] = (status, b"")
    outcome = run("status", "--profile=cpu (rehearsal: no GPU)", "CLUSTER_NAME=mvp11")
    assert (outcome.status, outcome.created) == (0, [])
    assert outcome.out == (
        f"profile cpu (rehearsal: no GPU), cluster mvp11\n\n{outcome.out.splitlines()[2]}\n\n"
        "NODE  ADDRESS  STATE  CPU  GPU  WORKER_NODE\n\n"
        "JOB        CODE   STATUS         DRIVER  WHY\n"
        "c-running  codeA  UNKNOWN        -       the job recorded no end, and there is no word from Ray\n"
        "b-refused  codeA  NOT_SUBMITTED  -       never submitted: Ray refused the job: no\n"
        "a-done     codeA  SUCCEEDED      -\n"
    )
    assert f"\nRay {'at' if status == 401 else 'does not answer at'} {cluster.address} " in outcome.out


@pytest.mark.usefixtures("cluster")
def test_a_running_job_has_its_step_and_the_seconds_since(run, shared):
    job = JobDir(shared.jobs / "c-running")
    write(job.metrics, '{"step": 1, "data": {"train/loss": 2}}\n{"step": 3, "data": {"train/loss": 1}}\n')
    write(job.driver_log, "Total training steps: 10\n")
    os.utime(job.metrics, (time.time() - 12,) * 2)
    words = ("--profile=cpu", "CLUSTER_NAME=mvp11", "LIMIT=1")
    assert re.search(r"RUNNING, step 3 of 10 1[2-4] s ago +worker-0", run("status", *words).out)
    [row] = json.loads(run("status", *words, "JSON=1").out)["jobs"]
    assert (row["steps"], row["seconds_since_step"]) in [(3, seconds) for seconds in range(12, 15)]


@pytest.mark.usefixtures("cluster")
def test_a_job_that_is_worth_nothing_says_so_on_the_page(run, shared):
    job = JobDir(shared.jobs / "a-done")
    write(job.metrics, '{"step": 1, "data": {"train/loss": 0, "train/grad_norm": 0}}\n')
    write(job.config / "resolved.json", json.dumps({"steps": {"after": 0, "last": 8}}))
    [row] = [
        row for row in json.loads(run("jobs", "CLUSTER_NAME=mvp11", "JSON=1").out)["jobs"] if row["ray_id"] == "a-done"
    ]
    assert row["warnings"] == ["trained 1 of 8 steps (1 to 8)", "loss and gradient are 0 at its only step"]
    assert row["why"] == "; ".join(row["warnings"])
