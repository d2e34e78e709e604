"""Other devices: how far the reward and the losses of B are from those of A, as a mean over the steps, against a limit that the user gives.

The error of a metric is the mean over the steps of |B - A|, divided by the mean over the steps of |A|: a step in which A is near 0 does not
decide alone. Where a side has several runs, its mean over these runs counts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from verl_verdict.decide.diagnosis import counted, listed
from verl_verdict.decide.pairing import Pair
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.read.records import Run

# What is compared, the first always. Nothing else is: other devices round otherwise, and sample other tokens.
_RL = ("critic/rewards/mean", "actor/pg_loss")
COMPARED = {"ppo": (*_RL, "critic/vf_loss"), "grpo": _RL, "sft": ("train/loss", "val/loss")}


@dataclass(frozen=True)
class Error:
    """The relative error of a metric: its mean over the steps, and the largest of one step."""

    metric: str
    mean: float
    largest: float
    step: int
    steps: int

    def __str__(self) -> str:
        if np.isinf(self.mean):
            return f"{self.metric} is 0 at all {self.steps} steps of A, and not of B"
        return f"{self.metric} {self.mean:.2%} over {counted(self.steps, 'step')}, at most {self.largest:.2%} at step {self.step}"


def judged(base: Verdict, pairs: Sequence[Pair], limit: float, ignore: Collection[str] = ()) -> Verdict:
    """`base` with the word, its reason, and what was compared and what not; `ignore` names the metrics that the user left out."""
    runs_a, runs_b = [run for pair in pairs for run in pair.a], [run for pair in pairs for run in pair.b]
    wanted = COMPARED.get(base.workload, _RL)
    found = [each for metric in wanted if (each := error(metric, runs_a, runs_b))]
    lacking = [metric for metric in wanted if metric not in {each.metric for each in found}]
    above = [each for each in found if not each.mean <= limit]
    word = Word.CHANGED if above else Word.SAME
    judged = listed([each.metric for each in above or found])
    reason = f"the mean relative error of {judged} is {'above' if above else 'at most'} {limit:.2%}"
    if not above and (not found or wanted[0] in set(lacking).difference(ignore)):
        word = Word.INCONCLUSIVE
        reason = f"no step of both sides has {listed(lacking)} with a value that is not 0: compare records that have"
    notes = [f"mean relative error: {each}" for each in found]
    if repeated := [pair.a for pair in pairs if len(pair.a) > 1]:
        own = [each for metric in wanted if (each := error(metric, repeated[0][:1], repeated[0][1:]))]
        notes += [f"A against A with the same seed: {each}" for each in own]
    beside = "".join(f", {name} (not in both records, or 0)" for name in lacking)
    notes.append(f"not compared: all other metrics, the times and what was sampled{beside}")
    how = f"mean relative error over the steps, {counted(len(pairs), 'pair')} of runs"
    return replace(base, word=word, reason=reason, how=how, notes=(*base.notes, *notes))


def error(metric: str, runs_a: Sequence[Run], runs_b: Sequence[Run]) -> Error | None:
    """The error over the steps that all runs have; None if there is none, or all are 0 in all of them; infinite if only A is."""
    every = [run.series.get(metric, {}) for run in (*runs_a, *runs_b)]
    steps = sorted(set.intersection(*(set(values) for values in every)))
    courses = np.array([[values[step] for step in steps] for values in every])
    a, b = courses[: len(runs_a)].mean(axis=0), courses[len(runs_a) :].mean(axis=0)
    if not steps or not (a.any() or b.any()):
        return None
    away = np.abs(b - a) / np.abs(a).mean() if a.any() else np.where(b, np.inf, 0)
    return Error(metric, float(away.mean()), float(away.max()), steps[int(away.argmax())], len(steps))
