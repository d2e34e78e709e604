"""Each rule of the table: runs on which it decides, and nearly the same runs on which another one does."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest
from verdict_runs import edit, generator, noisy, session

from verl_verdict.decide import judge, table
from verl_verdict.decide.invariants import Member
from verl_verdict.decide.resumed import Resumed
from verl_verdict.decide.unrun import Unrun
from verl_verdict.read import records
from verl_verdict.read.comparable import REPLAY
from verl_verdict.read.metrics import Decisive
from verl_verdict.read.records import TOKENS, WEIGHTS, Run

REPO = Path(__file__).parents[3]
RULES = [rule for each in vars(table).values() if isinstance(each, tuple) for rule in each]

SCORE, REWARD, LENGTH, VALUES = "critic/score/mean", "critic/rewards/mean", "response_length/mean", "critic/values/mean"
ENTROPY, LOSS, GRADIENT, VALUE_LOSS = "actor/entropy", "actor/pg_loss", "actor/grad_norm", "critic/vf_loss"
HIGH, LOW, MISMATCH = "critic/advantages/max", "critic/advantages/min", "training/rollout_probs_diff_mean"
LR, STEP, LATENCY = "actor/lr", "timing_s/step", "latency/mine"

EXAMPLES = {}


def example(rule, neighbour):
    """`verdict(True)` is on runs on which the rule decides, `verdict(False)` on runs in which one thing is otherwise.

    A later rule decides those, where there is one: so this one does not apply.
    """

    def keep(verdict):
        assert rule not in EXAMPLES
        EXAMPLES[rule] = verdict, neighbour
        return verdict

    return keep


# ---- runs


def times(factor, since=1):
    return lambda step, value: value * (factor if step >= since else 1.0)


def grown(sizes):
    """A value that is larger by these shares of it, by step."""
    return lambda step, value: value * (1 + sizes.get(step, 0.0))


def named(run, name, **known):
    return dataclasses.replace(run, name=name, fingerprint=name, **known)


def with_all(runs, metric, values):
    return [edit(run, metric, values) for run in runs]


ONE = noisy(generator(1), "a", "1")


def exact(*edits, **of_b):
    """A twice with one seed, bit-equal, and B with a metric and its values changed."""
    b = named(ONE, "b", **of_b)
    for metric, values in edits:
        b = edit(b, metric, values)
    return [ONE, named(ONE, "again")], [b]


def replayed(repeat, *edits, **of_b):
    """The same on A's rollouts, where the gradients of A's repeat are A's after `repeat`."""
    (a, again), b = exact(*edits, **of_b)
    again = edit(again, GRADIENT, repeat)
    return tuple([dataclasses.replace(run, facts={REPLAY: "1"}) for run in side] for side in ([a, again], b))


def in_noise(*edits, pairs=6, shift=None, of=None):
    """Noisy pairs. `shift` is added to all steps of metrics of B; the first `of` runs of B (all) get the edits."""
    a, b = session(generator(1), 8, shift, steps=30)
    for metric, values in edits:
        b[:of] = with_all(b[:of], metric, values)
    return a[:pairs], b[:pairs]


def rewritten(run, change):
    """The run as it is read from a record with each line as `change` of its step and values; without a line where that is None."""
    rows = {step: {name: each[step] for name, each in run.series.items()} for step in run.steps}
    lines = [json.dumps({"step": step, "data": new}) for step, data in rows.items() if (new := change(step, data))]
    parsed = records.parse(["\n".join(lines)], run.name, run.name)
    return dataclasses.replace(parsed, seed=run.seed, is_job=True, fingerprint=run.fingerprint)


# ---- the records


@example("settings-differ", neighbour="identical")
def _(applies):
    a, b = exact(facts={"model": "other" if applies else "m"})
    return judge.case([dataclasses.replace(run, facts={"model": "m"}) for run in a], b)


@example("unusable-baseline", neighbour="b-failed")
def _(applies):
    failed = {"failure": "KeyError: no"}
    a, b = exact(**({} if applies else failed))
    return judge.case([dataclasses.replace(run, **(failed if applies else {})) for run in a], b)


@example("b-failed", neighbour="b-proves-nothing")
def _(applies):
    return judge.case(*exact(**{"failure" if applies else "unfinished": "KeyError: no"}))


@example("b-not-finite", neighbour="identical")
def _(applies):
    a, [b] = exact()
    lost = {ENTROPY if applies else STEP: None}
    return judge.case(a, [rewritten(b, lambda step, data: data | lost if step == 3 else data)])


@example("b-lost-steps", neighbour="identical")
def _(applies):
    """A step that no run has is not lost."""

    def without_3(runs):
        return [rewritten(run, lambda step, data: None if step == 3 else data) for run in runs]

    a, b = exact()
    return judge.case(a if applies else without_3(a), without_3(b))


@example("b-proves-nothing", neighbour="identical")
def _(applies):
    return judge.case(*exact(unfinished="the job was stopped" if applies else None))


# ---- wrong on its face


@example("all-ignored", neighbour="identical")
def _(applies):
    decisive = [Decisive(SCORE, +1), Decisive(ENTROPY, 0)]
    return judge.case(*exact(), decisive=decisive, ignore=[SCORE, ENTROPY] if applies else [SCORE])


@example("no-pair", neighbour="identical")
def _(applies):
    return judge.case(*exact(seed="2" if applies else "1"))


@example("only-logged", neighbour="differs-by-value")
def _(applies):
    return judge.case(*exact((VALUE_LOSS, lambda step, value: value * (4 if applies else 4 + 0.1 * step))))


@example("opposite-sign", neighbour="differs-by-value")
def _(applies):
    return judge.case(*exact((LOSS, times(-1 if applies else -0.5))))


@example("stays-zero", neighbour="differs-by-value")
def _(applies):
    return judge.case(*exact((GRADIENT, lambda step, value: value * (step == 3 and not applies))))


@example("worse-on-replay", neighbour="hidden-by-replay")
def _(applies):
    """After the first update B's weights are no longer those that sampled."""
    return judge.case(*replayed(times(1.01, since=2), (MISMATCH, times(3, since=1 if applies else 2))))


@example("mismatch-gone", neighbour="differs-by-value")
def _(applies):
    return judge.case(*exact((MISMATCH, lambda step, value: value * (step == 3 and not applies))))


@example("no-advantage", neighbour="identical")
def _(applies):
    def advantage(step, value):
        return value * (step == 3 and not applies)

    return judge.case(*(with_all(with_all(side, HIGH, advantage), LOW, advantage) for side in exact()))


@example("never-recorded", neighbour="identical")
def _(applies):
    decisive = [Decisive("critic/score/maen" if applies else SCORE, +1, required=True)]
    return judge.case(*exact(), decisive=decisive)


# ---- worse or better


@example("worse-by-value", neighbour="differs-by-value")
def _(applies):
    return judge.case(*exact((MISMATCH, times(3 if applies else 1.3))))


@example("worse-by-pairs", neighbour="better-by-pairs")
def _(applies):
    return judge.case(*in_noise(shift={SCORE: -0.3 if applies else 0.3}))


@example("far-outside", neighbour="outside-in-some")
def _(applies):
    return judge.case(*in_noise((GRADIENT, {12: 5e3}), of=6 if applies else 1))


@example("better-by-pairs", neighbour="apart-by-pairs")
def _(applies):
    return judge.case(*in_noise(shift={SCORE: 0.3, LENGTH: 0.0 if applies else 40.0}))


# ---- it differs


@example("law-broken", neighbour="same-by-pairs")
def _(applies):
    a, b = in_noise()
    rate = 5e-7 if applies else 1e-6
    return judge.case(with_all(a, LR, lambda step, _: 1e-6), with_all(b, LR, lambda step, _: rate))


def sft(rng, name, seed, first):
    series = {
        "train/loss": {1: first} | {step: 5 - 0.1 * step + 0.01 * rng.normal() for step in range(2, 13)},
        "train/grad_norm": {step: 8 + 0.1 * rng.normal() for step in range(1, 13)},
    }
    return Run(name=name, series=series, workload="sft", seed=seed, fingerprint=name, is_job=True)


@example("first-update-differs", neighbour="same-by-pairs")
def _(applies):
    """One run of B that has A's first loss shows that data and weights are equal."""
    rng = generator(1)
    a = [sft(rng, f"a{seed}", seed, 5.0) for seed in "123"]
    b = [sft(rng, f"b{seed}", seed, 5.0 if seed == "3" and not applies else 5.01) for seed in "123"]
    return judge.case(a, b)


@example("differs-by-value", neighbour="same-but-rounding")
def _(applies):
    return judge.case(*exact((ENTROPY, times(1.1 if applies else 1 + 1e-6, since=3))))


@example("one-sided-by-value", neighbour="identical")
def _(applies):
    """A release explains the other metric: only the V1 trainer writes it."""
    return judge.case(*exact(("actor/new" if applies else "training/num_turns/mean", dict.fromkeys(ONE.steps, 1.0))))


@example("other-hashes", neighbour="identical")
def _(applies):
    a, b = exact(hashes={WEIGHTS: "1"})
    return judge.case([dataclasses.replace(run, hashes={WEIGHTS: "2" if applies else "1"}) for run in a], b)


@example("apart-by-pairs", neighbour="same-by-pairs")
def _(applies):
    return judge.case(*in_noise(shift={LENGTH: 40.0 if applies else 1.0}))


@example("one-sided-by-pairs", neighbour="same-by-pairs")
def _(applies):
    new = dict.fromkeys(range(1, 31), 1.0)
    return judge.case(*in_noise(("actor/new" if applies else "training/num_turns/mean", new)))


@example("others-apart", neighbour="same-by-pairs")
def _(applies):
    return judge.case(*in_noise(shift={VALUES: -0.3 if applies else 0.0}))


@example("restless-apart", neighbour="identical")
def _(applies):
    (a, again), b = exact((LATENCY, lambda step, _: 50.0 if applies else 5.5))
    a, again = (edit(run, LATENCY, lambda step, _, by=by: by + 0.1 * step) for run, by in ((a, 4.0), (again, 5.0)))
    return judge.case([a, again], b)


@example("outside", neighbour="same-by-pairs")
def _(applies):
    """A better reward for one step is no regression."""
    return judge.case(*in_noise((SCORE, {20: 1.0 if applies else 0.5})))


# ---- not decided


@example("shows-nothing", neighbour="identical")
def _(applies):
    still = {name: dict.fromkeys(values, 0.5) for name, values in ONE.series.items()}
    a, b = ([dataclasses.replace(run, series=still) for run in side] for side in exact())
    return judge.case(*(with_all(side, ENTROPY, {3: 0.5 if applies else 0.6}) for side in (a, b)))


GROWS = {1: 1e-7, 2: 2e-6, 3: 1e-4, 4: 0.005}


def perturbed():
    """A with perturbed last bits, which rounding takes nearly as far as B."""
    return named(edit(ONE, ENTROPY, grown({step: 0.9 * size for step, size in GROWS.items()})), "perturbed")


@example("grows", neighbour="same-as-perturbed")
def _(applies):
    return judge.case(*exact((ENTROPY, grown(GROWS))), perturbed=[] if applies else [perturbed()])


@example("hidden-by-replay", neighbour="same-on-replay")
def _(applies):
    """Where A's repeat is equal at step 2, that may be chance."""
    return judge.case(*replayed(times(1.05, since=3 if applies else 2), (GRADIENT, times(1.06, since=2))))


@example("too-few-pairs", neighbour="not-decided")
def _(applies):
    return judge.case(*in_noise(pairs=2 if applies else 3))


@example("not-decided", neighbour="never-decided")
def _(applies):
    return judge.case(*in_noise(pairs=4 if applies else 8, shift={ENTROPY: 0.02}))


@example("outside-in-some", neighbour="same-by-pairs")
def _(applies):
    return judge.case(*in_noise((SCORE, {20: 0.0}), of=1 if applies else 0))


@example("lacks-metric", neighbour="same-by-pairs")
def _(applies):
    a, b = in_noise()
    return judge.case(a, [b[0].without([GRADIENT] if applies else []), *b[1:]])


@example("nothing-decisive", neighbour="same-by-pairs")
def _(applies):
    return judge.case(*in_noise(), decisive=[Decisive("actor/other" if applies else SCORE, +1, floor=0.02)])


@example("steady", neighbour="same-by-pairs")
def _(applies):
    return judge.case(*(with_all(side, SCORE, times(0 if applies else 1)) for side in in_noise()))


@example("never-decided", neighbour="same-by-pairs")
def _(applies):
    return judge.case(*in_noise(pairs=8, shift={ENTROPY: 0.02 if applies else 0.0}))


# ---- nothing differs


@example("identical", neighbour="same-but-rounding")
def _(applies):
    return judge.case(*exact((ENTROPY, times(1 if applies else 1 + 1e-6))))


@example("same-but-rounding", neighbour="same-as-perturbed")
def _(applies):
    return judge.case(*exact((ENTROPY, grown({1: 1e-6} if applies else GROWS))), perturbed=[perturbed()])


@example("same-as-perturbed", neighbour="differs-by-value")
def _(applies):
    """What the perturbed run does later than B is no noise."""
    return judge.case(*exact((ENTROPY, grown(GROWS if applies else {1: 0.005}))), perturbed=[perturbed()])


@example("same-on-replay", neighbour="differs-by-value")
def _(applies):
    return judge.case(*replayed(times(1.01), (GRADIENT, times(1.02 if applies else 3.0))))


@example("same-by-pairs", neighbour="others-apart")
def _(applies):
    return judge.case(*in_noise(shift={VALUES: 0.0 if applies else -0.3}))


# ---- other devices


def far(reward):
    a, b = (with_all(side, REWARD, lambda step, _: 0.5) for side in exact())
    return judge.case(a, with_all(b, REWARD, times(reward)), relative_limit=0.02)


@example("error-above-limit", neighbour="error-within-limit")
def _(applies):
    return far(1.05 if applies else 1.01)


@example("error-unknown", neighbour="error-within-limit")
def _(applies):
    return judge.case(*exact(), relative_limit=0.02, ignore=[] if applies else [REWARD])


@example("error-within-limit", neighbour="error-above-limit")
def _(applies):
    return far(1.01 if applies else 1.05)


# ---- speed and memory


def speed(factor, pairs=6, profile="cpu"):
    a, b = in_noise(pairs=pairs)
    return judge.speed(a, with_all(b, STEP, times(factor)), profile=profile)


@example("cost-unmeasured", neighbour="cost-same")
def _(applies):
    a, b = in_noise()
    return judge.speed(a, [b[0].without([STEP] if applies else []), *b[1:]])


@example("cost-unpaired", neighbour="cost-few-pairs")
def _(applies):
    return judge.speed(*exact(seed="2" if applies else "1"))


@example("cost-few-pairs", neighbour="cost-same")
def _(applies):
    return speed(1, pairs=2 if applies else 3)


@example("cost-worse", neighbour="cost-same")
def _(applies):
    return speed(2 if applies else 1.05)


@example("cost-in-noise", neighbour="cost-same")
def _(applies):
    rng = generator(3)
    a, b = ([edit(run, STEP, times(rng.uniform(0.7, 1.3) if applies else 1)) for run in side] for side in in_noise())
    return judge.speed(a, b, profile="gpu")


@example("cost-needs-pairs", neighbour="cost-open")
def _(applies):
    return speed(1.09, pairs=4 if applies else 8, profile="gpu")


@example("cost-open", neighbour="cost-same")
def _(applies):
    return speed(1.09 if applies else 1.05, pairs=8, profile="gpu")


@example("cost-better", neighbour="cost-same")
def _(applies):
    return speed(0.5 if applies else 0.95)


@example("cost-same", neighbour="cost-worse")
def _(applies):
    return speed(1.2, profile="cpu" if applies else "gpu")


# ---- invariants


def group(of_a=1.0, of_b=1.0, **known):
    """Two configs, with the second one's gradients times these factors."""
    again = [named(edit(ONE, GRADIENT, times(by)), name) for by, name in ((of_a, "a1"), (of_b, "b1"))]
    again[1] = dataclasses.replace(again[1], **known)
    return judge.invariants([Member("", ONE, named(ONE, "b")), Member("micro=1", *again)], name="micro")


@example("invariant-unmeasured", neighbour="invariant-held")
def _(applies):
    return group(hashes={TOKENS: "other"} if applies else {})


@example("invariant-broken", neighbour="invariant-broken-by-both")
def _(applies):
    return group(of_a=1.0 if applies else 4.0, of_b=4.0)


@example("invariant-broken-by-both", neighbour="invariant-fixed")
def _(applies):
    return group(of_a=4.0, of_b=4.0 if applies else 1.0)


@example("invariant-fixed", neighbour="invariant-held")
def _(applies):
    return group(of_a=4.0 if applies else 1.0)


@example("invariant-held", neighbour="invariant-broken")
def _(applies):
    return group(of_b=1.003 if applies else 4.0)


# ---- resumed runs


def resumed(a=1.0, b=1.0, source=1.0):
    """Runs that go on after step 6, with the straight runs' gradients times `a` and `b`. B's straight run has A's scores times `source`."""
    straight = [ONE, edit(named(ONE, "b"), SCORE, times(source))]
    further = [
        named(_after(edit(run, GRADIENT, times(by)), 6), f"{run.name} resumed")
        for run, by in zip(straight, (a, b), strict=True)
    ]
    source, found = (judge.case([of_a], [of_b], name="ppo", deterministic=True) for of_a, of_b in (straight, further))
    return judge.resumed(found, *([Resumed(*each)] for each in zip(further, straight, strict=True)), source)


def _after(run, step):
    series = {name: {at: value for at, value in each.items() if at > step} for name, each in run.series.items()}
    return dataclasses.replace(run, series=series)


@example("resume-off", neighbour="resume-further-off")
def _(applies):
    return resumed(a=1.0 if applies else 1.5, b=9.0)


@example("resume-further-off", neighbour="identical")
def _(applies):
    """As far off as A is."""
    return resumed(a=1.5, b=9.0 if applies else 1.5)


@example("resume-fixed", neighbour="identical")
def _(applies):
    return resumed(a=1.5 if applies else 1.0)


@example("resume-goes-on", neighbour="resume-source-differs")
def _(applies):
    return resumed(a=1.0 if applies else 1.5, source=2.0)


@example("resume-source-differs", neighbour="identical")
def _(applies):
    """A and B are equally far off where they go on."""
    return resumed(a=1.5, b=1.5, source=2.0 if applies else 1.0)


# ---- rollouts


def rollout(b="t", again=None, *edits):
    """The first step of B, which samples the tokens `b`, and of A, which samples t, and in a second run `again`."""
    a = [named(ONE, f"a {tokens}", hashes={TOKENS: tokens}) for tokens in ("t", again) if tokens]
    b = named(ONE, "b", hashes={TOKENS: b} if b else {})
    for metric, values in edits:
        b = edit(b, metric, values)
    return judge.rollout(a, b, name="rollout")


@example("rollout-unrecorded", neighbour="rollout-bit-equal")
def _(applies):
    return rollout(None if applies else "t")


@example("rollout-mismatch", neighbour="rollout-unknown-noise")
def _(applies):
    return rollout("other", None, (MISMATCH, times(3 if applies else 1)))


@example("rollout-bit-equal", neighbour="rollout-rounding")
def _(applies):
    return rollout("t", None, (LENGTH, times(1 if applies else 1 + 1e-6)))


@example("rollout-rounding", neighbour="rollout-unknown-noise")
def _(applies):
    return rollout("t", None, (LENGTH, times(1 + (1e-6 if applies else 1e-3))))


@example("rollout-unknown-noise", neighbour="rollout-changed")
def _(applies):
    return rollout("other", None if applies else "t")


@example("rollout-changed", neighbour="rollout-in-noise")
def _(applies):
    return rollout("other", "t" if applies else "another")


@example("rollout-in-noise", neighbour="rollout-open")
def _(applies):
    return rollout("other", "another", (LENGTH, times(1.04 if applies else 1.2)))


@example("rollout-open", neighbour="rollout-changed")
def _(applies):
    return rollout("other", "another" if applies else "t", (LENGTH, times(1.2)))


# ---- nothing to compare


@example("config-refused", neighbour="rollout-refused")
def _(applies):
    return judge.unrun(Unrun("ppo", refusal="no such key", is_rollout=not applies))


@example("rollout-refused", neighbour="not-run")
def _(applies):
    return judge.unrun(Unrun("ppo", refusal="no such key" if applies else None, is_rollout=True, missing=["b"]))


@example("records-unreadable", neighbour="not-run")
def _(applies):
    return judge.unrun(Unrun("ppo", unreadable="no record" if applies else None, missing=["b"]))


@example("no-baseline", neighbour="not-run")
def _(applies):
    return judge.unrun(Unrun("ppo", baseline=("a", "the job failed") if applies else None, missing=["b"]))


@example("not-run", neighbour="no-baseline")
def _(applies):
    return judge.unrun(Unrun("ppo", baseline=None if applies else ("a", "the job failed"), missing=["b"]))


# ---- the table


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_decides_its_runs_and_not_their_neighbours(rule):
    verdict, neighbour = EXAMPLES[rule.id]
    found, other = verdict(True), verdict(False)
    assert (found.rule, found.word) == (rule.id, rule.word), found.reason
    assert other.rule == neighbour, other.reason


def test_each_example_is_of_a_rule_and_no_two_rules_have_one_id():
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert EXAMPLES.keys() == set(ids)


# ---- and nothing else decides


def uses(path):
    """The members of Word and the calls of Verdict in a module."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [node.value if isinstance(node, ast.Attribute) else getattr(node, "func", None) for node in tree]
    names = {ast.unparse(each).rpartition(".")[2] for each in found if isinstance(each, ast.Name | ast.Attribute)}
    return names & {"Word", "Verdict"}


def test_words_are_named_by_the_table_alone():
    """And where it is said what they are."""
    package = REPO / "judge/verl_verdict"
    naming = {str(path.relative_to(package)) for path in package.rglob("*.py") if "Word" in uses(path)}
    assert naming == {"decide/table.py", "decide/verdicts.py"}


@pytest.mark.parametrize("caller", ["py/verl_regress/session/verdict.py", "ci/compare.py"])
def test_who_calls_the_judge_makes_no_verdict(caller):
    assert uses(REPO / caller) == set()
