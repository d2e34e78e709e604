"""A job's training steps, from metrics.jsonl (verl's file logger)."""

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base.files import damaged
from verl_regress.base.layout import JobDir

# "Total training steps: 10", printed once by verl's trainers (0.7.1 to 0.9.1).
_TOTAL = re.compile(rb"Total training steps: (\d+)")
# Rows with nothing else are not training steps (val-core and val-aux of PPO, val of SFT).
_VALIDATION = ("val-core/", "val-aux/", "val/")
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
    with contextlib.suppress(OverflowError):  # an integer of more than 308 digits
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


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
    verb = ("is" if count == 1 else "are") if is_still else ("was" if count == 1 else "were")
    what = f"{count} {'metric' if count == 1 else 'metrics'} {verb}"
    return f"{what} not finite {'since' if is_still else 'at'} step {since}"


def of_line(line: bytes) -> Step | None:
    """The step in a line of metrics.jsonl; None if it is damaged, as on a disk that was full. The judge refuses such a record."""
    text = line.decode("utf-8", "replace")
    with contextlib.suppress(LookupError, TypeError, ValueError, RecursionError):
        row = json.loads(text)
        if isinstance(row["step"], int) and isinstance(row["data"], dict):
            return Step(row["step"], {name: _finite(value) for name, value in row["data"].items()}, text)
    return None


def rows(job: JobDir) -> list[Step]:
    """The lines of an attempt's own metrics.jsonl. Raises OSError and Unreadable."""
    return Tail(job.metrics).new_steps()


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
        raise damaged(job.config / "resolved.json", f"parent.attempt must be an earlier attempt, not {attempt}")
    return [*(step for step in joined(job.numbered(attempt)) if step.number <= parent["step"]), *rows(job)]


def parent_of(job: JobDir) -> dict[str, Any]:
    """What an attempt continues from: `attempt`, `checkpoint` and `step`; nothing and step 0 if it began from scratch."""
    parent = (job.read_config("resolved.json") or {}).get("parent") or {}
    return {"attempt": None, "checkpoint": None, "step": 0, **parent}


def so_far(job: JobDir) -> tuple[int | None, str | None]:
    """The number of an attempt's last recorded step, or the parent's if there is none, and `not_finite`.

    None if its loggers write no steps here. Raises OSError and Unreadable.
    """
    if not writes_file(job):
        return None, None
    found = rows(job)
    return found[-1].number if found else int(parent_of(job)["step"]), not_finite(training(found))


def last_step(job: JobDir) -> int | None:
    """The first part of `so_far`."""
    return so_far(job)[0]


def total_steps(job: JobDir) -> int | None:
    """How many steps the trainer said it will take, or None if it has not said so yet."""
    try:
        with job.driver_log.open("rb") as log:
            match = _TOTAL.search(log.read(_TOTAL_WITHIN))
    except FileNotFoundError:
        return None
    return int(match[1]) if match else None


class Tail:
    """The steps in a growing metrics.jsonl, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0  # of the last complete line

    def new_steps(self) -> list[Step]:
        """Those added since the last call. A half-written last line is left for the next call. Raises OSError and Unreadable."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._end)
                whole = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        self._end += sum(len(line) + 1 for line in whole)
        return [step for line in whole if (step := of_line(line)) is not None]


def loggers(job: JobDir) -> str | None:
    """The trainer.logger that was asked for, as it was written; None if it is ours, which has 'file' and 'console'."""
    overrides = (job.read_config("resolved.json") or {}).get("overrides") or []
    asked = [text for row in overrides if (text := row["text"].lstrip("+")).startswith("trainer.logger=")]
    return asked[-1].partition("=")[2] if asked else None


def writes_file(job: JobDir) -> bool:
    """Do its loggers write metrics.jsonl?"""
    asked = loggers(job)
    return asked is None or "file" in asked


def taken(job: JobDir) -> str:
    """`2 of 10 training steps` and what is not finite, or that its loggers write no steps."""
    if not writes_file(job):
        return f"its loggers write no steps here (trainer.logger={loggers(job)})"
    total = total_steps(job)
    steps = training(joined(job))
    counted = f"{len(steps)} of {total if total is not None else '?'} training steps"
    return ", ".join(filter(None, (counted, not_finite(steps))))


def log_lines(job: JobDir, prefix: str) -> list[str]:
    """The lines of the driver's log that begin with `prefix`."""
    if not job.driver_log.exists():
        return []
    with job.driver_log.open("rb") as log:
        return [line.decode("utf-8", "replace").rstrip("\n") for line in log if line.startswith(prefix.encode())]
