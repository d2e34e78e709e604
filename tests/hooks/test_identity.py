"""What a process reports about the verl that it has loaded: real processes with a small verl."""

import hashlib
import json

import pytest
from shared_fixtures import HOOKS, environment, python

pytestmark = pytest.mark.slow

RAY = """\
import types
is_initialized = lambda: True
get_runtime_context = lambda: types.SimpleNamespace(get_job_id=lambda: '02', get_actor_id=lambda: 'ab12')
util = types.SimpleNamespace(get_node_ip_address=lambda: '10.0.0.2')
"""
# How a process that Ray is about to kill waits for its report; the test sets the deadline.
AWAIT = """
import glob, os, time
def reported(word):
    while not any(word in open(path).read() for path in glob.glob(os.environ['VERL_REGRESS_JOB_DIR'] + '/state/reports/*.json')):
        time.sleep(0.02)
"""


@pytest.fixture
def process(tmp_path):
    """Runs a program with the hook, a verl and a Ray; returns its reports."""
    for name, text in (("verl/__init__", "one = 1\n"), ("verl/late", "two = 2\n"), ("ray", RAY)):
        file = tmp_path / "code" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(program, *args):
        env = environment(tmp_path / "code", HOOKS, hooks="identity", job_dir=tmp_path)
        ended = python("-c", AWAIT + program, *args, env=env)
        assert ended.stderr == ""
        return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("state/reports/identity-*.json"))]

    run.code = tmp_path / "code"
    return run


def loaded(file):
    return {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def test_a_process_that_is_killed_has_reported_each_module_and_its_bytes(process):
    program = "import verl; reported('verl'); import verl.late; reported('verl.late'); os.kill(os.getpid(), 9)"
    (report,) = process(program)
    assert report["modules"] == {
        "verl": loaded(process.code / "verl" / "__init__.py"),
        "verl.late": loaded(process.code / "verl" / "late.py"),
    }
    assert report["actor_id"] is None


def test_a_process_that_ends_by_itself_reports_its_last_module(process):
    (report,) = process("import verl; reported('verl'); import verl.late")
    assert set(report["modules"]) == {"verl", "verl.late"}


def test_a_reporter_that_fails_says_so(process):
    program = "import verl; reported('verl'); import identity\n"
    program += "identity._file_of = lambda module: 1 / 0\nimport verl.late\nreported('died')\nos.kill(os.getpid(), 9)"
    with pytest.raises(AssertionError):  # its traceback is on stderr, too
        process(program)
    [file] = process.code.parent.glob("state/reports/identity-*.json")
    assert json.loads(file.read_text())["died"] == "ZeroDivisionError: division by zero"


def test_an_actor_id_is_kept_after_ray_shut_down(process):
    (report,) = process("import ray, verl; reported('ab12'); ray.is_initialized = lambda: False; import verl.late")
    assert (report["actor_id"], set(report["modules"])) == ("ab12", {"verl", "verl.late"})


def test_a_main_module_of_verl_is_reported_by_its_name(process):
    program = "import sys, runpy; sys.argv = ['x']; runpy._run_module_as_main('verl.late')"
    (report,) = process(program)
    assert report["modules"]["verl.late"] == loaded(process.code / "verl" / "late.py")


def test_a_fork_is_not_taken_for_its_parent(process):
    program = "import verl; reported('verl'); pid = os.fork()\nif pid == 0: import verl.late; sys = __import__('sys'); sys.exit()\nos.wait()"
    (report,) = process(program)
    assert set(report["modules"]) == {"verl"}


def test_a_process_without_ray_and_verl_has_no_thread_and_no_report(process):
    assert process("import threading; assert threading.active_count() == 1") == []
