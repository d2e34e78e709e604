"""A rule of the judge: when it applies, which verdict it gives, and the sentence that says why.

The rules are rows of table.py. They are tried in order, and the first one that applies decides. What a rule looks at are facts: an object
that knows the runs and computes what they show, but decides nothing.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from verl_verdict.decide.diagnosis import Diagnosis
from verl_verdict.decide.verdicts import Row, Verdict, Word
from verl_verdict.read import comparable


class Regime(enum.Flag):
    """How much the runs of A tell, and so which rules are tried. ONE_SIDED rules look at what one side alone left, and are always tried."""

    EXACT = enum.auto()  # runs of A with one seed are equal: each value counts
    REPLAYED = enum.auto()  # all runs trained on A's rollouts, and A's repeats measure the noise that is left
    SAMPLED = enum.auto()  # runs of A with one seed differ, or nobody knows: statistics over pairs
    ONE_SIDED = enum.auto()


EVERY = Regime.EXACT | Regime.REPLAYED | Regime.SAMPLED


@dataclass(frozen=True)
class Evidence:
    """Why a rule applies: `said` fills the gaps of its sentence, and the rest goes into the verdict. What is None stays as the facts say."""

    said: Mapping[str, object] = field(default_factory=dict)
    how: str | None = None
    first: Diagnosis | None = None
    rows: Sequence[Row] | None = None
    notes: Sequence[str] = ()  # behind those of the facts
    differs: Sequence[comparable.Difference] | None = None
    pairs: int | None = None
    pairs_needed: int | None = None
    needs_perturbed: bool = False


class Facts(Protocol):
    """What a rule looks at."""

    @property
    def base(self) -> Verdict:
        """The verdict without its word, its rule and its reason."""

    @property
    def regime(self) -> Regime:
        """Which rules are tried."""


F = TypeVar("F", bound=Facts)


@dataclass(frozen=True)
class Rule(Generic[F]):
    """A row of the table. `sentence` has gaps such as {metric}, which the evidence fills."""

    id: str
    regime: Regime
    word: Word
    sentence: str
    when: Callable[[F], Evidence | None]

    def applies(self, facts: F) -> Evidence | None:
        """The evidence, if the rule is one of this regime and applies."""
        is_tried = Regime.ONE_SIDED in self.regime or bool(self.regime & facts.regime)
        return self.when(facts) if is_tried else None

    def verdict(self, base: Verdict, found: Evidence) -> Verdict:
        """`base` with this rule's word and reason, and the evidence."""
        given = {name: getattr(found, name) for name in ("how", "pairs") if getattr(found, name) is not None}
        given |= {name: tuple(getattr(found, name)) for name in ("rows", "differs") if getattr(found, name) is not None}
        return dataclasses.replace(
            base,
            word=self.word,
            rule=self.id,
            reason=self.sentence.format(**found.said),
            first=found.first,
            notes=(*base.notes, *found.notes),
            pairs_needed=found.pairs_needed,
            needs_perturbed=found.needs_perturbed,
            **given,
        )


def first_of(rules: Sequence[Rule[F]], facts: F) -> Verdict | None:
    """The verdict of the first rule that applies; None if none does."""
    for rule in rules:
        if (found := rule.applies(facts)) is not None:
            return rule.verdict(facts.base, found)
    return None


def decided(rules: Sequence[Rule[F]], facts: F) -> Verdict:
    """The same, of rules of which one always applies."""
    found = first_of(rules, facts)
    assert found is not None, f"no rule applies to {facts.base.case}"
    return found
