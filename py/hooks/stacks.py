"""Writes the stacks of all threads of this process when a debug bundle of a running job asks for them.

The request is a file on the shared storage, so it reaches every node without a right to trace other processes. Who asks writes
its time into ``<job dir>/state/stacks_asked``, which the launcher created: NFS may hide a new file for half a minute, but a file that
is there is read as it is. The answer is ``<job dir>/state/stacks/<hostname>-<pid>.txt``; the request is its first word.
"""

import faulthandler
import os
from contextlib import suppress

import job_report

_answered = ""


def answer(job_dir: str, name: str) -> None:
    """Answer a new request; `name` is what this process is called. Raises nothing."""
    global _answered
    with suppress(OSError):
        with open(f"{job_dir}/state/stacks_asked", encoding="ascii") as stream:  # noqa: PTH123 - every process would pay for pathlib
            asked = stream.read()
        if asked == _answered:
            return
        who = f"{job_report.hostname()}-{os.getpid()}"
        file = f"{job_dir}/state/stacks/{who}.txt"
        os.makedirs(os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120
        with open(f"{file}.tmp", "w", encoding="utf-8") as stream:  # noqa: PTH123
            node = os.environ.get("VERL_REGRESS_NODE", job_report.hostname())
            stream.write(f"{asked} {name} (process {os.getpid()}) on {node}\n")
            stream.flush()
            faulthandler.dump_traceback(stream)
        os.replace(f"{file}.tmp", file)  # noqa: PTH105
        _answered = asked
