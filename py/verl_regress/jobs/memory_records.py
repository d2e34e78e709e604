"""How much memory each process of a job had over time: what py/hooks/process_memory.py wrote into state/memory/."""

import json
import math
from collections.abc import Iterable
from contextlib import suppress

from verl_regress.base.layout import JobDir
from verl_verdict.records import Memory, Process


def read(attempts: Iterable[JobDir]) -> Memory:
    """The memory of a job's attempts. What cannot be read is lacking, and matters for the memory only."""
    found = {attempt: _processes(attempt) for attempt in attempts}
    lacking = [each for attempt, processes in found.items() if processes for each in _lacking(attempt, processes)]
    return Memory(tuple(tuple(each.values()) for each in found.values() if each), tuple(lacking))


def _processes(attempt: JobDir) -> dict[str, Process]:
    found = {}
    for path in sorted((attempt.state / "memory").glob("*.txt")):
        with suppress(OSError):
            process = parse(path.read_text(encoding="utf-8", errors="replace"))
            if process is not None:
                found[path.stem] = process
    return found


def parse(text: str) -> Process | None:
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
    return Process(name, tuple(times), tuple(sizes)) if times else None


def _lacking(attempt: JobDir, processes: Iterable[str]) -> Iterable[str]:
    """The processes that reported modules of verl (py/hooks/identity.py) and recorded no memory."""
    for path in sorted(attempt.reports.glob("identity-*.json")):
        name = path.stem.removeprefix("identity-")
        if name in processes:
            continue
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            report = {"modules": True, "command": f"its report {path.name} cannot be read"}
        if report.get("modules"):
            yield f"process {report.get('pid')} on {report.get('hostname')} ({report.get('command')})"
