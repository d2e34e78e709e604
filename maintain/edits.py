"""What the judge says where only named values differ: runs of A against runs of A, of which B's record was edited.

So each edit is a difference whose size is known, in the noise of real runs. The runs are those of calibration.py that have all metrics;
sessions of the same edit share runs, so their number is no sample.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import calibration
from calibration import REPLAYED
from verl_verdict.decide import judge
from verl_verdict.decide.statistics import LOOKS
from verl_verdict.decide.verdicts import Verdict
from verl_verdict.read.records import Run

PAIRS = (1, 3, 6, LOOKS[-1])
SESSIONS = 2  # of each edit and number of pairs: they begin at other pairs
SCORE = "critic/score/mean"
SUCCESS = "episode/success_rate"  # a metric that no release of verl writes

Values = Callable[[int, float], float]  # of the step and the value
Side = Callable[[Run], Run]


@dataclass(frozen=True)
class Edit:
    """An edit of B's record, or of both (`of_both` comes first); `workload` is that of the runs. `words` are right if it is seen."""

    name: str
    title: str
    workload: str = "ppo"
    of_b: Side = lambda run: run
    of_both: Side = lambda run: run
    words: tuple[str, ...] = ("changed",)

    @property
    def is_none(self) -> bool:
        """A against A."""
        return not self.words


def of(metrics: Sequence[str], values: Values) -> Side:
    """The edit of these metrics."""

    def edited(run: Run) -> Run:
        new = {name: {step: values(step, value) for step, value in run.series[name].items()} for name in metrics}
        return dataclasses.replace(run, series={**run.series, **new}, fingerprint=f"{run.fingerprint} edited")

    return edited


def added(name: str, mean: float, share: float = 1.0) -> Side:
    """The edit that adds a metric with noise of its own, at this share of the steps."""

    def edited(run: Run) -> Run:
        draw = random.Random(f"{run.name} {run.fingerprint} {name} {mean}")
        values = {step: mean + draw.gauss(0, 0.03) for step in run.steps if draw.random() < share}
        return dataclasses.replace(run, series={**run.series, name: values} if values else run.series)

    return edited


_PROMPTS = tuple(f"prompt_length/{part}" for part in ("mean", "max", "min"))
_MISMATCH = tuple(f"training/rollout_probs_diff_{part}" for part in ("mean", "max", "std"))
_TURNS = tuple(f"{name}/{part}" for name in ("num_turns", "training/num_turns") for part in ("mean", "max", "min"))

EDITS = (
    Edit("none", "nothing: A against A", words=()),
    Edit(
        "sporadic",
        "a metric of one's own that is recorded at a third of the steps of each run: A against A",
        of_both=added("exit/limit", 0.1, 0.3),
        words=(),
    ),
    Edit("rate-halved", "`actor/lr` is half as large", of_b=of(["actor/lr"], lambda _, value: value / 2)),
    Edit("rate-tenth", "`actor/lr` is a tenth", of_b=of(["actor/lr"], lambda _, value: value / 10)),
    Edit("rate-zero", "`actor/lr` is 0", of_b=of(["actor/lr"], lambda *_: 0.0), words=("regressed",)),
    Edit(
        "rate-warm-up",
        "`actor/lr` has a warm-up of five steps, and A none",
        of_b=of(["actor/lr"], lambda step, value: value * min(1, step / 5)),
    ),
    Edit("prompts-longer", "every prompt is one token longer", of_b=of(_PROMPTS, lambda _, value: value + 1)),
    Edit(
        "kl-coefficient",
        "`actor/kl_coef` is twice as large",
        "grpo",
        of_b=of(["actor/kl_coef"], lambda _, value: value * 2),
    ),
    Edit("epoch", "`training/epoch` is one more", of_b=of(["training/epoch"], lambda _, value: value + 1)),
    Edit(
        "tokens",
        "a tenth more tokens in a batch",
        of_b=of(["perf/total_num_tokens", "global_seqlen/mean"], lambda _, value: value * 1.1),
    ),
    Edit("mismatch-zero", "rollout and actor agree exactly", of_b=of(_MISMATCH, lambda *_: 0.0)),
    Edit("turns", "one turn, and A two", of_b=of(_TURNS, lambda *_: 1.0)),
    Edit(
        "aborted",
        "40 % of the answers are aborted, and none of A's",
        of_b=of(["response/aborted_ratio"], lambda step, _: 0.4 + step / 1000),
    ),
    Edit("success", f"`{SUCCESS}` is 0.1, and 0.9 in A", of_both=added(SUCCESS, 0.9), of_b=added(SUCCESS, 0.1)),
    Edit(
        "reward-small",
        f"a reward of a twentieth, below its floor, of which B has a quarter (`{SCORE}`)",
        of_both=of([SCORE], lambda _, value: value / 20),
        of_b=of([SCORE], lambda _, value: value / 4),
        words=("regressed",),
    ),
    Edit(
        "loss-lower",
        "SFT: the loss is a fifth lower from the first update on",
        "sft",
        of_b=of(["train/loss"], lambda _, value: value * 0.8),
    ),
    Edit("none-sft", "nothing: A against A", "sft", words=()),
)


@dataclass(frozen=True)
class Found:
    """The verdicts on an edit, by number of pairs, one for each session; with replay for one pair."""

    edit: Edit
    noise: Mapping[int, Sequence[Verdict]]
    replay: Sequence[Verdict]


@cache
def results() -> tuple[Found, ...]:
    """What the judge says of each edit."""
    return tuple(Found(edit, _in_noise(edit), _with_replay(edit)) for edit in EDITS)


def _in_noise(edit: Edit) -> dict[int, list[Verdict]]:
    pairs = _noisy(edit.workload)
    turns = [pairs[at:] + pairs[:at] for at in range(0, len(pairs), max(1, len(pairs) // SESSIONS))][:SESSIONS]
    return {count: [_judged(edit, each[:count]) for each in turns if len(each) >= count] for count in PAIRS}


def _noisy(workload: str) -> list[tuple[list[Run], Run]]:
    """Pairs of A against A: those with all metrics, or of SFT the first ones. The last one of PPO has a replay as its second run."""
    if workload == "sft":
        return [([a], b) for a, b in calibration.noisy(workload)[: PAIRS[-1]]]
    found = []
    for number in range(REPLAYED, calibration.MOST_PAIRS):
        a, b = calibration.noisy_pair(workload, number)
        second = next(
            (each for each in (b, *calibration.replays(workload, number)) if calibration.is_recorded(each)), None
        )
        if workload == "ppo" and second and calibration.is_recorded(a):
            found.append(([calibration.load(a.name)], calibration.load(second.name)))
    return found[: PAIRS[-1]]


def _with_replay(edit: Edit) -> list[Verdict]:
    if edit.workload == "sft":
        return []
    turns = (calibration.replays_in_turn(edit.workload, number)[:1] for number in range(REPLAYED, REPLAYED + SESSIONS))
    loaded = [([calibration.as_replay(run) for run in a], calibration.as_replay(b)) for [(a, b)] in turns]
    return [_judged(edit, [pair]) for pair in loaded]


def _judged(edit: Edit, pairs: Sequence[tuple[list[Run], Run]]) -> Verdict:
    a = [edit.of_both(run) for side, _ in pairs for run in side]
    b = [edit.of_b(edit.of_both(run)) for _, run in pairs]
    return judge.case(a, b, name=edit.name)
