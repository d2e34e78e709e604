"""How far a job is, from its own files: metrics.jsonl (verl's file logger) and the driver's log."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.layout import JobDir

# "Total training steps: 10", printed once by verl's trainers (0.7.0, 0.7.1, 0.8.0).
_TOTAL = re.compile(rb"Total training steps: (\d+)")
# Rows that hold nothing else are no training step (val-core and val-aux of PPO, val of SFT).
_VALIDATION = ("val-core/", "val-aux/", "val/")
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
    """The lines of an attempt's own metrics.jsonl; a half-written last one is left for the next look."""
    try:
        text = job.metrics.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [line for line in text.split("\n")[:-1] if line.strip()]


def joined(job: JobDir) -> list[str]:
    """The lines of an attempt and of those that it goes on from, as one run of the trainer would have written them."""
    parent = parent_of(job)
    if parent["step"] == 0:
        return lines(job)
    return join(joined(job.numbered(parent["attempt"])), parent["step"], lines(job))


def join(earlier: Sequence[str], step: int, later: Sequence[str]) -> list[str]:
    """Two attempts' lines, the later one begun from the checkpoint of `step`: what came after it there counts no more."""
    return [*(line for line in earlier if json.loads(line)["step"] <= step), *later]


def parent_of(job: JobDir) -> dict[str, Any]:
    """What an attempt goes on from: `attempt`, `checkpoint` and `step`; nothing and step 0 for one that began anew."""
    parent = (job.read_config("resolved.json") or {}).get("parent")
    return parent or {"attempt": None, "checkpoint": None, "step": 0}


def steps(metrics: Iterable[str]) -> list[Step]:
    """The training steps among the lines of a metrics.jsonl."""
    rows = map(json.loads, metrics)
    return [
        Step(int(row["step"]), row["data"])
        for row in rows
        if not all(key.startswith(_VALIDATION) for key in row["data"])
    ]


def last_step(job: JobDir) -> int:
    """The number in the last line of metrics.jsonl, however long the file is; the parent's step where it has none."""
    try:
        with job.metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            whole = file.read().split(b"\n")[-2:-1]
    except FileNotFoundError:
        whole = []
    numbers = [int(json.loads(line)["step"]) for line in whole if line.startswith(b"{")]
    return numbers[0] if numbers else int(parent_of(job)["step"])


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


def newest_checkpoint(job: JobDir) -> Path | None:
    """The newest `global_step_N` of this attempt that is whole, or None.

    verl writes N to latest_checkpointed_iteration.txt when all of global_step_N is saved, RL and SFT alike (0.7.1, 0.8.0):
    what has a higher N is half-written. It removes old ones while it saves (max_actor_ckpt_to_keep), so what is left is
    looked at too.
    """
    try:
        latest = int((job.checkpoints / "latest_checkpointed_iteration.txt").read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None
    saved = [job.checkpoints / name for name in checkpoints(job) if step_of(name) <= latest]
    return next((path for path in reversed(saved) if _is_whole(path)), None)


def step_of(checkpoint: str) -> int:
    """The N of the name `global_step_N`."""
    return int(checkpoint.removeprefix("global_step_"))


def _is_whole(checkpoint: Path) -> bool:
    """All ranks of every kind of file are there, and with them an actor where there is a critic (FSDP, 0.7.1, 0.8.0)."""
    ranks: dict[tuple[Path, str, int], int] = {}
    for path in checkpoint.rglob("*_world_size_*_rank_*.pt"):
        kind, _, of = path.stem.partition("_world_size_")
        key = (path.parent, kind, int(of.partition("_rank_")[0]))
        ranks[key] = ranks.get(key, 0) + 1
    parts = {path.name for path in checkpoint.iterdir()}
    return (
        bool(parts)
        and all(found == world for (_, _, world), found in ranks.items())
        and (
            "actor" in parts or "data.pt" not in parts  # RL's data.pt; SFT has data_0.pt, and no parts
        )
    )


def logs_steps(job: JobDir) -> bool:
    """Does its trainer.logger write metrics.jsonl? Ours does; one that was asked for instead may not."""
    overrides = (job.read_config("resolved.json") or {}).get("overrides", [])
    loggers = [row["text"] for row in overrides if row["text"].lstrip("+").startswith("trainer.logger=")]
    return all("file" in logger for logger in loggers)


def log_size(job: JobDir) -> int:
    """The bytes of the driver's log."""
    return job.driver_log.stat().st_size if job.driver_log.exists() else 0


def log_lines(job: JobDir, prefix: str) -> list[str]:
    """The lines of the driver's log that begin with `prefix`."""
    try:
        text = job.driver_log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.startswith(prefix)]
