"""How much memory each process of a job had over time: what py/hooks/process_memory.py wrote into state/memory/."""

import math
from collections.abc import Iterable
from contextlib import suppress

from verl_regress.base.errors import Unreadable
from verl_regress.base.files import read_json, read_text
from verl_regress.base.layout import JobDir
from verl_verdict.read.records import Memory, ProcessMemory


def read(attempts: Iterable[JobDir]) -> Memory:
    """The memory of a job's attempts. What cannot be read is lacking, and matters for the memory only."""
    found: list[tuple[ProcessMemory, ...]] = []
    lacking: list[str] = []
    for attempt in attempts:
        processes = {}
        for path in sorted((attempt.state / "memory").glob("*.txt")):
            with suppress(OSError):
                if (process := parse(read_text(path))) is not None:
                    processes[path.stem] = process
        if processes:
            found.append(tuple(processes.values()))
            lacking += _lacking(attempt, processes)
    return Memory(tuple(found), tuple(lacking))


def parse(text: str) -> ProcessMemory | None:
    """The process that wrote this; None without a complete line. A line that was cut off is none."""
    name = ""
    times: list[float] = []
    sizes: list[float] = []
    for line in text.splitlines():
        words = line.split(" ")
        try:
            time, size = float(words[0]), float(int(words[1]))  # an integer: "nan" and "inf" are no sizes
        except (IndexError, ValueError):
            continue
        if not math.isfinite(time) or (times and time <= times[-1]):
            continue  # the clock was set back
        times.append(time)
        sizes.append(size)
        name = words[2] if len(words) > 2 else name
    return ProcessMemory(name, tuple(times), tuple(sizes)) if times else None


def _lacking(attempt: JobDir, processes: Iterable[str]) -> Iterable[str]:
    """The processes that reported modules of verl (py/hooks/identity.py) and recorded no memory."""
    for path in sorted(attempt.reports.glob("identity-*.json")):
        if path.stem.removeprefix("identity-") in processes:
            continue
        try:
            report = read_json(path) or {}
            if report.get("modules"):
                yield f"process {report['pid']} on {report['node']} ({report['command']})"
        except (KeyError, Unreadable):
            yield f"a process whose report {path.name} cannot be read"
