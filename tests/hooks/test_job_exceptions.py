"""What a process records of the exception that ends it, or a task of Ray in it: real processes with a small Ray and verl."""

import json
import socket
from types import SimpleNamespace

import pytest
from shared_fixtures import HOOKS, environment, python, write

from verl_regress.base.layout import JobDir
from verl_regress.jobs import failure

RAY = """
import pickle
class RayTaskError(Exception):
    def __init__(self, function_name, traceback_str, cause):
        self.cause, self.args = cause, (function_name, traceback_str, cause)
    def __str__(self):
        return self.args[1]
"""
# How Ray 2.60 passes an exception on: a copy of it, without a traceback.
TASK = """
import ray.exceptions, pickle, traceback
def task(call):
    try:
        call()
    except BaseException as error:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        failed = ray.exceptions.RayTaskError("task", traceback.format_exc(), cause)
    return pickle.loads(pickle.dumps(failed))
"""


@pytest.fixture
def ends(tmp_path):
    """Runs programs as the processes of one job, the last one as its driver; the root exception that is found."""
    job = JobDir(tmp_path / "root" / "jobs" / "job")
    for name, text in {"verl": "", "mvp_marker": "MARKER = 'a'", "ray/__init__": "", "ray/exceptions": RAY}.items():
        write(tmp_path / "code" / f"{name}.py", text)

    def ends(*programs, hooks="job_exceptions", **more):
        for program in programs:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.send(b"\n")
                env = environment(tmp_path / "code", HOOKS, hooks=hooks, job_dir=job.path, **more)
                env |= {"VERL_REGRESS_PROOF": str(theirs.fileno())} if program is programs[-1] else {}
                file = write(tmp_path / "code" / "program.py", program)
                done = python(file, env=env, pass_fds=[theirs.fileno()])
        ends.stderr = done.stderr
        found, excerpt = failure.recorded(job, {f"{tmp_path}/code/": ""})
        return found and SimpleNamespace(**found, excerpt=excerpt)

    ends.job = job
    return ends


def test_the_drivers_own_exception_with_what_led_to_it(ends):
    found = ends(
        "def f(): return {}['x']\ntry:\n    f()\nexcept KeyError as error:\n    raise ValueError('it is so') from error"
    )
    assert (found.type, found.message, found.where, found.also) == (
        "KeyError", "'x'", "program.py:1", "which became ValueError: it is so",
    )  # fmt: skip
    assert ends.stderr.splitlines()[-1] == "ValueError: it is so"
    assert found.excerpt[-1] == "ValueError: it is so"


def test_an_exception_that_came_from_another_process_is_that_ones(ends):
    origin = f"{TASK}\n\n\ndef deep(): raise MemoryError('no room')\ntask(deep)"
    driver = f"{TASK}\nimport pickle\nraise ray.exceptions.RayTaskError('task', 'text', pickle.loads(pickle.dumps(MemoryError('no room'))))"
    found = ends(origin, driver)
    assert (found.type, found.message, found.where) == ("MemoryError", "no room", "program.py:13")


def test_a_process_that_only_saw_another_one_go_does_not_count(ends):
    driver = "raise RuntimeError('[gloo] Connection closed by peer [10.0.0.2]:3')"
    found = ends(f"{TASK}\ndef f(): raise MemoryError('no room')\ntask(f)", driver)
    assert (found.type, found.message) == ("MemoryError", "no room")


def test_a_syntax_error_names_its_file(ends):
    found = ends("compile('def f(:', '/x/mine.py', 'exec')")
    assert (found.type, found.message) == ("SyntaxError", "invalid syntax")


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("hf_of_mine", "ValueError", "no: <secret KEY>"),
        ("BEGIN\nof_mine\nEND", "ValueError", "no: <secret KEY>"),  # its lines are recorded one by one
        ("its\nof_mine", "KeyError", "'no: <secret KEY>'"),  # which says repr(value)
    ],
)
def test_no_secret_is_recorded(ends, tmp_path, value, kind, message):
    file = write(tmp_path / "secret", json.dumps({"KEY": value}))
    file.chmod(0o600)
    found = ends(
        f"import os\nraise {kind}('no: ' + os.environ['KEY'])",
        hooks="job_secrets,job_exceptions", VERL_REGRESS_SECRETS=str(file),
    )  # fmt: skip
    assert found.message == message
    assert not [path for path in ends.job.reports.iterdir() if "of_mine" in path.read_text()]


def test_ray_may_name_what_it_passes(ends):
    driver = "import ray.exceptions\ntry:\n    {}['x']\nexcept KeyError as error:\n    "
    found = ends(f"{driver}raise ray.exceptions.RayTaskError(function_name='f', traceback_str='text', cause=error)")
    assert (found.type, found.where) == ("KeyError", "program.py:3")


@pytest.mark.parametrize("program", ["pass", "raise SystemExit('usage')", "import os; os.kill(os.getpid(), 9)"])
def test_a_driver_that_raises_nothing_records_nothing(ends, program):
    assert ends(program) is None
