"""Did the rehearsal train what it sampled from? Read from a finished job's own files; `python -m verl_rehearsal.fidelity`.

A rehearsal can run, look fine and be wrong: with the padded path of verl 0.7.1 the rollout samples from another policy
than the one being trained, and nothing but these lines shows it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORRELATION = "training/rollout_actor_probs_pearson_corr"  # verl.utils.debug.metrics, verl 0.7.0 to 0.8.0
MIN_CORRELATION = 0.999
MIN_LEARNING_RATE = 1e-4  # below it the weights hardly move, and a stale rollout would pass


@dataclass(frozen=True)
class Line:
    """One thing that was looked at: whether it holds, and what was seen."""

    holds: bool
    seen: str


def check(job_dir: Path) -> Iterator[Line]:
    """Yield the lines of fidelity for a job directory; a file or a value that is missing makes its line false."""
    steps = [json.loads(line) for line in _read(job_dir / "logs" / "metrics.jsonl").splitlines()]
    yield from _correlation(steps)
    yield _learning_rate(steps)
    yield _weights(_reports(job_dir, "rollout_weights"))
    yield _placement(_reports(job_dir, "training_actor"))


def _correlation(steps: list[dict[str, Any]]) -> Iterator[Line]:
    nothing: dict[str, Any] = {"step": "none", "data": {}}
    for step in (steps or [nothing])[:1] + (steps or [nothing])[-1:]:
        value = step["data"].get(CORRELATION)
        holds = value is not None and value >= MIN_CORRELATION
        shown = "missing" if value is None else f"{value:.6f}"
        yield Line(
            holds,
            f"rollout_actor_probs_pearson_corr at step {step['step']}: {shown} (wanted: at least {MIN_CORRELATION})",
        )


def _learning_rate(steps: list[dict[str, Any]]) -> Line:
    rates = [step["data"]["actor/lr"] for step in steps if "actor/lr" in step["data"]]
    lowest = min(rates, default=0.0)
    return Line(
        lowest >= MIN_LEARNING_RATE,
        f"actor/lr over {len(rates)} steps: at least {lowest:g} (wanted: {MIN_LEARNING_RATE:g})",
    )


def _weights(reports: list[dict[str, Any]]) -> Line:
    updates = [update for report in reports for update in report["updates"]]
    equal = sum(update["actor_sha256"] == update["rollout_sha256"] for update in updates)
    distinct = len({update["actor_sha256"] for update in updates})
    return Line(
        len(updates) > 0 and equal == len(updates) and distinct > 1,
        f"rollout's weights hash equal to the actor's: {equal} of {len(updates)} updates on {len(reports)} replicas, "
        f"{distinct} distinct weights",
    )


def _placement(reports: list[dict[str, Any]]) -> Line:
    places = {report["rank"]: report["node_ip"] for report in reports}
    size = max((report["world_size"] for report in reports), default=0)
    shown = ", ".join(f"rank {rank} on {places[rank]}" for rank in sorted(places)) or "none reported"
    whole = sorted(places) == list(range(size)) and size > 1
    return Line(whole and len(set(places.values())) == size, f"training actors, each on a worker of its own: {shown}")


def _reports(job_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((job_dir / "state" / "reports").glob(f"{kind}-*.json"))
    ]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main(job_dir: str) -> int:
    """Print every line; 0 when all hold, 9 (a verification check failed) when one does not."""
    lines = list(check(Path(job_dir)))
    for line in lines:
        print(f"{'ok' if line.holds else 'FALSE':<8}{line.seen}")
    good = sum(line.holds for line in lines)
    print(f"{'ok' if good == len(lines) else 'FALSE':<8}fidelity: {good} of {len(lines)} lines hold")
    return 0 if lines and good == len(lines) else 9


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
