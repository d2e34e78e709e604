"""Differences that show what they are whatever else the runs do, so that one pair is enough: the evidence of the first rules."""

from collections.abc import Iterator

from verl_verdict.decide import diagnosis, sampled
from verl_verdict.decide.case import CaseRuns
from verl_verdict.decide.diagnosis import Diagnosis, Place, listed
from verl_verdict.decide.exact import Comparison
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.rules import Evidence
from verl_verdict.read import metrics

_ONE_PAIR = "one pair with the same seed, value by value"


def all_ignored(case: CaseRuns) -> Evidence | None:
    """The user ignores every metric that is to decide."""
    if not case.asked or case.chosen:
        return None
    names = listed([each.pattern for each in case.asked])
    return Evidence({"metrics": names}, how="nothing was decided", pairs=0)


def no_pair(case: CaseRuns) -> Evidence | None:
    """No run of B has the seed of a run of A."""
    return None if case.compared else Evidence(how="nothing was compared")


def only_logged(case: CaseRuns) -> Evidence | None:
    """B trains as A does, and logs some metrics times a constant."""
    if case.unexplained or any(case.other_hashes(pair) for pair, _ in case.compared):
        return None
    found = [diagnosis.scaled(pair.a[0], pair.b[0]) for pair, _ in case.compared]
    if not all(each and each.keys() == found[0].keys() for each in found):
        return None
    pair, _ = case.worst_pair
    names = sorted(found[0], key=metrics.causal_rank)
    factors = listed([f"{name} (times {diagnosis.number(found[0][name])})" for name in names])
    equal = ["gradients", *(["rewards"] if "critic/score/mean" in pair.a[0].series else [])]
    equal += [name for name in pair.a[0].hashes if name in pair.b[0].hashes]
    return Evidence({"factors": factors, "equal": ", ".join(equal)}, how="value by value", first=case.first_value)


def _pairs(case: CaseRuns) -> Iterator[tuple[Pair, Comparison, Diagnosis | None]]:
    for pair, found in case.compared:
        yield pair, found, diagnosis.diagnose(found, case.config)


def opposite_sign(case: CaseRuns) -> Evidence | None:
    """With equal rewards the advantages have the opposite sign, or with equal advantages the loss."""
    for pair, found, first in _pairs(case):
        wrong = diagnosis.opposite_sign(pair.a[0], pair.b[0], found, is_exact=case.deterministic is True)
        if wrong is not None:
            of_advantages = wrong.metric.startswith("critic/advantages/")
            what, equal = ("critic/advantages", "rewards") if of_advantages else (wrong.metric, "advantages")
            return Evidence({"equal": equal, "metric": what, "step": wrong.step}, how=_ONE_PAIR, first=first)
    return None


def stays_zero(case: CaseRuns) -> Evidence | None:
    """A gradient, a learning rate, the advantages or the KL loss is 0 at every step of B, and not of A."""
    for pair, _, first in _pairs(case):
        if zero := diagnosis.stays_zero(pair.a[0], pair.b[0]):
            name, said = zero
            return Evidence({"zero": said}, how=_ONE_PAIR, first=first if case.is_exact else _begin(case, pair, name))
    return None


def _begin(case: CaseRuns, pair: Pair, name: str) -> Diagnosis:
    """The first values of a metric."""
    a, b = pair.a[0].series[name], pair.b[0].series[name]
    step = min(a.keys() & b.keys(), default=min(b))
    return diagnosis.at(Place(step, name, a.get(step, b[step]), b[step]), case.config)


def mismatch_gone(case: CaseRuns) -> Evidence | None:
    """Rollout and actor agree exactly at every step, and not in A: nothing is compared any more."""
    for pair, _, first in _pairs(case):
        if gone := diagnosis.mismatch_gone(pair.a[0], pair.b[0]):
            return Evidence({"metric": gone}, how=_ONE_PAIR, first=first if case.is_exact else _begin(case, pair, gone))
    return None


def worse_on_replay(case: CaseRuns) -> Evidence | None:
    """On A's rollouts a metric is worse that hardly depends on the path of training."""
    for pair, _, first in _pairs(case):
        if worse := sampled.worse_alone(pair.a[0], pair.b[0], case.workload, case.deciding):
            return Evidence({"worse": worse}, how=_ONE_PAIR, first=first)
    return None


def no_advantage(case: CaseRuns) -> Evidence | None:
    """The advantages are 0 at every step of all runs."""
    runs = [run for pair in case.pairs for run in (pair.a[0], pair.b[0])]
    return Evidence(how=_ONE_PAIR) if all(map(diagnosis.no_advantage, runs)) else None


def never_recorded(case: CaseRuns) -> Evidence | None:
    """No run has a metric that the suite names as decisive: it is probably misspelt."""
    recorded = {name for run in (*case.runs_a, *case.runs_b) for name in run.series}
    lacking = [each.pattern for each in case.chosen if each.required and not any(map(each.matches, recorded))]
    return Evidence({"metrics": listed(lacking)}, how="nothing was decided", pairs=0) if lacking else None
