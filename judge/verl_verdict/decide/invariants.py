"""Invariants: runs of one code must agree with each other although their configs differ in something that changes no result, such as the
number of micro-batches. A fault that A and B share is seen in no other way.

The first update is compared: there all runs have the same weights and prompts, and in a rehearsal the same answers.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from verl_verdict.decide import diagnosis, exact, preconditions
from verl_verdict.decide.diagnosis import counted, listed, number
from verl_verdict.decide.exact import Difference
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.read import metrics
from verl_verdict.read.metrics import POLICY_LOSS_BAND
from verl_verdict.read.records import TOKENS, Run

LIMIT = 0.01  # of a metric's size. Measured in rehearsals of 0.9.1, which log SFT's loss as bfloat16: up to 0.003
_OF_RANKS = "global_seqlen/"  # how many tokens each rank has
_FURTHER = 3.0  # B may be that much further off than A
_LEAST = 1e-6  # a smaller distance is what rounding leaves of 0
_MEANS = "the update depends on how its batch is split, packed or spread: something is divided by the wrong number, left out or counted twice"
_HOW = "the first update of the runs of one code, value by value, for A and for B"


@dataclass(frozen=True)
class Member:
    """A config of the group, and its runs. `apart` is what sets it apart from the first member; empty for that one."""

    apart: str
    a: Run
    b: Run


@dataclass(frozen=True)
class _Off:
    """A metric of a member that is not as in the first member's run of the same code, in A's run, in B's, or in both.

    `size_a` and `size_b` are how far off each of them is, also where that does not count.
    """

    apart: str
    a: Difference | None
    b: Difference | None
    size_a: float
    size_b: float

    @property
    def is_of_b(self) -> bool:
        """B is off, and A is not, or far less."""
        return self.b is not None and self.size_b > _FURTHER * self.size_a

    @property
    def is_of_a(self) -> bool:
        """A is off, and B is not, or far less."""
        return self.a is not None and self.size_a > _FURTHER * self.size_b

    def __str__(self) -> str:
        found = self.b or self.a
        assert found is not None
        factor = found.b / found.a if found.a else 0.0
        times = f"{factor:.3g} times as large" if factor > 0 else "another one"
        return f"{found.metric} is {times} with {self.apart} ({number(found.b)} instead of {number(found.a)})"


def judge(members: Sequence[Member], *, name: str, ignore: Sequence[str] = ()) -> Verdict:
    """The verdict on a group of at least two members. B must hold what A holds; what A breaks too is not B's fault."""
    runs_a, runs_b = [each.a for each in members], [each.b for each in members]
    workload = preconditions.one_workload(runs_a, runs_b, ())
    preconditions.no_copies([*runs_a, *runs_b])
    notes = (f"not compared, as asked: {listed(list(ignore))}",) if ignore else ()
    base = Verdict(case=name, word=Word.INCONCLUSIVE, reason="", workload=workload, how=_HOW, notes=notes)
    for each in members:
        if early := preconditions.verdict(base, [each.a], [each.b]):
            return early
    members = [
        Member(each.apart, *(_first_update(run.without(ignore)) for run in (each.a, each.b))) for each in members
    ]
    return _compared(dataclasses.replace(base, pairs=1), members)


def _first_update(run: Run) -> Run:
    """The run as if it had trained its first step only, without what is another thing with another number of ranks."""
    step = preconditions.first_step(run)
    named = {name: values for name, values in run.series.items() if not name.startswith(_OF_RANKS)}
    series = {name: {step: values[step]} for name, values in named.items() if step in values}
    return dataclasses.replace(run, series=series)


def _compared(base: Verdict, members: Sequence[Member]) -> Verdict:
    first, *others = members
    for each in others:
        for side, one, other in (("A", first.a, each.a), ("B", first.b, each.b)):
            if why := _why_no_measure(one, other):
                reason = f"the runs of {side} cannot be compared, because with {each.apart} {why}"
                return dataclasses.replace(base, reason=reason)
    off = [found for each in others for found in _off(first, each)]
    of_b = [each for each in off if each.is_of_b]
    of_both = [each for each in off if not each.is_of_b]
    notes = (*base.notes, *(f"A {'breaks' if each.is_of_a else 'and B break'} it: {each}" for each in of_both))
    base = dataclasses.replace(base, notes=notes)
    if of_b:
        worst = max(of_b, key=lambda each: each.b.size if each.b else 0.0)
        reason = f"B breaks what A holds: {worst}"
        return dataclasses.replace(base, word=Word.REGRESSED, reason=reason, first=_first(worst, of_b, members))
    if shared := [each for each in of_both if not each.is_of_a]:
        reason = f"A breaks it too, so B is not to blame: {shared[0]}; either both have a fault, or that override changes what is computed"
        return dataclasses.replace(base, reason=reason)
    if of_both:
        return dataclasses.replace(base, word=Word.IMPROVED, reason=f"B holds what A breaks: {of_both[0]}")
    number_of = min(len(exact.compared(first.b, each.b)) for each in others)
    size = max((each.size for member in others for each in _differences(first.b, member.b)), default=0.0)
    reason = f"all {counted(len(members), 'config')} agree in {counted(number_of, 'metric')}, with A and with B (B's by {size:.1g} of a metric's size)"
    return dataclasses.replace(base, word=Word.SAME, reason=reason)


def _why_no_measure(one: Run, other: Run) -> str | None:
    """Why the first update of one run says nothing about the other's."""
    if one.hashes.get(TOKENS) != other.hashes.get(TOKENS):
        return "other tokens were sampled"
    if one.steps != other.steps or not exact.compared(one, other):
        return "no metric of the first update is in both records"
    return "the gradient is 0, so nothing trains" if diagnosis.no_gradient(one) else None


def _differences(one: Run, other: Run) -> list[Difference]:
    """What differs at the first step."""
    return next(exact.differences(one, other), [])


def _off(first: Member, other: Member) -> list[_Off]:
    """The metrics that are off in A or in B, in causal order."""
    all_a, all_b = (
        {each.metric: each for each in _differences(*pair)} for pair in ((first.a, other.a), (first.b, other.b))
    )
    a, b = ({name: each for name, each in found.items() if _counts(each)} for found in (all_a, all_b))
    return [
        _Off(other.apart, a.get(name), b.get(name), _size(all_a.get(name)), _size(all_b.get(name)))
        for name in sorted(a.keys() | b.keys(), key=metrics.causal_rank)
    ]


def _size(each: Difference | None) -> float:
    return each.size if each else 0.0


def _counts(each: Difference) -> bool:
    """More than rounding. The policy loss is near 0, where rounding is large beside it: up to 0.03 of it was measured."""
    is_near_0 = each.metric in ("actor/pg_loss", "actor/loss") and abs(each.a - each.b) <= POLICY_LOSS_BAND
    return each.size > LIMIT and not abs(each.a - each.b) < _LEAST and not is_near_0


def _first(worst: _Off, found: Sequence[_Off], members: Sequence[Member]) -> diagnosis.Diagnosis:
    """Where B breaks it: the values of A and of B with the config that shows it."""
    assert worst.b is not None
    member = next(each for each in members if each.apart == worst.apart)
    step, metric = worst.b.step, worst.b.metric
    of_a = member.a.series.get(metric, {}).get(step, worst.b.a)
    others = [each.b.metric for each in found if each.b and each is not worst and each.apart == worst.apart]
    return diagnosis.Diagnosis(step, metric, of_a, worst.b.b, _MEANS, tuple(others))
