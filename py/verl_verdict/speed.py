"""Is B slower? The seconds of a step and of its phases: per run the median without the warm-up, paired as the other metrics are.

A case of its own: the runs of A and B must be interleaved and never run at once, which the caller sees to.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from verl_verdict import pairing, statistics
from verl_verdict.records import Run
from verl_verdict.statistics import LOOKS
from verl_verdict.verdicts import Row, Verdict, Word

STEP = "timing_s/step"
FLOORS = {"cpu": 0.25, "gpu": 0.10}  # shared CPUs vary more
_TOO_NOISY = 2.0  # margins of more than this many floors hide what people want to see: then nothing is the same
_SPIKE = 3.0  # a step that takes this many medians: one does not change a median, but people feel it
_SMALLEST_PHASE = 0.02  # of a step


@dataclass(frozen=True)
class Phase:
    """The seconds of a phase, as the median over the runs' medians."""

    name: str
    a: float
    b: float


def profile_of(runs: Sequence[Run]) -> str:
    """cpu or gpu: as the job directory tells, else gpu if a run used memory of one."""
    told = runs[0].facts.get("profile")
    if told:
        return "cpu" if told == "cpu" else "gpu"
    names = [name for run in runs for name in run.series if name.endswith("perf/max_memory_allocated_gb")]
    used = any(value > 0 for run in runs for name in names for value in run.series.get(name, {}).values())
    return "gpu" if used else "cpu"


def seconds(run: Run, name: str = STEP) -> float | None:
    """The median without the warm-up: the first tenth of the steps, at least one. None without a later step."""
    values = [value for _, value in sorted(run.series.get(name, {}).items())]
    later = [value for value in values[max(1, len(values) // 10) :] if math.isfinite(value)]
    return median(later) if later else None


def _log_seconds(run: Run) -> float:
    return math.log(seconds(run) or math.nan)


def phases(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[Phase]:
    """The phases that take a visible part of a step on either side, the longest first."""
    names = {
        name
        for run in (*runs_a, *runs_b)
        for name in run.series
        if name.startswith("timing_s/") and name.count("/") == 1
    }
    found = []
    for name in names:
        medians = [[each for run in side if (each := seconds(run, name)) is not None] for side in (runs_a, runs_b)]
        if all(medians):
            found.append(Phase(name, median(medians[0]), median(medians[1])))
    step = next((max(phase.a, phase.b) for phase in found if phase.name == STEP), 0.0)
    visible = [phase for phase in found if max(phase.a, phase.b) >= _SMALLEST_PHASE * step]
    return sorted(visible, key=lambda phase: (-max(phase.a, phase.b), phase.name))


def case(runs_a: Sequence[Run], runs_b: Sequence[Run], *, name: str = "speed", profile: str | None = None) -> Verdict:
    """The verdict on the speed of B. Ratios are judged, so they are compared as logarithms."""
    base = Verdict(
        case=name, word=Word.INCONCLUSIVE, reason="", workload=runs_a[0].workload, how="medians of timing_s/step"
    )
    unusable = [run.name for run in (*runs_a, *runs_b) if not (seconds(run) or 0) > 0]
    if unusable:
        reason = f"'{unusable[0]}' has no {STEP} after its first step: verl's SFT trainer records none, and a run needs two steps"
        return dataclasses.replace(base, reason=reason)
    pairs = pairing.of(runs_a, runs_b).pairs
    if len(pairs) < LOOKS[0]:
        pairs = pairing.replicates(pairs)  # for times, the seed does not matter
    if not pairs:
        return dataclasses.replace(base, reason="no run of B has the seed of a run of A: run B with the seeds of A")
    floor = FLOORS[profile or profile_of([*runs_a, *runs_b])]
    a = statistics.taken([[_log_seconds(pair.a[0])] for pair in pairs])
    b = statistics.taken([[_log_seconds(pair.b[0])] for pair in pairs])
    ratio = math.exp(float((b - a).mean()))
    told = f"a step of B takes {ratio:.2f} times as long as one of A"
    base = dataclasses.replace(base, pairs=len(pairs), notes=tuple(_notes(runs_a, runs_b)))
    if len(pairs) < LOOKS[0]:
        needed = LOOKS[0] - len(pairs)
        return dataclasses.replace(
            base,
            reason=f"{told}, in {len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'}: run {needed} more",
            pairs_needed=needed,
        )
    for pairs_seen in [look for look in LOOKS if look <= len(pairs)]:
        judged = _look(base, a[:pairs_seen], b[:pairs_seen], floor, len(pairs))
        if judged.word is not Word.INCONCLUSIVE:
            return judged
    return judged


def _look(base: Verdict, a: statistics.Array, b: statistics.Array, floor: float, have: int) -> Verdict:
    spread = statistics.noise(None, a)
    margin = statistics.margins(statistics.taken([math.log1p(floor)]), spread)
    look = statistics.look_at(a, b, margin)
    ratio = math.exp(float(look.mean[0]))
    beyond = bool(look.differs[0]) and abs(look.mean[0]) > margin[0]
    word = (
        (Word.REGRESSED if ratio > 1 else Word.IMPROVED) if beyond else Word.SAME if look.same[0] else Word.INCONCLUSIVE
    )
    seconds_a, seconds_b = (math.exp(float(side.mean())) for side in (a, b))
    reason = f"a step takes {seconds_a:.3g} s with A and {seconds_b:.3g} s with B ({ratio:.2f} times; the margin is {math.expm1(margin[0]):.0%})"
    needed = None
    if word is Word.SAME and margin[0] > _TOO_NOISY * math.log1p(floor):
        word = Word.INCONCLUSIVE
        reason += f": A's own steps vary too much to see {floor:.0%}; use a quieter machine, or longer runs"
    elif word is Word.INCONCLUSIVE:
        needed = statistics.pairs_needed(b - a, margin, have)
        reason += (
            f": run {needed} more {'pair' if needed == 1 else 'pairs'}"
            if needed
            else ": more pairs would not decide it"
        )
    row = Row(
        STEP,
        seconds_a,
        seconds_b,
        seconds_a * math.expm1(margin[0]),
        float(look.p[0]),
        float(look.sameness_p[0]),
        word.value,
    )
    return dataclasses.replace(
        base,
        word=word,
        reason=reason,
        rows=(row,),
        pairs_needed=needed,
        how=f"{look.pairs} pairs, medians of {STEP} without the warm-up",
    )


def _notes(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[str]:
    notes = [
        f"{phase.name}: A {phase.a:.3g} s, B {phase.b:.3g} s ({phase.b / phase.a:.2f} times)"
        for phase in phases(runs_a, runs_b)
        if phase.name != STEP and phase.a > 0
    ]
    for side, runs in (("A", runs_a), ("B", runs_b)):
        for run in runs:
            usual = seconds(run) or math.inf
            spikes = [step for step, value in sorted(run.series[STEP].items())[1:] if value > _SPIKE * usual]
            if spikes:
                notes.append(
                    f"{side}'s '{run.name}' has {len(spikes)} of {len(run.series[STEP])} steps of more than {_SPIKE:.0f} medians: step {spikes[0]} took {run.series[STEP][spikes[0]]:.3g} s"
                )
    return notes
