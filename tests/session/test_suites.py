"""Suites: which are refused and why, and what a case inherits."""

import json
from pathlib import Path

import pytest

from verl_regress.base.errors import BadInput
from verl_regress.session import suites

SHIPPED = sorted((Path(__file__).parents[2] / "suites").glob("*.yaml"))


def parse(text):
    return suites.parse(text, "my.yaml")


def test_the_shipped_suites_can_be_used_and_their_jobspecs_exist():
    found = [suites.parse(path.read_text(), path.name) for path in SHIPPED]
    assert {path.stem for path in SHIPPED} == {"rehearsal", "gpu", "example", "invariants"}
    assert all((SHIPPED[0].parents[1] / spec).is_file() for suite in found for spec in suite.specs)
    assert [case.name for case in found[-1].cases] == ["ppo", "grpo", "sft", "resume"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cases: {ppo: {workload: ppo}}\nbudgets: 3", "my.yaml has the unknown key 'budgets' in the document: known keys are cases, pairs, reuse, seeds, title."),
        ("cases: {ppo: {worklod: ppo}}", "my.yaml has the unknown key 'worklod' in cases.ppo: did you mean 'workload'? known keys are continues, decisive, deterministic, equal, ignore, jobspec, memory, overrides, pairs, recompute_rewards, seeds, speed, steps, workload."),
        ("cases: {ppo: {workload: dpo}}", "cases.ppo.workload in my.yaml is not usable, because 'dpo' is not one of ['ppo', 'grpo', 'sft']: write ppo."),
        ("cases: {ppo: {workload: ppo, pairs: 0}}", "cases.ppo.pairs in my.yaml is not usable, because 0 is less than the minimum of 1: give at least 1."),
        ("cases: {}", "cases in my.yaml is not usable, because {} should be non-empty: give at least 1."),
        ("pairs: 1", "my.yaml lacks the key 'cases' in the document: add it."),
        ("cases: {ppo: {}}", "The case 'ppo' of the suite my.yaml has neither workload, jobspec nor continues: give one of workload, jobspec, continues."),
        ("cases: {ppo: {workload: ppo, jobspec: x.yaml}}", "The case 'ppo' of the suite my.yaml has workload and jobspec: give one of workload, jobspec, continues."),
        ("cases: {more: {continues: ppo, steps: 1}, ppo: {workload: ppo}}", "The case 'more' of the suite my.yaml continues 'ppo', which is not a case before it: use one of the cases before it, of which there are none."),
        ("cases: {ppo: {workload: ppo}, more: {continues: ppo}}", "The case 'more' of the suite my.yaml continues 'ppo' and does not say how far: add steps, the number of further steps."),
        ("cases: {ppo: {workload: ppo, pairs: 3, seeds: [1, 2]}}", "The case 'ppo' of the suite my.yaml has pairs: 3 and 2 seeds: give a seed for each pair, or fewer pairs."),
        ("cases: {ppo: {workload: ppo}, more: {continues: ppo, steps: 1, seeds: [4]}}", "The case 'more' of the suite my.yaml continues 'ppo' and has seeds of its own: leave them out, a seed does not change midway."),
        ("cases: {ppo: {workload: ppo, decisive: {actor/entropy: {better: neither}}, ignore: [actor/entropy]}}", "The case 'ppo' of the suite my.yaml ignores every metric that decides it (actor/entropy): compare one of them."),
        ("cases: {ppo: {workload: ppo, decisive: {critic/score/mean: {better: up}}}}", "cases.ppo.decisive['critic/score/mean'].better in my.yaml is not usable, because 'up' is not one of ['more', 'less', 'neither']: use one of these."),
        ("cases: {ppo: {workload: ppo, overrides: [a.b=1, data.seed=5]}}", "The case 'ppo' of the suite my.yaml has the override 'data.seed=5', with which all of its pairs would have one seed: leave it out, and give seeds instead."),
        ("cases: {ppo: {workload: ppo, equal: []}}", "cases.ppo.equal in my.yaml is not usable, because [] should be non-empty: give at least 1."),
        ("cases: {ppo: {workload: ppo, equal: [[a=1], [data.seed=5]]}}", "The case 'ppo-2' of the suite my.yaml has the override 'data.seed=5', with which all of its pairs would have one seed: leave it out, and give seeds instead."),
        ("cases: {ppo: {workload: ppo, equal: [[a=1]], speed: true, pairs: 3, memory: false}}", "The case 'ppo' of the suite my.yaml has equal, so only runs of the same code are compared: leave out pairs, speed."),
        ("cases: {ppo-1: {workload: ppo}, ppo: {workload: ppo, equal: [[a=1]]}}", "The suite my.yaml has two cases 'ppo-1', because each override set of 'equal' is one, named by its number: rename the other one."),
    ],
)  # fmt: skip
def test_a_suite_that_cannot_be_used_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(BadInput) as refused:
        parse(text)
    assert str(refused.value) == sentence


def test_a_case_takes_seeds_and_pairs_of_the_suite_and_more_of_its_source():
    suite = parse(
        "pairs: 3\nseeds: [7, 8, 9]\ncases:\n"
        "  ppo: {workload: ppo, overrides: [a.b=1]}\n"
        "  short: {workload: ppo, pairs: 1}\n"
        "  more: {continues: ppo, steps: 2, overrides: [c=2], pairs: 2}\n"
        "  mine: {jobspec: ~/x.yaml, seeds: [1, 2, 3, 4], pairs: 4}\n"
    )
    assert [case.seeds for case in suite.cases] == [(7, 8, 9), (7,), (7, 8), (1, 2, 3, 4)]
    assert suite.case("more").spec == "jobspecs/ppo.yaml"
    assert suite.case("more").overrides == ("a.b=1", "c=2")
    assert suite.specs == ["jobspecs/ppo.yaml", "~/x.yaml"]
    assert [case.most_runs() for case in suite.cases] == [8, 4, 6, 10]
    assert suites.of_recorded(suite.recorded()) == suite


def test_a_jobspec_is_relative_to_its_suite_also_when_that_is_read_elsewhere():
    text = "cases: {ppo: {workload: ppo}, a: {jobspec: a.yaml}, b: {jobspec: ../b.yaml}, c: {jobspec: /c.yaml}, d: {jobspec: ~/d.yaml}}"
    suite = suites.parse(text, "my.yaml", Path("/my/suites"))
    assert suite.specs == ["jobspecs/ppo.yaml", "/my/suites/a.yaml", "/my/suites/../b.yaml", "/c.yaml", "~/d.yaml"]
    assert suites.of_recorded(suite.recorded()) == suite
    assert suites.parse(json.dumps(suite.content), "my.yaml", Path("/tmp")).specs == suite.specs


def test_speed_and_memory_are_judged_where_a_case_asks_for_it():
    suite = parse("cases: {a: {workload: ppo}, b: {workload: ppo, memory: true}, c: {workload: ppo, speed: true}}")
    assert [(case.speed, case.memory) for case in suite.cases] == [(False, False), (False, True), (True, False)]


def test_rewards_are_computed_again_where_a_case_or_its_source_says_so():
    suite = parse(
        "cases: {a: {workload: ppo}, b: {workload: ppo, recompute_rewards: true}, c: {continues: b, steps: 1}, d: {continues: a, steps: 1}}"
    )
    assert [case.recompute_rewards for case in suite.cases] == [False, True, True, False]


def test_a_suite_without_seeds_counts_them():
    suite = parse(
        "pairs: 2\ncases: {ppo: {workload: ppo, deterministic: false}, sft: {workload: sft, pairs: 1, deterministic: true}}"
    )
    assert [case.seeds for case in suite.cases] == [(100, 200), (100,)]
    # A perturbed run says something only of an A that repeats itself.
    assert [case.most_runs() for case in suite.cases] == [4, 3]


def test_each_override_set_that_must_train_in_the_same_way_is_a_case_with_one_pair():
    suite = parse(
        "pairs: 3\ncases:\n"
        "  micro: {workload: ppo, steps: 1, overrides: [a=1], ignore: [x], equal: [[b=2], [c=3, d=4]]}\n"
        "  sft: {workload: sft}\n"
    )
    base, *others = suite.group(suite.case("micro"))
    assert [case.name for case in suite.cases] == ["micro", "micro-1", "micro-2", "sft"]
    assert [case.overrides for case in others] == [("a=1", "b=2"), ("a=1", "c=3", "d=4")]
    assert all(
        (case.seeds, case.steps, case.ignore, case.most_runs()) == ((100,), 1, ("x",), 2) for case in (base, *others)
    )
    assert [case.is_in_group for case in suite.cases] == [True, True, True, False]
    assert suites.of_recorded(suite.recorded()) == suite


def test_replayed_cases_may_take_further_runs_of_a_and_steps_with_own_rollouts():
    text = (
        "cases: {ppo: {workload: ppo}, more: {continues: ppo, steps: 2}, exact: {workload: ppo, deterministic: true}, "
        "cost: {workload: grpo, speed: true, deterministic: false}, group: {workload: grpo, equal: [[a=1]]}}"
    )
    most = {case.name: case.most_runs(is_replayed=True) for case in suites.parse(text, "my.yaml").cases}
    assert most == {"ppo": 7, "more": 4, "exact": 7, "cost": 2, "group": 2, "group-1": 2}
