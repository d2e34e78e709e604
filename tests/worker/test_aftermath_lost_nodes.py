"""The launcher ends a trainer that waits for a node that died, and no other trainer."""

import json
import subprocess
import sys
import threading
import types

import pytest
from shared_fixtures import write

from verl_regress.base.errors import RegressError
from verl_regress.cluster import ray_internals
from verl_regress.worker import aftermath
from verl_regress.worker.aftermath import Watch

LOST = ["worker-1 (10.0.0.3)"]
ALIVE = []


@pytest.fixture
def trainer(make_job, monkeypatch):
    """A process group that would run for an hour, and what is asked about it."""
    for name in ("_CHECK_EVERY", "_QUIET", "_PATIENCE"):
        monkeypatch.setattr(aftermath, name, 0.02)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    monkeypatch.setenv("VERL_REGRESS_NODE_IP", "10.0.0.2")
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    yield make_job("job"), started
    started.kill()
    started.wait()


@pytest.fixture
def watched(trainer, monkeypatch):
    """What a watch does whose checks come at these times, with what Ray calls lost then; None: Ray must not be asked."""

    def watched(*moments):
        job, process = trainer
        now, asked, over = [0.0], [], threading.Event()
        rows = iter(moments)
        monkeypatch.setattr(aftermath, "_QUIET", 30.0)
        monkeypatch.setattr(aftermath, "_PATIENCE", 30.0)
        monkeypatch.setattr(aftermath, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

        def nodes_lost(*question):
            asked.append(question)
            if answers[0] == "no answer":
                raise RegressError("Ray's GCS at 10.0.0.9:6379 does not say which nodes it lost (no answer in 20 s)")
            return answers[0]

        def wait(_):
            row = next(rows, None)
            if row is None:
                over.set()
                return True
            now[0], step, answers[0] = row
            if step:
                write(job.metrics, json.dumps({"step": step, "data": {"actor/lr": 1}}) + "\n")
            return False

        answers = [ALIVE]
        monkeypatch.setattr(ray_internals, "nodes_lost_from_gcs", nodes_lost)
        monkeypatch.setattr(threading.Event, "wait", lambda self, seconds=None: wait(seconds))
        watch = Watch.__new__(Watch)
        watch._job, watch._trainer, watch._is_over, watch.lost = job, process, threading.Event(), ()
        watch._run()
        assert set(asked) <= {("10.0.0.9:6379", "10.0.0.2", process.pid, 20.0)}
        return list(watch.lost), len(asked)

    return watched


@pytest.mark.parametrize(
    ("moments", "lost"),
    [
        ([(15, 3, LOST), (45, 3, ALIVE), (60, 3, LOST), (75, 3, LOST), (90, 3, LOST)], (LOST, 4)),
        ([(15, None, LOST), (30, None, LOST), (45, None, LOST), (60, None, LOST)], (LOST, 3)),  # before its first step
        # It goes on without the node, or Ray does not name one each time: it is left alone.
        ([(15, 3, LOST), (45, 3, LOST), (60, 4, LOST), (90, 4, LOST), (105, 4, LOST), (110, 5, LOST)], ([], 3)),
        ([(15, 3, LOST), (45, 3, LOST), (60, 3, ALIVE), (75, 3, LOST), (90, 3, "no answer")], ([], 4)),
        ([(15 * number, 7, ALIVE) for number in range(3, 20)], ([], 15)),
    ],
)
def test_a_trainer_that_waits_half_a_minute_for_a_lost_node_is_ended(watched, trainer, moments, lost):
    assert watched(*moments) == lost
    assert trainer[1].poll() is None or (lost[0] and trainer[1].wait(20) == -9)


def test_a_real_trainer_is_ended_by_sigkill_with_the_node_named(trainer, monkeypatch):
    job, process = trainer
    monkeypatch.setattr(ray_internals, "nodes_lost_from_gcs", lambda *_: LOST)
    watch = Watch(job, process)
    assert process.wait(timeout=20) == -9
    assert list(watch.lost) == LOST


STATE = """
from types import SimpleNamespace as Row
def died(reason): return Row(actor_died_error_context=Row(reason=reason))
def actor(state, node, reason=0): return {"State": state, "Address": {"NodeID": node}, "DeathCause": died(reason)}
class GlobalState:
    def _initialize_global_state(self, options): assert options == "10.0.0.9:6379"
    def job_table(self):
        return [{"JobID": job, "DriverIPAddress": ip, "DriverPid": pid} for job, ip, pid in JOBS]
    def actor_table(self, _, job): return dict(enumerate(ACTORS[job]))
    def node_table(self):
        return [{"NodeID": node, "NodeName": f"worker-{node}", "NodeManagerAddress": f"10.0.0.{node}"} for node in "345"]
JOBS = [("01", "10.0.0.2", 8), ("02", "10.0.0.2", 7), ("03", "10.0.0.1", 7)]
ACTORS = {
    "01": [actor("DEAD", "3", 2)],
    "02": [actor("DEAD", "4", 2), actor("DEAD", "4", 2), actor("DEAD", "5", 1), actor("RESTARTING", "5", 2), actor("ALIVE", "3")],
    "03": [actor("DEAD", "5", 2)],
}
"""


@pytest.fixture
def fake_ray(tmp_path, monkeypatch):
    """A module `ray` with three jobs; 2 is NODE_DIED."""
    files = {
        "__init__": "class JobID: from_hex = str\n",
        "_private/__init__": "",
        "_private/state": STATE,
        "_raylet": "class GcsClientOptions: create = lambda gcs, *_, **__: gcs\n",
        "core/__init__": "",
        "core/generated/__init__": "",
        "core/generated/common_pb2": "class ActorDiedErrorContext: NODE_DIED = 2\n",
    }
    for name, text in files.items():
        write(tmp_path / "ray" / f"{name}.py", text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize(
    ("pid", "nodes"), [(7, ["worker-4 (10.0.0.4)"]), (8, ["worker-3 (10.0.0.3)"]), (9, [])], ids=str
)
def test_only_nodes_that_took_actors_of_this_driver_with_them_are_named(pid, nodes):
    assert ray_internals.nodes_lost_from_gcs("10.0.0.9:6379", "10.0.0.2", pid, 20.0) == nodes


@pytest.mark.usefixtures("fake_ray")
def test_a_head_that_does_not_answer_is_a_regress_error():
    with pytest.raises(RegressError) as caught:
        ray_internals.nodes_lost_from_gcs("10.0.0.8:6379", "10.0.0.2", 7, 20.0)
    assert str(caught.value) == "Ray's GCS at 10.0.0.8:6379 does not say which nodes it lost (AssertionError)"
