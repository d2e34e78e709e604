"""The guard in tests/hermetic.py: a test that uses the machine fails, in a separate pytest with only the guard."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import hermetic
import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
# Variables that a user may have exported.
USERS = {
    "WORKERS": "3",
    "PROFILE": "gpu",
    "CODE_ID": "x",
    "WANDB_API_KEY": "sk-1",
    "RAY_ADDRESS": "auto",
    "SSH_AUTH_SOCK": "/run/agent",
    "DOCKER_HOST": "tcp://far:1",
    "XDG_RUNTIME_DIR": "/run/user/0",
    "HOME": "/root",
}
NOT_OURS = "which is not its own"
OFF_LIMITS = "a unit test called the machine's own 'docker ps': put a stub before it on PATH"
# The body of a test, and the message with which it must fail. PORT and SOCKET are the machine's, and something listens there.
REACHING = {
    "connect": ("socket.create_connection(('127.0.0.1', PORT))", NOT_OURS),
    "connect_ex": ("socket.socket().connect_ex(('localhost', PORT))", NOT_OURS),
    "http": ("urllib.request.urlopen('http://127.0.0.1:PORT/api/version', timeout=2)", NOT_OURS),
    "swallowed": (
        "try: urllib.request.urlopen('http://127.0.0.1:PORT', timeout=2)\nexcept BaseException: pass",
        NOT_OURS,
    ),
    "datagram": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))", NOT_OURS),
    "another_host": ("socket.socket().connect(('192.0.2.1', 80))", NOT_OURS),
    "socket_file": ("socket.socket(socket.AF_UNIX).connect('SOCKET')", NOT_OURS),
    "engine": ("subprocess.run(['docker', 'ps'])", OFF_LIMITS),
    "engine_unasked": ("subprocess.run(['sh', '-c', 'docker ps || true'])", OFF_LIMITS),
}
HARMLESS = {
    "own_listener": (
        "with socket.create_server(('127.0.0.1', 0)) as mine:\n"
        "    socket.create_connection(mine.getsockname()).close()\n"
    ),
    "unused_port": "assert socket.socket().connect_ex(('127.0.0.1', int(unused_address.rpartition(':')[2]))) != 0",
    "stub": (
        "(tmp_path / 'docker').write_text('#!/bin/sh\\necho stub')\n"
        "(tmp_path / 'docker').chmod(0o755)\n"
        "env = {**os.environ, 'PATH': f'{tmp_path}:{os.environ[\"PATH\"]}'}\n"
        "assert subprocess.check_output(['sh', '-c', 'docker ps'], env=env) == b'stub\\n'\n"
    ),
    "environment": (
        "seen = dict(line.split('=', 1) for line in subprocess.check_output('env', text=True).splitlines() if '=' in line)\n"
        f"assert not {USERS!r}.items() & seen.items()\n"
        f"assert [name for name in {sorted(USERS)!r} if name in seen] == ['DOCKER_HOST', 'HOME']\n"
        "assert os.listdir(seen['HOME']) == []\n"
        "assert not seen['WORKDIR'].startswith(f'{REPO}/')\n"
        "assert seen['DASHBOARD_PORT'] == unused_address.rpartition(':')[2]\n"
    ),
    "leaves_a_process": "subprocess.Popen(['sleep', '60'], start_new_session=True)",  # fails the run, at its end
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """All of them in one run of pytest."""
    directory = tmp_path_factory.mktemp("guarded")
    program = "import os, socket, subprocess, urllib.request\nfrom hermetic import REPO\n"
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as file:
        file.bind(str(directory / "docker.sock"))
        file.listen()
        for name, body in {**{name: body for name, (body, _) in REACHING.items()}, **HARMLESS}.items():
            body = re.sub(r"\bPORT\b", str(port.getsockname()[1]), body).replace("SOCKET", file.getsockname())
            program += f"def test_{name}(tmp_path, unused_address):\n"
            program += "".join(f"    {line}\n" for line in body.splitlines())
        (directory / "test_it.py").write_text(program)
        output = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "hermetic", "test_it.py"],
            cwd=directory,
            env={**os.environ, **USERS, "PYTHONPATH": str(HERE)},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    for pid in re.findall(r"left these processes: \{(\d+): 'sleep", output):
        os.kill(int(pid), signal.SIGKILL)
    return output


@pytest.mark.parametrize("name", REACHING)
def test_a_test_that_touches_the_machine_fails(ended, name):
    assert re.search(rf"^(FAILED|ERROR) test_it.py::test_{name}( - .*)?$", ended, re.MULTILINE), ended
    section = re.search(
        rf"^_+ (?:ERROR at teardown of )?test_{name} _+$(.*?)(?=^_{{5}}|^=)", ended, re.MULTILINE | re.DOTALL
    )
    assert REACHING[name][1] in section[1], ended


@pytest.mark.parametrize("name", HARMLESS)
def test_a_test_that_touches_nothing_passes(ended, name):
    assert re.search(rf"^PASSED test_it.py::test_{name}$", ended, re.MULTILINE), ended


def test_a_run_that_leaves_a_process_fails(ended):
    assert re.search(
        r"^E +AssertionError: the tests left these processes: \{\d+: 'sleep 60 '\}$", ended, re.MULTILINE
    ), ended


def test_what_has_no_program_is_not_waited_for(tmp_path):
    """A zombie or a thread of the kernel, as older kernels show it: both files are empty, and there is no program."""
    for name in ("cmdline", "environ"):
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError):
        hermetic._words(tmp_path)
