"""Invariants: runs of one code must agree with each other although their configs differ in something that changes no
result, such as the number of micro-batches. A fault that A and B share is seen in no other way.

The first update is compared: there all runs have the same weights and prompts, and in a rehearsal the same answers.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_verdict.decide import diagnosis, exact, preconditions
from verl_verdict.decide.diagnosis import counted, number
from verl_verdict.decide.exact import ValueDifference
from verl_verdict.decide.rules import Evidence, Regime
from verl_verdict.decide.verdicts import Verdict
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

    def at_first_update(self, ignore: Sequence[str]) -> "Member":
        """The same with runs that trained their first step only. `ignore` names metrics that are not compared."""
        return Member(self.apart, *(_first_update(run.without(ignore)) for run in (self.a, self.b)))


def _first_update(run: Run) -> Run:
    """The run as if it had trained its first step only, without what is another thing with another number of ranks."""
    step = preconditions.first_step(run)
    named = {name: values for name, values in run.series.items() if not name.startswith(_OF_RANKS)}
    series = {name: {step: values[step]} for name, values in named.items() if step in values}
    return dataclasses.replace(run, series=series)


@dataclass(frozen=True)
class _Off:
    """A metric of a member that is not as in the first member's run of the same code: in A's run, in B's, or in both.

    `size_a` and `size_b` are how far off each of them is, also where that does not count.
    """

    apart: str
    a: ValueDifference | None
    b: ValueDifference | None
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


@dataclass(frozen=True)
class FirstUpdates:
    """What the first updates of the runs of a group show. It has at least two members.

    B must hold what A holds; what A breaks too is not B's fault.
    """

    case: Verdict
    members: Sequence[Member]
    regime = Regime.EXACT

    @property
    def base(self) -> Verdict:
        """The verdict so far."""
        return dataclasses.replace(self.case, how=_HOW, pairs=1)

    def unmeasured(self) -> Evidence | None:
        """A run of some code says nothing about another run of it."""
        first, *others = self.members
        for each in others:
            for side, one, other in (("A", first.a, each.a), ("B", first.b, each.b)):
                if why := _why_no_measure(one, other):
                    return Evidence({"side": side, "config": each.apart, "why": why})
        return None

    def broken(self) -> Evidence | None:
        """B is off in a metric, and A is not, or far less."""
        if not self._of_b:
            return None
        worst = max(self._of_b, key=lambda each: each.b.size if each.b else 0.0)
        return Evidence({"off": worst}, first=_first(worst, self._of_b, self.members), notes=self._notes)

    def broken_by_both(self) -> Evidence | None:
        """A and B are off alike."""
        shared = [each for each in self._not_of_b if not each.is_of_a]
        return Evidence({"off": shared[0]}, notes=self._notes) if shared else None

    def fixed(self) -> Evidence | None:
        """A is off, and B is not, or far less."""
        return Evidence({"off": self._not_of_b[0]}, notes=self._notes) if self._not_of_b else None

    def held(self) -> Evidence | None:
        """Nothing is off."""
        first, *others = self.members
        number_of = min(len(exact.compared(first.b, each.b)) for each in others)
        size = max((each.size for other in others for each in _differences(first.b, other.b)), default=0.0)
        configs = counted(len(self.members), "config")
        return Evidence({"configs": configs, "metrics": counted(number_of, "metric"), "size": size})

    @cached_property
    def _off(self) -> list[_Off]:
        first, *others = self.members
        return [found for each in others for found in _off(first, each)]

    @property
    def _of_b(self) -> list[_Off]:
        return [each for each in self._off if each.is_of_b]

    @property
    def _not_of_b(self) -> list[_Off]:
        return [each for each in self._off if not each.is_of_b]

    @property
    def _notes(self) -> list[str]:
        return [f"A {'breaks' if each.is_of_a else 'and B break'} it: {each}" for each in self._not_of_b]


def _why_no_measure(one: Run, other: Run) -> str | None:
    """Why the first update of one run says nothing about the other's."""
    if one.hashes.get(TOKENS) != other.hashes.get(TOKENS):
        return "other tokens were sampled"
    if one.steps != other.steps or not exact.compared(one, other):
        return "no metric of the first update is in both records"
    return "the gradient is 0, so nothing trains" if diagnosis.no_gradient(one) else None


def _differences(one: Run, other: Run) -> list[ValueDifference]:
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


def _size(each: ValueDifference | None) -> float:
    return each.size if each else 0.0


def _counts(each: ValueDifference) -> bool:
    """More than rounding.

    The policy loss is near 0, where rounding is large beside it: up to 0.03 of it was measured.
    """
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
