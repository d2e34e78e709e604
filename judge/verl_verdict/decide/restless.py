"""Metrics that vary with the clock although their names do not say so: a latency that the user's own code logs.

They alone differ between runs of A with one seed, while all that training is made of is bit-equal. So they say nothing about training, and
the rest is compared exactly. They are judged by A's own noise.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from verl_verdict.decide import exact
from verl_verdict.decide.diagnosis import a_and_b, listed
from verl_verdict.decide.statistics import mean
from verl_verdict.read import metrics
from verl_verdict.read.records import Run

_FACTOR = 3.0  # standard deviations of A's values that the mean of a run of B may be away


def find(runs_a: Sequence[Run]) -> list[str]:
    """These metrics. None if one that verl writes differs, too, or if nothing that varies is equal."""
    differing: set[str] = set()
    is_trained = False
    for one, other in _repeated(runs_a):
        if exact.one_sided(one, other):
            return []
        every = itertools.chain.from_iterable(exact.differences(one, other))
        apart = {each.metric for each in every if each.size > exact.ROUNDING}
        equal = [name for name in exact.compared(one, other) if metrics.is_of_update(name) and name not in apart]
        is_trained = is_trained or any(len(set(one.series[name].values())) > 1 for name in equal)
        differing |= apart
    return sorted(differing) if is_trained and all(map(metrics.is_unknown, differing)) else []


def _repeated(runs: Sequence[Run]) -> Iterable[tuple[Run, Run]]:
    """Pairs of runs with one seed; of runs whose seeds are not known, all."""
    return ((one, other) for one, other in itertools.combinations(runs, 2) if one.seed == other.seed)


def note(names: Sequence[str]) -> str:
    """What is said of them."""
    what = f"runs of A differ in {listed(list(names))} alone, so that is compared by A's own noise and all else exactly"
    return f"{what}: if it is a time, leave it out with --ignore {','.join(names)} (in a suite: ignore)"


def apart(names: Sequence[str], runs_a: Sequence[Run], runs_b: Sequence[Run]) -> str | None:
    """The first of them in which all runs of B are far from what A does, with the means."""
    return next(
        (said for name in names if (said := _apart(_courses(name, runs_a), _courses(name, runs_b), name))), None
    )


def _courses(name: str, runs: Sequence[Run]) -> list[list[float]]:
    return [list(run.series[name].values()) for run in runs if name in run.series]


def _apart(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], name: str) -> str | None:
    of_a = [value for values in a for value in values]
    if not b:
        return f"{name} is not in B"
    middle, means = mean(of_a), list(map(mean, b))
    with np.errstate(all="ignore"):
        limit = _FACTOR * float(np.std(of_a))
    if not all(abs(each - middle) <= limit for each in means) and (min(means) > middle or max(means) < middle):
        return f"{name}: {a_and_b(middle, mean(means))}"
    return None
