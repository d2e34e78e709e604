"""Runs py/ray_start.py as a command, with a Ray whose command only says how it was called."""

import json
import os
import socket

import pytest
from shared_fixtures import HOOKS, python, write

PY = HOOKS.parent
RAY = """
import json, os, sys
AT_IMPORT = os.environ.get("RAY_NUM_REDIS_GET_RETRIES")  # where Ray reads it
def main():
    tries = os.environ.get("RAY_NUM_REDIS_GET_RETRIES")
    print(json.dumps({"argv": sys.argv, "path": sys.path, "umask": os.umask(0), "at_import": AT_IMPORT, "tries": tries}))
"""
# In a separate interpreter: the answer to a connection is what the test says, and it is not waited for.
SCRIPT = """
import runpy, socket, sys
answers = [{answers}]
def create_connection(address, timeout):
    if len(answers) > 1:
        raise answers.pop(0)
    raise answers[0]
socket.create_connection = create_connection
sys.argv = ["ray_start.py", *sys.argv[1:]]
main = runpy.run_path({script!r}, run_name="ray_start")["main"]
main.__globals__.update(ANSWER_WITHIN=0.2, LONGEST=0.4, LOOK_EVERY=0.01)
main(sys.argv[1:])
"""


@pytest.fixture
def start(tmp_path):
    """Runs it with these arguments for Python; -S, because a node may lack the helper's packages."""

    def run(*argv, umask=-1):
        write(tmp_path / "ray/scripts/scripts.py", RAY)
        return python("-S", *argv, env={**os.environ, "PYTHONPATH": str(tmp_path)}, umask=umask)

    return run


@pytest.mark.parametrize(("login", "of_ray"), [(0o002, 0o022), (0o077, 0o077)])
def test_it_passes_its_arguments_on_and_protects_what_actors_write(start, monkeypatch, login, of_ray):
    """Ray tries as often as asked, and no job inherits that."""
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "120")
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        argv = ["start", "--node-name=worker-0", f"--address=127.0.0.1:{gcs.getsockname()[1]}", "--disable-usage-stats"]
        result = json.loads(start(PY / "ray_start.py", *argv, umask=login).stdout)
    assert (result["argv"], result["umask"]) == (["ray", *argv], of_ray)
    assert str(PY) not in result["path"]
    assert (result["at_import"], result["tries"]) == ("120", None)


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ("TimeoutError()", 108),
        ("OSError(113, 'No route to host')", 108),
        ("ConnectionRefusedError()", 0),  # Ray's own command reports a GCS that never listens
        ("TimeoutError(), ConnectionRefusedError()", 0),
    ],
)
def test_a_head_that_gives_no_answer_ends_it_instead_of_a_ray_start_that_hangs(start, answers, status):
    script = SCRIPT.format(answers=answers, script=str(PY / "ray_start.py"))
    done = start("-c", script, "start", "--address=127.0.0.1:1")
    assert done.returncode == status, done.stderr
    assert (done.stderr == "No answer from 127.0.0.1:1 within 0 s.\n") == (status == 108)


def test_a_head_with_an_ipv6_address_is_reached(start):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as gcs:
        done = start(PY / "ray_start.py", "start", f"--address=[::1]:{gcs.getsockname()[1]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("status", "is_said"), [("1", True), ("0", False)])
def test_last_line_of_a_failed_start_is_what_rays_own_processes_say(start, tmp_path, monkeypatch, status, is_said):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    logs = tmp_path / "ray/session_latest/logs"
    fails = f"""
from pathlib import Path
def main():
    Path({str(logs)!r}).mkdir(parents=True)
    Path({str(logs)!r}, "raylet.err").write_text(
        "[2026-11-28 20:24:00,123 I 1 1] (raylet) main.cc:1: hello\\n"
        "[2026-11-28 20:24:01,123 C 1 12] (raylet) dlmalloc.cc:158: Read-only file system\\n"
        "*** StackTrace Information ***\\n"
    )
    raise SystemExit({status})
"""
    argv = [PY / "ray_start.py", "start", "--head"]
    start(*argv)  # makes Ray's folder
    write(tmp_path / "ray/scripts/scripts.py", fails)
    done = python("-S", *argv, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == int(status)
    assert done.stderr == "Ray's own log: (raylet) dlmalloc.cc:158: Read-only file system\n" * is_said
