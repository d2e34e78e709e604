"""Runs py/ray_start.py as a command, with a Ray that says when its head is there."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PY = Path(__file__).parents[2] / "py"
GCS_OF_NOBODY = "127.0.0.1:1"  # a connection is refused there, as before the GCS listens
ARGV = ["start", "--node-name=worker-0", f"--address={GCS_OF_NOBODY}", "--disable-usage-stats"]

SCRIPTS = """
import json, os, sys
def main():
    looked = json.load(open(os.environ["LOOKED"])) if os.path.exists(os.environ["LOOKED"]) else []
    print(json.dumps({"argv": sys.argv, "looked": looked, "path": sys.path, "umask": os.umask(0)}))
"""

GCS = """
import json, os
class GcsClient:
    looked = []
    def __init__(self, address):
        self.address = address
    def get_all_node_info(self, timeout, node_selectors):
        assert [selector.is_head_node for selector in node_selectors] == [True]
        self.looked.append(self.address)
        json.dump(self.looked, open(os.environ["LOOKED"], "w"))
        return ANSWER
"""

MESSAGES = """
class GetAllNodeInfoRequest:
    class NodeSelector:
        is_head_node = False
"""


@pytest.fixture
def start(tmp_path):
    """Runs it with a Ray whose GCS answers the Python expression `answer`; returns the arguments of Ray's own command."""

    def run(answer: str, argv: list[str] = ARGV, umask: int = -1) -> dict[str, Any]:
        files = {
            "scripts/scripts.py": SCRIPTS,
            "_raylet.py": GCS.replace("ANSWER", answer),
            "core/generated/gcs_service_pb2.py": MESSAGES,
        }
        for name, text in files.items():
            file = tmp_path / "ray" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        environ = {**os.environ, "PYTHONPATH": str(tmp_path), "LOOKED": str(tmp_path / "looked")}
        done = subprocess.run(
            [sys.executable, "-S", PY / "ray_start.py", *argv],  # -S: a node may lack the helper's packages
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            umask=umask,
        )
        return json.loads(done.stdout)

    return run


def test_it_waits_for_the_head_and_passes_its_arguments_on(start):
    result = start("{'id': 'a node'} if len(self.looked) == 3 else {}")
    assert result["looked"] == [GCS_OF_NOBODY] * 3
    assert result["argv"] == ["ray", *ARGV]
    assert str(PY) not in result["path"]


def test_errors_while_waiting_are_left_to_ray(start):
    result = start("1 / 0")
    assert (result["argv"], len(result["looked"])) == (["ray", *ARGV], 1)


@pytest.mark.parametrize(("login", "of_ray"), [(0o002, 0o022), (0o077, 0o077)])
def test_what_ray_and_its_actors_write_is_for_their_user_alone_to_change(start, login, of_ray):
    assert start("{'id': 'a node'}", umask=login)["umask"] == of_ray


# In a separate interpreter: the connection that no host answers is one that times out at once.
DROPPED = """
import runpy, socket, sys
def create_connection(address, timeout):
    raise ANSWER
socket.create_connection = create_connection
sys.argv = ["ray_start.py", *sys.argv[1:]]
script = runpy.run_path("SCRIPT", run_name="ray_start")
script["main"].__globals__["ANSWER_WITHIN"] = 0.2
script["main"](sys.argv[1:])
"""


@pytest.mark.parametrize("answer", ["TimeoutError()", "OSError(113, 'No route to host')"])
def test_a_head_that_gives_no_answer_ends_it_instead_of_a_ray_start_that_hangs(tmp_path, start, answer):
    start("1 / 0")  # makes the Ray of tmp_path
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            DROPPED.replace("raise ANSWER", f"raise {answer}").replace("SCRIPT", str(PY / "ray_start.py")),
            *ARGV,
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{PY}", "LOOKED": str(tmp_path / "looked")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (108, "")
    assert done.stderr == f"No answer from {GCS_OF_NOBODY} within 0 s.\n"


def test_a_gcs_that_listens_is_reached(start):
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        address = f"127.0.0.1:{gcs.getsockname()[1]}"
        argv = ["start", f"--address={address}"]
        assert start("{'id': 'a node'}", argv)["looked"] == [address]
