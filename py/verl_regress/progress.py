"""How far a job is, from its own files: metrics.jsonl (verl's file logger) and the driver's log."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_regress.layout import JobDir

# "Total training steps: 10", printed once by verl's trainers (0.7.0, 0.7.1, 0.8.0).
_TOTAL = re.compile(rb"Total training steps: (\d+)")
# Rows that hold nothing else are no training step (val-core and val-aux of PPO, val of SFT).
_VALIDATION = ("val-core/", "val-aux/", "val/")
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


def steps(path: Path) -> list[Step]:
    """All training steps in a metrics.jsonl; a half-written last line is left for the next look."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = text.split("\n")[:-1]
    rows = [json.loads(line) for line in lines if line.strip()]
    return [
        Step(int(row["step"]), row["data"])
        for row in rows
        if not all(key.startswith(_VALIDATION) for key in row["data"])
    ]


def total_steps(job: JobDir) -> int | None:
    """How many steps the trainer said it will take, or None before it said so."""
    try:
        match = _TOTAL.search(job.driver_log.read_bytes())
    except FileNotFoundError:
        return None
    return int(match[1]) if match else None


def checkpoints(job: JobDir) -> list[str]:
    """The names `global_step_N`, in order of N."""
    found = [path.name for path in job.checkpoints.glob("global_step_*") if path.is_dir()]
    return sorted((name for name in found if name[12:].isdecimal()), key=lambda name: int(name[12:]))


def no_checkpoint(job: JobDir) -> str:
    """`no checkpoint`, and why where `make gc` removed them (verl_regress.retention)."""
    collected = job.read_state("collected")
    return (
        "no checkpoint"
        if collected is None
        else f"no checkpoint any more ('make gc' removed them at {collected['time']})"
    )


def log_lines(job: JobDir, prefix: str) -> list[str]:
    """The lines of the driver's log that begin with `prefix`."""
    try:
        text = job.driver_log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.startswith(prefix)]
