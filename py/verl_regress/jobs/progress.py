"""A job's training steps, from metrics.jsonl (verl's file logger)."""

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def line(self, total: int | None) -> str:
        """`step 3 of 10, 4.2 s a step, critic/score/mean 0.250`."""
        took = next(
            (f", {self.metrics[name]:.1f} s a step" for name in _SECONDS if self.metrics.get(name) is not None), ""
        )
        score = next((f", {name} {shown_value(self.metrics[name])}" for name in _SCORES if name in self.metrics), "")
        return f"step {self.number}{f' of {total}' if total else ''}{took}{score}"


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
    finite = [number for number, count in counts if not count]
    if counts[-1][1]:
        since = next(number for number, _ in bad if not finite or number > finite[-1])
        count, one, many, when = counts[-1][1], "is", "are", f"since step {since}"
    else:
        count, one, many, when = bad[0][1], "was", "were", f"at step {bad[0][0]}"
    return f"{count} {f'metric {one}' if count == 1 else f'metrics {many}'} not finite {when}"


def parse_line(line: bytes) -> Step | None:
    """The step in a line of metrics.jsonl; None if it is damaged, as on a disk that was full. The judge refuses such a record."""
    text = line.decode("utf-8", "replace")
    with contextlib.suppress(LookupError, OverflowError, TypeError, ValueError, RecursionError):
        row = json.loads(text)
        if isinstance(row["step"], int) and isinstance(row["data"], dict):
            return Step(row["step"], {name: _finite(value) for name, value in row["data"].items()}, text)
    return None


def rows(job: JobDir) -> list[Step]:
    """The lines of an attempt's own metrics.jsonl. Raises OSError and Unreadable."""
    return Tail(job.metrics).new_steps()


def training(found: Iterable[Step]) -> list[Step]:
    """The training steps among them: they have more than a validation."""
    return [step for step in found if not all(name.startswith(_VALIDATION) for name in step.metrics)]


def joined(job: JobDir) -> list[Step]:
    """The lines of an attempt and of those it continues from, as one run of the trainer would have written them."""
    parent = parent_of(job)
    if parent["step"] == 0:
        return rows(job)
    before = joined(job.numbered(parent["attempt"]))
    return [*(step for step in before if step.number <= parent["step"]), *rows(job)]


def parent_of(job: JobDir) -> dict[str, Any]:
    """What an attempt continues from: `attempt`, `checkpoint` and `step`; nothing and step 0 if it began from scratch."""
    parent = (job.read_config("resolved.json") or {}).get("parent") or {}
    return {"attempt": None, "checkpoint": None, "step": 0, **parent}


def last_step(job: JobDir) -> int | None:
    """The number of an attempt's last recorded step, or the parent's if there is none; None if its loggers write no steps here.

    Raises OSError and Unreadable.
    """
    return None if logger_without_file(job) is not None else last_of(job, rows(job))


def last_of(job: JobDir, found: Sequence[Step]) -> int:
    """The same for the lines of its metrics.jsonl."""
    return found[-1].number if found else int(parent_of(job)["step"])


def total_steps(job: JobDir) -> int | None:
    """How many steps the trainer said it will take, or None if it has not said so yet."""
    with contextlib.suppress(FileNotFoundError), job.driver_log.open("rb") as log:
        if match := _TOTAL.search(log.read(_TOTAL_WITHIN)):
            return int(match[1])
    return None


class Tail:
    """The steps in a growing metrics.jsonl, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0  # of the last complete line

    def new_steps(self) -> list[Step]:
        """Those added since the last call. A half-written last line is left for the next call. Raises OSError and Unreadable."""
        whole: list[bytes] = []
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._end)
            whole = file.read().split(b"\n")[:-1]
        self._end += sum(len(line) + 1 for line in whole)
        return [step for line in whole if (step := parse_line(line)) is not None]


def logger_without_file(job: JobDir) -> str | None:
    """The trainer.logger that was asked for, as it was written, if it writes no metrics.jsonl; None if it does."""
    overrides = (job.read_config("resolved.json") or {}).get("overrides") or []
    asked = [text for row in overrides if (text := row["text"].lstrip("+")).startswith("trainer.logger=")]
    return asked[-1].partition("=")[2] if asked and "file" not in asked[-1] else None


def summary(job: JobDir) -> str:
    """`2 of 10 training steps` and what is not finite, or that its loggers write no steps."""
    if (logger := logger_without_file(job)) is not None:
        return f"its loggers write no steps here (trainer.logger={logger})"
    total = total_steps(job)
    steps = training(joined(job))
    counted = f"{len(steps)} of {total if total is not None else '?'} training steps"
    return ", ".join(filter(None, (counted, not_finite(steps))))


def log_lines(job: JobDir, prefix: str) -> list[str]:
    """The lines of the driver's log that begin with `prefix`."""
    with contextlib.suppress(FileNotFoundError), job.driver_log.open("rb") as log:
        return [line.decode("utf-8", "replace").rstrip("\n") for line in log if line.startswith(prefix.encode())]
    return []
