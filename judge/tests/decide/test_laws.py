"""What noise cannot change: which metrics are laws of A's runs, and what of B breaks one."""

import dataclasses

import pytest
from verdict_runs import edit, generator, noisy, session

from verl_verdict.decide import laws
from verl_verdict.decide.pairing import Pair

RATE = "actor/lr"


def runs(pairs=3, **values):
    """Noisy runs of A and B, each with these metrics: functions of the step and the seed."""
    a, b = session(generator(1), pairs)

    def with_values(run):
        for name, value in values.items():
            run = edit(run, name.replace("__", "/"), lambda step, _, value=value, run=run: value(step, run.seed))
        return run

    return list(map(with_values, a)), list(map(with_values, b))


def broken(a, b):
    pairs = [Pair(one.seed, (one,), (other,)) for one, other in zip(a, b, strict=False)]
    return laws.breaches(a, b, pairs)


def changed(b, name, change):
    return [edit(run, name, change) for run in b]


CHANGES = {
    "half": lambda step, value: value / 2,
    "no warm-up": lambda step, value: 1e-6,
    "one step only": lambda step, value: value * (2 if step == 7 else 1),
}


@pytest.mark.parametrize("pairs", [1, 2, 8])
@pytest.mark.parametrize("change", CHANGES)
def test_a_schedule_needs_one_run_of_a(pairs, change):
    a, b = runs(pairs, actor__lr=lambda step, _: 1e-6 * min(1, step / 5))
    assert broken(a, b) == []
    [breach] = broken(a, changed(b, RATE, CHANGES[change]))
    assert (breach.metric, breach.is_shifted) == (RATE, False)


def test_one_run_of_b_with_another_rate_is_enough():
    a, b = runs(8, actor__lr=lambda *_: 1e-6)
    [breach] = broken(a, [*b[:-1], *changed(b[-1:], RATE, lambda step, value: 5e-7)])
    assert (
        str(breach) == "actor/lr is 5e-07 in B at all steps, and 1e-06 in A, on which all runs of A agree bit for bit"
    )


def test_a_schedule_that_is_shifted_by_a_step_may_be_the_log_alone():
    a, b = runs(3, actor__lr=lambda step, _: 1e-6 * step)
    [breach] = broken(a, changed(b, RATE, lambda step, _: 1e-6 * (step - 1)))
    assert breach.is_shifted
    assert str(breach).endswith("; B has A's values one step apart, so perhaps only the log moved")


@pytest.mark.parametrize("name", ["mine/tokens", "response_length/mean"])
def test_values_that_vary_and_agree_in_all_runs_of_a_are_a_law_whatever_their_name(name):
    values = {name.replace("/", "__"): lambda step, _: 100 + (step * 37) % 11 + step / 8}
    a, b = runs(2, **values)
    assert broken(a, changed(b, name, lambda step, value: value * 1.1)) == []  # noise may begin late
    a, b = runs(3, **values)
    assert broken(a, b) == []
    assert [each.metric for each in broken(a, changed(b, name, lambda step, value: value * 1.1))] == [name]


@pytest.mark.parametrize(
    "values",
    [
        lambda step, seed: 1024.0,  # at its limit
        lambda step, seed: 0.0,  # a share that is 0
        lambda step, seed: float(step == 4),  # a rare event that two runs share
        lambda step, seed: step + int(seed) / 7,  # it depends on the seed
    ],
)
def test_what_may_agree_by_accident_is_none(values):
    a, b = runs(2, response_length__max=values, mine__limit=values)
    assert broken(a, changed(changed(b, "response_length/max", lambda *_: 7.0), "mine/limit", lambda *_: 7.0)) == []


def test_what_is_logged_in_few_digits_may_agree_until_noise_reaches_the_last_one():
    a, b = runs(2, actor__entropy=lambda step, _: 0.5 + step / 256)
    one_off = changed(b, "actor/entropy", lambda step, value: value + (1 / 256 if step == 9 else 0))
    assert broken(a, one_off) == []


def test_prompts_of_a_seed_are_a_law_where_a_repeats_with_that_seed():
    name = "prompt_length/mean"
    a, b = runs(3, prompt_length__mean=lambda step, seed: 90 + (step * 7 + int(seed) * 3) % 13)
    longer = changed(b, name, lambda step, value: value + 1)
    pairs = [Pair(one.seed, (one,), (other,)) for one, other in zip(a, longer, strict=True)]
    some = [*longer[:2], b[2]]
    apart = [Pair(one.seed, (one,), (other,)) for one, other in zip(a, some, strict=True)]
    assert laws.breaches(a, some, apart) == []  # nobody knows whether a seed decides them
    [breach] = laws.breaches(a, longer, pairs)  # at every step of every pair: no accident
    assert str(breach).endswith(", and so on the same side at every step of every pair")
    again = edit(noisy(generator(2), "again", "1"), name, a[0].series[name])
    pairs[0] = dataclasses.replace(pairs[0], a=(a[0], again))
    [breach] = laws.breaches([*a, again], longer, pairs)
    assert (breach.metric, "with one seed" in breach.law) == (name, True)
    unknown = [
        dataclasses.replace(pair, a=tuple(dataclasses.replace(run, seed=None) for run in pair.a)) for pair in pairs
    ]
    assert laws.breaches([*a, again], longer, unknown) == []


def test_a_coefficient_that_follows_the_kl_is_no_law():
    a, b = runs(3, actor__kl_coef=lambda step, seed: 0.001 * (1 + step * int(seed) / 100))
    assert broken(a, changed(b, "actor/kl_coef", lambda step, value: value * 2)) == []
    a, b = runs(3, actor__kl_coef=lambda step, seed: 0.001)
    assert [each.metric for each in broken(a, changed(b, "actor/kl_coef", lambda step, value: value * 2))] == [
        "actor/kl_coef"
    ]


def test_a_maximum_at_its_limit_is_no_law_where_the_mean_varies():
    limit = "prompt_length/max"
    a, b = runs(
        3, prompt_length__max=lambda *_: 512.0, prompt_length__mean=lambda step, seed: 90 + step * int(seed) % 7
    )
    lower = changed(b, limit, lambda step, value: value - (step == 3))
    assert broken(a, lower) == []
    a, b = runs(3, prompt_length__max=lambda *_: 512.0, prompt_length__mean=lambda step, seed: 90 + step % 7)
    assert [each.metric for each in broken(a, changed(b, limit, lambda step, value: value - (step == 3)))] == [limit]


def test_runs_without_the_rate_switch_nothing_off():
    a, b = runs(3, actor__lr=lambda *_: 1e-6)
    a[0], b[2] = a[0].without([RATE]), b[2].without([RATE])
    assert [each.metric for each in laws.breaches(a, changed(b[:2], RATE, lambda *_: 5e-7) + b[2:], [])] == [RATE]
