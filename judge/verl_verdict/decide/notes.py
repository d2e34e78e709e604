"""What the reader must know to weigh a verdict, beside its reason."""

from collections.abc import Collection, Sequence

from verl_verdict.decide import exact, memory
from verl_verdict.decide.diagnosis import listed
from verl_verdict.decide.exact import OneSided
from verl_verdict.decide.pairing import Pairing
from verl_verdict.read import comparable, metrics
from verl_verdict.read.comparable import Difference
from verl_verdict.read.records import Run

_TWO_TRAINERS = "one side ran verl's V0 trainer and the other one V1: they define */clip_ratio in another way, so it is not compared"


def on_ignored(runs: Sequence[Run], ignore: Sequence[str]) -> list[str]:
    """The metrics that are not compared because the user said so."""
    found = [f"not compared, as asked: {listed(list(ignore))}"] if ignore else []
    if unknown := [name for name in ignore if not any(name in run.series for run in runs)]:
        found.append(f"no run has {listed(unknown)}, which is not to be compared")
    return found


def on_what_differs(
    a: Sequence[Run], b: Sequence[Run], accepted: Sequence[Difference], accept: Collection[str]
) -> list[str]:
    """What differs beside the code, and what the records do not tell."""
    found, names = [], [each.name for each in accepted]
    if names:
        found.append(f"{listed(names)} also differ: the code is not the only possible cause")
    if "packages" in names and (said := comparable.packages(a, b)):
        found.append(said)
    if unknown := [name for name in accept if not any(name in run.facts for run in (*a, *b))]:
        found.append(f"no run has recorded {listed(unknown)}, which may differ")
    if lacking := comparable.not_compared(a[0], b[0]):
        found.append(f"not compared, because it is not in the records: {', '.join(lacking)}")
    one_sided = {name for run_a in a for run_b in b for name in run_a.hashes.keys() ^ run_b.hashes.keys()}
    if one_sided:
        found.append(f"not compared, because only one side has a hash of them: {listed(sorted(one_sided))}")
    return found


def on_replay(runs_a: Sequence[Run]) -> list[str]:
    """What replayed runs are about."""
    if comparable.REPLAY not in runs_a[0].facts:
        return []
    has_own = comparable.OWN_REWARDS in runs_a[0].facts
    shared = (
        "rollouts of A's first run with rewards of their own" if has_own else "rollouts and rewards of A's first run"
    )
    return [f"this is about the trainer: all runs trained on the {shared}, so what B samples itself is not in it"]


def on_pairs(paired: Pairing, runs: Sequence[Run]) -> list[str]:
    """How the runs were paired, and which repeats of B differ."""
    found = []
    is_seed_known = all(run.seed for run in runs)
    if not is_seed_known:
        found.append("the records do not tell their seeds: the runs are paired in the given order")
    if paired.alone_a or paired.alone_b:
        names = [run.name for run in (*paired.alone_a, *paired.alone_b)]
        found.append(f"without a partner{' of the same seed' if is_seed_known else ''}: {listed(names)}")
    return [
        *found,
        *(f"runs of B with seed {pair.seed} differ" for pair in paired.pairs if exact.repeats(pair.b) is False),
    ]


def on_metrics(
    runs_a: Sequence[Run], runs_b: Sequence[Run], one_sided: Sequence[OneSided], sporadic: Sequence[str]
) -> list[str]:
    """Metrics that not all runs have, and memory that grows."""
    found = []
    if explained := [str(each) for each in one_sided if each.why]:
        found.append(f"only in the records of one side, as the releases do it: {listed(explained)}")
    if sporadic:
        found.append(f"recorded at other steps in some runs, which shows nothing by itself: {listed(list(sporadic))}")
    if metrics.is_v1(runs_a[0].series) != metrics.is_v1(runs_b[0].series):
        found.append(_TWO_TRAINERS)
    if grows := memory.gpu_grows(runs_a, runs_b):
        found.append(grows)
    return found
