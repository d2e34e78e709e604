"""The shared root on a file system that behaves as an NFS mount can (remote_disk.py): two clients of one directory, real mounts."""

import fcntl
import json
import os
import subprocess
import sys
import time

import pytest
from conftest import write
from test_many_jobs import make_jobs, train

from verl_regress import cli
from verl_regress.base import files, lock
from verl_regress.base.errors import RegressError, Unreadable
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import liveness
from verl_regress.jobs.liveness import Launcher, launcher_of
from verl_regress.secrets import job_secrets
from verl_regress.worker import queue

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system"),
]


@pytest.fixture
def clients(mounted):
    """The shared root as two machines see it."""
    roots = [SharedRoot(place) for place in mounted().mounts]
    roots[0].ensure()
    return roots


def job_of(root, name="job"):
    job = JobDir(root.jobs / name)
    write(job.config / "resolved.json", "{}")
    job.state.mkdir(exist_ok=True)
    return job


def test_the_file_system_of_these_tests_locks_as_nfs_does(clients):
    here, there = ((root.jobs / "file") for root in clients)
    here.write_text("")
    descriptors = [os.open(place, how) for how in (os.O_RDONLY, os.O_WRONLY) for place in (here, there)]
    reads, reads_there, writes, writes_there = descriptors
    for descriptor, how in ((reads, fcntl.LOCK_EX), (writes, fcntl.LOCK_SH)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            fcntl.flock(descriptor, how)
    fcntl.flock(writes, fcntl.LOCK_EX)
    for descriptor, how in ((reads_there, fcntl.LOCK_SH), (writes_there, fcntl.LOCK_EX)):
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    for root in clients:  # a directory's lock is each client's own
        descriptors.append(os.open(root.jobs, os.O_RDONLY))
        fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in descriptors:
        os.close(descriptor)


def test_gc_on_one_machine_waits_for_a_submission_on_another(clients):
    here, there = clients
    with (
        lock.held(here.jobs, fcntl.LOCK_SH) as is_held,
        pytest.raises(RegressError) as caught,
        lock.alone(there.jobs, "gc", 0),
    ):
        raise AssertionError
    assert is_held
    assert str(caught.value).startswith(f"{there.jobs} has been locked for 0 s by ")
    with lock.alone(there.jobs, "gc", 0), lock.held(here.jobs, fcntl.LOCK_SH | fcntl.LOCK_NB) as is_held:
        assert not is_held
    with lock.held(here.jobs, fcntl.LOCK_SH) as first, lock.held(there.jobs, fcntl.LOCK_SH) as second:
        assert first
        assert second  # submissions do not wait for each other


def test_secrets_that_a_submitter_holds_are_in_use_on_another_machine(clients):
    here, there = (root.secrets / "c" / "job" for root in clients)
    clients[0].secrets.mkdir()
    with job_secrets.written(here, {"KEY": "0123456789"}):
        assert job_secrets.is_held(there)
        assert job_secrets.is_held(here)
    assert not job_secrets.is_held(there)


def test_secrets_that_a_launcher_holds_are_in_use_on_another_machine(clients):
    here, there = (root.secrets / "c" / "job" for root in clients)
    clients[0].secrets.mkdir()
    with job_secrets.written(here, {"KEY": "0123456789"}):
        pass
    code = "import sys; from verl_regress.secrets import job_secrets; job_secrets.hold(); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), job_secrets.FILE_VARIABLE: str(here)},
    ) as launcher:  # fmt: skip
        assert launcher.stdout.readline() == "held\n"
        assert job_secrets.is_held(there)
        launcher.communicate("")
    assert not there.exists()


def test_a_launcher_is_alive_on_every_machine_until_it_ends(clients):
    here, there = (job_of(root) for root in clients)
    assert launcher_of(there) is Launcher.NOT_YET
    descriptor = liveness.hold(here)
    assert [launcher_of(job) for job in (here, there, there)] == [Launcher.ALIVE] * 3
    with pytest.raises(liveness.LaunchedBefore):
        liveness.hold(there)
    os.close(descriptor)
    assert launcher_of(there) is Launcher.GONE


def test_a_job_whose_name_has_other_upper_and_lower_case_is_not_taken_for_it(mounted, capsys):
    """Before: JOB=Ppo-1 was ppo-1, which was stopped."""
    root = SharedRoot(mounted(folds=True).mounts[0])
    root.ensure()
    for name in ("ppo-1", "2026"):  # … which has no letters
        job_of(root, name)
    commands = {
        "where": [], "logs": [], "stop": ["--deadline=1"], "wait": ["--deadlines=1,1,1"], "debug": [], "retry": ["--cluster=c"],
    }  # fmt: skip
    for command, words in commands.items():
        assert cli.main(["--shared-root", str(root.path), command, "Ppo-1", *words]) == 2, command
        said = f"error   JOB=Ppo-1 is not under {root.jobs}: name one of the latest ("
        assert capsys.readouterr().err.startswith(said), command
    for name in ("ppo-1", "2026"):
        assert cli.main(["--shared-root", str(root.path), "where", name]) == 0
        assert capsys.readouterr().out == f"{root.jobs}/{name}\n"


def test_gc_on_a_read_only_file_system_says_so(mounted, capsys):
    """Before: that it has no locks."""
    disk = mounted()
    root = SharedRoot(disk.mounts[0])
    root.ensure()
    disk.becomes(fails="EROFS")
    words = ["--shared-root", str(root.path), "--no-ray", "gc", "--cluster=c", "--keep=5"]
    assert cli.main(words) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error   {root.jobs} cannot be locked (Read-only file system): mount it read-write."
    )


@pytest.mark.parametrize(
    ("options", "why"), [({"locks": "none"}, "No locks available"), ({"links": False}, "Operation not permitted")]
)
def test_a_launcher_on_a_file_system_without_locks_or_links(mounted, options, why):
    root = SharedRoot(mounted(**options).mounts[0])
    root.ensure()
    job = job_of(root)
    with pytest.raises(RegressError) as caught:
        liveness.hold(job)
    assert str(caught.value) == (
        f"{job.state} is on a file system without locks or hard links ({why}), which the queue needs: put SHARED_ROOT on one "
        "that has them (a local disk, NFS 4)."
    )


def test_a_launcher_whose_link_was_made_though_its_answer_was_lost(mounted):
    root = SharedRoot(mounted(loses=True).mounts[0])
    root.ensure()
    job = job_of(root)
    os.close(liveness.hold(job))
    assert job.launcher.stat().st_nlink == 1
    with pytest.raises(liveness.LaunchedBefore):
        liveness.hold(job)


@pytest.mark.parametrize("times", [1, 3])
def test_a_file_that_another_machine_replaces_while_it_is_read(clients, monkeypatch, times):
    here, there = (job_of(root) for root in clients)
    there.write_state("observed", {"status": "PENDING"})
    fstat, left = os.fstat, [True] * times

    def replaced(descriptor):
        found = fstat(descriptor)
        if left:
            left.pop()
            there.write_state("observed", {"status": "RUNNING"})
        return found

    monkeypatch.setattr(files.os, "fstat", replaced)
    if times == 1:
        assert here.read_state("observed")["status"] == "RUNNING"
        return
    with pytest.raises(Unreadable) as caught:
        here.read_state("observed")
    assert str(caught.value) == f"{here.state}/observed cannot be read: Stale file handle: fix that, then run it again."


@pytest.mark.parametrize("kinds", [True, False])
def test_a_job_of_which_the_server_lost_something_is_one_line(mounted, capsys, kinds):
    """Before: its directory ended the list, and without its attempts the first passed for the newest."""
    disk = mounted(kinds=kinds)
    root = SharedRoot(disk.mounts[0])
    root.ensure()
    ids = make_jobs(root, 3)
    write(JobDir(root.jobs / ids[1]).numbered(2).config / "resolved.json", "{}")
    for command, words in {"jobs": [], "status": ["--profile=cpu", "--cluster=c"]}.items():
        for error, said in (("ESTALE", "Stale file handle"), ("EIO", "Input/output error")):
            for part in ("", "/attempts", "/attempts/2", "/attempts/2/config", "/attempts/2/state"):
                disk.becomes(lost={f"jobs/{ids[1]}{part}": error})
                status = cli.main(["--shared-root", str(root.path), "--no-ray", command, *words])
                lines = sorted(line for line in capsys.readouterr().out.splitlines() if line.startswith("ppo-"))
                case = (command, error, part, lines)
                assert (status, [line.split()[0].partition(".")[0] for line in lines]) == (0, ids), case
                assert [" SUCCEEDED " in line for line in lines] == [True, False, True], case
                assert " UNKNOWN " in lines[1], case
                assert lines[1].endswith(f"  cannot be read: {said}"), case
                if part == "/attempts":  # the first is not taken for the newest
                    assert cli.main(["--shared-root", str(root.path), "--no-ray", "where", ids[1]]) == 1, case
                    assert f"{ids[1]}{part} cannot be read: {said}" in capsys.readouterr().err, case


# The calls that the file system was asked for; 20 jobs are shown.
MOST = {
    "jobs": (["jobs", "--cluster=c"], 700),
    "status": (["status", "--profile=cpu", "--cluster=c"], 600),
    "latest": (["where", "latest"], 80),
    "wait": (["wait", "{id}", "--deadlines=1,2,3"], 90),
    "logs": (["logs", "{id}"], 30),
    "stop": (["stop", "{id}", "--deadline=1"], 40),
}


MOST_IN_A_ROW = 400  # 2 s at 5 ms a call; a busy machine only makes the program wait longer between them


@pytest.mark.parametrize("count", [100, 10_000])
def test_commands_on_a_slow_file_system_ask_it_for_little(mounted, ray, capsys, count):
    disk = mounted(valid=3)
    at_server = SharedRoot(disk.backing)
    at_server.ensure()
    ids = make_jobs(at_server, count)
    for submission_id in ids[-20:]:
        train(JobDir(at_server.jobs / submission_id), ray.address)
    took = {}
    for number, (name, (words, most)) in enumerate(MOST.items()):
        root, job = disk.mounts[number % 2], ids[-1 - number]  # which this machine has not read before
        disk.becomes(delay=0.005)
        began = time.monotonic()
        status = cli.main(["--shared-root", str(root), *(word.format(id=job) for word in words)])
        seconds, calls = time.monotonic() - began, disk.becomes(delay=0)
        took[name] = (
            f"{calls.total()} calls, {disk.in_a_row} in a row ({disk.in_a_row * 0.005:.2f} s), took {seconds:.2f} s"
        )
        assert status == 0, capsys.readouterr().err
        assert calls.total() <= most, (name, calls)
        assert disk.in_a_row <= MOST_IN_A_ROW, (name, calls)
        assert disk.most_at_once >= 4 or name not in ("jobs", "status")  # several jobs are read at once
    with capsys.disabled():
        print(f"\n{count} jobs, 5 ms a call: {took}")


def test_the_live_jobs_on_a_slow_file_system_are_found_by_many_calls_at_once(mounted, capsys):
    """What is asked before a cluster goes down. Each job that is over costs about 8 calls; 64 jobs are read at once."""
    disk, count = mounted(valid=3), 1000
    at_server = SharedRoot(disk.backing)
    at_server.ensure()
    ids = make_jobs(at_server, count)
    here, there = (SharedRoot(place) for place in disk.mounts)
    (at_server.jobs / ids[5] / "state" / "ended").unlink()
    descriptor = liveness.hold(JobDir(there.jobs / ids[5]))
    disk.becomes(delay=0.005)
    status = cli.main(["--shared-root", str(here.path), "live", "--cluster=c"])
    calls = disk.becomes(delay=0)
    os.close(descriptor)
    assert (status, capsys.readouterr().out) == (0, f"{ids[5]} RUNNING\n")
    assert calls.total() <= 10 * count, calls
    assert disk.in_a_row <= calls.total() / 10, (disk.in_a_row, calls)


@pytest.mark.parametrize("count", [20, 200])
def test_the_queue_on_a_slow_file_system_asks_it_for_little(mounted, capsys, count):
    """8 jobs run and `count` wait. The calls of one look of the last, of the first, and of the first once there is room."""
    disk = mounted(valid=3)
    at_server = SharedRoot(disk.backing)
    at_server.ensure()
    here, there = (SharedRoot(place) for place in disk.mounts)
    held, plans = [], {}
    for number in range(8 + count):
        name = f"job{number:03}"
        plans[name] = {
            "cluster": "c",
            "max_running": None,
            "devices": {"count": 1, "cluster_has": 8, "resource": "GPU"},
        }
        job = job_of(at_server, name)
        write(job.config / "resolved.json", json.dumps(plans[name]))
        os.utime(job.config, ns=(number, number))
        held.append(liveness.hold(job_of(there, name)))
        if number < 8:
            assert queue._Queue(job_of(there, name), plans[name]).ask() is None
        else:
            queue.line_up(job, "c", 1)
    first, last = (queue._Queue(JobDir(here.jobs / name), plans[name]) for name in ("job008", f"job{count + 7:03}"))
    said, took = [], {}
    for who, asks in (("the last", last), ("the first", first), ("the first, room", first)):
        if who.endswith("room"):
            queue.leave(JobDir(there.jobs / "job003"), "c")
        disk.becomes(delay=0.005)
        began = time.monotonic()
        said.append(str(asks.ask()))
        seconds, calls = time.monotonic() - began, disk.becomes(delay=0)
        took[who] = f"{calls.total()} calls, {seconds:.2f} s"
        assert calls.total() <= (30 if who == "the last" else 120), (who, calls)
    with capsys.disabled():
        print(f"\n{count} waiting jobs, 5 ms a call: {took}")
    assert said == [
        f"position {count} of {count}: behind job{count + 6:03}",
        f"position 1 of {count}: behind {', '.join(f'job{number:03}' for number in range(8))} (8 of 8 GPU are taken, 1 are wanted)",
        "None",
    ]
    for descriptor in held:
        os.close(descriptor)
