"""Runs with one seed, compared value by value: all metrics but times, every step."""

import bisect
import dataclasses
import enum
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from verl_verdict.read import metrics
from verl_verdict.read.records import Run

# Another order of summation shows first as a difference of at most this, relative to the metric's scale. Measured: 1.4e-6 between
# equal runs of the rehearsal, whose samples come back in another order; 1.5e-5 where GAE is written as an equal expression.
ROUNDING = 2e-5
_GROWTH = 100.0  # how much rounding may grow in a step, except if it changes a sampled token
BLIND = 0.1  # noise of a larger share of a metric's size hides what people want to see
_NOISE_FACTOR = 3.0  # a second perturbed run would not do exactly what the first did
# What one repeat differs by at one step may be small by chance, or nothing: log-probs and some metrics are rounded to bfloat16.
_CLEAR_FACTOR = 10.0
_CLEAR_STEPS = 3
_CLEAR_SIZE = 0.01  # of a metric's size: a unit in the last place of bfloat16 is up to 0.008
_Key = TypeVar("_Key")


class Outcome(enum.Enum):
    """What an exact comparison found."""

    IDENTICAL = "bit-equal"
    ROUNDING = "equal but for rounding"
    GROWS = "begins as rounding, and grows"
    DIFFERS = "differs"


class ValueDifference(NamedTuple):
    """One value that differs; `size` is relative to the metric's scale."""

    step: int
    metric: str
    a: float
    b: float
    size: float


@dataclass(frozen=True)
class OneSided:
    """A metric that only one side recorded: at some steps (`step` is the first), or at all (`step` is None)."""

    metric: str
    side: str
    step: int | None
    why: str | None  # why another release explains it

    def __str__(self) -> str:
        other = "B" if self.side == "A" else "A"
        when = "" if self.step is None else f" at step {self.step}"
        return f"{self.metric} is not in {other}{when}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Comparison:
    """A run of A against one of B with the same seed."""

    outcome: Outcome
    first: ValueDifference | None
    differences: tuple[ValueDifference, ...]  # up to the first step that differs by more than rounding
    metrics: int
    steps: int


def worst_first(found: Comparison) -> tuple[int, int]:
    """The order of comparisons: the one that differs most, and of those the one that differs first."""
    order = (Outcome.DIFFERS, Outcome.GROWS, Outcome.ROUNDING, Outcome.IDENTICAL)
    return order.index(found.outcome), found.first.step if found.first else 0


# Steps, and the largest difference of A against A up to each of them.
Running = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Noise:
    """What A does against A: `repeats` with one seed, and `perturbed` runs, whose last bits were changed.

    By metric. Which metric of a stage shows a perturbation first, and how its mean, max and min share it, is chance; so `stages` has
    the largest difference of perturbed runs in each stage, relative to the scale of its metric; under None that of all losses and
    gradients. What differs by up to `factor` times as much is noise.
    """

    repeats: Mapping[str, Running] = field(default_factory=dict)
    perturbed: Mapping[str, Running] = field(default_factory=dict)
    stages: Mapping[metrics.Stage | None, Running] = field(default_factory=dict)
    factor: float = _NOISE_FACTOR
    rounding: float = ROUNDING
    until: int = 0  # what A does up to this step may come earlier, too, what follows an update is as far off as updates, and one step is chance
    any_order: bool = False  # the batches of these runs may have any order


def differences(a: Run, b: Run, *, any_order: bool = False) -> Iterator[list[ValueDifference]]:
    """The values that both have and that differ: a list for each step, in causal order. NaN and infinity differ even from themselves.

    With `any_order` the batches may have any order, so a policy loss is relative to the terms of its sum.
    """
    known = [
        (name, a.series[name], b.series[name], metrics.scale_of(name, a.series, is_sum=any_order))
        for name in sorted(compared(a, b), key=metrics.causal_rank)
    ]
    for step in a.steps:
        found = []
        for name, mine, others, scale in known:
            value, other = mine.get(step), others.get(step)
            if value is None or other is None or (value == other and math.isfinite(value)):
                continue
            distance = abs(value - other)
            size = distance / scale if scale > 0 and math.isfinite(distance) else math.inf
            found.append(ValueDifference(step, name, value, other, size))
        yield found


def compared(a: Run, b: Run) -> list[str]:
    """The metrics that both have recorded, without times."""
    return [
        name
        for name in a.series
        if name in b.series and not metrics.is_time(name) and not metrics.is_redefined(name, a.series, b.series)
    ]


def one_sided(a: Run, b: Run) -> list[OneSided]:
    """The metrics, or steps of metrics, that only one side has; times are left out."""
    found = []
    for mine, other, side in ((a, b, "A"), (b, a, "B")):
        for name, values in mine.series.items():
            if metrics.is_time(name):
                continue
            if name not in other.series:
                found.append(OneSided(name, side, None, metrics.why_one_sided(name)))
            elif missing := sorted(values.keys() - other.series[name].keys()):
                found.append(OneSided(name, side, missing[0], None))
    return sorted(found, key=lambda each: metrics.causal_rank(each.metric))


def one_sided_in_noise(
    runs_a: Sequence[Run], runs_b: Sequence[Run], certain: Collection[str]
) -> tuple[list[OneSided], list[str]]:
    """The same where A does not repeat itself, and the metrics that some runs record at other steps than others, which shows nothing.

    It counts where all runs of A agree: what they have and B lacks, in all runs, of the `certain` metrics in any; and what they lack
    and all runs of B have.
    """
    found: list[OneSided] = []
    sporadic: list[str] = []
    for name in sorted(_recorded([*runs_a, *runs_b]), key=metrics.causal_rank):
        of_a, of_b = ([set(run.series.get(name, {})) for run in runs] for runs in (runs_a, runs_b))
        if _are_equal(of_a) and (one_sided := _differing_presence(name, of_a[0], of_b, is_certain=name in certain)):
            found.append(one_sided)
        elif not _are_equal([*of_a, *of_b]):
            sporadic.append(name)
    return found, sporadic


def _recorded(runs: Iterable[Run]) -> set[str]:
    return {name for run in runs for name in run.series if not metrics.is_time(name)}


def _are_equal(steps: Sequence[set[int]]) -> bool:
    return all(each == steps[0] for each in steps)


def _differing_presence(name: str, of_a: set[int], of_b: Sequence[set[int]], *, is_certain: bool) -> OneSided | None:
    """How B's steps of a metric differ from those on which all runs of A agree."""
    in_all, in_any = set.intersection(*of_b), set().union(*of_b)
    lost = of_a - (in_all if is_certain else in_any)
    gained = in_all - of_a
    if lost:
        is_all = not in_any
        return OneSided(name, "A", None if is_all else min(lost), metrics.why_one_sided(name) if is_all else None)
    if gained:
        return OneSided(name, "B", min(gained) if of_a else None, None if of_a else metrics.why_one_sided(name))
    return None


def noise(groups: Iterable[Sequence[Run]], perturbed: Iterable[tuple[Run, Run]] = (), any_order: bool = False) -> Noise:
    """The noise of A: the runs of each group repeat each other, and each perturbed run comes after its original."""
    of_repeats: dict[str, dict[int, float]] = {}
    of_perturbed: dict[str, dict[int, float]] = {}
    of_stages: dict[metrics.Stage | None, dict[int, float]] = {}
    for one, other in itertools.chain.from_iterable(itertools.combinations(group, 2) for group in groups):
        for each in itertools.chain.from_iterable(differences(one, other)):
            _enlarge(of_repeats, each.metric, each.step, abs(each.a - each.b))
    for original, run in perturbed:
        for each in itertools.chain.from_iterable(differences(original, run, any_order=any_order)):
            _enlarge(of_perturbed, each.metric, each.step, abs(each.a - each.b))
            if math.isfinite(each.size):  # A's metric is 0 at every step, and has no scale
                _enlarge(of_stages, metrics.stage_of(each.metric), each.step, each.size)
                if metrics.is_of_update(each.metric):
                    _enlarge(of_stages, None, each.step, each.size)
    return Noise(_running(of_repeats), _running(of_perturbed), _running(of_stages), any_order=any_order)


def noise_of_repeats(groups: Sequence[Sequence[Run]]) -> tuple[Noise, Noise]:
    """The noise of an A that differs from itself on equal rollouts: what is surely no more than that, and what may be.

    Few repeats do not measure the noise of each metric, so all metrics of a stage share it. Before a difference is surely more, it is also
    beyond that of all updates, if it follows one: another order of the batch changes whole updates, and may spare a stage by chance.
    """
    known = noise(groups, [(group[0], other) for group in groups for other in group[1:]], any_order=True)
    until = max(groups[0][0].steps[:_CLEAR_STEPS], default=0)
    return known, dataclasses.replace(known, factor=_CLEAR_FACTOR, rounding=_CLEAR_SIZE, until=until)


def hidden(known: Noise, a: Run, b: Run) -> tuple[float, str]:
    """How large a difference these repeats of A may hide, as a share of a metric's size, and in which metric most."""
    found = []
    for name in compared(a, b):
        _, largest = known.repeats.get(name, ([], []))
        scale = metrics.scale_of(name, a.series, is_sum=known.any_order)
        if largest and scale > 0 and metrics.stage_of(name).metrics:
            found.append((known.factor * largest[-1] / scale, name))
    return max(found, default=(0.0, ""))


def blind_from(known: Noise) -> int | None:
    """The first step at which perturbed runs differ by more than BLIND; None if they never do."""
    return min(
        (step for running in known.stages.values() for step, size in zip(*running, strict=True) if size > BLIND),
        default=None,
    )


def _enlarge(known: dict[_Key, dict[int, float]], key: _Key, step: int, value: float) -> None:
    steps = known.setdefault(key, {})
    steps[step] = max(steps.get(step, 0.0), value)


def _running(known: Mapping[_Key, Mapping[int, float]]) -> dict[_Key, Running]:
    return {
        key: (sorted(values), list(itertools.accumulate((values[step] for step in sorted(values)), max)))
        for key, values in known.items()
    }


def compare(a: Run, b: Run, known: Noise) -> Comparison:
    """B against A: identical, equal but for rounding, or different from a certain value on."""
    found: list[ValueDifference] = []
    beyond: ValueDifference | None = None
    counting = _lasting(a, b, known) if known.until else a.series.keys()
    for at_step in differences(a, b, any_order=known.any_order):
        found += at_step
        beyond = next((each for each in at_step if each.metric in counting and not _is_rounding(each, known)), None)
        if beyond:
            break
    if not found:
        outcome = Outcome.IDENTICAL
    elif beyond is None:
        outcome = Outcome.ROUNDING
    else:
        outcome = Outcome.GROWS if _has_grown(beyond, found, known) else Outcome.DIFFERS
    first = beyond or (found[0] if found else None)
    return Comparison(outcome, first, tuple(found), len(compared(a, b)), len(set(a.steps) & set(b.steps)))


def _lasting(a: Run, b: Run, known: Noise) -> set[str]:
    """The metrics that differ before any update, or at two steps: another order of a batch that is split into updates may move one step far."""
    every = itertools.chain.from_iterable(differences(a, b, any_order=known.any_order))
    beyond = [each for each in every if not _is_rounding(each, known)]
    steps = Counter(each.metric for each in beyond)
    return {each.metric for each in beyond if steps[each.metric] > 1 or not _follows_update(each)}


def _follows_update(each: ValueDifference) -> bool:
    return each.step > 1 or metrics.is_of_update(each.metric)


def _is_rounding(each: ValueDifference, known: Noise) -> bool:
    return each.size <= known.rounding or _is_noise(each, known) or _is_perturbation(each, known)


def _has_grown(first: ValueDifference, found: Iterable[ValueDifference], known: Noise) -> bool:
    """May rounding alone have led to this difference? Then it is no sign of a change, and no sign of sameness either.

    Only if an update before it differed by rounding, more than A does from itself: other weights may sample another token, or
    differ visibly after some steps. A value that was equal and jumps is a change.
    """
    before = [each for each in found if each.step < first.step and not _is_noise(each, known)]
    if not any(metrics.is_of_update(each.metric) for each in before):
        return False
    if metrics.is_of_sampling(first.metric):
        return True
    own = [each for each in before if each.metric == first.metric]
    return bool(own) and first.size <= _GROWTH * own[-1].size


def _is_noise(each: ValueDifference, known: Noise) -> bool:
    """Does A differ as much from itself, up to this step?"""
    return _is_within(abs(each.a - each.b), each.step, known.repeats.get(each.metric), known)


def _is_perturbation(each: ValueDifference, known: Noise) -> bool:
    """Do A's perturbed runs differ as much from A, up to this step?"""
    of_metric = _is_within(abs(each.a - each.b), each.step, known.perturbed.get(each.metric), known)
    of_stage = known.stages.get(metrics.stage_of(each.metric))
    of_updates = known.stages.get(None) if known.until and _follows_update(each) else None
    return of_metric or any(_is_within(each.size, each.step, running, known) for running in (of_stage, of_updates))


def _is_within(distance: float, step: int, running: Running | None, known: Noise) -> bool:
    steps, largest = running or ([], [])
    at = bisect.bisect_right(steps, max(step, known.until)) - 1
    return at >= 0 and math.isfinite(largest[at]) and distance <= known.factor * largest[at]


def repeats(runs: Sequence[Run]) -> bool | None:
    """Do runs with one seed repeat each other, but for rounding? None with fewer than two."""
    if len(runs) < 2:
        return None
    return all(
        compare(runs[0], other, Noise()).outcome in (Outcome.IDENTICAL, Outcome.ROUNDING)
        and not one_sided(runs[0], other)
        for other in runs[1:]
    )
