"""Every process of a job that loads torch or verl records its memory over time, by which `make verify` judges B's memory.

One file per process, ``<job dir>/state/memory/<hostname>-<pid>.txt``, with lines ``<unix time> <bytes> [name]``. The bytes
are the most since the line before: the process's anonymous and shared memory (RssAnon + RssShmem of /proc/self/status).
Pages of files (libraries, mapped model files) are left out: processes share them, and the kernel drops them when it
likes. Shared memory counts in each process that maps it. The name is Ray's actor or task, or the module of `python -m`;
a line has it only where it is another one than before.

A thread looks every second. After every 40 lines the time between two lines doubles, so a day has about 470 lines. A
forked child, which inherits no thread, gets one of its own, and records if it lives longer than two seconds. A line is
one write to a file opened for appending. If it fails (disk full, no permission), the next line has what it would have
said; training goes on. Nothing is written once the job has ended. A process that loads neither torch nor verl has no record.

The same thread answers who asks for the process's stacks (stacks.py). The first process on a node records what the kernel has
counted there so far, in ``<job dir>/state/nodes/<hostname>.json`` (node_memory.py).
"""

import atexit
import json
import os
import re
import sys
import threading
import time
from contextlib import suppress

import job_report
import node_memory
import stacks
from on_import import before_import

_STARTS = ("torch", "verl")
_LOOK_EVERY = 1.0  # seconds
_LINES = 40  # until the time between two lines doubles
_FORK_LIVES = 2.0  # seconds; a fork that only becomes another program leaves no file


def install() -> None:
    """Record from the first import of torch or verl; does nothing outside a job."""
    if os.environ.get(job_report.JOB_DIR_VARIABLE):
        before_import(_STARTS, _start)


def _start() -> None:
    _begin(0.0)
    os.register_at_fork(after_in_child=lambda: _begin(_FORK_LIVES))


def _begin(after: float) -> None:
    with suppress(Exception):  # a process that cannot be recorded trains all the same
        recorder = Recorder(os.environ[job_report.JOB_DIR_VARIABLE], after)
        atexit.register(recorder.end)
        threading.Thread(target=recorder.run, name="verl-regress-memory", daemon=True).start()


class Recorder:
    """Records this process's memory; `after` is how many seconds it must live first."""

    def __init__(self, job_dir: str, after: float) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._job_dir = job_dir
        self._folder = f"{job_dir}/state/memory"
        self._file = f"{self._folder}/{job_report.hostname()}-{self._pid}.txt"
        self._ended = f"{job_dir}/state/ended"
        self._after = after
        self._most = 0
        self._name = ""
        self._every = _LOOK_EVERY
        self._lines = 0
        self._due = 0.0
        self._begun = after == 0  # then even a process that ends at once has a record
        self._over = False

    def run(self) -> None:
        """Look every second, and write a line when one is due, until the process or the job ends."""
        time.sleep(self._after)
        with suppress(Exception):
            self._begun = True
            _record_node(f"{self._job_dir}/state/nodes")
            while not self._over:
                self._look()
                stacks.answer(self._job_dir, _name() or self._name or "python")
                time.sleep(_LOOK_EVERY)

    def end(self) -> None:
        """Write the last line of a process that ends by itself; nothing in a fork of it."""
        if os.getpid() == self._pid and self._begun:
            with suppress(Exception):
                self._due = 0.0
                self._look()
            self._over = True

    def _look(self) -> None:
        with self._lock:
            self._most = max(self._most, resident())
            now = time.monotonic()
            if self._over or now < self._due:
                return
            if os.path.exists(self._ended):  # noqa: PTH110 - every process would pay for pathlib
                self._over = True
                return
            with suppress(OSError):
                self._write()
                self._most = 0
                self._lines += 1
                self._every *= 1 if self._lines % _LINES else 2
            self._due = now + self._every - _LOOK_EVERY / 2

    def _write(self) -> None:
        """Append a line."""
        name = _name()
        said = f" {name}" if name not in ("", self._name) else ""
        line = f"{time.time():.3f} {self._most}{said}\n"
        os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103
        with open(self._file, "a", encoding="ascii") as file:  # noqa: PTH123
            file.write(line)
        self._name = name or self._name


def _record_node(folder: str) -> None:
    """The kernel's counters when the job began on this node, from the first of its processes."""
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with open(f"{folder}/{job_report.hostname()}.json", "x", encoding="ascii") as stream:  # noqa: PTH123
            json.dump(node_memory.counters(), stream)


def resident() -> int:
    """This process's anonymous and shared memory in bytes; all its resident memory if the kernel does not tell them apart."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:  # noqa: PTH123
        kilobytes = dict(re.findall(r"^(RssAnon|RssShmem|VmRSS):\s+(\d+) kB", stream.read(), re.MULTILINE))
    if "RssAnon" not in kilobytes:
        return 1024 * int(kilobytes.get("VmRSS", 0))
    return 1024 * (int(kilobytes["RssAnon"]) + int(kilobytes.get("RssShmem", 0)))


def _name() -> str:
    """`WorkerDict` of the title `ray::WorkerDict.update_actor`, else the module of `python -m`, else the program.

    Nothing while Ray's worker is idle: what it worked on before stays its name.
    """
    with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
        title = stream.read(200).partition("\0")[0]
    kind, separator, rest = title.partition("::")
    if separator:
        name = re.split(r"[.( ]", rest.removeprefix("IDLE"))[0] if kind == "ray" else f"{kind}::{rest}"
    else:
        words = sys.orig_argv
        name = words[words.index("-m") + 1] if "-m" in words[:-1] else words[0].rpartition("/")[2]
    return re.sub(r"[^\w.:+-]", "_", name)[:60]
