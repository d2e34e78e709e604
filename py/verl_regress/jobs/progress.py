"""A job's training steps, from metrics.jsonl (verl's file logger) or else the driver's log (its console logger)."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base import records
from verl_regress.base.errors import Unreadable, shown
from verl_regress.base.files import opened, unreadable
from verl_regress.base.layout import JobDir

# "Total training steps: 10", printed once by verl's trainers (0.7.1 to 0.9.1).
_TOTAL = re.compile(rb"Total training steps: (\d+)")
# "step:3 - actor/lr:0.0001 - val/loss:np.float64(1.5)": verl's console logger (0.7.1, 0.8.0), after Ray's prefix or a
# progress bar that had no newline yet, and before Ray's "[repeated 2x across cluster] (Ray deduplicates ...)" in colour.
_CONSOLE = re.compile(rb"(?:^|[\s\]])step:(\d+) - (\S+:\S[^\x1b]*)")
_NUMBER = re.compile(r"(?:np\.\w+\()?(-?(?:\d|inf\b|nan\b)[0-9.e+-]*|-?inf|nan)")  # numpy shows 0.5 as np.float64(0.5)
# Rows with nothing else are not training steps (val-core and val-aux of PPO, val of SFT).
_VALIDATION = ("val-core/", "val-aux/", "val/")
_ODD = re.compile(rb'null|NaN|Infinity|: ?"')  # a line without these has only finite numbers
_TOTAL_WITHIN = 4 << 20  # bytes of a log: many times what comes before the first step
_SECONDS = ("timing_s/step", "perf/time_per_step")
_SCORES = ("critic/score/mean", "critic/rewards/mean", "train/loss")


@dataclass(frozen=True)
class Step:
    """A line of metrics.jsonl: its step, its metrics by verl's names, and its text. A metric that is not a finite number is None."""

    number: int
    metrics: Mapping[str, float | None]
    text: str = ""

    @property
    def is_training(self) -> bool:
        """Has it more than a validation?"""
        return not all(name.startswith(_VALIDATION) for name in self.metrics)

    def first_of(self, names: Iterable[str]) -> str | None:
        """The first of these metrics that it has."""
        return next((name for name in names if name in self.metrics), None)

    def line(self, total: int | None) -> str:
        """`step 3 of 10, 4.2 s a step, critic/score/mean 0.250`."""
        parts = [f"step {self.number}" + (f" of {total}" if total else "")]
        if (name := self.first_of(_SECONDS)) is not None and self.metrics[name] is not None:
            parts.append(f"{self.metrics[name]:.1f} s a step")
        if (name := self.first_of(_SCORES)) is not None:
            parts.append(f"{name} {shown_value(self.metrics[name])}")
        return ", ".join(parts)


def shown_value(value: float | None, digits: int = 3, none: str = "not finite") -> str:
    """A metric as people read it: `0.250`, or `none`."""
    return none if value is None else f"{value:.{digits}f}"


def _finite(value: Any) -> float | None:
    """The number, if it is one; verl's file logger writes NaN and infinity as null."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def not_finite(steps: Sequence[Step]) -> str | None:
    """`23 metrics are not finite since step 2`, or `… were not finite at step 2` if they are again; None if all always were."""
    counts = [(step.number, sum(value is None for value in step.metrics.values())) for step in steps]
    bad = [(number, count) for number, count in counts if count]
    if not bad:
        return None
    is_still = counts[-1][1] > 0
    finite = [number for number, count in counts if not count]
    since = next(number for number, _ in bad if not is_still or not finite or number > finite[-1])
    count = bad[-1 if is_still else 0][1]
    what = (
        f"{count} metrics {'are' if is_still else 'were'}" if count > 1 else f"1 metric {'is' if is_still else 'was'}"
    )
    return f"{what} not finite {'since' if is_still else 'at'} step {since}"


def of_line(path: Path, line: bytes) -> Step:
    """The step in a line of this metrics.jsonl. Raises Unreadable."""
    text = line.decode("utf-8", "replace")
    with contextlib.suppress(LookupError, TypeError, ValueError, RecursionError):
        row = json.loads(text)
        if isinstance(row["step"], int) and isinstance(row["data"], dict):
            return Step(row["step"], {name: _finite(value) for name, value in row["data"].items()}, text)
    raise records.not_as_written(path, f"{shown(text, 40)} is not a step with its data")


def of_console(line: bytes) -> Step | None:
    """The step in a line of the driver's log, as metrics.jsonl would have it; None unless verl's console logger wrote it."""
    match = _CONSOLE.search(line)
    if match is None:
        return None
    data = {}
    for part in match[2].decode("utf-8", "replace").split(" - "):
        name, _, text = part.strip().rpartition(":")
        number = _NUMBER.match(text)
        if name and number is not None:
            with contextlib.suppress(ValueError):
                data[name] = _finite(float(number[1]))
    return Step(int(match[1]), data, json.dumps({"step": int(match[1]), "data": data})) if data else None


def rows(job: JobDir) -> list[Step]:
    """The lines of an attempt's own metrics.jsonl, or the same from its log if its loggers write no such file.

    A half-written last line is left for the next call. Raises OSError and Unreadable.
    """
    if not writes_file(job):
        return [step for line in Tail(job.driver_log).new_lines() if (step := of_console(line))]
    return [of_line(job.metrics, line) for line in _recorded(job)]


def _recorded(job: JobDir) -> list[bytes]:
    """The complete lines of its metrics.jsonl."""
    try:
        with opened(job.metrics) as file:
            return [line for line in file.read().split(b"\n")[:-1] if line.strip()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(job.metrics, error) from error


def training(found: Iterable[Step]) -> list[Step]:
    """Those that are training steps."""
    return [step for step in found if step.is_training]


def joined(job: JobDir) -> list[Step]:
    """The lines of an attempt and of those it continues from, as one run of the trainer would have written them."""
    parent = parent_of(job)
    if parent["step"] == 0:
        return rows(job)
    attempt = parent["attempt"]
    if attempt is None or not 1 <= attempt < job.attempt:
        raise records.not_as_written(
            job.config / "resolved.json", f"parent.attempt must be an earlier attempt, not {attempt}"
        )
    return [*(step for step in joined(job.numbered(attempt)) if step.number <= parent["step"]), *rows(job)]


def parent_of(job: JobDir) -> dict[str, Any]:
    """What an attempt continues from: `attempt`, `checkpoint` and `step`; nothing and step 0 if it began from scratch."""
    parent = (job.read_config("resolved.json") or {}).get("parent") or {}
    return {"attempt": None, "checkpoint": None, "step": 0, **parent}


def so_far(job: JobDir) -> tuple[int | None, str | None]:
    """The number of an attempt's last recorded step, or the parent's if there is none, and `not_finite`.

    None if its loggers write no steps that can be read here. A long record is parsed whole only if something in it may not be finite.
    """
    if not logs_steps(job):
        return None, None
    lines = _recorded(job)
    is_finite = not any(map(_ODD.search, lines))
    found = [of_line(job.metrics, line) for line in lines[-1:]] if lines and is_finite else rows(job)
    return found[-1].number if found else int(parent_of(job)["step"]), not_finite(training(found))


def last_step(job: JobDir) -> int | None:
    """The first part of `so_far`."""
    return so_far(job)[0]


def total_steps(job: JobDir) -> int | None:
    """How many steps the trainer said it will take, or None if it has not said so yet."""
    try:
        with opened(job.driver_log) as log:
            return total_in(log.read(_TOTAL_WITHIN))
    except FileNotFoundError:
        return None


def total_in(log: bytes) -> int | None:
    """The number of steps that these bytes of a driver's log announce, or None."""
    match = _TOTAL.search(log)
    return int(match[1]) if match else None


class Tail:
    """The complete lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0  # of the last complete line
        self.rest = b""  # what follows it

    @property
    def size(self) -> int:
        """Bytes read so far."""
        return self._end + len(self.rest)

    def new_lines(self) -> Iterator[bytes]:
        """The lines added since the last call, which must have been read to the end; none if there is no such file yet."""
        try:
            file = opened(self._path)
        except FileNotFoundError:
            return
        with file:
            file.seek(self._end)
            self.rest = b""
            for line in file:
                if not line.endswith(b"\n"):
                    self.rest = line
                    return
                self._end += len(line)
                yield line[:-1]


def loggers(job: JobDir) -> str | None:
    """The trainer.logger that was asked for, as it was written; None if it is ours, which has 'file' and 'console'."""
    overrides = (job.read_config("resolved.json") or {}).get("overrides") or []
    asked = [text for row in overrides if (text := row["text"].lstrip("+")).startswith("trainer.logger=")]
    return asked[-1].partition("=")[2] if asked else None


def writes_file(job: JobDir) -> bool:
    """Do its loggers write metrics.jsonl?"""
    asked = loggers(job)
    return asked is None or "file" in asked


def logs_steps(job: JobDir) -> bool:
    """Can its steps be read, from metrics.jsonl ('file') or from the driver's log ('console')?"""
    return writes_file(job) or "console" in str(loggers(job))


def taken(job: JobDir) -> str:
    """`2 of 10 training steps` and what is not finite, or that its loggers write no steps, or that they cannot be read."""
    if not logs_steps(job):
        return f"its loggers write no steps here (trainer.logger={loggers(job)})"
    total = total_steps(job)
    try:
        steps = training(joined(job))
    except Unreadable as error:
        return f"its steps {error.why}"
    counted = f"{len(steps)} of {total if total is not None else '?'} training steps"
    return ", ".join(filter(None, (counted, not_finite(steps))))


def log_lines(job: JobDir, prefix: str) -> list[str]:
    """The lines of the driver's log that begin with `prefix`."""
    log = Tail(job.driver_log)
    found = [line for line in [*log.new_lines(), log.rest] if line.startswith(prefix.encode())]
    return [line.decode("utf-8", "replace") for line in found]
