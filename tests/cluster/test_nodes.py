import socket
import types

import pytest
from shared_fixtures import has_packages, node_row, write

from verl_regress.cluster import nodes, packages

HEAD, WORKER = "head=10.0.0.1", "worker-0=10.0.0.2"


@pytest.fixture
def await_nodes(run, shared, ray, monkeypatch):
    """`await-nodes` with a clock that only moves when it sleeps; `then` runs at the first sleep."""

    def await_nodes(*wanted, then=lambda: None, deadline=1):
        clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

        def sleep(seconds):
            clock.now += seconds
            then()

        clock.sleep = sleep
        monkeypatch.setattr(nodes, "time", clock)
        options = [f"--deadline={deadline}", "--gcs-port=6379", f"--log-dir={shared.path}/ray/c"]
        return run("await-nodes", *options, *(wanted or (HEAD, WORKER)))

    return await_nodes


def started(shared, name, address, mark="1", **resources):
    """The row of a node that joined with its latest start."""
    write(shared.path / "ray" / "c" / f"{name}.start", "1\n")
    has_packages(shared, name, start="1")
    return {**node_row(name, address, **resources), "labels": {"start": mark}}


def test_all_nodes_are_alive(await_nodes, ray, shared):
    ray.has_nodes(
        started(shared, "head", "10.0.0.1", memory=5.0),
        started(shared, "worker-0", "10.0.0.2", CPU=64.0, GPU=4.0, worker_node=100.0),
    )
    outcome = await_nodes()
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err == (
        "ok      head is ALIVE at 10.0.0.1: CPU 0, GPU 0\n"
        "ok      worker-0 is ALIVE at 10.0.0.2: CPU 64, GPU 4, worker_node 100\n"
    )


def test_a_worker_that_gets_no_answer_from_the_head_is_named_in_one_sentence(await_nodes, ray, shared):
    ray.has_nodes(started(shared, "head", "10.0.0.1"))
    write(shared.path / "ray" / "c" / "worker-0.log.exit", "108\n")
    outcome = await_nodes(deadline=120)
    assert outcome.status == 8
    assert outcome.err == (
        "error   worker-0 cannot reach Ray's head at 10.0.0.1:6379: a firewall drops what it sends; open all TCP "
        "ports between the hosts of the nodes (a container engine that sets iptables' policy for FORWARD to DROP is "
        "a usual cause).\n"
    )


def test_the_head_lists_its_packages_and_workers_without_a_list_are_named(await_nodes, ray, shared):
    ray.has_nodes(
        started(shared, "head", "10.0.0.1"),
        started(shared, "worker-0", "10.0.0.2"),
        started(shared, "worker-1", "10.0.0.3"),
    )
    (shared.ray_logs("c") / "head.packages.json").unlink()
    has_packages(shared, "worker-0", start="an earlier start")
    outcome = await_nodes(HEAD, WORKER, "worker-1=10.0.0.3")
    assert (outcome.status, outcome.out) == (0, "worker-0\n")
    assert packages.is_listed(shared.ray_logs("c"), "head")


def test_it_waits_for_the_last_one(await_nodes, ray, shared):
    rows = [started(shared, "head", "10.0.0.1"), started(shared, "worker-0", "10.0.0.2")]
    ray.has_nodes(rows[0])
    assert await_nodes(then=lambda: ray.has_nodes(*rows)).status == 0


@pytest.mark.parametrize(
    "late",
    [
        {"state": "DEAD"},
        {"node_ip": "10.0.0.9"},
        {"labels": {"start": "an earlier one"}},
        {"node_name": "worker-1"},
    ],
)
def test_a_node_that_is_not_the_one_that_was_started(await_nodes, ray, shared, late):
    worker = started(shared, "worker-0", "10.0.0.2")
    ray.has_nodes(started(shared, "head", "10.0.0.1"), {**worker, **late})
    write(shared.path / "ray/c/worker-0.log", "".join(f"line {i}\n" for i in range(50)))
    write(shared.path / "ray/c/worker-1.start", "1")
    outcome = await_nodes()
    assert outcome.status == 8
    assert outcome.err == (
        f"        the last lines of {shared.path}/ray/c/worker-0.log:\n"
        + "".join(f"        line {i}\n" for i in range(10, 50))
        + "error   1 of 2 nodes are ALIVE, missing: worker-0, after 1 s (CLUSTER_TIMEOUT); the log of worker-0 says: line 49: run "
        "'make doctor', which tries what Ray does there, or raise CLUSTER_TIMEOUT.\n"
    )


def test_ray_never_answers(await_nodes, ray, shared):
    ray.goes_away()
    outcome = await_nodes()
    assert outcome.status == 8
    assert outcome.err == (
        f"        the last lines of {shared.path}/ray/c/head.log:\n"
        "        (there is no such file)\n"
        f"error   Ray does not answer at {ray.address} as seen from the head ([Errno 111] Connection refused): bring the "
        "cluster up with 'make up', after 1 s (CLUSTER_TIMEOUT); the log of head says: (there is no such file): run 'make doctor', which "
        "tries what Ray does there, or raise CLUSTER_TIMEOUT.\n"
    )


def test_a_failed_start_ends_the_wait_at_once(await_nodes, ray, shared):
    ray.has_nodes(started(shared, "head", "10.0.0.1"))
    write(shared.path / "ray/c/head.log.exit", "0\n")
    write(shared.path / "ray/c/worker-0.log.exit", "1\n")
    write(shared.path / "ray/c/worker-0.log", "why\n")
    outcome = await_nodes(then=lambda: pytest.fail("it waits"), deadline=100)
    assert outcome.status == 1
    assert outcome.err == (
        f"        the last lines of {shared.path}/ray/c/worker-0.log:\n"
        "        why\n"
        "error   'ray start' on worker-0 ended with exit status 1 (why): run 'make doctor', which tries what Ray does there; the lines above "
        "are its log.\n"
    )


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("Traceback:\nRuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n", "RuntimeError: Version mismatch: The cluster was started with"),
        ("ray.exceptions.RaySystemError: no memory\nException: it timed out.\nbye\n", "Exception: it timed out"),
        ("Exception: it timed out.\nRay's own log: (raylet) dlmalloc.cc:158: Read-only file system\n", "(raylet) dlmalloc.cc:158: Read-only file system"),
        ("", "nothing"),
    ],
)  # fmt: skip
def test_reason_of_a_failed_start_is_in_its_sentence(await_nodes, ray, shared, log, reason):
    ray.has_nodes(started(shared, "head", "10.0.0.1"))
    write(shared.path / "ray/c/worker-0.log.exit", "1\n")
    write(shared.path / "ray/c/worker-0.log", log)
    assert (
        f"error   'ray start' on worker-0 ended with exit status 1 ({reason}): run 'make doctor'" in await_nodes().err
    )


def test_a_head_on_which_a_driver_could_land(await_nodes, ray, shared):
    ray.has_nodes(started(shared, "head", "10.0.0.1", CPU=2.0), started(shared, "worker-0", "10.0.0.2"))
    assert await_nodes().is_refusal(
        "The head shows CPU 2, GPU 0, and a driver could land there: 'make down up' starts its Ray without CPUs and GPUs.",
        status=1,
    )


@pytest.mark.parametrize(("found", "status"), [(0, 1), (3, 1), (4, 0), (8, 1)])
def test_a_worker_has_the_gpus_that_it_should_have(await_nodes, ray, shared, found, status):
    ray.has_nodes(started(shared, "head", "10.0.0.1"), started(shared, "worker-0", "10.0.0.2", CPU=8.0, GPU=found))
    outcome = await_nodes("--worker-gpus=4", HEAD, WORKER)
    assert outcome.status == status
    assert (f"error   worker-0 shows CPU 8, GPU {found}, and GPUS_PER_WORKER=4 is required: " in outcome.err) == (
        status == 1
    )


def test_the_nodes_that_joined(run, ray, shared):
    ray.has_nodes(
        started(shared, "head", "10.0.0.1"),
        started(shared, "worker-0", "10.0.0.2", mark="an earlier one"),
        {**started(shared, "worker-1", "10.0.0.3"), "state": "DEAD"},
    )
    assert run("nodes", f"--log-dir={shared.path}/ray/c", "--deadline=5").out == "head=10.0.0.1\n"


def test_the_nodes_are_asked_for_until_the_api_is_there(run, ray, shared, monkeypatch):
    ray.answers["/api/v0/nodes?limit=1000&detail=1"] = (503, "starting")
    row = started(shared, "head", "10.0.0.1")
    monkeypatch.setattr(nodes.time, "sleep", lambda _: ray.has_nodes(row))
    assert run("nodes", f"--log-dir={shared.path}/ray/c", "--deadline=5").out == "head=10.0.0.1\n"


@pytest.fixture
def dead_node(ray, shared):
    """Two live nodes, and the raylet of an earlier worker-0 that Ray calls ALIVE."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rows = [started(shared, "head", "10.0.0.1"), started(shared, "worker-0", "10.0.0.2")]
    rows = [{**row, "node_id": row["node_name"]} for row in rows]
    ray.has_nodes(*rows, {**rows[1], "node_id": "aa", "node_ip": "127.0.0.1", "labels": {"start": "0"}})
    row = {"nodeId": "aa", "nodeManagerPort": port}
    ray.answers["/nodes?view=summary&nocache=1"] = (200, {"data": {"summary": [{"raylet": {**row, "state": "ALIVE"}}]}})
    return types.SimpleNamespace(port=port, goes=lambda: ray.has_nodes(*rows))


def test_ray_drops_a_killed_worker_before_a_job_is_sent_there(await_nodes, dead_node):
    assert await_nodes(then=dead_node.goes).status == 0


@pytest.mark.usefixtures("dead_node")
def test_a_ray_that_never_notices(await_nodes):
    outcome = await_nodes()
    assert outcome.status == 8
    assert outcome.err.splitlines()[-1] == (
        "error   Ray still lists worker-0 as ALIVE, but it cannot be reached, after 1 s (CLUSTER_TIMEOUT): wait for a minute, or run 'make down up'."
    )


def test_a_node_that_is_not_ours_and_listens_is_left_alone(await_nodes, dead_node):
    with socket.create_server(("127.0.0.1", dead_node.port)):
        assert await_nodes().status == 0


def test_listing_the_nodes_does_not_wait_for_a_head_that_failed_to_start(run, shared):
    write(shared.path / "ray" / "c" / "head.log.exit", "1\n")
    outcome = run("nodes", "--deadline=60", f"--log-dir={shared.path}/ray/c")
    assert outcome.status == 1
    assert (
        "error   'ray start' on head ended with exit status 1 ((there is no such file)): run 'make doctor'"
        in outcome.err
    )
