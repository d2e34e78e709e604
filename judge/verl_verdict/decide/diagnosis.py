"""Where a difference begins, what it usually means, and differences that are wrong whatever the rest of the run does."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from verl_verdict.decide.exact import ROUNDING, Comparison, ValueDifference, compared, differences
from verl_verdict.read import comparable, metrics
from verl_verdict.read.records import Run

_MIRRORED = 1e-3  # of the metric's scale
_HIGHEST, _LOWEST = "critic/advantages/max", "critic/advantages/min"
_SCALED = 1e-3  # of what the factor changes
_FEWEST_SCALED = 3
_SHOWN = 6


class Place(NamedTuple):
    """A metric at a step, with the values of both sides."""

    step: int
    metric: str
    a: float
    b: float


@dataclass(frozen=True)
class Diagnosis:
    """The first step that differs, and in it the first metric in causal order, with both values."""

    step: int
    metric: str
    a: float
    b: float
    means: str
    others: tuple[str, ...] = ()  # metrics that differ in the same step, in causal order
    config: tuple[comparable.Difference, ...] = ()  # differences of verl's config that may explain it

    def __str__(self) -> str:
        return f"step {self.step}, {self.metric}: {a_and_b(self.a, self.b)}"


def diagnose(found: Comparison, config: Sequence[comparable.Difference]) -> Diagnosis | None:
    """The diagnosis of an exact comparison; None if nothing differs."""
    if found.first is None:
        return None
    first = found.first
    others = [each.metric for each in found.differences if each.step == first.step and each.size > ROUNDING]
    place = Place(first.step, first.metric, first.a, first.b)
    return at(place, config, [name for name in others if name != first.metric])


def at(place: Place, config: Sequence[comparable.Difference], others: Sequence[str] = ()) -> Diagnosis:
    """The diagnosis of a metric at a step, with the other metrics that differ there."""
    stage = metrics.stage_of(place.metric)
    explaining = tuple(each for each in config if None not in (each.a, each.b) and re.search(stage.config, each.name))
    return Diagnosis(*place, stage.means, tuple(others), explaining)


def likely_first(files: Sequence[str], first: Diagnosis | None) -> tuple[str, ...]:
    """Files that differ; first the files that define the metric of the first difference."""
    stage = metrics.stage_of(first.metric) if first else None
    return tuple(sorted(files, key=lambda name: (not (stage and re.search(stage.files, name)), name)))


def opposite_sign(a: Run, b: Run, found: Comparison, *, is_exact: bool) -> ValueDifference | None:
    """The first difference, if it is the sign of the update: same rewards and opposite advantages, or same advantages and opposite loss.

    Then B trains away from what A trains towards, whatever the reward does in a short run. Unless A repeats itself (`is_exact`), the
    loss must also be larger than its noise: the advantages of a GRPO group add up to 0, and of its loss only rounding is left. Two
    of 60 noisy pairs of A had such a rest of 5e-5 and 9e-5 with opposite signs (verl 0.9.1).
    """
    first = found.first
    if first is None or first.size <= ROUNDING:
        return None
    extremes = _extreme_advantages(found, first.step)
    if first.metric.startswith("critic/advantages/") and extremes:
        return extremes[0] if _have_changed_places(*extremes, metrics.scale_of(_HIGHEST, a.series)) else None
    if first.metric == "critic/advantages/mean":  # the largest and the smallest of a GRPO group may mirror each other
        least = metrics.scale_of(_HIGHEST, a.series) * _MIRRORED
    elif first.metric == "actor/pg_loss":
        least = 0.0 if is_exact else metrics.POLICY_LOSS_BAND
    else:
        return None
    is_mirrored = abs(first.a + first.b) <= _MIRRORED * abs(first.a)
    return first if is_mirrored and abs(first.a) > least else None


def _extreme_advantages(found: Comparison, step: int) -> tuple[ValueDifference, ValueDifference] | None:
    """How the largest and the smallest advantage of a step differ, if both do by more than rounding."""
    differing = {each.metric: each for each in found.differences if each.step == step and each.size > ROUNDING}
    if _HIGHEST not in differing or _LOWEST not in differing:
        return None
    return differing[_HIGHEST], differing[_LOWEST]


def _have_changed_places(high: ValueDifference, low: ValueDifference, scale: float) -> bool:
    """B's largest advantage is A's smallest with the other sign, and the other way round, where A's two do not mirror each other."""
    rest = _MIRRORED * scale
    return abs(high.a + low.a) > rest and abs(high.b + low.a) <= rest and abs(low.b + high.a) <= rest


_GRADIENTS = ("actor/grad_norm", "critic/grad_norm", "train/grad_norm")
_NEVER_ZERO = {
    **dict.fromkeys(_GRADIENTS, "B does not train"),
    "critic/advantages/max": "its rewards train nothing",
    "actor/lr": "B does not train",
    "critic/lr": "B's critic does not train",
    "train/lr": "B does not train",
    "actor/kl_loss": "B's actor never leaves its reference, so it does not train, or the reference is the actor itself",
}


def stays_zero(a: Run, b: Run) -> tuple[str, str] | None:
    """The metric that is 0 at every step of B and is not in A, and what that means as a sentence. None if no metric is."""
    for name, meaning in _NEVER_ZERO.items():
        mine, other = a.series.get(name, {}), b.series.get(name, {})
        if any(mine.values()) and other and max(map(abs, other.values())) <= 1e-6 * max(map(abs, mine.values())):
            return name, f"{name} is 0 at every step of B: {meaning}"
    return None


def mismatch_gone(a: Run, b: Run) -> str | None:
    """The metric of the mismatch of rollout and actor that is exactly 0 at every step of B, and at none of A."""
    for name in sorted(compared(a, b), key=metrics.causal_rank):
        if metrics.is_difference_of_rollout(name) and all(a.series[name].values()) and not any(b.series[name].values()):
            return name
    return None


def scaled(a: Run, b: Run) -> dict[str, float]:
    """The metrics that are those of A times one number at every step, with that number, if nothing else differs by more than rounding.

    Gradients, rewards and what was sampled must be equal, and at two steps at least: then the updates were, and only what is logged differs.
    Empty if anything else differs, or a sign does. Two values have nearly one factor by chance: a metric needs three.
    """
    apart: dict[str, float] = {}
    equal = set(compared(a, b))
    for each in itertools.chain.from_iterable(differences(a, b)):
        if each.size > ROUNDING:
            equal.discard(each.metric)
            apart.setdefault(each.metric, each.b / each.a if each.a else 0.0)
    trained = [name for name in _GRADIENTS if name in equal and len(a.series[name]) > 1]
    if not trained or any(metrics.is_of_sampling(name) or name in _GRADIENTS for name in apart):
        return {}
    return apart if all(_is_scaled(name, factor, a, b) for name, factor in apart.items()) else {}


def _is_scaled(name: str, factor: float, a: Run, b: Run) -> bool:
    """At every step B's value is A's times this factor, and there are enough steps."""
    pairs = [(value, b.series[name][step]) for step, value in a.series[name].items() if step in b.series[name]]
    limit = _SCALED * metrics.scale_of(name, b.series) * min(abs(factor - 1), 1.0)
    is_one_factor = all(abs(factor * mine - other) <= limit for mine, other in pairs)
    return factor > 0 and len(pairs) >= _FEWEST_SCALED and is_one_factor


def no_gradient(run: Run) -> bool:
    """Is every gradient norm that the run records 0 at every step?"""
    return _are_zero(run, _GRADIENTS)


def no_advantage(run: Run) -> bool:
    """Are the largest and the smallest advantage 0 at every step?"""
    return _are_zero(run, ("critic/advantages/max", "critic/advantages/min"))


def _are_zero(run: Run, names: Sequence[str]) -> bool:
    values = [value for name in names for value in run.series.get(name, {}).values()]
    return bool(values) and not any(values)


def number(value: float) -> str:
    """A value as people read it: four significant digits, and more if it needs them to be exact."""
    short = f"{value:.4g}"
    return short if float(short) == value else f"{value:.{_SHOWN}g}"


def a_and_b(a: float, b: float) -> str:
    """`A 0.45, B 0.01`: four digits, or six where four do not tell them apart."""
    digits = 4 if f"{a:.4g}" != f"{b:.4g}" else _SHOWN
    return f"A {a:.{digits}g}, B {b:.{digits}g}"


def counted(count: int, name: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def doubt_of_checks(failed: int) -> str:
    """What it means for the runs of a session that so many of its checks failed; empty if none did."""
    return f"{counted(failed, 'check')} failed, so this may not be about the code that was asked for" if failed else ""


def listed(names: Sequence[str], shown: int = 3) -> str:
    """The first of `names`, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
