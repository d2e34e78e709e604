"""What a verdict is: seven words, their exit statuses, and the evidence that comes with them."""

import argparse
import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from verl_verdict.decide.diagnosis import Diagnosis
from verl_verdict.errors import CannotJudge
from verl_verdict.read import comparable


class Word(enum.Enum):
    """The verdict on a case."""

    IDENTICAL = "identical"
    SAME = "same"
    IMPROVED = "improved"
    CHANGED = "changed"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"


# The exit statuses, the worst verdict first: the worst case decides for all.
STATUS = {
    Word.REGRESSED: 9,
    Word.INCOMPARABLE: 12,
    Word.CHANGED: 10,
    Word.INCONCLUSIVE: 11,
    Word.IMPROVED: 0,
    Word.SAME: 0,
    Word.IDENTICAL: 0,
}
_WORST_FIRST = tuple(STATUS)
_AGREEING = (Word.IDENTICAL, Word.SAME)
_UNDECIDED = (Word.INCONCLUSIVE, Word.INCOMPARABLE)
DIFFERING = frozenset(word.value for word in Word if word not in (*_AGREEING, *_UNDECIDED))
"""The words of verdicts by which B does not train as A does."""
# A CI may take these for success. Never a regression, nor runs that cannot be compared.
ALLOWABLE = (Word.CHANGED, Word.INCONCLUSIVE)


class Finding(str, enum.Enum):
    """What statistics show of one metric."""

    WORSE = "worse"
    APART = "apart"  # on no bad side, or on none
    BETTER = "better"
    SAME = "same"
    OPEN = "open"


DIFFERENT = (Finding.WORSE, Finding.APART, Finding.BETTER)


@dataclass(frozen=True)
class Row:
    """A decisive metric of a case that was judged by statistics: means over the paired runs."""

    summary: str  # the metric, and at the first update or over the last third
    a: float
    b: float
    margin: float
    p: float  # of the difference, adjusted for all summaries
    sameness_p: float
    finding: Finding


@dataclass(frozen=True)
class Verdict:
    """The verdict on one case."""

    case: str
    word: Word
    reason: str
    rule: str = ""  # its id in table.py
    workload: str = ""
    how: str = ""  # how it was decided: one line
    pairs: int = 0
    deterministic: bool | None = None
    first: Diagnosis | None = None
    differs: tuple[comparable.Difference, ...] = ()  # what makes it incomparable, or was accepted
    config: tuple[comparable.Difference, ...] = ()  # verl's resolved config
    files: tuple[str, ...] = ()  # of verl, loaded by A and B, that differ, the likely cause first
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    pairs_needed: int | None = None
    needs_perturbed: bool = False  # a run of A with perturbed last bits may tell more

    @property
    def agrees(self) -> bool:
        """B trains as A does."""
        return self.word in _AGREEING

    @property
    def is_bit_equal(self) -> bool:
        """All values are equal."""
        return self.word is Word.IDENTICAL

    @property
    def is_worse(self) -> bool:
        """B is worse."""
        return self.word is Word.REGRESSED

    @property
    def is_better(self) -> bool:
        """B is better, and nothing else differs."""
        return self.word is Word.IMPROVED

    @property
    def is_open(self) -> bool:
        """More runs may decide it."""
        return self.word is Word.INCONCLUSIVE

    @property
    def is_undecided(self) -> bool:
        """The runs decide nothing, or cannot."""
        return self.word in _UNDECIDED

    @property
    def shown(self) -> str:
        """The evidence in a few words: the metric and its values where they differ, else the reason; and how many runs show it."""
        if self.is_open:
            return self.reason
        return "; ".join(each for each in (str(self.first or self.reason), self.how) if each)

    @property
    def decided(self) -> str:
        """How it was decided, and what runs of A with one seed do if that is known."""
        repeats = {True: "; runs of A with one seed are equal", False: "; runs of A with one seed differ", None: ""}
        return self.how + repeats[self.deterministic]


def undecided(case: str, workload: str = "", how: str = "", notes: Iterable[str] = ()) -> Verdict:
    """A verdict that no rule has decided yet."""
    return Verdict(case, Word.INCONCLUSIVE, "", workload=workload, how=how, notes=tuple(notes))


def allowed(text: str) -> frozenset[Word]:
    """The words of `--allow=changed,inconclusive`. Raises CannotJudge for one that cannot be allowed."""
    words, names = {word.value: word for word in ALLOWABLE}, [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in words]:
        raise CannotJudge(f"--allow={text} has '{unknown[0]}': only {' and '.join(words)} can be allowed.")
    return frozenset(words[name] for name in names)


def add_allow(parser: argparse.ArgumentParser) -> None:
    """The option `--allow`, as `allowed` reads it."""
    parser.add_argument(
        "--allow",
        type=allowed,
        default=frozenset(),
        metavar="WORD,...",
        help="verdicts that exit with 0: changed,inconclusive",
    )


def worst(found: Iterable[Verdict]) -> Word:
    """The verdict that decides for all cases."""
    return min((each.word for each in found), key=_WORST_FIRST.index)


def status(found: Iterable[Verdict], allow: Collection[Word] = ()) -> int:
    """The exit status; a verdict that is allowed counts as 0. One that is not allowed decides, although an allowed one is worse."""
    decisive = {each.word for each in found} - set(allow)
    return next((STATUS[word] for word in _WORST_FIRST if word in decisive), 0)
