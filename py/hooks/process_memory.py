"""Every process of a job that loads torch or verl records its memory over time, by which `make verify` judges B's memory.

One file per process, ``<job dir>/state/memory/<node>-<pid>.txt``, with lines ``<unix time> <bytes> [name]``: the most anonymous and
shared memory since the line before (processes share pages of files, and the kernel drops them when it likes), and a new name. A process
writes a last line at its end, unless it is killed, or forked by multiprocessing.

A thread looks every second; after every 40 lines the time between two lines doubles. The first process on a node records what the kernel
has counted there so far, in ``<job dir>/state/nodes/<node>.json`` (node_memory.py).

The thread also writes the stacks of the process to ``<job dir>/state/stacks/<node>-<pid>.txt`` when a debug bundle asks for it, by the
time in ``<job dir>/state/stacks_asked``, which the launcher created, because NFS may hide a new file for half a minute.
"""

import atexit
import faulthandler
import functools
import json
import os
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import job_report
import node_memory
from on_import import on_import

_LOOK_EVERY = 1.0  # seconds
_LINES = 40  # until the time between two lines doubles
_FORK_LIVES = 2.0  # seconds; a fork that only becomes another program leaves no file
_PATIENCE = 5.0  # seconds that the end of a process waits for its last line
_answered = ""  # the newest request for stacks that was


def install() -> None:
    """Record as soon as torch or verl is imported; does nothing outside a job."""
    if (job := job_report.job_dir()) is not None:
        on_import("torch", lambda _: _start(job / "state"))
        on_import("verl", lambda _: _start(job / "state"))


@functools.cache
def _start(state: Path) -> None:
    _begin(state, 0.0)
    os.register_at_fork(after_in_child=lambda: _begin(state, _FORK_LIVES))


def _begin(state: Path, after: float) -> None:
    with suppress(Exception):
        pid, ends = os.getpid(), threading.Event()
        thread = threading.Thread(target=_run, args=(state, ends, after), name="verl-regress-memory", daemon=True)

        def end() -> None:
            if os.getpid() == pid:  # a fork of it has no such thread
                ends.set()
                thread.join(_PATIENCE)

        thread.start()
        atexit.register(end)


def _run(state: Path, ends: threading.Event, after: float) -> None:
    with suppress(Exception):  # a process that cannot be recorded trains all the same
        if ends.wait(after) and after:
            return
        with suppress(OSError):  # such as that another process was the first
            node = state / "nodes" / f"{node_memory.node_name()}.json"
            node.parent.mkdir(parents=True, exist_ok=True)
            with node.open("x", encoding="ascii") as stream:
                json.dump(node_memory.counters(), stream)
        record(state, ends)


def record(state: Path, ends: threading.Event) -> None:
    """Write a line whenever one is due, until the job has ended, or with a last line until `ends` is set."""
    file = state / "memory" / f"{job_report.process()}.txt"
    most, last_name, lines, every, due = 0, "", 0, _LOOK_EVERY, 0.0
    while not (state / "ended").exists():
        is_end, now, name, most = ends.is_set(), time.monotonic(), _name(), max(most, resident())
        if now >= due or is_end:
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a", encoding="ascii") as stream:
                    stream.write(f"{time.time():.3f} {most}{f' {name}' if name not in ('', last_name) else ''}\n")
                most, last_name, lines = 0, name or last_name, lines + 1
                every *= 1 if lines % _LINES else 2
            due = now + every - _LOOK_EVERY / 2
        if is_end:
            return
        write_stacks(state, name or last_name or "python")
        ends.wait(_LOOK_EVERY)


def write_stacks(state: Path, name: str) -> None:
    """Answer a new request for stacks in ``<job dir>/state``; `name` is what this process is called. Raises nothing."""
    global _answered
    with suppress(OSError):
        asked = (state / "stacks_asked").read_text(encoding="ascii")
        if asked == _answered:
            return
        file = state / "stacks" / f"{job_report.process()}.txt"
        file.parent.mkdir(exist_ok=True)
        unfinished = file.with_suffix(".txt.tmp")
        with unfinished.open("w", encoding="utf-8") as stream:
            print(f"{asked} {name} (process {os.getpid()}) on {node_memory.node_name()}", file=stream, flush=True)
            faulthandler.dump_traceback(stream)
        unfinished.replace(file)
        _answered = asked


def resident() -> int:
    """This process's anonymous and shared memory in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE)))


def _name() -> str:
    """`WorkerDict` of the title `ray::WorkerDict.update_actor`, else the module of `python -m`, or the program; none of an idle worker."""
    title = Path("/proc/self/cmdline").read_text(encoding="utf-8", errors="replace").partition("\0")[0][:200]
    kind, separator, rest = title.partition("::")
    if separator:
        name = re.split(r"[.( ]", rest.removeprefix("IDLE"))[0] if kind == "ray" else f"{kind}::{rest}"
    else:
        words = sys.orig_argv
        name = words[words.index("-m") + 1] if "-m" in words[:-1] else words[0].rpartition("/")[2]
    return re.sub(r"[^\w.:+-]", "_", name)[:60]
