"""What a run costs, less of which is better: its time and its memory. Paired and judged by the same statistics as the metrics.

A case of its own: the runs of A and B must be interleaved and never run at once, which the caller sees to.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_verdict.decide import pairing, statistics
from verl_verdict.decide.diagnosis import counted
from verl_verdict.decide.statistics import LOOKS, Array
from verl_verdict.decide.verdicts import Row, Verdict, Word
from verl_verdict.read.records import Run

FLOORS = {"cpu": 0.25, "gpu": 0.10}  # shared CPUs vary more
_TOO_NOISY = 2.0  # margins of more than this many floors hide what people want to see: then nothing is the same


@dataclass(frozen=True)
class Quantity:
    """A number of a run, and how its verdict is worded.

    `measure` gives what is judged: a logarithm if `is_ratio`, else a number that `unit` turns into what is shown. `floor` is what does not
    matter, `few` compares the means of a few pairs, `summary` says the means and the margin, `noisy` what to do if A varies too much.
    """

    name: str
    measure: Callable[[Run], float]
    floor: float
    few: Callable[[float, float], str]
    summary: Callable[[float, float, float], str]
    noisy: str
    is_ratio: bool = True
    unit: float = 1.0

    def shown(self, value: float) -> float:
        """The value as people read it."""
        return math.exp(value) * self.unit if self.is_ratio else value * self.unit

    def shown_margin(self, a: float, margin: float) -> float:
        """The margin about A's value."""
        return self.shown(a) * math.expm1(margin) if self.is_ratio else margin * self.unit


def profile_of(runs: Sequence[Run]) -> str:
    """cpu or gpu: as the job directory tells, else gpu if a run used memory of one."""
    profile = runs[0].facts.get("profile")
    if profile:
        return "cpu" if profile == "cpu" else "gpu"
    names = [name for run in runs for name in run.series if name.endswith("perf/max_memory_allocated_gb")]
    used = any(value > 0 for run in runs for name in names for value in run.series.get(name, {}).values())
    return "gpu" if used else "cpu"


def paired(runs_a: Sequence[Run], runs_b: Sequence[Run]) -> list[tuple[Run, Run]]:
    """The runs by pairs. Repeats with one seed are pairs, too: for costs, the seed does not matter."""
    pairs = pairing.pair_runs(runs_a, runs_b).pairs
    if len(pairs) < LOOKS[0]:
        pairs = pairing.replicates(pairs)
    return [(pair.a[0], pair.b[0]) for pair in pairs]


def judge(base: Verdict, pairs: Sequence[tuple[Run, Run]], quantities: Sequence[Quantity], how: str) -> Verdict:
    """The verdict at the first declared look that decides; `how` says what was taken of each run."""
    if not pairs:
        return dataclasses.replace(base, reason="no run of B has the seed of a run of A: run B with the seeds of A")
    a, b = (statistics.taken([[each.measure(pair[side]) for each in quantities] for pair in pairs]) for side in (0, 1))
    base = dataclasses.replace(base, pairs=len(pairs))
    if len(pairs) < LOOKS[0]:
        needed = LOOKS[0] - len(pairs)
        means = zip(quantities, a.mean(axis=0), b.mean(axis=0), strict=True)
        means_shown = "; ".join(each.few(float(mine), float(other)) for each, mine, other in means)
        reason = f"{means_shown}, in {counted(len(pairs), 'pair')}: run {needed} more"
        return dataclasses.replace(base, reason=reason, pairs_needed=needed)
    for pairs_seen in [look for look in LOOKS if look <= len(pairs)]:
        judged = _look(base, quantities, a[:pairs_seen], b[:pairs_seen], len(pairs))
        judged = dataclasses.replace(judged, how=f"{pairs_seen} pairs, {how}")
        if judged.word is not Word.INCONCLUSIVE:
            return judged
    return judged


def _look(base: Verdict, quantities: Sequence[Quantity], a: Array, b: Array, have: int) -> Verdict:
    """What this many pairs show. The worst quantity decides; all must be shown to be the same."""
    floors = statistics.taken([each.floor for each in quantities])
    look = statistics.look_at(a, b, floors)
    margin = look.margin
    is_noisy = margin > _TOO_NOISY * floors
    words, rows, summaries = [], [], []
    for at, each in enumerate(quantities):
        word = Word.INCONCLUSIVE
        if look.differs[at]:
            word = Word.REGRESSED if look.mean[at] > 0 else Word.IMPROVED
        elif look.same[at] and not is_noisy[at]:
            word = Word.SAME
        mine, other = (float(side[:, at].mean()) for side in (a, b))
        words.append(word)
        summaries.append(each.summary(mine, other, float(margin[at])))
        shown = (each.shown(mine), each.shown(other), each.shown_margin(mine, float(margin[at])))
        rows.append(Row(each.name, *shown, float(look.p[at]), float(look.sameness_p[at]), word.value))
    base = dataclasses.replace(base, rows=tuple(rows))
    order = (Word.REGRESSED, Word.INCONCLUSIVE, Word.IMPROVED, Word.SAME)
    worst = min(words, key=order.index)
    decided = [text for text, word in zip(summaries, words, strict=True) if word is worst]
    if worst is not Word.INCONCLUSIVE:
        return dataclasses.replace(base, word=worst, reason="; ".join(decided))
    hidden = [
        each
        for each, word, within, noisy in zip(quantities, words, look.within, is_noisy, strict=True)
        if word is worst and within and noisy
    ]
    if len(hidden) == len(decided):
        return dataclasses.replace(base, reason=f"{'; '.join(decided)}: {hidden[0].noisy}")
    needed = statistics.pairs_needed(b - a, margin, have)
    more = f"run {counted(needed, 'more pair')}" if needed else "more pairs would not decide it"
    return dataclasses.replace(base, reason=f"{'; '.join(decided)}: {more}", pairs_needed=needed)
