"""Paired runs that are not deterministic: is there a difference, or is sameness shown?

The run is the unit, because the steps of one run depend on each other: each run gives one value per summary (a metric at the first
update, or its mean over the last third or over all steps). Runs are paired by seed. All functions take arrays of shape (..., pairs, summaries), so
that the tests can simulate hundreds of sessions at once.

- Difference: all sign flips of the pairs, jointly for all summaries, with the largest |mean difference| / scale (max-T,
  step-down). This keeps the family-wise error rate, whatever the correlation between the metrics.
- Sameness: two one-sided t-tests (TOST) against a margin, for every summary. All must pass, so they need no correction. A difference
  beyond its floor that the sign flips hint at is not the same either, though within the margin.
- Looks: the data are judged at 3, 4, 6 and 8 pairs only, each with its share of alpha; the first decision is final, but a
  later look may show a difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, stdtr, stdtrit

Array = NDArray[np.float64]

# Pairs at each look, and the alpha that it spends on a difference and on sameness: 0.05 each over all looks. With n pairs the
# smallest possible p of a sign-flip test is 2^(1-n): 0.25 at 3, 0.125 at 4. So these looks can only show sameness.
LOOKS = (3, 4, 6, 8)
DIFFERENCE_ALPHA = {3: 0.0, 4: 0.0, 6: 2 / 64, 8: 4 / 256}
FEWEST = min(pairs for pairs, alpha in DIFFERENCE_ALPHA.items() if alpha)  # pairs that can show a difference
SAMENESS_ALPHA = {3: 0.0125, 4: 0.0125, 6: 0.0125, 8: 0.0125}
HINT = 0.125  # p of a difference that may be real: the smallest one at 4 pairs, that of differences with one sign
NOISE_FACTOR = 3.0  # the margin is this many standard deviations of A against A, and at least the metric's floor
_UNLIKELY = 0.01  # with which A's noise is larger than its repeats leave possible: at most 80 times as large as one, 5 times as three
_ENOUGH = 3  # repeats without any difference that show that there is none
_EQUAL = 1e-3  # of a margin: a constant difference of so little is none
_EPSILON = 1e-9  # of a statistic: flips that are equal but for rounding are ties


class Alone(NamedTuple):
    """What A does without B: `repeats` has differences between runs with one seed, `others` the values of runs without a partner."""

    repeats: Array | None = None
    others: Array | None = None


NOTHING_ALONE = Alone()


@dataclass(frozen=True)
class Look:
    """What a look found, per summary: `p` is adjusted for all summaries."""

    pairs: int
    mean: Array
    margin: Array
    p: Array
    sameness_p: Array
    differs: NDArray[np.bool_]  # significantly, and by more than the margin
    within: NDArray[np.bool_]  # the margin, as shown by TOST
    same: NDArray[np.bool_]  # within the margin, and nothing hints at a difference beyond the floor


def look_at(
    a: Array,
    b: Array,
    floor: Array,
    alone: Alone = NOTHING_ALONE,
    is_drift: NDArray[np.bool_] | None = None,
) -> Look:
    """Both tests on all pairs that are given, at the alpha of this number of pairs.

    `floor` is the difference that does not matter. Summaries with `is_drift` have no other margin
    than their floor, and are no part of sameness: they are `same` if they do not differ.
    """
    pairs = a.shape[-2]
    difference = b - a
    mean = difference.mean(axis=-2)
    drift = np.zeros_like(floor, dtype=bool) if is_drift is None else is_drift
    margin = np.where(drift, floor, margins(floor, noise(a, difference, alone)))
    p = sign_flip(difference, scale(difference, floor), floor)
    sameness_p = tost(difference, margin)
    alpha = DIFFERENCE_ALPHA.get(pairs, 0.0)
    differs = (p <= alpha + _EPSILON) & (alpha > 0) & (np.abs(mean) > margin)
    within = sameness_p <= SAMENESS_ALPHA.get(pairs, 0.0)
    return Look(
        pairs=pairs,
        mean=mean,
        margin=margin,
        p=p,
        sameness_p=sameness_p,
        differs=differs,
        within=within,
        same=np.where(drift, ~differs, within & ~((p <= HINT + _EPSILON) & (np.abs(mean) > floor))),
    )


def scale(difference: Array, floor: Array) -> Array:
    """What makes the differences of all summaries comparable. A sign does not change it, as a flip test needs.

    It is at least the floor, so a summary that hardly varies does not hide the others: what is below its floor counts little.
    """
    root_mean_square = np.sqrt((difference**2).mean(axis=-2))
    spread = margins(floor, root_mean_square)
    return np.where(spread > 0, spread, 1.0)


def sign_flip(difference: Array, scaled_by: Array, floor: Array) -> Array:
    """p of each summary's difference, adjusted for all of them: Westfall and Young's step-down over all sign flips of the pairs.

    The largest statistic is compared with the largest of all summaries in each flip, the next one with the largest of the rest. In every
    flip a mean within the floor counts as 0, so noise that does not matter is no rival of a difference that does.
    """
    pairs = difference.shape[-2]
    # Where it is not, p is 1, and the others are not compared with it.
    is_finite: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(difference), axis=-2)
    difference = np.where(is_finite[..., None, :], difference, 0.0)
    scaled_by = np.where(np.isfinite(scaled_by), scaled_by, 1.0)
    flips = 1 - 2 * ((np.arange(2**pairs)[:, None] >> np.arange(pairs)) & 1).astype(np.float64)
    mean = np.abs(np.einsum("fp,...ps->...fs", flips, difference)) / pairs
    statistic = np.where(mean > floor[..., None, :], mean / scaled_by[..., None, :], 0.0)
    observed = statistic[..., 0, :]  # the flip that changes no sign
    order = np.argsort(-observed, axis=-1)
    ranked = np.take_along_axis(statistic, order[..., None, :], axis=-1)
    largest_of_rest = np.flip(np.maximum.accumulate(np.flip(ranked, axis=-1), axis=-1), axis=-1)
    reached: NDArray[np.bool_] = largest_of_rest >= ranked[..., :1, :] * (1 - _EPSILON)
    p = np.maximum.accumulate(reached.mean(axis=-2), axis=-1)
    unranked: Array = np.take_along_axis(p, np.argsort(order, axis=-1), axis=-1)
    return np.where(is_finite, unranked, 1.0)


def tost(difference: Array, margin: Array) -> Array:
    """p of "the mean difference is beyond the margin". Differences without variance say nothing (1), unless all are nearly 0 (0)."""
    pairs = difference.shape[-2]
    mean = difference.mean(axis=-2)
    error = difference.std(axis=-2, ddof=1) / np.sqrt(pairs)
    distance = margin - np.abs(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = stdtr(pairs - 1, -distance / error)
    constant = error <= _EPSILON * np.abs(mean)
    return np.where(constant, np.where((np.abs(mean) <= _EQUAL * margin) & (error <= _EQUAL * margin), 0.0, 1.0), p)


def noise(a: Array, difference: Array, alone: Alone = NOTHING_ALONE) -> Array:
    """The standard deviation of the difference between two runs of A with one seed.

    It is measured by A's repeats, and by the pairs of A and B around their mean: a shift of B does not change that. It has an upper
    limit, so a B that scatters more than A cannot hide a difference: what A's repeats allow, and the differences between A's runs with
    other seeds (those of `a`, and those without a partner). One or two repeats without any difference may be chance.
    """
    repeats, others = alone
    pairs = difference.shape[-2]
    squares = ((difference - difference.mean(axis=-2, keepdims=True)) ** 2).sum(axis=-2)
    of_a = a if others is None else np.concatenate([a, others], axis=-2)
    most: Array = np.sqrt(2) * of_a.std(axis=-2, ddof=1)
    degrees = pairs - 1
    if repeats is not None:
        number, of_repeats = repeats.shape[-2], (repeats**2).sum(axis=-2)
        possible = np.sqrt(of_repeats / chdtri(number, 1 - _UNLIKELY))
        most = np.where((of_repeats > 0) | (number >= _ENOUGH), np.minimum(most, possible), most)
        squares, degrees = squares + of_repeats, degrees + number
    smaller: Array = np.minimum(np.sqrt(squares / degrees), most)
    return smaller


def margins(floor: Array, spread: Array) -> Array:
    """A difference within the margin does not matter: below the floor, or within what A against A does."""
    return np.maximum(floor, NOISE_FACTOR * spread)


def pairs_needed(difference: Array, margin: Array, have: int) -> int | None:
    """Pairs to add to the `have` ones until a look that may decide; None if no look would.

    That is the first look at which the data, if they go on as they are, show sameness: every summary's test would pass with today's means and
    spreads. Or the first that can show a difference: fewer pairs do not tell that it would not.
    """
    mean = np.abs(difference.mean(axis=-2))
    spread = difference.std(axis=-2, ddof=1)
    for look in (look for look in LOOKS if look > have):
        quantile = stdtrit(look - 1, 1 - SAMENESS_ALPHA[look])
        would_be_same = bool(np.all(mean + quantile * spread / np.sqrt(look) < margin))
        if would_be_same or DIFFERENCE_ALPHA[look] > 0:
            return look - have
    return None


def mean(values: Sequence[float]) -> float:
    """The mean; infinite where no float can hold the sum, of which the standard library's raises."""
    return sum(values) / len(values)


def taken(values: Sequence[Any]) -> Array:
    """An array of numbers: rows of runs, columns of summaries."""
    return np.asarray(values, dtype=np.float64)
