"""Runs a command for as long as anything that it started runs: subreaper.py LOG COMMAND…

Slurm ends what a step left behind when the step ends (proctrack/cgroup), and `ray start` leaves Ray behind. So this
file is the step: it adopts the processes whose parent has ended (prctl(2), PR_SET_CHILD_SUBREAPER), and ends when the
last one has. Scripts send it to `python3 -` on a node, so that it works before the helper is there: standard library
only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_NOT_FOUND = 127  # the exit status that a shell gives
_PATIENCE = 8  # seconds; Slurm kills a step KillWait after SIGTERM: 30 s unless the site says otherwise


def hold(log: Path, command: Sequence[str]) -> None:
    """Run `command` with its output in `log` and its exit status in `log`.exit; return when nothing of it is left.

    Prints "started" when it runs. Slurm sends SIGTERM to all processes of a step before it kills them: then this one waits for the others, and
    removes RAY_TMPDIR, for the first time after `_PATIENCE`, because a process may ignore SIGTERM until all are killed. Raises OSError.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    signals: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        signals.append(number)
        if number == signal.SIGALRM:
            _remove_files()
        else:
            signal.alarm(_PATIENCE)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGALRM, on_signal)
    code = log.with_name(f"{log.name}.exit")
    log.parent.mkdir(parents=True, exist_ok=True)
    code.unlink(missing_ok=True)
    first = _start(log, command)
    print("started", flush=True)
    if first is None:
        code.write_text(f"{_NOT_FOUND}\n", encoding="ascii")
    while (ended := _next()) is not None:
        if first is not None and ended[0] == first.pid:
            code.write_text(f"{ended[1]}\n", encoding="ascii")
    if signals:
        _remove_files()


def _remove_files() -> None:
    if directory := os.environ.get("RAY_TMPDIR"):
        shutil.rmtree(directory, ignore_errors=True)


def _start(log: Path, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start `command` in a new session; None if it cannot be started, and `log` has the reason.

    Keep what it returns: Python reaps the process of a Popen that it forgets, and its exit status is lost.
    """
    with log.open("wb") as output:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            output.write(f"{error}\n".encode())
            return None


def _next() -> tuple[int, int] | None:
    """Wait for the next of our children; its pid and its exit status as a shell has it, or None if there is none."""
    try:
        pid, status = os.wait()
    except ChildProcessError:
        return None
    code = os.waitstatus_to_exitcode(status)
    return pid, code if code >= 0 else 128 - code


if __name__ == "__main__":
    hold(Path(sys.argv[1]), sys.argv[2:])
