"""Writes the stacks of all threads of this process when a debug bundle of a running job asks for them.

The request is the time in ``<job dir>/state/stacks_asked``, on the shared storage, so it reaches every node without a right to trace
other processes. The launcher created that file: NFS may hide a new one for half a minute, but reads one that is there as it is.
The answer is ``<job dir>/state/stacks/<hostname>-<pid>.txt``; the request is its first word.
"""

import faulthandler
import os
from contextlib import suppress
from pathlib import Path

import job_report

_answered = ""


def answer(state: Path, name: str) -> None:
    """Answer a new request in ``<job dir>/state``; `name` is what this process is called. Raises nothing."""
    global _answered
    with suppress(OSError):
        asked = (state / "stacks_asked").read_text(encoding="ascii")
        if asked == _answered:
            return
        file = state / "stacks" / f"{job_report.process()}.txt"
        file.parent.mkdir(exist_ok=True)
        unfinished = file.with_suffix(".txt.tmp")
        with unfinished.open("w", encoding="utf-8") as stream:
            node = os.environ.get("VERL_REGRESS_NODE", job_report.hostname())
            stream.write(f"{asked} {name} (process {os.getpid()}) on {node}\n")
            stream.flush()
            faulthandler.dump_traceback(stream)
        unfinished.replace(file)
        _answered = asked
