"""Where a series of runs changes: one value per run, in the order in which they ran.

Binary segmentation: of all splits where the code changes, the one with the largest difference of the means (in its standard errors) is a
change point if less than ALPHA of the other orders of the same runs have as large a difference at any of these splits, and if the
difference is more than what matters. Then both parts are searched in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from verl_verdict.decide.statistics import Array, taken

IntArray = NDArray[np.int64]

MIN_RUNS = 3  # on each side of a change point
ALPHA = 0.01  # of each search: the test is one over all splits, so it needs no further correction for their number
_ORDERS = 9999  # random ones, always the same; all orders if there are fewer


@dataclass(frozen=True)
class ChangePoint:
    """A change point: the run at `at` is the first one after it; the means of the runs before and after, up to the next change points."""

    at: int
    before: float
    after: float
    p: float


def change_points(
    values: Sequence[float], floor: Callable[[float], float], places: Sequence[int] | None = None
) -> list[ChangePoint]:
    """The change points of a series; `floor` says which difference does not matter, by the mean before it.

    `places` are the runs that may be the first ones after a change point; without it, any run may be.
    """
    found = dict(_splits(taken(values), 0, floor, range(len(values)) if places is None else places))
    bounds = [0, *sorted(found), len(values)]
    means = [fmean(values[start:end]) for start, end in pairwise(bounds)] if values else []
    around = zip(sorted(found), means, means[1:], strict=False)
    return [ChangePoint(at, before, after, found[at]) for at, before, after in around]


def _splits(
    values: Array, offset: int, floor: Callable[[float], float], places: Sequence[int]
) -> list[tuple[int, float]]:
    """Where these values change, and each p; `offset` is the place of the first of them in the series."""
    splits = np.array([at - offset for at in places if MIN_RUNS <= at - offset <= len(values) - MIN_RUNS], dtype=int)
    if not splits.size or np.ptp(values) == 0:
        return []
    at = int(splits[np.argmax(_sizes(values, splits))])
    before, after = values[:at], values[at:]
    if abs(after.mean() - before.mean()) <= floor(float(before.mean())) or (p := _p(values, splits)) > ALPHA:
        return []
    return [*_splits(before, offset, floor, places), (offset + at, p), *_splits(after, offset + at, floor, places)]


def _sizes(values: Array, splits: IntArray, axis: int = -1) -> Array:
    """The difference of the means at each split, in units that are equal for all splits and all orders of the values."""
    values = np.moveaxis(values, axis, -1)
    runs = values.shape[-1]
    centred = values - values.mean(axis=-1, keepdims=True)
    sums = np.cumsum(centred, axis=-1)[..., splits - 1]
    sizes: Array = np.abs(sums) / np.sqrt(splits * (runs - splits))
    return sizes


def _p(values: Array, splits: IntArray) -> float:
    from scipy.stats import permutation_test  # here: it takes a second to load

    found = permutation_test(
        (values,),
        lambda order, axis=-1: _sizes(order, splits, axis).max(axis=-1),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=_ORDERS,
        alternative="greater",
        random_state=0,
    )
    return float(found.pvalue)
