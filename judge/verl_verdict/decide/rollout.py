"""The rollout half of a replayed case: does B sample as A does at the first step, where both still have the same weights?

Replayed runs share A's rollouts, so they show the trainer alone. For this half B generates one step for itself; A's first run generated, too.
"""

import dataclasses
from collections.abc import Sequence

from verl_verdict.decide import diagnosis, exact, preconditions, sampled
from verl_verdict.decide.exact import Outcome
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import TOKENS, Run

_OF_ITS_LENGTH = ("trainer.total_training_steps", "trainer.save_freq")
_NOT_ASKED = (comparable.REPLAY, *(f"override {key}" for key in _OF_ITS_LENGTH))


def case(runs_a: Sequence[Run], b: Run, *, name: str, is_noisy: bool = False) -> Verdict:
    """The verdict on the first step of B's own run, compared with A's first run. A second run of A tells whether it repeats itself; it is
    asked for (`deterministic` is None) where that matters. The hash of the tokens is the first step's. With `is_noisy` A's trainer is known
    not to repeat itself, so runs of A that agree about log-probs do so by chance.
    """
    base = Verdict(
        name, Word.INCONCLUSIVE, "", workload=b.workload, how="tokens, lengths and log-probs of the first step", pairs=1
    )
    runs, other = [_first_step(run) for run in runs_a], _first_step(b)
    if early := preconditions.verdict(base, runs, [other]):
        return early
    a, repeats = runs[0], exact.repeats(runs) and len({run.hashes.get(TOKENS) for run in runs}) == 1
    config = [each for each in comparable.config(a, other) if each.name not in _OF_ITS_LENGTH]
    base = dataclasses.replace(base, deterministic=repeats, config=tuple(config))
    if not exact.compared(a, other) or not {TOKENS} <= a.hashes.keys() & other.hashes.keys():
        return dataclasses.replace(base, reason="the runs did not record what they sampled at the first step")
    found = exact.compare(a, other, exact.noise([runs]))
    first, has_same_tokens = diagnosis.diagnose(found, base.config), a.hashes[TOKENS] == other.hashes[TOKENS]

    def says(word: Word, reason: str) -> Verdict:
        shown = None if word in (Word.IDENTICAL, Word.SAME) else first
        return dataclasses.replace(base, word=word, reason=reason, first=shown)

    if worse := sampled.worse_alone(a, other, base.workload, ()):
        return says(Word.REGRESSED, f"the rollout of B disagrees more with the actor: {worse}")
    if has_same_tokens and found.outcome in (Outcome.IDENTICAL, Outcome.ROUNDING):
        equal = "bit-equal" if found.outcome is Outcome.IDENTICAL else "equal but for rounding"
        word = Word.IDENTICAL if found.outcome is Outcome.IDENTICAL else Word.SAME
        return says(word, f"B samples A's tokens, and all that is known of them is {equal}")
    with_tokens = "A's tokens with other log-probs or rewards"
    what = f"B samples {with_tokens if has_same_tokens else 'other tokens than A'}"
    if base.deterministic is None:
        return says(Word.INCONCLUSIVE, f"{what}, and one run of A does not tell whether it repeats itself")
    if base.deterministic and not (is_noisy and has_same_tokens and _differs_in_log_probs_alone(a, other)):
        return says(Word.CHANGED, f"{what}, and A's own runs sample the same")
    varies = "A samples other tokens in each run, and"
    if base.deterministic:
        varies = "A's trainer computes other log-probs of equal tokens in each run, and"
    if _is_within_floors(runs, other):
        return says(Word.SAME, f"{varies} B's lengths, log-probs and scores differ no more than that")
    return says(Word.INCONCLUSIVE, f"{varies} one step does not tell whether B differs more: run REPLAY=0")


def _first_step(run: Run) -> Run:
    """What is known of the samples of the first step, without what only its length or its replay brings with it."""
    first = preconditions.first_step(run)
    series = {
        name: {first: values[first]} for name, values in run.series.items() if first in values and _is_of_rollout(name)
    }
    facts = {name: fact for name, fact in run.facts.items() if name not in _NOT_ASKED}
    return dataclasses.replace(
        run,
        series=series,
        facts=facts,
        problems=tuple(each for each in run.problems if each.step == first),
        fingerprint="",
    )


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
