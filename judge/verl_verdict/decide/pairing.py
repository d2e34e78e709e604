"""Which run of B is compared with which run of A: by seed, or in the given order if the records do not tell their seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_verdict.decide import exact
from verl_verdict.read import comparable
from verl_verdict.read.records import Run


@dataclass(frozen=True)
class Pair:
    """Runs with one seed. The first of each side is compared; the others show whether that side repeats itself."""

    seed: str
    a: tuple[Run, ...]
    b: tuple[Run, ...]


@dataclass(frozen=True)
class Pairing:
    """The pairs, and the runs that have no partner."""

    pairs: tuple[Pair, ...]
    alone_a: tuple[Run, ...] = ()
    alone_b: tuple[Run, ...] = ()


def pair_runs(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Pairing:
    """Pairs by seed if all runs tell theirs."""
    if all(run.seed is not None for run in (*runs_a, *runs_b)):
        return _by_seed(runs_a, runs_b)
    if exact.repeats(runs_a):  # they repeat each other, so they had one seed
        return Pairing((Pair("the same", tuple(runs_a), tuple(runs_b)),))
    number = min(len(runs_a), len(runs_b))
    pairs = tuple(Pair(str(at + 1), (runs_a[at],), (runs_b[at],)) for at in range(number))
    return Pairing(pairs, tuple(runs_a[number:]), tuple(runs_b[number:]))


def _by_seed(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Pairing:
    found = []
    for seed in dict.fromkeys(str(run.seed) for run in runs_a):
        a, b = (tuple(run for run in side if run.seed == seed) for side in (runs_a, runs_b))
        found += [Pair(seed, a, b)] if b else []
    paired = {pair.seed for pair in found}
    alone = (tuple(run for run in side if run.seed not in paired) for side in (runs_a, runs_b))
    return Pairing(tuple(found), *alone)


def compared(runs_a: Sequence[Run]) -> list[Run]:
    """The runs of A in the order in which they are compared: as given, or with replay the last one of each seed first.

    There the first one recorded the rollouts, and verl hands a recording on in another order than it was generated. So it counts only until
    two replayed runs with one seed tell how A repeats itself.
    """
    if not all(comparable.REPLAY in run.facts and run.seed is not None for run in runs_a):
        return list(runs_a)
    of_seeds = [[run for run in runs_a if run.seed == seed] for seed in dict.fromkeys(run.seed for run in runs_a)]
    first = 1 if any(len(each) > 2 for each in of_seeds) else 0
    return [run for each in of_seeds for run in (each[first:] or each)[::-1]]


def replicates(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Pairs the runs of each seed in the given order. Where A does not repeat itself, such pairs count like pairs of other seeds."""
    return tuple(
        Pair(f"{pair.seed}, run {at}", (a,), (b,))
        for pair in pairs
        for at, (a, b) in enumerate(zip(pair.a, pair.b, strict=False), start=1)
    )
