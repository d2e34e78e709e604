"""From runs to a verdict.

The order: may the runs be compared (preconditions.py, by the differences that comparable.py lists), exactly where A repeats itself (exact.py), by
statistics where it does not (sampled.py), and whether a value of B is outside all that A does (outliers.py). It fails closed: whatever
cannot be judged is never the same.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from verl_verdict.decide import diagnosis, exact, memory, outliers, pairing, preconditions, relative, sampled
from verl_verdict.decide.diagnosis import Diagnosis, counted, listed
from verl_verdict.decide.exact import Comparison, OneSided, Outcome
from verl_verdict.decide.outliers import Outlier
from verl_verdict.decide.pairing import Pair, Pairing
from verl_verdict.decide.statistics import FEWEST, LOOKS
from verl_verdict.decide.verdicts import Verdict, Word, status
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable, metrics
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import TOKENS, Run


@dataclass(frozen=True)
class _Case:
    """What is known about a case while it is judged."""

    base: Verdict
    pairing: Pairing
    compared: tuple[tuple[Pair, Comparison], ...]
    one_sided: tuple[OneSided, ...]
    decisive: tuple[Decisive, ...]
    perturbed: tuple[Run, ...]  # they measure A's noise
    unused: tuple[str, ...]  # why others do not
    blind_from: int | None  # the step from which on their noise hides too much
    is_measured: bool = False  # all runs trained on A's rollouts, and A's repeat measures what noise is left

    def says(
        self, word: Word, reason: str, how: str, first: Diagnosis | None = None, pairs_needed: int | None = None
    ) -> Verdict:
        return dataclasses.replace(self.base, word=word, reason=reason, how=how, first=first, pairs_needed=pairs_needed)

    @property
    def is_exact(self) -> bool:
        """Each value decides."""
        return self.is_measured or self.base.deterministic is True

    @property
    def lacks_perturbed(self) -> bool:
        """No perturbed run was given, so one may tell more."""
        return not (self.perturbed or self.unused)

    @property
    def other_tokens(self) -> bool:
        """B samples other tokens than all runs of A, perturbed or not."""
        return any(TOKENS in _other_hashes(pair, self.perturbed) for pair, _ in self.compared)

    @property
    def unexplained(self) -> str | None:
        """The metrics that only one side has, and that no release explains."""
        return listed([str(each) for each in self.one_sided if each.why is None]) or None

    @property
    def worst_pair(self) -> tuple[Pair, Comparison]:
        """The pair that differs most, and of those the one that differs first."""
        return min(self.compared, key=lambda each: exact.worst_first(each[1]))


def case(
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    *,
    name: str = "",
    decisive: Sequence[Decisive] = (),
    ignore: Sequence[str] = (),
    accept: Collection[str] = (),
    deterministic: bool | None = None,
    perturbed: Sequence[Run] = (),
    relative_limit: float | None = None,
) -> Verdict:
    """The verdict on one case.

    `decisive` replaces the workload's decisive metrics; `ignore` names metrics that are not compared; `accept` names facts that may
    differ. `deterministic` says whether A repeats itself, if the caller knows; else two runs of A with one seed tell.
    `perturbed` are runs of A whose last bit was changed: what they do is noise. `relative_limit` is the largest mean relative error of
    reward and losses: then these alone decide.
    """
    workload = preconditions.one_workload(runs_a, runs_b, perturbed)
    preconditions.no_copies([*runs_a, *runs_b, *perturbed])
    left_out = _left_out([*runs_a, *runs_b], ignore)
    base = Verdict(case=name or workload, word=Word.INCONCLUSIVE, reason="", workload=workload, notes=tuple(left_out))
    asked, decisive = decisive, _without(decisive, ignore)
    runs_a, runs_b, perturbed = ([run.without(ignore) for run in runs] for runs in (runs_a, runs_b, perturbed))
    if early := preconditions.verdict(base, runs_a, runs_b, accept):
        return early
    if asked and not decisive:
        reason = (
            f"every metric that decides is ignored ({listed([each.pattern for each in asked])}): compare one of them"
        )
        return dataclasses.replace(base, reason=reason, how="nothing was decided")
    runs_a = pairing.compared(runs_a)
    deciding = decisive or _without(metrics.DECISIVE.get(workload, ()), ignore)
    known = _prepare(base, runs_a, runs_b, deciding, accept, deterministic, perturbed)
    if not known.compared:
        reason = "no run of B has the seed of a run of A: run B with the seeds of A"
        return known.says(Word.INCONCLUSIVE, reason, "nothing was compared")
    if relative_limit is not None:
        return relative.judged(known.base, known.pairing.pairs, relative_limit, ignore)
    recorded = {name for run in (*runs_a, *runs_b) for name in run.series}
    if found := _only_logged(known) or _wrong_on_its_face(known) or _never_recorded(known, decisive, recorded):
        return found
    seen = outliers.find([*runs_a, *known.perturbed], runs_b, workload, deciding, deterministic=known.is_exact)
    return _with_outliers(known, seen, _exact(known) or _by_statistics(known))


def _prepare(
    base: Verdict,
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    decisive: Sequence[Decisive],
    accept: Collection[str],
    deterministic: bool | None,
    perturbed: Sequence[Run],
) -> _Case:
    """Pair the runs and compare each pair."""
    paired = pairing.pair_runs(runs_a, runs_b)
    is_replay = all(comparable.REPLAY in run.facts for run in (*runs_a, *runs_b))
    groups = [pair.a for pair in paired.pairs] or [tuple(runs_a)]
    repeats = [each for group in groups if (each := exact.repeats(group)) is not None]
    if repeats and not all(repeats):
        if deterministic:
            note = "runs of A with one seed were said to be equal, and are not"
            base = dataclasses.replace(base, notes=(*base.notes, note))
        deterministic = False
    elif repeats and deterministic is None:
        deterministic = True
    measured, unused = _measured(runs_a, perturbed)
    is_measured = is_replay and bool(repeats) and not deterministic
    if is_measured:
        noise, at_most = exact.noise_of_repeats(groups)
    else:
        noise = at_most = exact.noise(groups, measured) if deterministic else exact.Noise()
    compared = [(pair, _compare(pair.a[0], b, noise, at_most)) for pair in paired.pairs for b in pair.b]
    one_sided = {
        (each.metric, each.side): each
        for pair in paired.pairs
        for b in pair.b
        for each in exact.one_sided(pair.a[0], b)
    }.values()
    accepted = [each for each in comparable.facts(runs_a[0], runs_b[0]) if comparable.is_accepted(each, accept)]
    config = comparable.config(runs_a[0], runs_b[0])
    base = dataclasses.replace(
        base,
        pairs=len(paired.pairs),
        deterministic=deterministic,
        differs=tuple(accepted),
        config=tuple(config),
        notes=(*base.notes, *_notes(runs_a, runs_b, paired, tuple(one_sided), accepted, accept), *unused),
    )
    if perturbed and not (deterministic or is_measured):
        note = "the perturbed runs were not used, because no two runs of A show that one seed gives equal runs: run A twice with one seed"
        base = dataclasses.replace(base, notes=(*base.notes, note))
    return _Case(
        base,
        paired,
        tuple(compared),
        tuple(one_sided),
        tuple(decisive),
        tuple(run for _, run in measured),
        tuple(unused),
        exact.blind_from(noise),
        is_measured,
    )


def _compare(a: Run, b: Run, noise: exact.Noise, at_most: exact.Noise) -> Comparison:
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


def _notes(
    runs_a: Sequence[Run],
    runs_b: Sequence[Run],
    paired: Pairing,
    one_sided: Sequence[OneSided],
    accepted: Sequence[comparable.Difference],
    accept: Collection[str],
) -> list[str]:
    """What the reader must know to weigh the verdict."""
    found = []
    if accepted:
        found.append(f"{listed([each.name for each in accepted])} also differ: the code is not the only possible cause")
    if "packages" in (each.name for each in accepted) and (said := comparable.packages(runs_a, runs_b)):
        found.append(said)
    if unknown := [name for name in accept if not any(name in run.facts for run in (*runs_a, *runs_b))]:
        found.append(f"no run has recorded {listed(unknown)}, which may differ")
    if lacking := comparable.not_compared(runs_a[0], runs_b[0]):
        found.append(f"not compared, because it is not in the records: {', '.join(lacking)}")
    one_sided_hashes = {
        name for run_a in runs_a for run_b in runs_b for name in run_a.hashes.keys() ^ run_b.hashes.keys()
    }
    if one_sided_hashes:
        found.append(f"not compared, because only one side has a hash of them: {listed(sorted(one_sided_hashes))}")
    if comparable.REPLAY in runs_a[0].facts:
        has_own = comparable.OWN_REWARDS in runs_a[0].facts
        of_a = (
            "the rollouts of A's first run with rewards of their own"
            if has_own
            else "the rollouts and rewards of A's first run"
        )
        found.append(f"this is about the trainer: all runs trained on {of_a}, so what B samples itself is not in it")
    if not all(run.seed for run in (*runs_a, *runs_b)):
        found.append("the records do not tell their seeds: the runs are paired in the given order")
    if paired.alone_a or paired.alone_b:
        names = [run.name for run in (*paired.alone_a, *paired.alone_b)]
        found.append(f"without a partner of the same seed: {listed(names)}")
    if explained := [str(each) for each in one_sided if each.why]:
        found.append(f"only in the records of one side, as the releases do it: {listed(explained)}")
    if metrics.is_v1(runs_a[0].series) != metrics.is_v1(runs_b[0].series):
        found.append(
            "one side ran verl's V0 trainer and the other one V1: they define */clip_ratio in another way, so it is not compared"
        )
    if grows := memory.gpu_grows(runs_a, runs_b):
        found.append(grows)
    found += [f"runs of B with seed {pair.seed} differ" for pair in paired.pairs if exact.repeats(pair.b) is False]
    return found


def _left_out(runs: Sequence[Run], ignore: Sequence[str]) -> list[str]:
    """What is said of the metrics that are not to be compared."""
    found = [f"not compared, as asked: {listed(list(ignore))}"] if ignore else []
    if unknown := [name for name in ignore if not any(name in run.series for run in runs)]:
        found.append(f"no run has {listed(unknown)}, which is not to be compared")
    return found


def _without(decisive: Sequence[Decisive], ignore: Sequence[str]) -> Sequence[Decisive]:
    """Those that are compared."""
    return [each for each in decisive if each.pattern not in ignore]


def _only_logged(known: _Case) -> Verdict | None:
    """B trains as A does, and logs some metrics times a constant."""
    if not known.base.deterministic or known.unexplained or any(_other_hashes(pair) for pair, _ in known.compared):
        return None
    found = [diagnosis.scaled(pair.a[0], pair.b[0]) for pair, _ in known.compared]
    if not all(each and each.keys() == found[0].keys() for each in found):
        return None
    pair, compared = known.worst_pair
    names = sorted(found[0], key=metrics.causal_rank)
    factors = listed([f"{name} (times {found[0][name]:.4g})" for name in names])
    equal = ["gradients", *(["rewards"] if "critic/score/mean" in pair.a[0].series else [])]
    equal += [name for name in pair.a[0].hashes if name in pair.b[0].hashes]
    reason = f"only what is logged changed, by one factor at every step: {factors}; equal are the {', '.join(equal)} and all else"
    return known.says(Word.CHANGED, reason, "value by value", diagnosis.diagnose(compared, known.base.config))


def _wrong_on_its_face(known: _Case) -> Verdict | None:
    """Differences that are a regression whatever else happens, so that one pair shows them."""
    how = "one pair with the same seed, value by value"
    for pair, found in known.compared:
        first = diagnosis.diagnose(found, known.base.config)
        wrong = diagnosis.opposite_sign(pair.a[0], pair.b[0], found, is_exact=known.base.deterministic is True)
        if wrong is not None:
            of_advantages = wrong.metric.startswith("critic/advantages/")
            what, equal = ("critic/advantages", "rewards") if of_advantages else (wrong.metric, "advantages")
            reason = f"with equal {equal}, {what} has the opposite sign in B at step {wrong.step}: B trains away from what A trains towards"
            return known.says(Word.REGRESSED, reason, how, first)
        if zero := diagnosis.stays_zero(pair.a[0], pair.b[0]):
            return known.says(Word.REGRESSED, zero, how, first)
        worse = known.is_measured and sampled.worse_alone(pair.a[0], pair.b[0], known.base.workload, known.decisive)
        if worse:
            return known.says(Word.REGRESSED, worse, how, first)
    if all(diagnosis.no_advantage(run) for pair, _ in known.compared for run in (pair.a[0], pair.b[0])):
        reason = "the advantages are 0 at every step of A and of B, so the rewards train nothing and nothing is shown: change the case"
        return known.says(Word.INCONCLUSIVE, reason, how)
    return None


def _with_outliers(known: _Case, found: Sequence[Outlier], verdict: Verdict) -> Verdict:
    """The verdict of the other rules, and what values of B outside all that A does add to it. With one of them nothing is the same."""
    if verdict.word is Word.IMPROVED:
        found = [each for each in found if each.side <= 0]
    if not found:
        return verdict
    # In few runs a value outside may be chance, and few runs of A do not show how far a seed alone moves a run.
    decided = [
        each
        for each in found
        if each.is_in_most and (each.of >= FEWEST or (each.is_far and (known.is_exact or each.of >= LOOKS[0])))
    ]
    word, needed = Word.INCONCLUSIVE, None
    if decided:  # far outside is wrong on any side of a metric; outside the band may be a change
        word = Word.REGRESSED if any(each.is_far or each.side < 0 for each in decided) else Word.CHANGED
    first, *others = decided or found
    at = diagnosis.at(first.step, first.metric, first.a, first.b, known.base.config, [each.metric for each in others])
    exactly = verdict.first if known.is_exact else None
    # Where more pairs would decide nothing, one run outside is the reason.
    is_last = verdict.word is Word.INCONCLUSIVE and verdict.pairs_needed is None and not known.is_exact
    if not is_last and (verdict.word in (Word.REGRESSED, word) or (not decided and status([verdict]))):
        notes = (str(first), *verdict.notes)
        return dataclasses.replace(verdict, first=verdict.first or at, notes=notes)
    reason = str(first)
    if not decided:
        needed = next((look - verdict.pairs for look in LOOKS if look > verdict.pairs), None)
        reason += f": run {counted(needed, 'pair')} more" if needed else ": run B with that seed once more"
    notes = (verdict.reason, *verdict.notes) if is_last else verdict.notes
    return dataclasses.replace(verdict, word=word, reason=reason, first=exactly or at, notes=notes, pairs_needed=needed)


def _never_recorded(known: _Case, chosen: Sequence[Decisive], recorded: Collection[str]) -> Verdict | None:
    """A metric that must decide and that no run has is probably misspelt: the verdict asks for that, not for more runs."""
    lacking = [each.pattern for each in chosen if each.required and not any(map(each.matches, recorded))]
    if not lacking:
        return None
    reason = f"no run of A or B has {listed(lacking)}, which decides this case: name one that is recorded"
    return dataclasses.replace(known.says(Word.INCONCLUSIVE, reason, "nothing was decided"), pairs=0)


def _exact(known: _Case) -> Verdict | None:
    """The verdict if A repeats itself, or nothing differs at all; None if statistics must decide."""
    outcomes = {found.outcome for _, found in known.compared}
    number = known.compared[0][1]
    pairs = counted(len(known.compared), "pair")
    how = f"{number.metrics} metrics over {number.steps} steps of {pairs}, value by value"
    if outcomes == {Outcome.IDENTICAL}:
        return _agrees(known, Word.IDENTICAL, "B is bit-equal to A", how)
    if not known.is_exact:
        return None
    first = diagnosis.diagnose(known.worst_pair[1], known.base.config)
    if first is not None and Outcome.DIFFERS in outcomes:
        return _differs(known, first, how)
    size = max(each.size for _, found in known.compared for each in found.differences)
    has_grown = size > exact.ROUNDING and bool(known.perturbed)
    if Outcome.GROWS not in outcomes and not (has_grown and known.other_tokens):
        reason = f"B differs from A only by rounding (at most {size:.1g} of a metric's size), as A does from itself"
        is_noise = size > exact.ROUNDING and known.is_measured
        if is_noise and known.blind_from is not None:
            return None
        if is_noise:
            reason = f"B differs from A on its rollouts by no more than noise (up to {size:.1g} of a metric's size), as A does from itself"
        elif has_grown:
            reason = f"B differs from A by no more than rounding grows to (up to {size:.1g} of a metric's size), as A with perturbed last bits shows"
        found = _agrees(known, Word.SAME, reason, how)
        if has_grown and known.blind_from is not None:
            note = f"from step {known.blind_from} on, perturbed last bits change some of A's metrics by more than {exact.BLIND:.0%} of their size: a change that begins there is not seen"
            found = dataclasses.replace(found, notes=(*found.notes, note))
        return found
    if known.unexplained:
        return known.says(Word.CHANGED, f"B differs from A, and {known.unexplained}", how, first)
    if known.is_measured or len(known.pairing.pairs) >= LOOKS[0]:
        return None
    return _grows(known, str(first) if Outcome.GROWS in outcomes else "the sampled tokens", how, first)


def _grows(known: _Case, what: str, how: str, first: Diagnosis | None) -> Verdict:
    """The difference may come from rounding alone. A run of A with perturbed last bits can show that; otherwise run more seeds."""
    beyond = "what A with perturbed last bits does" if known.perturbed else "it"
    reason = f"the difference begins as rounding and grows beyond {beyond} ({what})"
    if known.lacks_perturbed:
        reason += ": run A with a perturbed last bit to measure the noise, or run more seeds"
    else:
        reason += "".join(f", and {why}" for why in known.unused) + ": run more seeds"
    found = known.says(Word.INCONCLUSIVE, reason, how, first, LOOKS[0] - len(known.pairing.pairs))
    return dataclasses.replace(found, needs_perturbed=known.lacks_perturbed)


def _agrees(known: _Case, word: Word, reason: str, how: str) -> Verdict:
    """The values agree. That is not all: metrics may be missing, tokens or weights may differ, or nothing may have trained."""
    equal = "bit-equal" if word is Word.IDENTICAL else "equal but for rounding"
    if known.unexplained:
        return known.says(Word.CHANGED, f"the metrics that both record are {equal}, but {known.unexplained}", how)
    # Weights may differ by rounding; a token cannot, unless it has grown.
    if word is Word.IDENTICAL:
        must_be_equal = [each for pair, _ in known.compared for each in _other_hashes(pair)]
    else:
        must_be_equal = [TOKENS] if known.other_tokens else []
    if must_be_equal:
        unequal = " and the ".join(dict.fromkeys(must_be_equal))
        return known.says(Word.CHANGED, f"all metrics are {equal}, but the {unequal} are not", how)
    a = known.compared[0][0].a[0]
    names = {name for pair, _ in known.compared for name in exact.compared(a, pair.b[0])}
    why = None
    if not names:
        why = "A and B have no metric in common that is compared, which shows nothing"
    elif not any(len(set(a.series[name].values())) > 1 for name in names):
        why = "every metric is constant over all steps, which shows nothing: train more steps"
    elif diagnosis.no_gradient(a):
        why = "the gradient of A is 0 at every step, so nothing trains and nothing is shown: change the case"
    return known.says(Word.INCONCLUSIVE if why else word, why or reason, how)


def _other_hashes(pair: Pair, perturbed: Sequence[Run] = ()) -> list[str]:
    """The names of the hashes that both sides have, that are equal in all runs of A, perturbed or not, and that differ in B."""
    of_a = [*pair.a, *(run for run in perturbed if run.seed == pair.a[0].seed)]
    a = {name: hash for name, hash in pair.a[0].hashes.items() if all(each.hashes.get(name) == hash for each in of_a)}
    return sorted({name for b in pair.b for name in a.keys() & b.hashes.keys() if a[name] != b.hashes[name]})


def _differs(known: _Case, first: Diagnosis, how: str) -> Verdict:
    """A repeats itself and B differs: worse if a metric shows it with one seed, else by statistics, else changed."""
    for other, found in known.compared:
        worse = (
            sampled.worse_alone(other.a[0], other.b[0], known.base.workload, known.decisive)
            if found.outcome is Outcome.DIFFERS
            else None
        )
        if worse:
            return known.says(Word.REGRESSED, worse, how, first)
    if len(known.pairing.pairs) >= LOOKS[0]:
        judged = sampled.judge(known.base, known.pairing.pairs, known.pairing.alone_a, known.decisive)
        if judged.word in (Word.REGRESSED, Word.IMPROVED):
            return dataclasses.replace(judged, first=first)
    # Statistics show no better or worse side, and the values differ all the same.
    values = diagnosis.a_and_b(first.a, first.b)
    says = "runs of A with one seed are equal, and B differs"
    if known.is_measured:
        says = "on A's rollouts B differs from A by more than A's repeat does"
    reason = f"{says} from step {first.step} on ({first.metric}: {values})"
    changed = known.says(Word.CHANGED, reason, how, first)
    differing = [each for _, each in known.compared if each.outcome is Outcome.DIFFERS]
    is_rounding_first = all((at := each.first) and each.differences[0].step < at.step for each in differing)
    return dataclasses.replace(changed, needs_perturbed=is_rounding_first and known.lacks_perturbed)


def _by_statistics(known: _Case) -> Verdict:
    """The verdict if A does not repeat itself, or nobody knows."""
    pairs, base = known.pairing.pairs, known.base
    replicates = pairing.replicates(pairs)
    if len(pairs) < LOOKS[0] <= len(replicates) and not base.deterministic:
        note = f"the runs have {counted(len(pairs), 'seed')}: the verdict is about no other"
        pairs = replicates
        base = dataclasses.replace(base, pairs=len(pairs), notes=(*base.notes, note))
    if len(pairs) < LOOKS[0]:
        return _too_few(known, len(pairs))
    judged = sampled.judge(base, pairs, known.pairing.alone_a, known.decisive)
    if known.unexplained and judged.word in (Word.SAME, Word.IMPROVED):
        summary = "the decisive metrics are the same" if judged.word is Word.SAME else judged.reason
        return dataclasses.replace(judged, word=Word.CHANGED, reason=f"{summary}, but {known.unexplained}")
    return judged


def _too_few(known: _Case, pairs: int) -> Verdict:
    first = diagnosis.diagnose(known.worst_pair[1], known.base.config)
    needed = LOOKS[0] - pairs
    more = f"run {needed} more {'pair with another seed' if needed == 1 else 'pairs with other seeds'}"
    if known.base.deterministic is None:
        reason = f"B differs from A (first at {first}), and one run of A does not tell what is noise: run A once more with the same seed, or {more}"
    else:
        reason = f"runs of A with one seed differ, so {counted(pairs, 'pair')} of runs cannot tell noise from a change: {more}"
    return known.says(Word.INCONCLUSIVE, reason, "too few pairs", first, needed)
