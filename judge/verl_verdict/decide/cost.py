"""What a run costs, less of which is better: its time and its memory.

The runs are paired, and the same statistics as for the metrics tell what they show. A case of its own: the runs of A
and B must be interleaved and never run at once, which the caller sees to.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_verdict.decide import pairing, statistics
from verl_verdict.decide.diagnosis import counted
from verl_verdict.decide.rules import Evidence, Regime
from verl_verdict.decide.statistics import LOOKS, Array
from verl_verdict.decide.verdicts import Finding, Row, Verdict, undecided
from verl_verdict.read.records import Run

FLOORS = {"cpu": 0.25, "gpu": 0.10}  # shared CPUs vary more
_TOO_NOISY = 2.0  # margins of more than this many floors hide what people want to see: then nothing is the same
_WORST_FIRST = (Finding.WORSE, Finding.OPEN, Finding.BETTER, Finding.SAME)


@dataclass(frozen=True)
class Quantity:
    """A number of a run, and how its verdict is worded.

    `measure` gives what is judged: a logarithm if `is_ratio`, else a number that `unit` turns into what is shown.
    `floor` is what does not matter, `few` compares the means of a few pairs, `summary` says the means and the margin,
    `noisy` what to do if A varies too much.
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


@dataclass(frozen=True)
class CostLook:
    """What this many pairs show of each quantity."""

    pairs: int
    quantities: Sequence[Quantity]
    rows: tuple[Row, ...]
    summaries: Sequence[str]
    is_hidden: Sequence[bool]  # the margin is too large to call it the same, though it holds it
    needed: int | None  # pairs until a look that would decide

    @property
    def worst(self) -> Finding:
        """The worst quantity decides; all must be shown to be the same."""
        return min((row.finding for row in self.rows), key=_WORST_FIRST.index)

    @property
    def shown(self) -> str:
        """The quantities that decide."""
        return "; ".join(self.summaries[at] for at in self._deciding)

    @property
    def noisy(self) -> str | None:
        """What to do if A's own noise hides all that decides; else None."""
        is_all = all(self.is_hidden[at] for at in self._deciding)
        return self.quantities[self._deciding[0]].noisy if is_all else None

    @property
    def _deciding(self) -> list[int]:
        return [at for at, row in enumerate(self.rows) if row.finding is self.worst]


@dataclass(frozen=True)
class Cost(abc.ABC):
    """What the runs of A and of B cost. `profile` tells whether CPUs or GPUs trained, if the caller knows."""

    name: str
    runs_a: Sequence[Run]
    runs_b: Sequence[Run]
    profile: str | None = None
    regime = Regime.SAMPLED

    @property
    @abc.abstractmethod
    def how(self) -> str:
        """What is taken of each run."""

    @property
    @abc.abstractmethod
    def how_of_look(self) -> str:
        """The same, once enough pairs are judged."""

    @property
    @abc.abstractmethod
    def why_not(self) -> str | None:
        """Why the runs cannot be measured; None if they can."""

    @property
    @abc.abstractmethod
    def quantities(self) -> Sequence[Quantity]:
        """What is judged of each run."""

    @property
    @abc.abstractmethod
    def notes(self) -> Sequence[str]:
        """What the reader sees beside, such as the parts of the cost."""

    @cached_property
    def base(self) -> Verdict:
        """The verdict so far."""
        if self.why_not:
            return undecided(self.name, self.runs_a[0].workload, self.how)
        base = undecided(self.name, self.runs_a[0].workload, self.how, self.notes)
        return dataclasses.replace(base, pairs=len(self.pairs))

    @property
    def runs(self) -> list[Run]:
        """Those of A, then those of B."""
        return [*self.runs_a, *self.runs_b]

    @property
    def floor(self) -> float:
        """The share that does not matter."""
        return FLOORS[self.profile or profile_of(self.runs)]

    @cached_property
    def pairs(self) -> list[tuple[Run, Run]]:
        """The runs of A and B that are compared with each other."""
        return paired(self.runs_a, self.runs_b)

    def unmeasured(self) -> Evidence | None:
        """A run does not tell what it costs."""
        return Evidence({"why": self.why_not}) if self.why_not else None

    def unpaired(self) -> Evidence | None:
        """No seed has a run of A and one of B."""
        return None if self.pairs else Evidence()

    def few(self) -> Evidence | None:
        """The pairs are too few for the first look."""
        have = len(self.pairs)
        if have >= LOOKS[0]:
            return None
        needed = LOOKS[0] - have
        a, b = (side.mean(axis=0) for side in self._measured)
        means = [each.few(float(mine), float(other)) for each, mine, other in zip(self.quantities, a, b, strict=True)]
        said = {"means": "; ".join(means), "pairs": counted(have, "pair"), "needed": needed}
        return Evidence(said, pairs_needed=needed)

    def worse(self) -> Evidence | None:
        """A quantity of B is larger."""
        return self._found(Finding.WORSE)

    def hidden(self) -> Evidence | None:
        """Only A's own noise keeps the quantities from being the same."""
        noisy = self.deciding_look.noisy
        return self._found(Finding.OPEN, {"what_to_do": noisy}) if noisy else None

    def needs_more(self) -> Evidence | None:
        """More pairs would decide it."""
        needed = self.deciding_look.needed
        said = {"more": counted(needed or 0, "more pair")}
        return self._found(Finding.OPEN, said, needed) if needed else None

    def open(self) -> Evidence | None:
        """These pairs do not decide it."""
        return self._found(Finding.OPEN)

    def better(self) -> Evidence | None:
        """A quantity of B is smaller, and none is larger or open."""
        return self._found(Finding.BETTER)

    def same(self) -> Evidence | None:
        """All quantities are the same."""
        return self._found(Finding.SAME)

    def _found(
        self, finding: Finding, said: Mapping[str, object] | None = None, needed: int | None = None
    ) -> Evidence | None:
        look = self.deciding_look
        if look.worst is not finding:
            return None
        how = f"{look.pairs} pairs, {self.how_of_look}"
        return Evidence({"shown": look.shown, **(said or {})}, how=how, rows=look.rows, pairs_needed=needed)

    @cached_property
    def deciding_look(self) -> CostLook:
        """The first declared look that decides; else the last one."""
        *earlier, last = [pairs for pairs in LOOKS if pairs <= len(self.pairs)]
        looks = map(self._look, earlier)
        return next((look for look in looks if look.worst is not Finding.OPEN), None) or self._look(last)

    @cached_property
    def _measured(self) -> tuple[Array, Array]:
        a, b = (
            statistics.taken([[each.measure(pair[side]) for each in self.quantities] for pair in self.pairs])
            for side in (0, 1)
        )
        return a, b

    def _look(self, pairs: int) -> CostLook:
        a, b = (side[:pairs] for side in self._measured)
        quantities = self.quantities
        floors = statistics.taken([each.floor for each in quantities])
        look = statistics.look_at(a, b, floors)
        is_noisy = look.margin > _TOO_NOISY * floors
        means = [(float(a[:, at].mean()), float(b[:, at].mean())) for at in range(len(quantities))]
        return CostLook(
            pairs=pairs,
            quantities=quantities,
            rows=tuple(
                _row(each, mean, look, at, is_noisy=bool(is_noisy[at]))
                for at, (each, mean) in enumerate(zip(quantities, means, strict=True))
            ),
            summaries=[
                each.summary(*mean, float(margin))
                for each, mean, margin in zip(quantities, means, look.margin, strict=True)
            ],
            is_hidden=[bool(each) for each in look.within & is_noisy],
            needed=statistics.pairs_needed(b - a, look.margin, len(self.pairs)),
        )


def _row(quantity: Quantity, mean: tuple[float, float], look: statistics.Look, at: int, *, is_noisy: bool) -> Row:
    finding = Finding.SAME if look.same[at] and not is_noisy else Finding.OPEN
    if look.differs[at]:
        finding = Finding.WORSE if look.mean[at] > 0 else Finding.BETTER
    a, b = mean
    shown = (quantity.shown(a), quantity.shown(b), quantity.shown_margin(a, float(look.margin[at])))
    return Row(quantity.name, *shown, float(look.p[at]), float(look.sameness_p[at]), finding)
