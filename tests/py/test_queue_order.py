"""Who is next, case by case, in one process: the test holds the launchers' locks, and time passes when a launcher sleeps.

test_queue.py has real launchers.
"""

import fcntl
import json
import os
import shutil
import types
from pathlib import Path

import pytest
from conftest import write
from counting import counted

from verl_regress.base import lock
from verl_regress.jobs import find, liveness
from verl_regress.worker import queue

ALSO_THERE = (".lock", ".waits-", ".runs-")


class Sleeps(Exception):
    """A launcher that waits would go on waiting."""


class Line:
    """The jobs of the cluster `c`; `clock` is what the launchers read. Without marks, version 1.1 submitted the others."""

    def __init__(self, make_job, monkeypatch, has_marks, clock_file):
        self._make_job, self._held, self._made, self._has_marks = make_job, {}, 0, has_marks
        self._clock_file = clock_file
        self.slept, self.on_sleep, self.clock, self.late = [], {}, 1000.0, 0.02
        fake = types.SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.clock)
        monkeypatch.setattr(queue, "time", fake)

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.clock += seconds + self.late
        if len(self.slept) > max(self.on_sleep, default=0):
            raise Sleeps
        self._await_tick()
        self.on_sleep.get(len(self.slept), lambda: None)()

    def _await_tick(self):
        """The file system's clock moves on, as it does while a launcher sleeps: what changes now has a new time stamp."""
        probe = self._clock_file
        probe.touch()
        before = probe.stat().st_mtime_ns
        while probe.stat().st_mtime_ns == before:
            probe.touch()

    def job(self, name, *, is_alive=False, has_slot=False, limit=None, count=1, has=8, **state):
        """Reserved after all earlier ones; `is_alive`: its launcher has its lock."""
        job = self._make_job(name, **({"turn": {}} if has_slot else {}), **state)
        devices = {"resource": "NPU", "count": count, "cluster_has": has}
        write(job.config / "resolved.json", json.dumps({"cluster": "c", "max_running": limit, "devices": devices}))
        self._made += 1
        os.utime(job.config, ns=(self._made, self._made))
        queue.line_up(job, "c", count)
        waits = job.root.queue("c") / f".waits-{count}-{self._made:020d}-{name}"
        if not self._has_marks:
            waits.unlink()
        elif has_slot:
            waits.replace(waits.with_name(waits.name.replace("waits", "runs", 1)))
        if is_alive or has_slot:
            self._held[name] = liveness.hold(job)
        return job

    def dies(self, job):
        os.close(self._held.pop(job.ray_id))

    def waits(self, job):
        """Each position that its launcher says until it gets a slot, or would sleep on; "slot" for a slot."""
        said, self.slept = [], []
        if job.ray_id not in self._held:
            self._held[job.ray_id] = liveness.hold(job)
        try:
            queue.wait(job, find.plan_of(job), lambda position: said.append(str(position)))
        except Sleeps:
            return said
        return [*said, "slot"]

    def end(self):
        for descriptor in self._held.values():
            os.close(descriptor)


@pytest.fixture(params=[True, False], ids=["marks", "version 1.1"])
def line(make_job, monkeypatch, request, tmp_path):
    one = Line(make_job, monkeypatch, request.param, tmp_path / "clock")
    yield one
    one.end()


WITH_MARKS = pytest.mark.parametrize("line", [True], indirect=True, ids=["marks"])
FROM_BEFORE = pytest.mark.parametrize("line", [False], indirect=True, ids=["version 1.1"])


def names(job):
    return sorted(path.name for path in job.root.queue("c").iterdir() if not path.name.startswith(ALSO_THERE))


def test_a_link_has_the_time_of_the_reservation_in_20_digits_and_the_id(line):
    job = line.job("a")
    assert names(job) == [f"{1:020d}-a"]
    assert str((job.root.queue("c") / names(job)[0]).readlink()) == "../../jobs/a"
    for _again in range(2):
        queue.line_up(job, "c", 3)
    assert {path.name for path in job.root.queue("c").iterdir()} >= {f"{1:020d}-a", f".waits-3-{1:020d}-a"}
    assert names(job) == [f"{1:020d}-a"]


def test_a_slot_is_recorded_with_the_seconds_waited(line):
    first, job = line.job("first", has_slot=True), line.job("job", limit=1)
    line.on_sleep = {3: lambda: line.dies(first)}
    assert line.waits(job) == ["position 1 of 1: behind first (MAX_RUNNING=1)", "slot"]
    assert job.read_state("turn")["waited_seconds"] == 3.1
    assert line.slept == [1.0, 1.0, 1.0]
    assert (job.root.queue("c") / ".lock").exists()
    assert names(job) == [f"{2:020d}-job"]


def test_a_slot_touches_the_queue_for_those_behind(line):
    job = line.job("job")
    line.waits(job)
    line.job("next")
    os.utime(job.root.queue("c"), ns=(5, 5))
    (job.state / "turn").unlink()
    assert line.waits(job) == ["slot"]
    assert job.root.queue("c").stat().st_mtime_ns > 5


def test_positions_count_from_those_that_wait_before(line):
    line.job("runs", has_slot=True)
    for name in ("a", "b"):
        line.job(name, is_alive=True)
    job = line.job("c", limit=1)
    for name in ("d", "e"):
        line.job(name, is_alive=True)
    assert line.waits(job) == ["position 3 of 5: behind b"]


def test_a_job_that_runs_counts_whenever_it_was_reserved(line):
    job = line.job("early", limit=2)
    line.job("x", has_slot=True)
    assert line.waits(job) == ["slot"]
    other = line.job("y", limit=2)
    line.job("z", is_alive=True)
    assert line.waits(other) == ["position 1 of 2: behind early, x (MAX_RUNNING=2)"]


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


@FROM_BEFORE
def test_a_job_without_a_plan_counts_but_takes_no_devices(line):
    first = line.job("a", has_slot=True, count=8)
    (first.config / "resolved.json").unlink()
    assert line.waits(line.job("b", count=8)) == ["slot"]
    assert line.waits(line.job("c", count=0, limit=2)) == ["position 1 of 1: behind a, b (MAX_RUNNING=2)"]


@WITH_MARKS
def test_the_mark_of_a_job_says_its_devices_though_its_plan_is_gone(line):
    (line.job("a", has_slot=True, count=8).config / "resolved.json").unlink()
    said = "position 1 of 1: behind a (8 of 8 NPU are taken, 1 are wanted)"
    assert line.waits(line.job("b", count=1)) == [said]


def test_a_job_alone_has_no_limit_of_devices(line):
    assert line.waits(line.job("a", count=9)) == ["slot"]


def test_a_position_is_said_when_it_changes_only(line):
    runs, a = line.job("runs", has_slot=True), line.job("a", is_alive=True)
    job = line.job("b", limit=1)
    line.on_sleep = {2: lambda: queue.leave(a, "c"), 4: lambda: None, 5: lambda: line.dies(runs)}
    assert line.waits(job) == ["position 2 of 2: behind a", "position 1 of 1: behind runs (MAX_RUNNING=1)", "slot"]
    assert len(line.slept) == 5


@pytest.mark.parametrize(
    ("position", "dies_at", "noticed_at"),
    [(2, 1, 2), (2, 2, 2), (2, 3, 4), (5, 1, 5), (5, 6, 10), (10, 1, 10), (12, 1, 10), (12, 11, 20)],
)
def test_an_unchanged_queue_is_listed_less_often_the_later_the_position(line, position, dies_at, noticed_at):
    line.job("runs", has_slot=True)
    *_, last = [line.job(f"a{number:02}", is_alive=True) for number in range(position - 1)]
    job = line.job("b", limit=1)
    line.late, line.on_sleep = 0.0, {dies_at: lambda: line.dies(last), 30: lambda: None}
    changed = []

    def when(now):
        changed.append((now.position, len(line.slept)))

    line._held["b"] = liveness.hold(job)
    with pytest.raises(Sleeps):
        queue.wait(job, find.plan_of(job), when)
    assert changed == [(position, 0), (position - 1, noticed_at)]


def test_who_is_next_looks_each_time(line):
    runs, job = line.job("runs", has_slot=True), line.job("b", limit=1)
    line.on_sleep = {1: lambda: line.dies(runs)}
    assert line.waits(job)[-1] == "slot"
    assert len(line.slept) == 1


def test_links_of_jobs_that_are_over_are_removed(line):
    over, job = line.job("over", is_alive=True), line.job("b", limit=1)
    line.dies(over)
    assert line.waits(job) == ["slot"]
    assert names(job) == [f"{2:020d}-b"]


def test_a_dead_launcher_in_front_of_a_job_that_runs_is_not_waited_for(line):
    over, _runs, job = line.job("over", is_alive=True), line.job("runs", has_slot=True), line.job("b", limit=2)
    line.dies(over)
    assert line.waits(job) == ["slot"]
    assert names(job) == [f"{2:020d}-runs", f"{3:020d}-b"]


@WITH_MARKS
def test_a_dead_launcher_is_left_to_the_nearest_live_one_behind_it(line):
    over, _runs, _waits = (
        line.job("over", is_alive=True),
        line.job("runs", has_slot=True),
        line.job("a", is_alive=True),
    )
    job = line.job("b", limit=4)
    line.dies(over)
    assert line.waits(job) == ["slot"]
    assert f"{1:020d}-over" in names(job)


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
    assert names(job) == [f"{2:020d}-b"]


@pytest.mark.parametrize("state", [{}, {"submitted": None}, {"observed": {"status": "PENDING"}}])
@pytest.mark.parametrize(("age", "may_come"), [(59.5, True), (60, False)])
def test_a_launcher_may_come_for_a_minute(line, state, age, may_come):
    late, job = line.job("late", **state), line.job("b", limit=1)
    line._held["b"] = liveness.hold(job)
    now = job.launcher.stat().st_mtime
    [link] = late.root.queue("c").glob("[0-9]*-late")
    os.utime(link, (now - age, now - age), follow_symlinks=False)
    assert line.waits(job) == (["position 2 of 2: behind late"] if may_come else ["slot"])
    assert len(names(job)) == 1 + may_come


def test_the_minute_goes_on_while_a_launcher_waits(line):
    late, job = line.job("late"), line.job("b", limit=1)
    line._held["b"] = liveness.hold(job)
    now = job.launcher.stat().st_mtime
    [link] = late.root.queue("c").glob("[0-9]*-late")
    os.utime(link, (now - 55, now - 55), follow_symlinks=False)
    line.on_sleep = {30: lambda: None}
    assert line.waits(job) == ["position 2 of 2: behind late", "slot"]
    assert len(line.slept) == 6  # the second in line looks every 2 s


@FROM_BEFORE
def test_what_no_submission_made_is_left_alone_and_not_waited_for(line, tmp_path):
    a = line.job("a")
    directory = a.root.queue("c")
    (tmp_path / "elsewhere" / "state").mkdir(parents=True)
    (directory / "0-outside").symlink_to(tmp_path / "elsewhere")
    (directory / "0-plain").write_text("")
    (directory / ".0-hidden").symlink_to("../../jobs/a")
    job = line.job("b", limit=1)
    line.dies(line.job("z", is_alive=True))
    (a.config / "resolved.json").write_text("{")
    assert line.waits(job) == ["slot"]
    assert names(job) == sorted([".0-hidden", "0-outside", "0-plain", f"{1:020d}-a", f"{2:020d}-b"])


def test_a_link_that_was_removed_comes_back_at_its_position(line):
    runs, job = line.job("runs", has_slot=True), line.job("b", limit=1)
    line.job("c", is_alive=True)
    line.on_sleep = {1: lambda: queue.leave(job, "c"), 3: lambda: line.dies(runs)}
    assert line.waits(job) == ["position 1 of 2: behind runs (MAX_RUNNING=1)", "slot"]
    assert f"{2:020d}-b" in names(job)


@FROM_BEFORE
def test_only_a_job_that_has_a_slot_is_named_with_its_breakpoint(line):
    record = {
        "task": "t", "file": "/r.py", "line": 1, "function": "f", "exception": None, "node": "n", "host": "h", "port": 1, "pid": 7,
        "kind": "debugpy", "since": "2026", "attached": False,
    }  # fmt: skip
    runs = line.job("runs", has_slot=True)
    file = write(runs.state / "breakpoints" / "a.json", json.dumps(record))
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        job = line.job("b", limit=1)
        line.on_sleep = {1: lambda: (runs.state / "turn").unlink()}
        assert line.waits(job) == [
            "position 1 of 1: behind runs, which waits in a breakpoint (/r.py:1) (MAX_RUNNING=1)",
            "position 2 of 2: behind runs",
        ]


def test_leaving_takes_ones_own_link_only(line):
    a, _ = line.job("a"), line.job("b-a")
    queue.leave(a, "c")
    queue.leave(a, "c")
    assert names(a) == [f"{2:020d}-b-a"]


def test_leaving_a_queue_that_is_gone_is_no_error(line):
    job = line.job("a")
    shutil.rmtree(job.root.queue("c"))
    queue.leave(job, "c")
    assert not job.root.queue("c").exists()


def test_who_asks_for_a_slot_is_named_in_the_lock(line):
    job = line.job("a")
    line.waits(job)
    assert "the launcher of a" in (job.root.queue("c") / ".lock").read_text()


def test_a_name_with_a_period_in_front_is_no_job_of_the_queue(line):
    runs = line.job("runs", has_slot=True)
    (runs.root.queue("c") / ".runs").symlink_to("../../jobs/runs")
    assert line.waits(line.job("b", limit=2)) == ["slot"]


def test_a_launcher_makes_the_queue_again_if_it_is_gone(line):
    job = line.job("a")
    shutil.rmtree(job.root.queue("c").parent)
    assert line.waits(job) == ["slot"]
    assert names(job) == [f"{1:020d}-a"]


def test_another_launcher_may_remove_a_link_first(line, monkeypatch):
    over, job = line.job("over", is_alive=True), line.job("b", limit=1, is_alive=True)
    line.dies(over)
    remove = Path.unlink

    def second(path, missing_ok=False):
        remove(path, missing_ok=missing_ok)
        if path.parent == job.root.queue("c"):
            remove(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", second)
    assert line.waits(job) == ["slot"]
    queue.leave(job, "c")
    assert names(job) == []


@WITH_MARKS
@pytest.mark.parametrize("position", [1, 2, 100])
@pytest.mark.slow
def test_the_cost_of_waiting_does_not_grow_with_the_jobs_that_wait(line, monkeypatch, position):
    """Before: each that waited read every job of the queue."""
    cost = {}
    for number in range(4):
        line.job(f"runs{number}", has_slot=True)
    for size in (100, 200):
        others = [line.job(f"a{size}-{number:03}", is_alive=True, limit=4) for number in range(100)]
        if size == 100:
            job = others[position - 1]
        asks = queue._Queue(job, find.plan_of(job))
        with counted(monkeypatch) as calls:
            assert str(asks.ask()).startswith(f"position {position} of {size}: ")
        cost[size] = calls.total()
    assert cost[200] == cost[100]
    assert cost[200] <= (60 if position == 1 else 15)  # the first in line checks the four that run


@WITH_MARKS
@pytest.mark.slow
def test_the_cost_of_a_start_does_not_grow_with_the_jobs_that_wait(line, monkeypatch):
    runs = line.job("runs", has_slot=True)
    job = line.job("next", limit=1)
    for number in range(200):
        line.job(f"a{number:03}", is_alive=True, limit=1)
    line._held["next"] = liveness.hold(job)
    asks = queue._Queue(job, find.plan_of(job))
    line.dies(runs)
    with counted(monkeypatch) as calls:
        assert asks.ask() is None
    assert calls.total() <= 50, calls


@WITH_MARKS
@pytest.mark.slow
def test_the_cost_of_a_start_does_not_grow_with_the_jobs_that_wait_in_front(line, monkeypatch):
    """Those in front wait for MAX_RUNNING=1, and only the nearest one of them is checked."""
    runs = [line.job(name, has_slot=True) for name in ("runs", "other")]
    for number in range(100):
        line.job(f"a{number:03}", is_alive=True, limit=1, count=0)
    job = line.job("many", limit=103)
    line._held["many"] = liveness.hold(job)
    asks = queue._Queue(job, find.plan_of(job))
    line.dies(runs[0])
    with counted(monkeypatch) as calls:
        assert asks.ask() is None
    assert calls.total() <= 60, calls


@WITH_MARKS
def test_next_to_a_job_of_version_1_1_devices_are_counted(line):
    runs, job = line.job("runs", has_slot=True, count=8), line.job("b", count=2)
    (runs.root.queue("c") / f".runs-8-{1:020d}-runs").unlink()
    line.on_sleep = {2: lambda: line.dies(runs)}
    assert line.waits(job) == ["position 1 of 1: behind runs (8 of 8 NPU are taken, 2 are wanted)", "slot"]


@WITH_MARKS
def test_a_link_that_was_removed_comes_back_though_another_job_waits_in_front(line):
    line.job("runs", has_slot=True)
    line.job("a", is_alive=True)
    job = line.job("b", limit=1)
    queue.leave(job, "c")
    assert line.waits(job) == ["position 2 of 2: behind a"]
    assert f"{3:020d}-b" in names(job)


@WITH_MARKS
def test_who_is_behind_another_needs_no_lock(line, monkeypatch):
    line.job("runs", has_slot=True)
    line.job("a", is_alive=True)
    monkeypatch.setattr(queue, "_LOCK_SECONDS", 0.0)
    with lock.owning(line.job("b", limit=1).root.queue("c") / ".lock", "the test", 0):
        assert line.waits(line.job("c", limit=1)) == ["position 3 of 3: behind b"]


@WITH_MARKS
def test_all_dead_launchers_in_front_are_removed_at_once(line):
    line.job("runs", has_slot=True)
    dead = [line.job(name, is_alive=True) for name in "abcd"]
    job = line.job("e", limit=1)
    line.on_sleep = {1: lambda: [line.dies(each) for each in dead[1:]], 6: lambda: None}
    assert line.waits(job) == ["position 5 of 5: behind d", "position 2 of 2: behind a"]
    assert {path.name for path in job.root.queue("c").iterdir()} == {
        ".lock", f"{1:020d}-runs", f".runs-1-{1:020d}-runs", f"{2:020d}-a", f".waits-1-{2:020d}-a", f"{6:020d}-e", f".waits-1-{6:020d}-e"
    }  # fmt: skip


@WITH_MARKS
def test_a_mark_says_that_a_job_waits_until_right_before_it_has_a_slot(line, monkeypatch):
    job = line.job("a", count=4)
    marks = []
    record = type(job).write_state

    def recorded(self, name, content):
        marks.extend(path.name for path in job.root.queue("c").glob(".[rw]*"))
        record(self, name, content)

    monkeypatch.setattr(type(job), "write_state", recorded)
    assert line.waits(job) == ["slot"]
    assert marks == [f".runs-4-{1:020d}-a"]
    queue.leave(job, "c")
    assert [path.name for path in job.root.queue("c").iterdir()] == [".lock"]


@WITH_MARKS
def test_as_long_as_no_launcher_in_front_is_up_those_that_run_are_checked(line):
    runs, other = (line.job(name, has_slot=True) for name in ("runs", "other"))
    line.job("late")
    job = line.job("b", limit=2)
    line.on_sleep = {1: lambda: line.dies(runs), 2: lambda: line.dies(other), 3: lambda: None}
    assert line.waits(job) == ["position 2 of 2: behind late", "slot"]


@WITH_MARKS
def test_a_job_of_a_higher_limit_starts_though_one_before_it_waits(line):
    runs, other = (line.job(name, has_slot=True) for name in ("runs", "other"))
    line.job("one", is_alive=True, limit=1)
    job = line.job("many", limit=3)
    line.on_sleep = {1: lambda: queue.leave(other, "c")}
    assert line.waits(job) == ["position 2 of 2: behind one", "slot"]
    assert names(runs) == [f"{1:020d}-runs", f"{3:020d}-one", f"{4:020d}-many"]


@WITH_MARKS
def test_several_free_slots_are_all_taken_though_the_first_has_not_asked_yet(line):
    runs = line.job("runs", has_slot=True, count=8)
    line.job("a", is_alive=True, count=2)
    job = line.job("b", count=2)
    line.on_sleep = {1: lambda: queue.leave(runs, "c")}
    assert line.waits(job) == ["position 2 of 2: behind a", "slot"]


@WITH_MARKS
@pytest.mark.parametrize(
    "name", [".waits-x-{link}", ".runs--{link}", ".waits-9-", ".runs-9-0-a", ".waits-9-{link}x", "waits-9-{link}"]
)
def test_what_is_no_mark_says_nothing(line, name):
    job = line.job("b", limit=1)
    (job.root.queue("c") / name.format(link=f"{1:020d}-b")).touch()
    assert line.waits(job) == ["slot"]
