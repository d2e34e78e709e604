"""Ray's messages are those of Ray 2.60, shortened."""

import contextlib
import errno
import json
import socket

import pytest
from shared_fixtures import node_row, write

import node_memory
from verl_regress.cluster import ray_internals
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs.status import Status, status_of
from verl_regress.worker import aftermath

DIED = (
    "Job supervisor actor died: The actor died unexpectedly before finishing this task.\n\tpid: 999\n\tip: 10.0.0.2\n"
)
NODE = (
    "The actor died because its node has died. Node Id: b0bf\n\tthe actor's node was terminated unexpectedly: "
    "health check failed due to missing too many heartbeats"
)
WORKER = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed"
)
MEMORY = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2, ID: 66ed) was "
    "3.62GB used / 4.00GB limit (0.906128)\nOOM kill reason: Memory usage 4151062528B exceeded threshold of 4080218880B"
)
GONE = "JOB_SUPERVISOR_ACTOR_DIED"
UNKNOWN = "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            {"error_type": "JOB_ENTRYPOINT_COMMAND_ERROR", "driver_exit_code": code, "message": "a long log"},
            f"the launcher on worker-1 {ending} before it could record an end",
        )
        for code, ending in ((-9, "was ended by SIGKILL"), (137, "was ended by SIGKILL"), (2, "ended with exit status 2"))
    ]
    + [
        (
            {"error_type": GONE, "message": DIED + NODE},
            "the driver's node worker-1 died: Ray says health check failed due to missing too many heartbeats",
        ),
        (
            {"error_type": GONE, "message": DIED + WORKER},
            "Ray's supervisor of the job on worker-1 was killed or crashed, and the launcher with it: "
            "Worker unexpectedly exits with a connection error code 2",
        ),
        (
            {"error_type": UNKNOWN, "message": f"Unexpected error occurred: {MEMORY}"},
            "Ray's memory monitor killed its supervisor of the job on worker-1 (3.62GB used / 4.00GB limit), and the launcher with it",
        ),
        ({"error_type": UNKNOWN, "message": "new words\nof Ray"}, "the launcher recorded no end, Ray says FAILED: of Ray"),
    ],
)  # fmt: skip
def test_why_the_launcher_recorded_no_end(make_job, said, reason):
    job = make_job(started={"node": "worker-1", "node_ip": "10.0.0.2"})
    judgement = status_of(job, {"status": "FAILED", **said})
    assert (judgement.status, judgement.reason) == (Status.LOST, reason)


def test_a_supervisor_that_died_before_the_launcher_began_is_lost_and_not_failed(make_job):
    judgement = status_of(make_job(), {"status": "FAILED", "error_type": GONE, "message": DIED + NODE})
    assert judgement.status is Status.LOST
    assert judgement.reason.startswith("the driver's node 10.0.0.2 died: ")


def test_a_disk_that_is_found_full_only_when_it_is_written_to_is_a_problem(make_job, monkeypatch):
    def fsync(_file):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    job = make_job()
    assert aftermath._disk_problem(job) is None
    monkeypatch.setattr(aftermath.os, "fsync", fsync)
    assert aftermath._disk_problem(job) == "Disk quota exceeded"
    assert not list(job.state.glob(".probe*"))


@contextlib.contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port():
    with listening() as port:
        pass
    return port


def raylet(name, node_id, port, state="ALIVE"):
    return {**node_row(name, "127.0.0.1", state), "node_id": node_id, "port": port}


def listening_row(row):
    """What Ray's second answer says of a node: for a dead one only the id and the state."""
    if row["state"] == "DEAD":
        return {"raylet": {"nodeId": row["node_id"], "state": "DEAD"}}
    return {"raylet": {"nodeId": row["node_id"], "nodeManagerPort": row["port"], "state": "ALIVE"}}


def actor(node_id, name="create.<locals>.WorkerDict", **cause):
    return {"node_id": node_id, "class_name": name, "pid": 7, "state": "DEAD", "death_cause": cause or None}


@pytest.fixture
def losses(ray, make_job):
    """The result of `losses_of` for these raylets and actors."""

    def losses(raylets, actors, job=None):
        query = "limit=1000&detail=1&filter_keys=job_id&filter_predicates=%3D&filter_values=01"
        ray.answers[f"/api/v0/actors?{query}"] = (200, {"data": {"result": {"result": actors}}})
        ray.has_nodes(*raylets)
        rows = [listening_row(row) for row in raylets if row["port"]]
        ray.answers["/nodes?view=summary&nocache=1"] = (200, {"data": {"summary": rows}})
        return aftermath.losses_of(job or make_job("lost"), "01", RayApi(ray.address))

    return losses


@pytest.mark.parametrize(
    ("submitted", "known", "is_lost"),
    [({"accepted": True}, "False", True), ({"accepted": True}, "True", False), (None, "False", False)],
)
def test_a_trainer_that_fails_under_a_new_head_is_lost_with_its_job(
    make_job, closed_port, tmp_path, monkeypatch, submitted, known, is_lost
):
    """The GCS of the new head answers, its dashboard does not yet. A job that something else launches has no record."""
    files = {
        "__init__": "",
        "_private/ray_constants": "KV_NAMESPACE_JOB = b'job'\n",
        "dashboard/modules/job/common": "class JobInfoStorageClient: JOB_DATA_KEY = 'info_{job_id}'\n",
        "_raylet": "class GcsClient:\n"
        "    def __init__(self, address): pass\n"
        f"    def internal_kv_exists(self, key, namespace): return {known} if (key, namespace) == (b'info_j', b'job') else None\n",
    }
    for name, text in files.items():
        write(tmp_path / "ray" / f"{name}.py", text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with listening() as port:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        job = make_job("j", submitted=submitted)
        plan = {"address": f"http://127.0.0.1:{closed_port}"}
        found = aftermath.explain_failure(job, plan, "the trainer ended with exit status 1", told_to_stop=False)
    sentence = "the trainer ended with exit status 1, and Ray has forgotten it: its head was restarted, or it was deleted there"
    assert found == ({"reason": sentence, "head_gone": True} if is_lost else {})


def test_an_unreachable_node_is_lost_and_a_listening_one_is_not(losses, closed_port):
    with listening() as port:
        found = losses([raylet("worker-0", "a", port), raylet("worker-1", "b", closed_port)], [actor("a"), actor("b")])
    assert found == (("worker-1 (127.0.0.1)",), ", when worker-1 (127.0.0.1) did not answer any more")


def test_a_node_that_ray_has_given_up_is_lost_too(losses):
    found = losses([raylet("worker-0", "a", 1, "DEAD")], [actor("a")])
    assert found == (("worker-0 (127.0.0.1)",), ", when worker-0 (127.0.0.1) had been given up by Ray")


def test_a_dead_node_that_the_job_did_not_use_is_ignored(losses, closed_port):
    with listening() as port:
        found = losses([raylet("worker-0", "a", port), raylet("worker-1", "b", closed_port)], [actor("a"), actor(None)])
    assert found == ((), "")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (
            {"oom_context": {"error_message": MEMORY}},
            ", after Ray's memory monitor killed its WorkerDict on worker-0 (3.62GB used / 4.00GB limit)",
        ),
        (
            {"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": WORKER}},
            ", after its WorkerDict (process 7) on worker-0 crashed or was killed, neither by verl-regress nor by the kernel for lack of memory",
        ),
        ({"actor_died_error_context": {"reason": "OWNER_DIED", "error_message": "Worker exit type: SYSTEM_ERROR"}}, ""),
        ({"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": "type: INTENDED_SYSTEM_EXIT"}}, ""),
        ({"creation_task_failure_context": {"error_message": "an exception"}}, ""),
        ({}, ""),
    ],
)
def test_a_process_that_was_taken_from_the_trainer(losses, cause, words):
    with listening() as port:
        assert losses([raylet("worker-0", "a", port)], [actor("a", **cause)]) == ((), words)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (0, ", out of memory: the kernel of worker-0 killed its WorkerDict (process 7) (limit 1.50 GiB, peak 1.49 GiB, of which the process had 0.50 GiB)"),
        (2, ", after its WorkerDict (process 7) on worker-0 crashed or was killed, neither by verl-regress nor by the kernel for lack of memory"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_here", [True, False])
def test_a_process_that_the_kernel_killed_for_lack_of_memory(losses, make_job, monkeypatch, before, words, is_here):
    counted = {"node": "w0", "kills": 2, "limit": 1536 << 20, "peak": 1530 << 20}
    monkeypatch.setenv("VERL_REGRESS_NODE_IP", "127.0.0.1" if is_here else "10.0.0.9")
    monkeypatch.setattr(ray_internals, "node_memory", lambda *_: counted)
    monkeypatch.setattr(node_memory, "counters", lambda: counted if is_here else 1 / 0)
    job = make_job()
    write(job.state / "nodes" / "w0.json", json.dumps({**counted, "kills": before}))
    write(job.state / "memory" / "w0-7.txt", f"1.0 {1 << 20} WorkerDict\n2.0 {512 << 20}\n")
    crash = {"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": WORKER}}
    with listening() as port:
        assert losses([raylet("worker-0", "a", port)], [actor("a", **crash)], job) == ((), words)


NEITHER = ", sent neither by verl-regress nor by the kernel for lack of memory"
NOT_KNOWN = ", which verl-regress did not send"


@pytest.mark.parametrize(
    ("kills", "words", "without_the_count_before"),
    [
        (0, NEITHER, NEITHER),
        (1, ", out of memory: the kernel of worker-0 killed it (limit 1.50 GiB)", NOT_KNOWN),
        (None, NOT_KNOWN, NOT_KNOWN),
    ],
)
def test_who_sent_sigkill_to_the_trainer(make_job, monkeypatch, kills, words, without_the_count_before):
    counted = {"node": "worker-0", "kills": kills, "limit": 1536 << 20, "peak": None}
    monkeypatch.setattr(node_memory, "counters", lambda: counted)
    job = make_job()
    write(job.state / "nodes" / "worker-0.json", json.dumps({**counted, "kills": 0}))
    assert aftermath.explain_sigkill(job, 7) == words
    write(job.state / "nodes" / "worker-0.json", "")  # its process was killed while it wrote
    assert aftermath.explain_sigkill(job, 7) == without_the_count_before


def test_ray_is_asked_once_for_the_job_of_a_failed_trainer(make_job, losses, ray, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray.knows({"submission_id": "j", "job_id": "01"})
    with listening() as port:
        losses([raylet("worker-0", "a", port)], [actor("a", oom_context={})])
        found = aftermath.explain_failure(make_job("j"), {"address": ray.address}, "it ended", told_to_stop=False)
    words = "it ended, after Ray's memory monitor killed its WorkerDict on worker-0"
    assert found == {"reason": words, "lost_nodes": ()}
    assert [path for path, _ in ray.seen].count("/api/jobs/j") == 1
