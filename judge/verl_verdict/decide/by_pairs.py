"""What pairs of runs show by statistics: the evidence of these rules. And the values of B outside all that A does."""

from collections.abc import Mapping, Sequence

from verl_verdict.decide import by_value, diagnosis, joint, restless, sampled
from verl_verdict.decide.case import CaseRuns
from verl_verdict.decide.diagnosis import Place, counted, listed, number
from verl_verdict.decide.exact import ROUNDING, Comparison, Outcome
from verl_verdict.decide.outliers import Outlier
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.rules import Evidence
from verl_verdict.decide.sampled import Samples
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.decide.verdicts import Finding, Row
from verl_verdict.read import metrics
from verl_verdict.read.metrics import Improves


def _samples(case: CaseRuns) -> Samples | None:
    """What statistics say; None with too few pairs, without what must decide, or where all values are equal anyway."""
    found = case.samples
    return found if found and not by_value.agrees(case) and found.summaries and not found.lacking else None


def _evidence(case: CaseRuns, found: Samples, said: Mapping[str, object]) -> Evidence:
    look = found.look
    first = case.first_value if case.is_exact and Outcome.DIFFERS in case.outcomes else None
    return Evidence(
        said,
        how=f"{look.pairs} pairs of runs, by statistics",
        first=first or case.first_breach or found.first(case.config),
        rows=look.rows,
        notes=_final(case, found),
    )


def _final(case: CaseRuns, found: Samples) -> list[str]:
    """That further pairs did not change the decision."""
    left = case.number_of_pairs - found.look.pairs
    decided = f"decided at {found.look.pairs} pairs, as declared: the other {left} do not change it"
    return [decided] if left else []


def _row(case: CaseRuns, finding: Finding) -> Evidence | None:
    """The evidence if the decisive metrics have such a finding: the one that is farthest beyond its margin is named."""
    found = _samples(case)
    row = found.look.farthest(finding) if found else None
    if not found or not row:
        return None
    said = {
        "metric": row.summary,
        "values": diagnosis.a_and_b(row.a, row.b),
        "margin": f"{row.margin:.4g}",
        "p": f"{row.p:.2g}",
    }
    return _evidence(case, found, said)


def worse(case: CaseRuns) -> Evidence | None:
    """A decisive metric is worse."""
    return _row(case, Finding.WORSE)


def apart(case: CaseRuns) -> Evidence | None:
    """A decisive metric differs and has no good side."""
    return _row(case, Finding.APART)


def better(case: CaseRuns) -> Evidence | None:
    """A decisive metric is better, and nothing else differs: no law, no other metric, no value outside A's on another side."""
    found = _samples(case)
    if not found or found.look.found(Finding.WORSE, Finding.APART) or found.look.others.apart or case.breaches:
        return None
    if case.unexplained or any(each.side <= 0 for each in case.outliers) or not _begins_equal(case, found):
        return None
    return _row(case, Finding.BETTER)


def _begins_equal(case: CaseRuns, found: Samples) -> bool:
    """Is nothing apart before the first update but rewards and what follows them? Else B does something else, which is no improvement."""
    if first_update(case) or any(
        row.finding is not Finding.SAME
        for each, row in zip(found.look.summaries, found.look.every, strict=True)
        if each.is_at_first and each.decisive.improves is Improves.LATER
    ):
        return False
    return not case.is_exact or all(_is_of_rewards(pair, compared) for pair, compared in case.compared)


def _is_of_rewards(pair: Pair, found: Comparison) -> bool:
    """Do all values of the first step that differ follow from rewards that differ there?"""
    first = min(pair.a[0].steps)
    apart = [each.metric for each in found.differences if each.step == first and each.size > ROUNDING]
    before = [name for name in apart if metrics.is_before_rewards(name)]
    return not before and (not apart or metrics.SCORE in apart)


def others_apart(case: CaseRuns) -> Evidence | None:
    """Metrics that are not decisive differ, in one test over all of them."""
    found = _samples(case)
    faults = list(found.look.others.apart) if found else []
    if not found or not faults:
        return None
    said = {
        "metrics": "; ".join(map(str, faults[:2])),
        "number": found.look.others.metrics,
        "p": f"{faults[0].p:.2g}",
    }
    return _evidence(case, found, said)


def breach(case: CaseRuns) -> Evidence | None:
    """B breaks what all runs of A keep to, bit for bit."""
    if not case.breaches:
        return None
    first, *others = case.breaches
    more = f"; and {listed([each.metric for each in others])}" if others else ""
    return Evidence(
        {"breach": first, "more": more}, how="value by value, what A's runs agree on", first=case.first_breach
    )


def first_update(case: CaseRuns) -> Evidence | None:
    """A loss that depends on no sampled token: all runs of A have one first value, and no run of B has it."""
    name = metrics.of_workload(case.workload).first_loss
    courses = [run.series[name] for run in (*case.runs_a, *case.runs_b) if name in run.series]
    if not name or len(case.runs_a) < LOOKS[0] or len(courses) < len(case.runs_a) + len(case.runs_b):
        return None
    firsts = [(min(course), course[min(course)]) for course in courses]
    of_a, of_b = firsts[: len(case.runs_a)], firsts[len(case.runs_a) :]
    least = metrics.scale_of(name, case.runs_a[0].series) * ROUNDING
    if len(set(of_a)) > 1 or any(abs(value - of_a[0][1]) <= least for _, value in of_b):
        return None
    step, value = of_a[0]
    first = diagnosis.at(Place(step, name, value, of_b[0][1]), case.config)
    return Evidence(
        {"values": diagnosis.a_and_b(value, of_b[0][1]), "step": step},
        how="value by value, before any update",
        first=first,
    )


def restless_apart(case: CaseRuns) -> Evidence | None:
    """A metric that alone varies between equal runs of A is far from that in all runs of B."""
    said = restless.apart(case.restless, case.whole_a, case.whole_b) if case.restless else None
    return Evidence({"metric": said}, how="what A's own runs do") if said else None


def one_sided(case: CaseRuns) -> Evidence | None:
    """All runs of A record a metric at the same steps, or never, and B's do otherwise."""
    found = _samples(case)
    if not found or not case.unexplained:
        return None
    what = (
        "the decisive metrics are the same"
        if found.look.is_same
        else f"by {found.look.pairs} pairs the rest is not decided"
    )
    return _evidence(case, found, {"what": f"{what}, but", "metrics": case.unexplained})


# --- values outside all that A does


def _outlier(case: CaseRuns, found: Sequence[Outlier], ask: str = "", needed: int | None = None) -> Evidence:
    return Evidence(
        {"outlier": found[0], "ask": ask},
        first=case.at_outlier(found),
        pairs_needed=needed,
        rows=_rows(case),
        how=_how(case),
    )


def _rows(case: CaseRuns) -> list[Row]:
    found = _samples(case)
    return found.look.rows if found else []


def _how(case: CaseRuns) -> str:
    found = _samples(case)
    return f"{found.look.pairs} pairs of runs, by statistics" if found else by_value.how(case)


def far_outside(case: CaseRuns) -> Evidence | None:
    """Most runs of B have a value far outside, or outside A's band on its bad side."""
    return _outlier(case, case.outside) if any(each.is_bad for each in case.outside) else None


def outside(case: CaseRuns) -> Evidence | None:
    """Most runs of B have a value outside A's band that has no bad side."""
    return _outlier(case, case.outside) if case.outside else None


def outside_in_some(case: CaseRuns) -> Evidence | None:
    """Some runs of B have a value outside all that A does: then nothing is the same."""
    found = case.outliers
    if _is_only_better(case):
        found = [each for each in found if each.side <= 0]
    if not found:
        return None
    needed = next((look - case.base.pairs for look in LOOKS if look > case.base.pairs), None)
    ask = f": run {counted(needed, 'more pair')}" if needed else ": run B with that seed once more"
    return _outlier(case, found, ask, needed)


def _is_only_better(case: CaseRuns) -> bool:
    found = _samples(case)
    return bool(found and found.look.found(Finding.BETTER))


# --- not decided


def too_few(case: CaseRuns) -> Evidence | None:
    """There are too few pairs for statistics."""
    if case.number_of_pairs >= LOOKS[0] or not case.outcomes - {Outcome.IDENTICAL}:
        return None
    needed = LOOKS[0] - case.number_of_pairs
    pairs = f"{counted(case.number_of_pairs, 'pair')} of runs cannot tell noise from a change"
    ask = by_value.more_pairs(needed)
    if case.deterministic is not None:
        why = f"runs of A with one seed differ, so {pairs}"
    elif len(case.runs_a) > 1 and not all(run.seed for run in case.runs_a):
        why = f"runs of A differ, and the records do not tell their seeds, so {pairs}"
        ask = f"say which of them had one seed (--seeds 42,42), or {ask}"
    else:
        why = f"B differs from A (first at {case.first_value}), and one run of A does not tell what is noise"
        ask = f"run A once more with the same seed, or {ask}"
    return Evidence({"why": why, "ask": ask}, how="too few pairs", first=case.first_value, pairs_needed=needed)


def lacking(case: CaseRuns) -> Evidence | None:
    """A run lacks a metric that must decide."""
    found = case.samples.lacking if case.samples and not by_value.agrees(case) else None
    return Evidence({"run": found[0], "metric": found[1]}, how=_count(case)) if found else None


def _count(case: CaseRuns) -> str:
    return f"{case.number_of_pairs} pairs of runs, by statistics"


def nothing_decisive(case: CaseRuns) -> Evidence | None:
    """The runs have no decisive metric in common."""
    is_empty = case.samples and not case.samples.summaries and not by_value.agrees(case)
    return Evidence(how=_count(case)) if is_empty else None


def steady(case: CaseRuns) -> Evidence | None:
    """A decisive metric is the same in every run of A, at all times."""
    found = _samples(case)
    if not found or not found.look.steady:
        return None
    row = found.look.steady[0]
    return _evidence(case, found, {"metric": row.summary, "value": number(row.a)})


def not_decided(case: CaseRuns) -> Evidence | None:
    """It is neither shown that B differs nor that it is the same, and more pairs may tell."""
    found = _samples(case)
    return _open(case) if found and found.look.needed and not found.look.differs else None


def never_decided(case: CaseRuns) -> Evidence | None:
    """It is neither shown that B differs nor that it is the same, and more pairs would not tell."""
    return _open(case)


def _open(case: CaseRuns) -> Evidence | None:
    found = _samples(case)
    if not found or found.look.is_same or found.look.steady:
        return None
    look = found.look
    names = [row.summary for row in look.found(Finding.OPEN)]
    what = (
        names[0] if len(names) == 1 else f"{len(names)} of {len(look.rows)} values, such as {names[0]}" if names else ""
    )
    what = what or listed([str(each) for each in look.others.hinted], 2)
    ask = (
        f"run {counted(look.needed, 'more pair')}" if look.needed else "more pairs would not decide it: longer runs may"
    )
    said = {"pairs": look.pairs, "what": what, "ask": ask}
    return Evidence(
        said,
        how=f"{look.pairs} pairs of runs, by statistics",
        rows=look.rows,
        notes=sampled.shown_hidden(look.hidden),
        pairs_needed=look.needed,
    )


def same(case: CaseRuns) -> Evidence | None:
    """All decisive metrics are shown to be within A's margin, and nothing else differs."""
    found = _samples(case)
    if not found or not found.look.is_same:
        return None
    look = found.look
    notes = [*sampled.shown_hidden(look.hidden), *map(str, found.large_floors.values()), *_final(case, found)]
    if look.others.metrics:
        tested = f"all other metrics ({look.others.metrics}) have one test together"
        notes.append(f"{tested}, which can show a difference from {joint.FEWEST} pairs on")
    said = {"number": len(look.rows)}
    return Evidence(said, how=f"{look.pairs} pairs of runs, by statistics", rows=look.rows, notes=notes)
