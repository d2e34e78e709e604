"""What noise cannot change, compared exactly also where A does not repeat itself.

A metric is a law if A's runs agree on it bit for bit, step by step, in a way that chance does not give: it is known before anything is
sampled (the config, prompts, data and their counts), or its values vary so much over the steps that equal ones in all runs are no accident.
A value that is the same at all steps and depends on what was sampled, such as a length at its limit, is a rate and no law.

A law is that of all runs of A, or that of the runs with one seed. For the second kind A must have run twice with a known seed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_verdict.decide.diagnosis import number
from verl_verdict.decide.exact import ROUNDING
from verl_verdict.decide.pairing import Pair
from verl_verdict.read import metrics
from verl_verdict.read.records import Run

_ACCIDENT = 1e-6  # chance of equal values below which they are a law
# What is logged as bfloat16 agrees bit for bit until noise reaches a unit in the last place, up to 0.008 of its size.
_LEARNED = 0.01


@dataclass(frozen=True)
class Breach:
    """A law that B does not keep: the first step at which it does not, the values there, and at how many of the steps."""

    metric: str
    step: int
    a: float
    b: float
    steps: int
    of: int
    is_constant: bool  # one value in A and another one in B, at all steps
    is_shifted: bool  # B has A's values one step earlier or later
    of_seed: bool  # the law of the runs of a seed

    def __str__(self) -> str:
        agree = "A's runs with one seed agree" if self.of_seed else "all runs of A agree"
        if self.is_constant:
            values = f"{self.metric} is {number(self.b)} in B at all steps, and {number(self.a)} in A"
        else:
            many = f" and at {self.steps - 1} more" if self.steps > 1 else ""
            values = f"{self.metric} is {number(self.b)} in B at step {self.step}{many}, and {number(self.a)} in A"
        moved = "; B has A's values one step apart, so perhaps only the log moved" if self.is_shifted else ""
        return f"{values}, on which {agree} bit for bit{moved}"


def breaches(runs_a: Sequence[Run], runs_b: Sequence[Run], pairs: Sequence[Pair]) -> list[Breach]:
    """The laws of A that B breaks, in causal order. One run that breaks what the config decides is enough; else most runs of B must.

    Prompts of other seeds may be alike in all runs of A by accident, and not in one of B.
    """
    every = (_breach_of(name, runs_a, runs_b, pairs) for name in _common([*runs_a, *runs_b]))
    return sorted((each for each in every if each), key=lambda each: metrics.causal_rank(each.metric))


def _breach_of(name: str, runs_a: Sequence[Run], runs_b: Sequence[Run], pairs: Sequence[Pair]) -> Breach | None:
    """The first breach of a law; None if it is no law, or if too few runs of B break it."""
    if _is_law(name, [runs_a], len(runs_a)):
        every = [_breach(name, runs_a[0], run, of_seed=False) for run in runs_b]
    elif _is_law_of_seeds(name, pairs):
        every = [_breach(name, pair.a[0], run, of_seed=True) for pair in pairs for run in pair.b]
    else:
        return None
    broken = [each for each in every if each]
    is_enough = metrics.is_of_config(name) or 2 * len(broken) > len(every)
    return min(broken, key=lambda each: each.step) if broken and is_enough else None


def _common(runs: Sequence[Run]) -> set[str]:
    names = set.intersection(*(set(run.series) for run in runs))
    is_mixed = len({metrics.is_v1(run.series) for run in runs}) > 1
    return {name for name in names if not metrics.is_time(name) and not (is_mixed and metrics.is_redefined_by_v1(name))}


def _is_law(name: str, groups: Sequence[Sequence[Run]], runs: int) -> bool:
    """Do the runs of each group agree, and is that no accident? The config alone needs no second run."""
    if not all(_agree(name, group) for group in groups):
        return False
    if metrics.is_of_config(name) or (metrics.is_before_sampling(name) and runs > 1):
        return True
    return math.prod(_chance(name, group) for group in groups) < _ACCIDENT


def _is_law_of_seeds(name: str, pairs: Sequence[Pair]) -> bool:
    repeated = [pair.a for pair in pairs if len(pair.a) > 1 and pair.a[0].seed is not None]
    return bool(repeated) and _is_law(name, repeated, sum(map(len, repeated)))


def _agree(name: str, runs: Sequence[Run]) -> bool:
    first = runs[0].series[name]
    return all(run.series[name] == first for run in runs[1:])


def _chance(name: str, runs: Sequence[Run]) -> float:
    """How likely the runs agree at every step if each draws its values from those that were seen. 1 for a single run or value."""
    values = runs[0].series[name].values()
    shares = [count / len(values) for count in Counter(values).values()]
    at_a_step = sum(share ** len(runs) for share in shares) if len(runs) > 1 else 1.0
    return float(at_a_step ** len(values))


def _breach(name: str, a: Run, b: Run, *, of_seed: bool) -> Breach | None:
    mine, other = a.series[name], b.series[name]
    steps = sorted(mine.keys() & other.keys())
    least = (ROUNDING if metrics.is_before_sampling(name) else _LEARNED) * metrics.scale_of(name, a.series)
    apart = [step for step in steps if not abs(mine[step] - other[step]) <= least]
    if not apart:
        return None
    first = apart[0]
    is_constant = len({mine[step] for step in steps}) == 1 == len({other[step] for step in steps})
    return Breach(
        metric=name,
        step=first,
        a=mine[first],
        b=other[first],
        steps=len(apart),
        of=len(steps),
        is_constant=is_constant,
        is_shifted=not is_constant and any(_is_moved(mine, other, steps, by) for by in (-1, 1)),
        of_seed=of_seed,
    )


def _is_moved(a: Mapping[int, float], b: Mapping[int, float], steps: Iterable[int], by: int) -> bool:
    both = [(b[step], a[step + by]) for step in steps if step + by in a]
    return len(both) > 1 and all(mine == other for mine, other in both)
