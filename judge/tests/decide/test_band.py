"""What A's runs do at each step, as a band (verl_verdict/decide/band.py): runs of the same code stay inside, and it is as narrow as they allow."""

import math

import pytest
from verdict_runs import generator

from verl_verdict.decide import band, outliers
from verl_verdict.read import metrics
from verl_verdict.read.metrics import WORKLOADS, Decisive
from verl_verdict.read.records import Run

METRIC = "loss"
ABOUT = ((METRIC, Decisive(METRIC, -1, floor=0.3)),)


def runs(*courses, metric=METRIC):
    return [Run(f"r{at}", {metric: dict(enumerate(each, start=1))}, seed=str(at)) for at, each in enumerate(courses)]


def band_of(*courses, **more):
    return band.bands(runs(*courses), ABOUT, **more).get(METRIC)


def test_the_band_is_three_times_as_wide_as_the_farthest_of_a_strays_from_the_others():
    found = band_of([0.0], [1.0], [5.0])
    # Without the third run: middle 0.5, standard deviation 0.5 * sqrt(2), and sqrt(1 + 1/2) as much for one more run.
    strays = (5 - 0.5) / (0.5 * math.sqrt(2) * math.sqrt(1.5))
    width = 3 * strays * math.sqrt((4 + 1 + 9) / 2) * math.sqrt(4 / 3)
    assert (found.metric, found.steps) == (METRIC, (1,))
    assert (found.low[0], found.high[0]) == pytest.approx((2 - width, 2 + width))


def test_the_band_follows_the_course_and_the_noise_of_its_steps():
    rng = generator(1)
    noise = [0.5] * 30 + [5.0] * 30
    found = band_of(*([step + spread * rng.normal() for step, spread in enumerate(noise)] for _ in range(6)))
    middles = [(low + high) / 2 for low, high in zip(found.low, found.high, strict=True)]
    widths = [high - low for low, high in zip(found.low, found.high, strict=True)]
    assert middles[:30] == pytest.approx(range(30), abs=2)
    assert min(widths[40:]) > 1.1 * max(widths[:20])


@pytest.mark.parametrize("pairs", [3, 8])
@pytest.mark.parametrize("tails", [5, 100], ids=["heavy tails", "almost normal"])
def test_runs_of_the_same_code_leave_it_in_few_sessions(pairs, tails):
    rng, names = generator(pairs), ("actor/entropy", "actor/pg_loss", "critic/score/mean")
    about = metrics.decisive_of("grpo", names)
    alarms = 0
    for _ in range(100):
        sides = [
            Run("", {name: dict(enumerate(rng.standard_t(tails, 20) * 0.1 + rng.normal() * 0.1)) for name in names})
            for _ in range(2 * pairs)
        ]
        found = band.bands(sides[:pairs], about).values()
        alarms += any(band.outside(each, run) for each in found for run in sides[pairs:])
    assert alarms <= 4


def test_where_a_run_leaves_it_first():
    found = band.Band(METRIC, (1, 2, 4), (0.0, 0.0, 1.0), (1.0, 1.0, 2.0))
    inside, late, lost = runs([0.5, 1.0, 9.0, 1.5], [0.5, 0.5, 0.5, 0.5], [0.5, math.nan])
    assert band.outside(found, inside) == []  # it says nothing about step 3
    assert band.outside(found, late)[0] == (4, 0.5)
    assert band.outside(found, lost)[0][0] == 2
    assert band.outside(found, Run("without", {})) == []


def test_two_runs_or_two_seeds_that_repeat_themselves_have_no_band():
    assert band_of([1.0], [2.0]) is None
    (one, two, other) = runs([1.0], [2.0], [1.0])
    again = Run("again", other.series, seed=one.seed)
    assert band.bands([one, two, again], ABOUT, deterministic=True) == {}
    assert band.bands([one, two, again], ABOUT) != {}


def test_runs_of_other_lengths_nan_and_a_metric_in_half_of_the_runs():
    short = band_of([1.0, 2.0], [1.5, 2.5, 3.0], [0.5, 1.5])
    assert short.steps == (1, 2, 3)
    assert short.low[2] <= 3.0 <= short.high[2]
    holed = band_of([1.0, math.nan, 1.0], [1.5, math.inf, 1.2], [0.5, 2.0, 1.1], [0.7, 1.9, 1.0])
    assert all(map(math.isfinite, (*holed.low, *holed.high)))
    none = band_of([1.0, math.nan], [1.5, math.nan], [0.5, math.nan])
    assert (none.low[1], none.high[1]) == (-math.inf, math.inf)
    half = [*runs([1.0], [1.1], [1.2]), *runs([5.0], [5.0], metric="other")]
    assert list(band.bands(half, (*ABOUT, ("other", Decisive("other", 0))))) == [METRIC]


def test_values_without_any_noise_have_a_band_of_their_floor_and_huge_ones_none():
    flat = band_of(*[[2.0] * 4] * 3)
    assert (flat.low[0], flat.high[0]) == pytest.approx((1.7, 2.3))
    huge = band_of([1e300], [-1e300], [1e299])
    assert (huge.low, huge.high) == ((-math.inf,), (math.inf,))


def test_many_metrics_steps_and_runs_take_one_fit_for_each_run_and_metric(monkeypatch):
    fit, fits = band._middle_and_unit, []
    monkeypatch.setattr(band, "_middle_and_unit", lambda values, floor: fits.append(values.shape) or fit(values, floor))
    names = [f"val-core/{at}" for at in range(50)]
    courses = [dict(enumerate(generator(at).normal(size=200).tolist())) for at in range(32)]
    sides = [Run(f"r{at}", dict.fromkeys(names, each)) for at, each in enumerate(courses)]
    assert outliers.find(sides[:16], sides[16:], "ppo", WORKLOADS["ppo"].decisive) == []
    assert fits.count((15, 200)) == 16 * 50
    assert fits.count((16, 200)) == 50
    assert len(fits) == 17 * 50
