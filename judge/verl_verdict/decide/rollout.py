"""The rollout half of a replayed case: does B sample as A does at the first step, where both have the same weights?

Replayed runs share A's rollouts, so they show the trainer alone. For this half B generates one step for itself; A's
first run generated, too.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_verdict.decide import diagnosis, exact, preconditions, sampled
from verl_verdict.decide.exact import Comparison, Outcome
from verl_verdict.decide.rules import Evidence, Regime
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import TOKENS, Run

_HOW = "tokens, lengths and log-probs of the first step"
_OF_ITS_LENGTH = ("trainer.total_training_steps", "trainer.save_freq")
_NOT_ASKED = (comparable.REPLAY, *(f"override {key}" for key in _OF_ITS_LENGTH))


def at_first_step(run: Run) -> Run:
    """What is known of the samples of the first step, without what only its length or its replay brings with it."""
    first = preconditions.first_step(run)
    series = {
        name: {first: values[first]} for name, values in run.series.items() if first in values and _is_of_rollout(name)
    }
    return dataclasses.replace(
        run,
        series=series,
        facts={name: fact for name, fact in run.facts.items() if name not in _NOT_ASKED},
        problems=tuple(each for each in run.problems if each.step == first),
        fingerprint="",
    )


@dataclass(frozen=True)
class Rollout:
    """What the first step of B's own run (`other`) shows beside that of A's first run.

    A second run of A tells whether it repeats itself; it is asked for (`deterministic` is None) where that matters. The
    hash of the tokens is the first step's. With `is_noisy` A's trainer is known not to repeat itself, so runs of A that
    agree about log-probs do so by chance.
    """

    case: Verdict
    runs: Sequence[Run]
    other: Run
    is_noisy: bool = False

    @cached_property
    def regime(self) -> Regime:
        """Do A's own runs sample the same, and not by chance?"""
        by_chance = self.is_noisy and self._has_same_tokens and _differs_in_log_probs_alone(self._a, self.other)
        return Regime.EXACT if self.base.deterministic and not by_chance else Regime.SAMPLED

    @cached_property
    def base(self) -> Verdict:
        """The verdict so far: whether A repeats itself, and where the configs differ."""
        repeats = exact.repeats(self.runs) and len({run.hashes.get(TOKENS) for run in self.runs}) == 1
        config = [each for each in comparable.config(self._a, self.other) if each.name not in _OF_ITS_LENGTH]
        return dataclasses.replace(self.case, how=_HOW, deterministic=repeats, config=tuple(config))

    def unrecorded(self) -> Evidence | None:
        """The runs have no tokens or no metrics in common."""
        has_tokens = {TOKENS} <= self._a.hashes.keys() & self.other.hashes.keys()
        return None if has_tokens and exact.compared(self._a, self.other) else Evidence()

    def mismatch(self) -> Evidence | None:
        """B's rollout and its actor disagree more about log-probs than A's."""
        worse = sampled.worse_alone(self._a, self.other, self.case.workload, ())
        return Evidence({"worse": worse}, first=self._first) if worse else None

    def bit_equal(self) -> Evidence | None:
        """B samples the same, bit by bit."""
        return Evidence() if self._samples_alike(Outcome.IDENTICAL) else None

    def rounding(self) -> Evidence | None:
        """B samples the same, but for rounding."""
        return Evidence() if self._samples_alike(Outcome.ROUNDING) else None

    def unknown_noise(self) -> Evidence | None:
        """B samples something else, and so may A."""
        return Evidence({"what": self._what}, first=self._first) if self.base.deterministic is None else None

    def changed(self) -> Evidence | None:
        """B samples something else, and A does not."""
        return Evidence({"what": self._what}, first=self._first)

    def within_noise(self) -> Evidence | None:
        """B is no further from A than A's own runs from each other."""
        return Evidence({"varies": self._varies}) if _is_within_floors(self.runs, self.other) else None

    def open(self) -> Evidence | None:
        """B may be further from A than that."""
        return Evidence({"varies": self._varies}, first=self._first)

    @property
    def _a(self) -> Run:
        return self.runs[0]

    @cached_property
    def _found(self) -> Comparison:
        return exact.compare(self._a, self.other, exact.noise([self.runs]))

    @property
    def _first(self) -> diagnosis.Diagnosis | None:
        return diagnosis.diagnose(self._found, self.base.config)

    @property
    def _has_same_tokens(self) -> bool:
        return self._a.hashes.get(TOKENS) == self.other.hashes.get(TOKENS)

    def _samples_alike(self, outcome: Outcome) -> bool:
        return self._has_same_tokens and self._found.outcome is outcome

    @property
    def _what(self) -> str:
        return "A's tokens with other log-probs or rewards" if self._has_same_tokens else "other tokens than A"

    @property
    def _varies(self) -> str:
        computes = "A's trainer computes other log-probs of equal tokens"
        return computes if self.base.deterministic else "A samples other tokens"


def _is_of_rollout(name: str) -> bool:
    """What recording rollouts changes is no part of a replayed run's record, so it is none of any run here."""
    return metrics.stage_of(name) in metrics.STAGES[:4] and not metrics.is_of_recording(name)


def _differs_in_log_probs_alone(a: Run, other: Run) -> bool:
    of_log_probs = [name for name in a.series if metrics.is_of_mismatch(name)]
    return exact.repeats([a.without(of_log_probs), other.without(of_log_probs)]) is True


def _is_within_floors(runs: Sequence[Run], other: Run) -> bool:
    """Is each decisive metric of B within its floor, or within three times what A's two runs differ by?"""
    a, again = runs[:2]
    for summary in sampled.summaries([a, again, other], other.workload, ()):
        mine, own, value = summary.value(a), summary.value(again), summary.value(other)
        if abs(value - mine) > max(summary.decisive.floor_of(mine), 3 * abs(own - mine)):
            return False
    return True
