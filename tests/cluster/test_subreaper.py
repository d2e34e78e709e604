"""The step that lasts as long as Ray: py/verl_regress/cluster/subreaper.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HOLD = Path(__file__).parents[2] / "py/verl_regress/cluster/subreaper.py"


def start(log, *command, tmpdir=None):
    """As transport/srun starts it: from stdin."""
    environ = os.environ | ({} if tmpdir is None else {"RAY_TMPDIR": str(tmpdir)})
    held = subprocess.Popen(
        [sys.executable, "-", str(log), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    held.stdin.write(HOLD.read_text(encoding="utf-8"))
    held.stdin.close()
    assert held.stdout.readline() == "started\n"
    return held


@pytest.mark.parametrize(("command", "code"), [("exit 5", "5\n"), ("kill -9 $$", "137\n")])
def test_exit_status_and_output_are_kept(tmp_path, command, code):
    log = tmp_path / "new" / "log"
    assert start(log, "sh", "-c", f"echo out; echo err >&2; {command}").wait(20) == 0
    assert log.read_text() == "out\nerr\n"
    assert log.with_name("log.exit").read_text() == code


def test_command_that_is_not_there(tmp_path):
    assert start(tmp_path / "log", str(tmp_path / "nothing")).wait(20) == 0
    assert "No such file" in (tmp_path / "log").read_text()
    assert (tmp_path / "log.exit").read_text() == "127\n"


@pytest.fixture
def fifo(tmp_path):
    """Whoever reads it runs until a writer has closed it."""
    path = tmp_path / "go"
    os.mkfifo(path)
    return path


@pytest.fixture
def directory(tmp_path):
    """RAY_TMPDIR, with the token in it."""
    path = tmp_path / "job"
    path.mkdir()
    (path / "ray.token").write_text("x")
    return path


def test_lasts_as_long_as_an_orphan_and_then_removes_what_a_stopped_step_leaves(tmp_path, fifo, directory):
    held = start(tmp_path / "log", "sh", "-c", f"(setsid cat {fifo} &); exit 3", tmpdir=directory)
    with fifo.open("w"):  # the orphan has opened it, so it runs
        with pytest.raises(subprocess.TimeoutExpired):
            held.wait(1)
        assert (tmp_path / "log.exit").read_text() == "3\n"
        held.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            held.wait(1)
    assert held.wait(20) == 0
    assert not directory.exists()


def test_what_ignores_the_signal_does_not_keep_the_files(tmp_path, fifo, directory):
    held = start(tmp_path / "log", "sh", "-c", f"trap '' TERM; cat {fifo}", tmpdir=directory)
    with fifo.open("w"):
        held.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            held.wait(1)
        assert directory.exists()  # a process that ends in time may need it
        held.send_signal(signal.SIGALRM)  # as the clock does some seconds later
        with pytest.raises(subprocess.TimeoutExpired):
            held.wait(1)
        assert not directory.exists()
    assert held.wait(20) == 0
