"""What a process records while it waits for Ray's debugger: real processes with a small Ray and a small debugpy."""

import subprocess
import sys
import types

import pytest
from shared_fixtures import HOOKS, environment, write

import debugger
from verl_regress.jobs import status

# What the hook uses of Ray 2.60, written as Ray does; a debugger attaches and leaves when the test writes a line to stdin.
FILES = {
    "debugpy.py": """
import sys
connected = False
def listen(address): return address[0], 4711
def wait_for_client():
    global connected
    sys.stdin.readline()
    connected = True
def is_client_connected(): return connected
""",
    "ray/__init__.py": "",
    "ray/_raylet.py": "def getproctitle(): return 'ray::Rewards.score'",
    "ray/_private/__init__.py": "",
    "ray/_private/worker.py": """
import contextlib
class Worker:
    @contextlib.contextmanager
    def worker_paused_by_debugger(self):
        yield
""",
    "ray/util/__init__.py": "",
    "ray/util/debugpy.py": """
import debugpy
from ray._private.worker import Worker
def set_trace(_uuid=None):
    debugpy.listen(("10.0.0.3", 0))
    with Worker().worker_paused_by_debugger():
        debugpy.wait_for_client()
def _post_mortem(): return set_trace("error")
""",
    "reward.py": """
import ray._raylet
import ray.util.debugpy
def score():
    ray.util.debugpy.set_trace()
    return 1
def raises():
    raise ValueError("no")
def post_mortem():
    try:
        raises()
    except ValueError:
        ray.util.debugpy._post_mortem()
""",
}


@pytest.fixture
def process(make_job, tmp_path):
    """Starts a program with the hook in a job; returns the job and the process, once its record is there."""
    for name, text in FILES.items():
        write(tmp_path / "code" / name, text)
    job, processes = make_job(), []

    def start(program):
        env = environment(HOOKS, tmp_path / "code", hooks="debugger", job_dir=job.path, VERL_REGRESS_NODE="worker-0")
        started = subprocess.Popen(
            [sys.executable, "-c", f"import debugger; debugger._LOOK_EVERY = 0.02; import reward\n{program}"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(started)
        while not (found := status.breakpoints_of(job)) and started.poll() is None:
            pass
        return found

    start.job, start.processes, start.code = job, processes, tmp_path / "code"
    yield start
    for one in processes:
        one.kill()
        one.communicate()


@pytest.mark.slow
def test_a_process_that_waits_says_where_and_at_which_port(process):
    [one] = process("reward.score()")
    assert (one.task, one.function, one.line, one.exception) == ("ray::Rewards.score", "score", 5, None)
    assert one.file == str(process.code / "reward.py")
    assert (one.node, one.host, one.port, one.pid) == ("worker-0", "10.0.0.3", 4711, process.processes[0].pid)
    assert not one.attached
    assert status.breakpoint_of(process.job) == f"waits in a breakpoint ({process.code}/reward.py:5)"


@pytest.mark.slow
def test_a_debugger_that_attaches_and_leaves(process):
    process(
        "reward.score(); import sys, debugpy; sys.stdin.readline(); debugpy.connected = False; sys.stdin.readline()"
    )
    [running] = process.processes
    running.stdin.write("attach\n")
    running.stdin.flush()
    while not (found := status.breakpoints_of(process.job)) or not found[0].attached:
        assert running.poll() is None
    assert status.breakpoint_of(process.job) == f"is in a debugger ({process.code}/reward.py:5)"
    running.stdin.write("leave\n")
    running.stdin.flush()
    while status.breakpoints_of(process.job):
        assert running.poll() is None


@pytest.mark.slow
def test_after_an_exception_it_is_the_line_that_raised_it(process):
    [one] = process("reward.post_mortem()")
    assert (one.function, one.line, one.exception) == ("raises", 8, "ValueError")


# promise: turns Ray's debugger on for a job that did not ask for it
@pytest.mark.parametrize(("asked", "host"), [("127.0.0.1", "127.0.0.1"), ("", "10.0.0.3")])
def test_debugpy_listens_where_the_submission_says_or_at_the_nodes_address(monkeypatch, asked, host):
    monkeypatch.setenv("VERL_REGRESS_DEBUGGER_HOST", asked)
    monkeypatch.setattr(debugger, "_address", None)
    debugpy = types.SimpleNamespace(listen=lambda address: address)
    debugger._narrow(debugpy)
    assert debugpy.listen(("10.0.0.3", 0)) == (host, 0)


@pytest.mark.parametrize("obstacle", ["raylet", "folder", "unlink"])
def test_a_breakpoint_that_cannot_be_recorded_waits_all_the_same(make_job, tmp_path, obstacle):
    job = make_job()
    for name, text in FILES.items():
        write(tmp_path / "code" / name, text)
    if obstacle == "raylet":
        write(tmp_path / "code/ray/_raylet.py", "")
    elif obstacle == "folder":
        write(job.state / "breakpoints", "a file")
    program = f"""
import debugger, threading, pathlib
def unlink(*_, **_options): raise PermissionError(13, "no")
if {obstacle == "unlink"}: pathlib.Path.unlink = unlink
debugger._LOOK_EVERY = 0.02
import reward, debugpy
print(reward.score())
debugpy.connected = False
[one.join() for one in threading.enumerate() if one.name == "verl-regress-debugger"]
"""
    env = environment(HOOKS, tmp_path / "code", hooks="debugger", job_dir=job.path)
    ran = subprocess.run(
        [sys.executable, "-c", program], env=env, input="attach\n", capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("1\n", "")


def test_the_record_of_a_killed_process_counts_for_nothing(process):
    process("reward.score()")
    process.processes[0].kill()
    process.processes[0].wait()
    assert len(list((process.job.state / "breakpoints").iterdir())) == 1
    assert status.breakpoints_of(process.job) == []
    assert status.breakpoint_of(process.job) is None
