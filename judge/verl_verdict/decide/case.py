"""What is known about a case: its runs, how they are paired, how far A repeats itself, and what each way of looking at them shows.

Everything is computed once, and only if a rule asks for it. Nothing is decided here.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_verdict.decide import diagnosis, exact, laws, notes, outliers, pairing, preconditions, sampled
from verl_verdict.decide.diagnosis import Diagnosis, Place, listed
from verl_verdict.decide.exact import Comparison, Noise, OneSided, Outcome
from verl_verdict.decide.laws import Breach
from verl_verdict.decide.outliers import Outlier
from verl_verdict.decide.pairing import Pair, Pairing
from verl_verdict.decide.rules import Regime
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable, metrics
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import TOKENS, Run

_UNUSED = "the perturbed runs were not used, because no two runs of A show that one seed gives equal runs: run A twice with one seed"


@dataclass(frozen=True)
class CaseRuns:
    """The runs of a case, complete and on one grid of steps, and what the caller asked for.

    `runs_a` are in the order in which they are compared (pairing.compared). `chosen` are the decisive metrics that the caller named, without
    the ignored ones; `ignore` has those. `said_to_repeat` is what the caller knows about whether A repeats itself. `opening` has the notes so far.
    """

    opening: Verdict
    runs_a: Sequence[Run]
    runs_b: Sequence[Run]
    given: Sequence[Run]  # perturbed runs of A
    chosen: Sequence[Decisive]
    ignore: Sequence[str]
    asked: Sequence[Decisive]  # `chosen` with the ignored ones
    accept: Collection[str]
    said_to_repeat: bool | None
    restless: Sequence[str] = ()  # metrics that are in neither, because they vary with the clock
    whole_a: Sequence[Run] = ()  # the runs with them
    whole_b: Sequence[Run] = ()

    # --- the runs

    @cached_property
    def workload(self) -> str:
        """Its name in metrics.WORKLOADS."""
        return self.opening.workload

    @cached_property
    def deciding(self) -> Sequence[Decisive]:
        """The decisive metrics: those that the caller named, or the workload's."""
        known = metrics.of_workload(self.workload).decisive
        return self.chosen or [each for each in known if each.pattern not in self.ignore]

    @cached_property
    def pairing(self) -> Pairing:
        """Which run of B is compared with which run of A."""
        return pairing.pair_runs(self.runs_a, self.runs_b)

    @property
    def pairs(self) -> Sequence[Pair]:
        """The pairs by seed."""
        return self.pairing.pairs

    @cached_property
    def _groups(self) -> list[tuple[Run, ...]]:
        return [pair.a for pair in self.pairs] or [tuple(self.runs_a)]

    @cached_property
    def _repeats(self) -> list[bool]:
        return [each for group in self._groups if (each := exact.repeats(group)) is not None]

    @cached_property
    def deterministic(self) -> bool | None:
        """Does A repeat itself? What its runs show counts for more than what the caller said."""
        if self._repeats and not all(self._repeats):
            return False
        return True if self._repeats and self.said_to_repeat is None else self.said_to_repeat

    @cached_property
    def regime(self) -> Regime:
        """How much A's runs tell."""
        is_replay = all(comparable.REPLAY in run.facts for run in (*self.runs_a, *self.runs_b))
        if is_replay and self._repeats and not self.deterministic:
            return Regime.REPLAYED
        return Regime.EXACT if self.deterministic else Regime.SAMPLED

    @property
    def is_replayed(self) -> bool:
        """All runs trained on A's rollouts, and A's repeats measure what noise is left."""
        return self.regime is Regime.REPLAYED

    # --- value by value

    @cached_property
    def _measured(self) -> tuple[list[tuple[Run, Run]], list[str]]:
        return _measured(self.runs_a, self.given)

    @property
    def perturbed(self) -> list[Run]:
        """The perturbed runs that measure A's noise."""
        return [run for _, run in self._measured[0]]

    @property
    def unused(self) -> list[str]:
        """Why other perturbed runs measure nothing."""
        return self._measured[1]

    @cached_property
    def noise(self) -> tuple[Noise, Noise]:
        """What is surely no more than noise, and what may be."""
        if self.is_replayed:
            return exact.noise_of_repeats(self._groups)
        known = exact.noise(self._groups, self._measured[0]) if self.deterministic else Noise()
        return known, known

    @cached_property
    def compared(self) -> list[tuple[Pair, Comparison]]:
        """Each run of B against the run of A with its seed."""
        return [(pair, _compare(pair.a[0], b, *self.noise)) for pair in self.pairs for b in pair.b]

    @cached_property
    def outcomes(self) -> set[Outcome]:
        """What these comparisons found."""
        return {found.outcome for _, found in self.compared}

    @cached_property
    def worst_pair(self) -> tuple[Pair, Comparison]:
        """The pair that differs most, and of those the one that differs first."""
        return min(self.compared, key=lambda each: exact.worst_first(each[1]))

    @cached_property
    def first_value(self) -> Diagnosis | None:
        """The first value that differs in that pair."""
        return diagnosis.diagnose(self.worst_pair[1], self.config)

    @cached_property
    def largest(self) -> float:
        """The largest difference, relative to its metric's size."""
        return max((each.size for _, found in self.compared for each in found.differences), default=0.0)

    @cached_property
    def _presence(self) -> tuple[list[OneSided], list[str]]:
        if self.regime is not Regime.EXACT and self.outcomes != {Outcome.IDENTICAL}:
            decisive = metrics.decisive_of(self.workload, self.runs_a[0].series, self.deciding)
            return exact.one_sided_in_noise(self.runs_a, self.runs_b, {name for name, _ in decisive})
        found = {
            (each.metric, each.side): each
            for pair in self.pairs
            for b in pair.b
            for each in exact.one_sided(pair.a[0], b)
        }
        return list(found.values()), []

    @property
    def unexplained(self) -> str | None:
        """The metrics that only one side has, and that no release explains."""
        return listed([str(each) for each in self._presence[0] if each.why is None]) or None

    def other_hashes(self, pair: Pair, perturbed: Sequence[Run] = ()) -> list[str]:
        """The names of the hashes that both sides have, that are equal in all runs of A, perturbed or not, and that differ in B."""
        of_a = [*pair.a, *(run for run in perturbed if run.seed == pair.a[0].seed)]
        first = pair.a[0].hashes.items()
        a = {name: hash for name, hash in first if all(each.hashes.get(name) == hash for each in of_a)}
        return sorted({name for b in pair.b for name in a.keys() & b.hashes.keys() if a[name] != b.hashes[name]})

    @cached_property
    def has_other_tokens(self) -> bool:
        """B samples other tokens than all runs of A, perturbed or not."""
        return any(TOKENS in self.other_hashes(pair, self.perturbed) for pair, _ in self.compared)

    # --- what noise cannot change

    @cached_property
    def breaches(self) -> list[Breach]:
        """The laws of A that B breaks."""
        found = laws.breaches(self.runs_a, self.runs_b, self.pairs, is_replay=self.is_replayed)
        is_exact = self.regime is Regime.EXACT  # there each value counts anyway
        return [each for each in found if not is_exact or metrics.is_before_sampling(each.metric)]

    @property
    def first_breach(self) -> Diagnosis | None:
        """The first of them, as a diagnosis."""
        if not self.breaches:
            return None
        first, *others = self.breaches
        names = [each.metric for each in others if each.step == first.step]
        return diagnosis.at(Place(first.step, first.metric, first.a, first.b), self.config, names)

    # --- by pairs

    @cached_property
    def _sampled_pairs(self) -> tuple[Sequence[Pair], list[str]]:
        """The pairs that count for statistics: where A does not repeat itself, repeats of a seed, too. And what must be said of that."""
        replicates = pairing.replicates(self.pairs)
        if len(self.pairs) < LOOKS[0] <= len(replicates) and not self.deterministic:
            seeds = diagnosis.counted(len(self.pairs), "seed")
            return replicates, [f"the runs have {seeds}: the verdict is about no other"]
        return self.pairs, []

    @cached_property
    def samples(self) -> sampled.Samples | None:
        """What statistics say; None if there are too few pairs."""
        pairs, _ = self._sampled_pairs
        if len(pairs) < LOOKS[0]:
            return None
        is_repeatable = self.deterministic is True
        return sampled.Samples(pairs, self.pairing.alone_a, self.workload, self.deciding, is_repeatable)

    @property
    def number_of_pairs(self) -> int:
        """The pairs that count for statistics."""
        return len(self._sampled_pairs[0])

    @cached_property
    def outliers(self) -> list[Outlier]:
        """The values of B outside all that A does."""
        runs_a = [*self.runs_a, *self.perturbed]
        return outliers.find(runs_a, self.runs_b, self.workload, self.deciding, deterministic=self.is_exact)

    @property
    def is_exact(self) -> bool:
        """Each value counts."""
        return self.regime is not Regime.SAMPLED

    @cached_property
    def outside(self) -> list[Outlier]:
        """Those that decide. In few runs a value outside may be chance, and few runs of A do not show how far a seed alone moves a run."""
        return [each for each in self.outliers if each.decides(is_exact=self.is_exact)]

    def at_outlier(self, found: Sequence[Outlier]) -> Diagnosis:
        """Where the first of these is; where values count, the first value that differs."""
        first, *others = found
        if self.is_exact and Outcome.DIFFERS in self.outcomes and self.first_value:
            return self.first_value
        names = [each.metric for each in others]
        return diagnosis.at(Place(first.step, first.metric, first.a, first.b), self.config, names)

    # --- what the reader must know

    @cached_property
    def config(self) -> list[comparable.Difference]:
        """Where verl's resolved configs differ."""
        return comparable.config(self.runs_a[0], self.runs_b[0])

    @cached_property
    def accepted(self) -> list[comparable.Difference]:
        """What differs and may."""
        found = comparable.facts(self.runs_a[0], self.runs_b[0])
        return [each for each in found if comparable.is_accepted(each, self.accept)]

    @cached_property
    def base(self) -> Verdict:
        """The verdict without its word and its reason."""
        _, of_seeds = self._sampled_pairs if self.regime is Regime.SAMPLED else (None, [])
        is_wrong = bool(self.said_to_repeat) and self._repeats and not all(self._repeats)
        is_unused = self.given and self.regime is Regime.SAMPLED
        return dataclasses.replace(
            self.opening,
            pairs=self.number_of_pairs if of_seeds else len(self.pairs),
            deterministic=self.deterministic,
            differs=tuple(self.accepted),
            config=tuple(self.config),
            notes=(
                *self.opening.notes,
                *(["runs of A with one seed were said to be equal, and are not"] if is_wrong else []),
                *notes.on_what_differs(self.runs_a, self.runs_b, self.accepted, self.accept),
                *notes.on_replay(self.runs_a),
                *notes.on_pairs(self.pairing, [*self.runs_a, *self.runs_b]),
                *notes.on_metrics(self.runs_a, self.runs_b, *self._presence),
                *self.unused,
                *([_UNUSED] if is_unused else []),
                *of_seeds,
            ),
        )


def _compare(a: Run, b: Run, noise: Noise, at_most: Noise) -> Comparison:
    """B against A. What differs by more than noise, and by no more than noise may be, is no difference yet: it may have grown from it."""
    found = exact.compare(a, b, noise)
    if noise is at_most or found.outcome is not Outcome.DIFFERS:
        return found
    surely = exact.compare(a, b, at_most)
    return surely if surely.outcome is Outcome.DIFFERS else dataclasses.replace(found, outcome=Outcome.GROWS)


def _measured(runs_a: Sequence[Run], perturbed: Sequence[Run]) -> tuple[list[tuple[Run, Run]], list[str]]:
    """The perturbed runs that measure A's noise, each after the run of A that has its seed; and why others do not."""
    found, unused = [], []
    for run in perturbed:
        original = next((each for each in runs_a if each.seed == run.seed), None)
        if original is None:
            raise CannotJudge(
                f"The perturbed run '{run.name}' has the seed of no run of A ({run.seed}): perturb a run of A."
            )
        why = preconditions.why_unusable(run, original.last_step) or _why_no_measure(original, run)
        if why:
            unused.append(f"the perturbed run '{run.name}' measures nothing, because {why}")
        else:
            found.append((original, run))
    return found, unused


def _why_no_measure(original: Run, run: Run) -> str | None:
    differs = [each.name for each in comparable.facts(original, run) if each.name != comparable.PERTURBED]
    if differs:
        return f"it differs from '{original.name}' in more than its last bits: {listed(differs)}"
    is_equal = exact.compare(original, run, exact.Noise()).outcome is Outcome.IDENTICAL
    return f"it is bit-equal to '{original.name}'" if is_equal else None
