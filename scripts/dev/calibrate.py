"""The runs of `make calibrate`, and docs/calibration.md: what the judge says of all that is recorded.

calibrate.py cost PAIRS      what will be run, and how long it takes
calibrate.py next PAIRS      the next run that lacks a record, as words that end with NUL; nothing if there is none
calibrate.py record NAME JOB SECONDS VERL COMMIT IMAGE      record the job directory of a run that has ended
calibrate.py write           docs/calibration.md
calibrate.py check           docs/calibration.md is what the records make; exits 1 where it is not
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from scipy.stats import beta

import calibration
from calibration import REPO, WORKLOADS, Result
from verl_verdict.diagnosis import number
from verl_verdict.verdicts import Verdict

PAGE = REPO / "docs" / "calibration.md"
OPEN = calibration.RECORDS / "open.yaml"
_UNKNOWN_SECONDS = 90
_MOST_PAIRS = 999


def cost(pairs: int) -> str:
    """How many runs, and how long: as the recorded ones of the same workload took."""
    lacking = calibration.lacking(pairs)
    seconds = sum(_usual_seconds().get(run.recipe.workload, _UNKNOWN_SECONDS) for run in lacking)
    recorded = len(list(calibration.planned(pairs))) - len(lacking)
    return f"{len(lacking)} runs, about {seconds / 60:.0f} minutes ({recorded} are recorded)"


def _usual_seconds() -> dict[str, float]:
    return {
        workload: statistics.median(took)
        for workload in WORKLOADS
        if (took := [each["seconds"] for name, each in _abouts() if workload in name])
    }


def _abouts() -> list[tuple[str, dict[str, Any]]]:
    names = sorted(path.name.removesuffix(".json.xz") for path in calibration.RECORDS.glob("*.json.xz"))
    return [(name, calibration.about(name)) for name in names]


def words_of_next(pairs: int) -> list[str]:
    """NAME WORKLOAD PATCH SEED FURTHER OVERRIDES of the next run."""
    run = next(iter(calibration.lacking(pairs)), None)
    if run is None:
        return []
    recipe = run.recipe
    further = str(2 * recipe.steps) if recipe.continues else ""
    seed = "" if run.seed is None else str(run.seed)
    return [run.name, recipe.workload, str(run.patch or ""), seed, further, " ".join(recipe.asked)]


def record(name: str, job: str, seconds: str, verl: str, commit: str, image: str) -> None:
    """Record a run that has ended."""
    run = next(run for run in calibration.planned(_MOST_PAIRS) if run.name == name)
    now = datetime.now(timezone.utc).isoformat(timespec="minutes")
    facts = {
        "workload": run.recipe.workload,
        "seconds": int(seconds),
        "verl": verl,
        "commit": commit,
        "image": image,
        "recorded": now,
    }
    calibration.record(run, Path(job), facts)


def main(action: str, *words: str) -> int:
    """One of cost, next, record; returns the exit status."""
    if action == "cost":
        print(cost(int(words[0])))
    elif action == "next":
        print("".join(f"{word}\0" for word in words_of_next(int(words[0]))), end="")
    elif action == "record":
        record(*words)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
