"""A launcher that is asked to stop at any moment of its life: real processes, and each records its end."""

import contextlib

import pytest
from tests.worker.test_launcher import RUN, Launched

pytestmark = [pytest.mark.slow, pytest.mark.longest]
MOMENTS = 60
# The launcher; it sends SIGTERM to itself right before the N-th bytecode of launcher.py, counted from the moment when
# it first handles signals, and writes the number of bytecodes to a file.
SIGNALLED = """
import os, signal, sys
moment, count, run, *argv = sys.argv[1:]
helper = os.path.dirname(run)
sys.path[:0] = [helper, os.path.join(helper, "hooks"), os.path.join(os.path.dirname(helper), "judge")]
from verl_regress import cli
from verl_regress.worker import launcher
executed, own_pid, blocks = 0, os.getpid(), False
def trace(frame, event, _):
    global blocks, executed
    if frame.f_code.co_filename != launcher.__file__:
        return None
    frame.f_trace_opcodes = True
    if event == "opcode" and os.getpid() == own_pid:
        blocks = blocks or signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        executed += blocks
        if executed == int(moment) and blocks:
            os.kill(own_pid, signal.SIGTERM)
    return trace
sys.settrace(trace)
status = cli.main(argv)
sys.settrace(None)
with open(count, "w") as file:
    file.write(str(executed))
sys.exit(status)
"""


@pytest.fixture
def signalled(shared, tmp_path):
    """Runs a job's launcher with SIGTERM before its N-th bytecode (0: never); returns the job and that count."""

    def signalled(moment):
        launched, count = Launched(shared, tmp_path), tmp_path / "count"
        launched.starts_by = ["-c", SIGNALLED, str(moment), str(count), str(RUN)]
        count.unlink(missing_ok=True)
        with contextlib.closing(launched.start("print('trained')")._listens):
            launched.status, launched.said = launched.finish()
        return launched, int(count.read_text()) if count.exists() else None

    return signalled


def test_a_signal_at_any_bytecode_and_the_end_is_recorded(signalled, shared):
    whole, total = signalled(0)
    assert (whole.ended, total > MOMENTS) == ((0, "the trainer ended"), True)
    seen = set()
    for moment in range(1, total, max(1, total // MOMENTS)):
        whole.job.path.rename(shared.path / f"before-{moment}")
        launched, _ = signalled(moment)
        ended = launched.job.read_state("ended")
        assert ended is not None, (moment, launched.said)
        assert (ended["exit_code"], launched.status) in {(-15, 143), (0, 0)}, (moment, ended, launched.said)
        assert [path.name for path in shared.queue("c").iterdir()] in ([], [".lock"]), moment
        seen.add((ended["exit_code"], ended["reason"]))
    assert seen == {
        (-15, "stopped while it waited for a slot"),
        (-15, "stopped while it waited for the proof of its code"),
        (-15, "the trainer was ended by SIGTERM"),
        (0, "the trainer ended"),
    }
