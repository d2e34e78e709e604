"""The trainer's process proves its code on a socket and trains when it may; without an answer it ends; others do nothing."""

import json
import socket
import subprocess
import sys

import pytest
from shared_fixtures import HOOKS, environment


@pytest.fixture
def start(tmp_path):
    """Starts `python -m trainer` with the hook; returns it and our end of its socket."""

    def start(verl="", proves=True):
        for name, text in (("verl", verl), ("mvp_marker", "MARKER = 'codeA'"), ("trainer", "print('trained')")):
            (tmp_path / f"{name}.py").write_text(text)
        ours, theirs = socket.socketpair()
        ours.settimeout(20)
        env = environment(HOOKS, tmp_path)
        with theirs:
            env |= {"VERL_REGRESS_PROOF": str(theirs.fileno())} if proves else {}
            process = subprocess.Popen(
                [sys.executable, "-m", "trainer"],
                env=env, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        return process, ours

    return start


def test_it_proves_and_trains_when_it_may(start, tmp_path):
    process, ours = start()
    with ours:
        assert json.loads(ours.recv(65536)) == {"verl_file": str(tmp_path / "verl.py"), "marker": "codeA"}
        ours.sendall(b"\n")
        assert process.communicate(timeout=20) == ("trained\n", "")
        assert (process.returncode, ours.recv(1)) == (0, b"")


def test_without_an_answer_it_ends_and_has_not_trained(start):
    """The launcher closes the socket when it does not trust the code; so does the kernel when the launcher is killed."""
    process, ours = start(verl="print('imported')")
    with ours:
        assert ours.recv(65536).endswith(b"\n")
    assert process.communicate(timeout=20) == ("imported\n", "")
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("verl", "error"),
    [("import no_such_part", "ModuleNotFoundError: No module named 'no_such_part'\n"), ("exit(3)", "SystemExit: 3\n")],
)
def test_an_import_that_fails_is_reported_and_its_traceback_is_in_the_log(start, verl, error):
    process, ours = start(verl=verl)
    with ours:
        assert json.loads(ours.recv(65536)) == {"error": error}
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith(error)


@pytest.mark.parametrize("then", ["", "raise OSError('no such mount')"])
def test_what_the_image_sets_up_is_done_before_the_proof_and_cannot_skip_it(start, tmp_path, then):
    (tmp_path / "sitecustomize.py").write_text(f"import os\nos.environ['OF_THE_IMAGE'] = 'set'\n{then}\n")
    process, ours = start(verl="import os\nos.environ['OF_THE_IMAGE']")
    with ours:
        assert json.loads(ours.recv(65536))["marker"] == "codeA"
    assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == 1


def test_a_process_that_need_not_prove_imports_nothing(start):
    process, ours = start(verl="print('imported')", proves=False)
    with ours:
        assert process.communicate(timeout=20) == ("trained\n", "")
