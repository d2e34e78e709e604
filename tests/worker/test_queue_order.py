"""Who is next, case by case, in one process: the test holds the launchers' locks, and time passes when a launcher sleeps.

test_queue.py has real launchers.
"""

import json
import os
import shutil
import time
import types

import pytest
from shared_fixtures import write

from verl_regress.jobs import find
from verl_regress.jobs.status import hold_launcher_lock
from verl_regress.worker import queue


class Sleeps(Exception):
    """A launcher that waits would go on waiting."""


class Line:
    """The jobs of the cluster `c`; `clock` is what the launchers read."""

    def __init__(self, make_job, monkeypatch):
        self._make_job, self._held, self._made = make_job, {}, 0
        self.slept, self.on_sleep, self.clock = [], {}, 1000.0
        fake = types.SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.clock, time=time.time)
        monkeypatch.setattr(queue, "time", fake)

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.clock += seconds + 0.02
        if len(self.slept) > max(self.on_sleep, default=0):
            raise Sleeps
        self.on_sleep.get(len(self.slept), lambda: None)()

    def job(self, name, *, is_alive=False, has_slot=False, limit=None, count=1, has=8, **state):
        """Reserved after all earlier ones; `is_alive`: its launcher has its lock."""
        job = self._make_job(name, **({"turn": {}} if has_slot else {}), **state)
        devices = {"resource": "NPU", "count": count, "cluster_has": has}
        write(job.config / "resolved.json", json.dumps({"cluster": "c", "max_running": limit, "devices": devices}))
        self._made += 1
        os.utime(job.config, ns=(self._made, self._made))
        queue.line_up(job, "c", count)
        if is_alive or has_slot:
            self._held[name] = hold_launcher_lock(job)
        return job

    def dies(self, job):
        os.close(self._held.pop(job.ray_id))

    def waits(self, job):
        """Each position that its launcher says until it gets a slot, or would sleep on; "slot" for a slot."""
        said, self.slept = [], []
        if job.ray_id not in self._held:
            self._held[job.ray_id] = hold_launcher_lock(job)
        try:
            queue.wait(job, find.plan_of(job), lambda position: said.append(str(position)))
        except Sleeps:
            return said
        return [*said, "slot"]

    def end(self):
        for descriptor in self._held.values():
            os.close(descriptor)


@pytest.fixture
def line(make_job, monkeypatch):
    one = Line(make_job, monkeypatch)
    yield one
    one.end()


def names(job):
    """The ids in the queue, in order; in it are those and its lock."""
    return [path.name.partition("-")[2] for path in sorted(job.root.queue("c").iterdir()) if path.name != ".lock"]


def test_a_position_is_said_when_it_changes_only(line):
    runs, a = line.job("runs", has_slot=True), line.job("a", is_alive=True)
    job = line.job("b", limit=1)
    line.on_sleep = {2: lambda: queue.leave(a, "c"), 5: lambda: line.dies(runs)}
    assert line.waits(job) == ["position 2 of 2: behind a", "position 1 of 1: behind runs (MAX_RUNNING=1)", "slot"]


def test_a_job_that_was_removed_from_the_queue_comes_back_at_its_position(line):
    runs, job = line.job("runs", has_slot=True), line.job("b", limit=1)
    line.job("c", is_alive=True)
    line.on_sleep = {1: lambda: queue.leave(job, "c"), 3: lambda: line.dies(runs)}
    assert line.waits(job) == ["position 1 of 2: behind runs (MAX_RUNNING=1)", "slot"]
    assert "1-b" in names(job)
    shutil.rmtree(job.root.queue("c").parent)
    (job.state / "turn").unlink()
    assert line.waits(job) == ["slot"]
    assert names(job) == ["1-b"]


def test_a_job_does_not_wait_for_itself_though_its_config_was_touched(line):
    job = line.job("job", limit=1)
    os.utime(job.config, ns=(9, 9))
    assert line.waits(job) == ["slot"]
    queue.leave(job, "c")
    assert names(job) == []


def test_a_job_that_runs_counts_whenever_it_was_reserved(line):
    job = line.job("early", limit=2)
    line.job("x", has_slot=True)
    assert line.waits(job) == ["slot"]
    other = line.job("y", limit=2)
    line.job("z", is_alive=True)
    assert line.waits(other) == ["position 1 of 2: behind early, x (MAX_RUNNING=2)"]


def test_a_job_in_front_that_waits_in_a_breakpoint_is_named_with_it(line, monkeypatch):
    """A person may keep it there for hours."""
    line.job("a", has_slot=True)
    line.job("b", has_slot=True)
    waits = {"b": "waits in a breakpoint (r.py:1)"}
    monkeypatch.setattr(queue, "breakpoint_of", lambda job: waits.get(job.ray_id))
    assert line.waits(line.job("c", limit=2)) == [
        "position 1 of 1: behind a, b, which waits in a breakpoint (r.py:1) (MAX_RUNNING=2)"
    ]


@pytest.mark.parametrize(
    ("count", "said"), [(5, "slot"), (6, "position 1 of 1: behind a, b (3 of 8 NPU are taken, 6 are wanted)")]
)
def test_devices_are_a_limit_to_the_last_one(line, count, said):
    line.job("a", has_slot=True, count=1)
    line.job("b", has_slot=True, count=2)
    assert line.waits(line.job("c", count=count)) == [said]


def test_the_devices_of_those_that_wait_before_are_reserved(line):
    line.job("a", is_alive=True, count=7)
    assert line.waits(line.job("b", count=2)) == ["position 2 of 2: behind a"]
    assert line.waits(line.job("c", count=1)) == ["position 3 of 3: behind b"]


def test_a_dead_launcher_in_front_of_a_job_that_runs_is_not_waited_for(line):
    over, _runs, job = line.job("over", is_alive=True), line.job("runs", has_slot=True), line.job("b", limit=2)
    line.dies(over)
    assert line.waits(job) == ["slot"]
    assert names(job) == ["1-runs", "1-b"]


@pytest.mark.parametrize(
    "state",
    [
        {"submitted": {"accepted": False}},
        *({"observed": {"status": status}} for status in ("SUCCEEDED", "FAILED", "STOPPED")),
        {"submitted": None, "observed": {"status": "FAILED"}},
    ],
)
def test_a_job_that_ray_refused_or_ended_never_comes(line, state):
    line.job("never", **state)
    job = line.job("b", limit=1)
    assert line.waits(job) == ["slot"]
    assert names(job) == ["1-b"]


@pytest.mark.parametrize("state", [{}, {"submitted": None}, {"observed": {"status": "PENDING"}}])
@pytest.mark.parametrize(("age", "may_come"), [(50, True), (70, False)])
def test_a_launcher_may_come_for_a_minute(line, state, age, may_come):
    late, job = line.job("late", **state), line.job("b", limit=1)
    now = time.time()
    [entry] = late.root.queue("c").glob("*-late")
    os.utime(entry, (now - age, now - age))
    assert line.waits(job) == (["position 2 of 2: behind late"] if may_come else ["slot"])
    assert len(names(job)) == 1 + may_come


def test_a_job_of_a_higher_limit_starts_though_one_before_it_waits(line):
    runs, other = (line.job(name, has_slot=True) for name in ("runs", "other"))
    line.job("one", is_alive=True, limit=1)
    job = line.job("many", limit=3)
    line.on_sleep = {1: lambda: queue.leave(other, "c")}
    assert line.waits(job) == ["position 2 of 2: behind one", "slot"]
    assert names(runs) == ["1-runs", "1-one", "1-many"]


def test_several_free_slots_are_all_taken_though_the_first_has_not_asked_yet(line):
    runs = line.job("runs", has_slot=True, count=8)
    line.job("a", is_alive=True, count=2)
    job = line.job("b", count=2)
    line.on_sleep = {1: lambda: queue.leave(runs, "c")}
    assert line.waits(job) == ["position 2 of 2: behind a", "slot"]
