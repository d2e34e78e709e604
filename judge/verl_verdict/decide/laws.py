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

_OF_CONFIG = "which the config decides"
_OF_ALL = "on which all runs of A agree bit for bit"
_OF_SEED = "on which A's runs with one seed agree bit for bit"
_OF_PAIRS = "and so on the same side at every step of every pair"
_FEWEST = 3  # runs of A, or pairs
_FEWEST_STEPS = 20  # of all pairs together, that are on one side by accident in one of 500,000 sessions
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
    law: str  # how it is known

    def __str__(self) -> str:
        if self.is_constant:
            values = f"{self.metric} is {number(self.b)} in B at all steps, and {number(self.a)} in A"
        else:
            many = f" and at {self.steps - 1} more" if self.steps > 1 else ""
            values = f"{self.metric} is {number(self.b)} in B at step {self.step}{many}, and {number(self.a)} in A"
        moved = "; B has A's values one step apart, so perhaps only the log moved" if self.is_shifted else ""
        return f"{values}, {self.law}{moved}"


def breaches(
    runs_a: Sequence[Run], runs_b: Sequence[Run], pairs: Sequence[Pair], *, is_replay: bool = False
) -> list[Breach]:
    """The laws of A that B breaks, in causal order. One run that breaks what the config decides is enough; else most runs of B must.

    Prompts of other seeds may be alike in all runs of A by accident, and not in one of B. `is_replay`: all runs train on A's rollouts.
    """
    every = (_breach_of(name, runs_a, runs_b, pairs, is_replay) for name in _recorded([*runs_a, *runs_b]))
    return sorted((each for each in every if each), key=lambda each: metrics.causal_rank(each.metric))


def _breach_of(
    name: str, runs_a: Sequence[Run], runs_b: Sequence[Run], pairs: Sequence[Pair], is_replay: bool
) -> Breach | None:
    """The first breach of a law; None if it is no law, or if too few runs of B break it."""
    a, b = _with(name, runs_a), _with(name, runs_b)
    is_of_all = len(a) == len(runs_a) and len(b) == len(runs_b)
    if not (a and b) or not (is_of_all or metrics.is_of_config(name)):
        return None
    if _is_law(name, [a], len(a)):
        return _first_of_most(name, [(a[0], run) for run in b], _OF_CONFIG if len(a) == 1 else _OF_ALL)
    if _is_law_of_seeds(name, pairs, is_replay):
        return _first_of_most(name, [(pair.a[0], run) for pair in pairs for run in pair.b], _OF_SEED)
    return _breach_of_pairs(name, pairs)


def _with(name: str, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if name in run.series]


def _first_of_most(name: str, partners: Sequence[tuple[Run, Run]], law: str) -> Breach | None:
    """The earliest breach, if most runs of B break the law, or any breaks what the config decides."""
    broken = [breach for a, b in partners if (breach := _breach(name, a, b, of=law))]
    is_enough = metrics.is_of_config(name) or 2 * len(broken) > len(partners)
    return min(broken, key=lambda each: each.step) if broken and is_enough else None


def _recorded(runs: Sequence[Run]) -> set[str]:
    names = {name for run in runs for name in run.series}
    is_mixed = len({metrics.is_v1(run.series) for run in runs}) > 1
    return {name for name in names if not metrics.is_time(name) and not (is_mixed and metrics.is_redefined_by_v1(name))}


def _is_law(name: str, groups: Sequence[Sequence[Run]], runs: int) -> bool:
    """Do the runs of each group agree, and is that no accident? The config alone needs no second run.

    Runs whose noise begins late agree until then, so what is sampled or trained needs three.
    """
    if not all(_agree(name, group) for group in groups):
        return False
    if metrics.is_of_config(name) or (metrics.is_before_sampling(name) and runs > 1):
        mean = metrics.mean_of_family(name)
        return all(_agree(mean, group) for group in groups if mean in group[0].series)
    return runs >= _FEWEST and math.prod(_chance(name, group) for group in groups) < _ACCIDENT


def _is_law_of_seeds(name: str, pairs: Sequence[Pair], is_replay: bool) -> bool:
    """The same for runs with one known seed. On A's rollouts two are enough for what is sampled, because that is equal."""
    repeated = [pair.a for pair in pairs if len(pair.a) > 1 and pair.a[0].seed is not None]
    if not repeated or any(name not in run.series for group in repeated for run in group):
        return False
    is_given = is_replay and metrics.is_of_sampling(name) and not metrics.is_of_mismatch(name)
    runs = max(sum(map(len, repeated)), _FEWEST) if is_given else max(map(len, repeated))
    return _is_law(name, repeated, runs)


def _breach_of_pairs(name: str, pairs: Sequence[Pair]) -> Breach | None:
    """Prompts that are longer in B, or shorter, at every step of every pair with a known seed: no accident, if these are many."""
    known = [(pair.a[0], pair.b[0]) for pair in pairs if pair.a[0].seed is not None]
    if not metrics.is_of_data(name) or metrics.is_of_config(name) or len(known) < _FEWEST:
        return None
    if any(name not in run.series for pair in known for run in pair):
        return None
    every = [_breach(name, a, b, of=_OF_PAIRS) for a, b in known]
    found = [each for each in every if each and each.steps == each.of]
    is_at_every_step = len(found) == len(known) and sum(each.of for each in found) >= _FEWEST_STEPS
    return found[0] if is_at_every_step and _is_on_one_side(name, known) else None


def _is_on_one_side(name: str, known: Sequence[tuple[Run, Run]]) -> bool:
    courses = [(a.series[name], b.series[name]) for a, b in known]
    return len({other[step] > mine[step] for mine, other in courses for step in mine.keys() & other.keys()}) == 1


def _agree(name: str, runs: Sequence[Run]) -> bool:
    first = runs[0].series[name]
    return all(run.series[name] == first for run in runs[1:])


def _chance(name: str, runs: Sequence[Run]) -> float:
    """How likely the runs agree at every step if each draws its values from those that were seen. 1 for a single run or value."""
    values = runs[0].series[name].values()
    shares = [count / len(values) for count in Counter(values).values()]
    at_a_step = sum(share ** len(runs) for share in shares) if len(runs) > 1 else 1.0
    return float(at_a_step ** len(values))


def _breach(name: str, a: Run, b: Run, *, of: str) -> Breach | None:
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
        is_shifted=len({mine[step] for step in steps}) > 1 and any(_is_moved(mine, other, steps, by) for by in (-1, 1)),
        law=of,
    )


def _is_moved(a: Mapping[int, float], b: Mapping[int, float], steps: Iterable[int], by: int) -> bool:
    both = [(b[step], a[step + by]) for step in steps if step + by in a]
    return len(both) > 1 and all(mine == other for mine, other in both)
