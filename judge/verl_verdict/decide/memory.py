"""Does B need more memory, or more with each step? The memory of the job's own processes, not of the machine.

The peak is the largest sum over all processes at one time, because that is what the machines must hold: processes peak
at different times, so the sum of their own peaks may never have been in use. The growth is the Theil-Sen slope of this
sum after the warm-up, per step where the record has the steps' seconds, else per minute.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median

import numpy as np
from scipy.stats import theilslopes

from verl_verdict.decide import cost, speed
from verl_verdict.decide.cost import Cost, Quantity
from verl_verdict.decide.diagnosis import listed
from verl_verdict.decide.statistics import Array
from verl_verdict.read.records import ProcessMemory, Run

PEAK = "memory of all processes, peak in GB"
GPU = "perf/max_memory_allocated_gb"
_GB, _MB = 1e9, 1e6
_SHORTEST = 10.0  # seconds of records after the warm-up: in less, growth and the ups and downs of a step look alike
_POINTS = 200  # of the sum, evenly spaced, for the slope
_LATER = {"step": 100.0, "minute": 60.0}  # growth matters by what it comes to: in so many steps or minutes
_FEWEST_STEPS = 3  # for a growth per step
_SMALLEST_SHARE = 0.02  # of the peak: processes with less are not listed
_HOW = "the largest sum over a run's processes, and its slope after the first third"


@dataclass(frozen=True)
class Share:
    """What the processes of one name had at most, as the median over the runs."""

    name: str
    a: float
    b: float


def peak(run: Run) -> float | None:
    """The most bytes that the processes had at one time; None without records."""
    sums = [float(_total(each, _times(each)).max()) for each in run.memory.attempts]
    return max(sums, default=None)


def growth(run: Run) -> float | None:
    """Bytes per second after the warm-up, in the last attempt; None if its records are too short."""
    window = _window(run)
    if window is None or window[1] - window[0] < _SHORTEST:
        return None
    times = np.linspace(*window, _POINTS)
    return float(theilslopes(_total(run.memory.attempts[-1], times), times).slope)


def unit_of(runs: Sequence[Run]) -> str:
    """What growth is counted in: steps if all runs recorded their seconds, else minutes."""
    return "step" if all(speed.seconds(run) for run in runs) else "minute"


def growth_per(run: Run, unit: str) -> float | None:
    """Bytes per step or minute; None if the run's records are too short."""
    per_second = growth(run)
    return None if per_second is None else per_second * (60.0 if unit == "minute" else speed.seconds(run) or math.nan)


def _window(run: Run) -> tuple[float, float] | None:
    """From after the warm-up to the end: the first third of the training is warm-up.

    Without times of steps, it is the first third of the whole record.
    """
    if not run.memory.attempts:
        return None
    processes = run.memory.attempts[-1]
    begin = min(each.times[0] for each in processes)
    last = max(each.times[-1] for each in processes)
    # Processes end one after the other, and up to one interval after their last record: none is missing before that.
    end = last - max(each.every for each in processes if each.times[-1] + each.every >= last)
    trained = sum(value for value in run.series.get(speed.STEP, {}).values() if math.isfinite(value))
    start = max(begin, end - trained) if trained else begin
    return start + (end - start) / 3, end


def _times(processes: Sequence[ProcessMemory]) -> Array:
    return np.unique(np.concatenate([each.times for each in processes]))


def _total(processes: Sequence[ProcessMemory], times: Array) -> Array:
    """The sum over all processes at these times.

    Each counts from its first record until one interval after its last one.
    """
    total = np.zeros_like(times)
    for each in processes:
        lived = [*each.times, each.times[-1] + each.every]
        total += np.interp(times, lived, [*each.sizes, each.sizes[-1]], left=0.0, right=0.0)
    return total


def gpu_peak(run: Run) -> float | None:
    """The most bytes that torch allocated on a GPU, as verl recorded it; None without."""
    return max(_on_gpu(run).values(), default=None)


def _on_gpu(run: Run) -> dict[int, float]:
    """At each step the most bytes that torch had allocated on a GPU until then, in the worker that had most."""
    found: dict[int, float] = {}
    for values in (each for name, each in run.series.items() if name.endswith(GPU)):
        for step, value in values.items():
            if math.isfinite(value) and value > 0:
                found[step] = max(found.get(step, 0.0), value * _GB)
    return found


def gpu_growth(run: Run) -> float | None:
    """Bytes per step on a GPU, without the first third of the steps; None if they are too few."""
    course = sorted(_on_gpu(run).items())
    after = course[math.ceil(len(course) / 3) :]
    if len(after) < _FEWEST_STEPS:
        return None
    steps, sizes = zip(*after, strict=True)
    return float(theilslopes(sizes, steps).slope)


def gpu_grows(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> str | None:
    """What is said where the memory is not judged: that on a GPU it grows more with B than with A, by what matters.

    Else None.
    """
    a, b = ([each for run in runs if (each := gpu_growth(run)) is not None] for runs in (runs_a, runs_b))
    if not (a and b) or not (mean(b) - mean(a)) * _LATER["step"] > cost.FLOORS["gpu"] * _level(gpu_peak, runs_a):
        return None
    return f"the memory on a GPU grows by {mean(a) / _MB:.3g} MB a step with A and by {mean(b) / _MB:.3g} MB with B: judge it with --memory"


def shares(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[Share]:
    """The largest memory of the processes of each name, the largest first, without those with a small share."""
    sides = [[_by_name(run) for run in runs] for runs in (runs_a, runs_b)]
    names = {name for side in sides for each in side for name in each}
    found = [
        Share(name, *(median(each.get(name, 0.0) for each in side) if side else 0.0 for side in sides))
        for name in sorted(names)
    ]
    most = max((peak(run) or 0.0 for run in (*runs_a, *runs_b)), default=0.0)
    visible = [share for share in found if max(share.a, share.b) >= _SMALLEST_SHARE * most]
    return sorted(visible, key=lambda share: -max(share.a, share.b))


def _by_name(run: Run) -> dict[str, float]:
    found: dict[str, list[ProcessMemory]] = {}
    for each in run.memory.attempts[-1] if run.memory.attempts else ():
        found.setdefault(each.name or "unknown", []).append(each)
    return {name: float(_total(each, _times(each)).max()) for name, each in found.items()}


def unusable(run: Run) -> str | None:
    """Why nothing can be said about the memory of this run, as a sentence without its end."""
    if not run.memory.attempts:
        return f"'{run.name}' has no records of its processes' memory: a metrics.jsonl alone has none"
    if run.memory.lacking:
        return f"'{run.name}' has no record of the memory of {listed(run.memory.lacking, 1)}"
    if ended := _not_ended(run):
        return ended
    if growth(run) is None:
        return f"'{run.name}' has less than {_SHORTEST:.0f} s of memory records after its warm-up, too few to see growth: train more steps"
    return None


def _not_ended(run: Run) -> str | None:
    why = run.failure or run.unfinished
    return f"'{run.name}' did not run to its end ({why}), so its memory shows nothing" if why else None


class MemoryCost(Cost):
    """The memory of the runs. Of plain records it is that on a GPU, if verl recorded it."""

    how = _HOW
    how_of_look = _HOW

    @cached_property
    def why_not(self) -> str | None:
        """Why one of the runs shows nothing, or that they are of different length."""
        is_plain = all(gpu_peak(run) and not run.memory.attempts for run in self.runs)
        why = _not_ended if is_plain else unusable
        return next((each for run in self.runs if (each := why(run))), None) or _other_steps(self.runs)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """Peak and growth of all processes, and of what torch allocates on a GPU: as far as all runs have them."""
        of_a = [a for a, _ in self.pairs]
        return [*_of_processes(self.runs, of_a, self.floor), *_of_gpus(self.runs, of_a, self.floor)]

    @property
    def notes(self) -> list[str]:
        """The processes with a visible share."""
        return [
            f"{share.name}: at most {_gb(share.a)} with A, {_gb(share.b)} with B"
            for share in shares(self.runs_a, self.runs_b)
        ]


def _other_steps(runs: Sequence[Run]) -> str | None:
    first, *others = runs
    other = next((run for run in others if run.last_step != first.last_step), None)
    if other is None:
        return None
    steps = f"'{first.name}' has {first.last_step} steps and '{other.name}' {other.last_step}"
    return f"{steps}: only runs of equal length need comparable memory"


def _of_processes(runs: Sequence[Run], of_a: Sequence[Run], floor: float) -> list[Quantity]:
    if not all(run.memory.attempts for run in runs):
        return []
    unit, level = unit_of(runs), _level(peak, of_a)
    return [
        _peak(PEAK, "all processes together need at most", peak, floor),
        _growth("memory of all processes", unit, level, lambda run: growth_per(run, unit), floor),
    ]


def _of_gpus(runs: Sequence[Run], of_a: Sequence[Run], floor: float) -> list[Quantity]:
    if not all(gpu_peak(run) for run in runs):
        return []
    found = [_peak(f"{GPU}, peak in GB", "torch allocates on a GPU at most", gpu_peak, floor)]
    if all(gpu_growth(run) is not None for run in runs):
        found.append(_growth("memory on a GPU", "step", _level(gpu_peak, of_a), gpu_growth, floor))
    return found


def _level(size: Callable[[Run], float | None], runs: Sequence[Run]) -> float:
    return mean(size(run) or math.nan for run in runs)


def _peak(name: str, what: str, size: Callable[[Run], float | None], floor: float) -> Quantity:
    """A ratio, so its logarithm is judged."""

    def summary(a: float, b: float, margin: float) -> str:
        return f"{what} {_gb(math.exp(a))} with A and {_gb(math.exp(b))} with B ({math.exp(b - a):.2f} times; the margin is {math.expm1(margin):.0%})"

    return Quantity(
        name=name,
        measure=lambda run: math.log(size(run) or math.nan),
        floor=math.log1p(floor),
        few=lambda a, b: f"{what} {_gb(math.exp(a))} with A and {_gb(math.exp(b))} with B",
        summary=summary,
        noisy=f"A's own memory varies too much to see {floor:.0%}; use longer runs",
        unit=1 / _GB,
    )


def _growth(what: str, unit: str, level: float, growth_of: Callable[[Run], float | None], floor: float) -> Quantity:
    """What the growth of many steps would come to, as a share of A's peak `level`.

    A leak is small in a short run and fatal in a long one.
    """
    later = _LATER[unit]
    to_mb = level / later / _MB

    def few(a: float, b: float) -> str:
        return f"the {what} grows by {a * to_mb:.3g} MB a {unit} with A and by {b * to_mb:.3g} MB with B"

    return Quantity(
        name=f"{what}, growth in MB per {unit}",
        measure=lambda run: (growth_of(run) or 0.0) * later / level,
        floor=floor,
        few=few,
        summary=lambda a, b, margin: f"{few(a, b)} (the margin is {margin * to_mb:.3g} MB)",
        noisy=f"A's own growth varies too much to see {floor * to_mb:.3g} MB a {unit}; use longer runs",
        is_ratio=False,
        unit=to_mb,
    )


def _gb(size: float) -> str:
    return f"{size / _GB:.3g} GB"
