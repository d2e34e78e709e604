"""A job's training steps, from metrics.jsonl (verl's file logger) or else the driver's log (its console logger)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base import records
from verl_regress.base.errors import Unreadable, shown
from verl_regress.base.files import end_of, opened, unreadable
from verl_regress.base.layout import JobDir

# "Total training steps: 10", printed once by verl's trainers (0.7.1 to 0.9.1).
_TOTAL = re.compile(rb"Total training steps: (\d+)")
# "step:3 - actor/lr:0.0001 - val/loss:np.float64(1.5)": verl's console logger (0.7.1, 0.8.0), after Ray's prefix or a
# progress bar that had no newline yet, and before Ray's "[repeated 2x across cluster] (Ray deduplicates ...)" in colour.
_CONSOLE = re.compile(rb"(?:^|[\s\]])step:(\d+) - (\S+:\S[^\x1b]*)")
_NUMBER = re.compile(r"(?:np\.\w+\()?(-?(?:\d|inf\b|nan\b)[0-9.e+-]*|-?inf|nan)")  # numpy shows 0.5 as np.float64(0.5)
# Rows with nothing else are not training steps (val-core and val-aux of PPO, val of SFT).
_VALIDATION = ("val-core/", "val-aux/", "val/")
_PIECE = 4 << 20  # bytes of a file in memory at once, and of a line without an end
_LOG_BYTES = 4 << 20  # of a log: many times what comes before the first step, or between two
_MOST_METRICS = 1 << 29  # bytes of a metrics.jsonl: a million steps
_TAIL_BYTES = 1 << 18  # many times the longest line
_SECONDS = ("timing_s/step", "perf/time_per_step")
_SCORES = ("critic/score/mean", "critic/rewards/mean", "train/loss")


@dataclass(frozen=True)
class Step:
    """One line of metrics.jsonl: the step and its metrics by verl's names."""

    number: int
    metrics: Mapping[str, float]

    def line(self, total: int | None) -> str:
        """`step 3 of 10, 4.2 s a step, critic/score/mean 0.250`."""
        parts = [f"step {self.number}" + (f" of {total}" if total else "")]
        seconds = next((self.metrics[name] for name in _SECONDS if name in self.metrics), None)
        if seconds is not None:
            parts.append(f"{seconds:.1f} s a step")
        score = next((name for name in _SCORES if name in self.metrics), None)
        if score is not None:
            parts.append(f"{score} {self.metrics[score]:.3f}")
        return ", ".join(parts)


def lines(job: JobDir) -> list[str]:
    """The lines of an attempt's own metrics.jsonl, or the same built from its log if its loggers write no such file.

    A half-written last line is left for the next call. Raises Unreadable.
    """
    try:
        has_file = job.metrics.exists()
    except OSError as error:  # logs/ is closed to us
        raise unreadable(job.metrics, error) from error
    return list(MetricsTail(job).new_lines()) if has_file else _console_lines(job)


def checked(path: Path, line: bytes) -> str:
    """The line of this metrics.jsonl as text. Raises Unreadable unless it is a step."""
    text = line.decode("utf-8", "replace")
    with contextlib.suppress(LookupError, TypeError, ValueError, RecursionError):
        row = json.loads(text)
        if isinstance(row["step"], int) and isinstance(row["data"], dict):
            return text
    raise records.not_as_written(path, f"{shown(text, 40)} is not a step with its data")


def _console_lines(job: JobDir) -> list[str]:
    """The console logger's lines in the driver's log, as lines of a metrics.jsonl."""
    return [row for line in Tail(job.driver_log).new_lines() if (row := console_line(line))]


def console_line(line: bytes) -> str | None:
    """A line of the driver's log as a line of metrics.jsonl; None unless verl's console logger wrote it."""
    match = _CONSOLE.search(line)
    if match is None:
        return None
    data = {}
    for part in match[2].decode("utf-8", "replace").split(" - "):
        name, _, text = part.strip().rpartition(":")
        number = _NUMBER.match(text)
        if name and number is not None:
            with contextlib.suppress(ValueError):
                data[name] = float(number[1])
    return json.dumps({"step": int(match[1]), "data": data}) if data else None


def joined(job: JobDir) -> list[str]:
    """The lines of an attempt and of those it continues from, as one run of the trainer would have written them."""
    parent = parent_of(job)
    if parent["step"] == 0:
        return lines(job)
    attempt = parent["attempt"]
    if attempt is None or not 1 <= attempt < job.attempt:
        raise records.not_as_written(
            job.config / "resolved.json", f"parent.attempt must be an earlier attempt, not {attempt}"
        )
    return join(joined(job.numbered(attempt)), parent["step"], lines(job))


def join(earlier: Sequence[str], step: int, later: Sequence[str]) -> list[str]:
    """Join two attempts' lines: the later one began from the checkpoint of `step`, so earlier lines after it are dropped."""
    return [*(line for line in earlier if json.loads(line)["step"] <= step), *later]


def parent_of(job: JobDir) -> dict[str, Any]:
    """What an attempt continues from: `attempt`, `checkpoint` and `step`; nothing and step 0 if it began from scratch."""
    parent = (job.read_config("resolved.json") or {}).get("parent") or {}
    return {"attempt": None, "checkpoint": None, "step": 0, **parent}


def steps(metrics: Iterable[str]) -> list[Step]:
    """The training steps among the lines of a metrics.jsonl."""
    rows = map(json.loads, metrics)
    return [
        Step(int(row["step"]), row["data"])
        for row in rows
        if not all(key.startswith(_VALIDATION) for key in row["data"])
    ]


def last_step(job: JobDir) -> int | None:
    """The number of the last recorded step, reading only the file's end; the parent's step if there is none.

    None if the job's loggers write no steps that can be read here.
    """
    if not logs_steps(job):
        return None
    try:
        whole = [line for line in _tail(job.metrics, _TAIL_BYTES)[-2:-1] if line.startswith(b"{")]
        numbers = [int(json.loads(checked(job.metrics, line))["step"]) for line in whole]
    except FileNotFoundError:
        numbers = _last_console_step(job)
    return numbers[0] if numbers else int(parent_of(job)["step"])


def _last_console_step(job: JobDir) -> list[int]:
    try:
        rows = filter(None, map(console_line, reversed(_tail(job.driver_log, _LOG_BYTES)[:-1])))
        last = next(rows, None)
    except FileNotFoundError:
        return []
    return [] if last is None else [int(json.loads(last)["step"])]


def _tail(path: Path, most: int) -> list[bytes]:
    """The lines in the last `most` bytes of a file; the text after the last newline is the last one."""
    return end_of(path, most).split(b"\n")


def total_steps(job: JobDir) -> int | None:
    """How many steps the trainer said it will take, or None if it has not said so yet."""
    try:
        with opened(job.driver_log) as log:
            return total_in(log.read(_LOG_BYTES))
    except FileNotFoundError:
        return None


def total_in(log: bytes) -> int | None:
    """The number of steps that these bytes of a driver's log announce, or None."""
    match = _TOTAL.search(log)
    return int(match[1]) if match else None


class Tail:
    """The complete lines of a growing file of at most `most` bytes (None: of any size), each once."""

    def __init__(self, path: Path, most: int | None = None) -> None:
        self._path = path
        self._most = most
        self.rest = b""  # after the last newline
        self.size = 0  # bytes read so far

    def new_lines(self) -> Iterator[bytes]:
        """The lines added since the last call, which must have been read to the end; none if there is no such file yet."""
        try:
            file = opened(self._path, self._most)
        except FileNotFoundError:
            return
        with file:
            file.seek(self.size)
            while piece := file.read(_PIECE):
                self.size += len(piece)
                *lines, rest = (self.rest + piece).split(b"\n")
                self.rest = rest[-_PIECE:]
                yield from lines


class MetricsTail:
    """The lines of an attempt's growing metrics.jsonl, each once."""

    def __init__(self, job: JobDir) -> None:
        self._path = job.metrics
        self._tail = Tail(job.metrics, _MOST_METRICS)

    def new_lines(self) -> Iterator[str]:
        """As `Tail.new_lines`. Raises Unreadable for a file that has something else, or more than any run writes."""
        try:
            for line in self._tail.new_lines():
                if line.strip():
                    yield checked(self._path, line)
        except OSError as error:
            raise unreadable(self._path, error) from error


def loggers(job: JobDir) -> str | None:
    """The trainer.logger that was asked for, as it was written; None if it is ours, which has 'file' and 'console'."""
    overrides = (job.read_config("resolved.json") or {}).get("overrides") or []
    texts = [str(row.get("text")) for row in overrides if isinstance(row, dict)]
    asked = [text for text in texts if text.lstrip("+").startswith("trainer.logger=")]
    return asked[-1].partition("=")[2] if asked else None


def writes_file(job: JobDir) -> bool:
    """Do its loggers write metrics.jsonl?"""
    asked = loggers(job)
    return asked is None or "file" in asked


def logs_steps(job: JobDir) -> bool:
    """Can its steps be read, from metrics.jsonl ('file') or from the driver's log ('console')?"""
    asked = loggers(job)
    return asked is None or "file" in asked or "console" in asked


def taken(job: JobDir) -> str:
    """`2 of 10 training steps`, or that its loggers write no steps, or that they cannot be read."""
    if not logs_steps(job):
        return f"its loggers write no steps here (trainer.logger={loggers(job)})"
    total = total_steps(job)
    try:
        return f"{len(steps(joined(job)))} of {total if total is not None else '?'} training steps"
    except Unreadable as error:
        return f"its steps {error.why}"


def log_lines(job: JobDir, prefix: str) -> list[str]:
    """The lines of the driver's log that begin with `prefix`."""
    log, begin = Tail(job.driver_log), prefix.encode()
    found = [line for line in log.new_lines() if line.startswith(begin)]
    if log.rest.startswith(begin):
        found.append(log.rest)
    return [line.decode("utf-8", "replace") for line in found]
