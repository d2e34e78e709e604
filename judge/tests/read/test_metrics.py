"""What the judge knows about verl's metrics, checked against the names in recorded runs."""

import re
from pathlib import Path

import pytest
from verdict_runs import RECORDED, recorded

from verl_verdict.read import metrics

NAMES = sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_of_every_release_is_a_time_or_has_its_stage(tmp_path, name):
    (run,) = recorded(tmp_path, name)
    unknown = [
        metric
        for metric in run.series
        if not metrics.is_time(metric) and metrics.stage_of(metric) not in metrics.STAGES
    ]
    assert [metric for metric in unknown if metric != "training/global_step"] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_required_decisive_metric_is_in_the_records(tmp_path, name):
    (run,) = recorded(tmp_path, name)
    required = [each.pattern for each in metrics.WORKLOADS[run.workload].decisive if each.required]
    assert required
    assert [pattern for pattern in required if pattern not in run.series] == []


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("timing_s/gen", True),
        ("perf/mfu/actor_infer", True),
        ("train/mfu", True),
        ("perf/time_per_step", True),
        ("actor/perf/max_memory_allocated_gb", True),
        ("perf/total_num_tokens", False),
        ("critic/score/mean", False),
        ("train/total_tokens(B)", False),
    ],
)
def test_times_are_recognised(name, time):
    assert metrics.is_time(name) is time


def test_each_decisive_metric_has_a_stage_and_is_in_the_table_of_docs():
    page = (Path(__file__).parents[3] / "docs/verdict.md").read_text().partition("## Decisive metrics\n")[2]
    listed = {name: {+1: set(), -1: set(), 0: set()} for name in metrics.WORKLOADS}
    for row in re.findall(r"^\| ([A-Z, ]+) \|(.*)\|$", page.partition("\n## ")[0], re.MULTILINE):
        for workload in row[0].lower().split(", "):
            for good, cell in zip((+1, -1, 0), row[1].split("|"), strict=True):
                listed[workload][good] |= set(re.findall(r"`([^`]+?)\*?`", cell))
    decisive = {each.pattern for known in metrics.WORKLOADS.values() for each in known.decisive}
    assert [name for name in decisive if metrics.stage_of(name) not in metrics.STAGES] == []
    assert listed == {
        name: {good: {each.pattern for each in known.decisive if each.good == good} for good in (+1, -1, 0)}
        for name, known in metrics.WORKLOADS.items()
    }


def test_the_causal_order():
    """As in a step: data, tokens, mismatch, reward, advantages, losses, gradient, validation."""
    order = [
        "prompt_length/mean", "response_length/mean", "response/aborted_ratio", "global_seqlen/mean", "training/rollout_probs_diff_mean",
        "training/rollout_probs_diff_max", "training/rollout_actor_probs_pearson_corr", "rollout_corr/kl", "critic/score/mean",
        "critic/rewards/mean", "critic/values/mean", "critic/advantages/max", "critic/advantages/min", "critic/returns/mean",
        "critic/vf_loss", "actor/pg_loss", "actor/ppo_kl", "actor/kl_loss", "actor/loss", "actor/grad_norm", "actor/lr",
        "val-core/openai/gsm8k/acc/mean@1", "something/new",
    ]  # fmt: skip
    assert sorted(sorted(order), key=metrics.causal_rank) == order


def test_names_of_other_releases():
    series = metrics.canonical(
        {"training/num_turns/mean": {1: 2.0}, "mismatch/mismatch_kl": {1: 0.1}, "actor/entropy_loss": {1: 0.5}}
    )
    assert series == {"num_turns/mean": {1: 2.0}, "rollout_corr/kl": {1: 0.1}, "actor/entropy": {1: 0.5}}


def test_a_record_with_both_names_keeps_both():
    series = {"training/num_turns/mean": {1: 2.0}, "num_turns/mean": {1: 3.0}}
    assert metrics.canonical(series) == series


def test_only_known_names_of_a_release_may_be_missing():
    assert metrics.why_one_sided("training/off_policy/trajectory_spans/mean") == "only the V1 trainer writes it"
    success_only = "val-aux/openai/gsm8k/acc_success_only/mean@1"
    assert metrics.why_one_sided(success_only) == "only the V1 trainer of verl 0.9.1 and later writes it"
    assert metrics.why_one_sided("val-core/openai/gsm8k/acc/mean@1") is None
    assert metrics.why_one_sided("actor/kl_loss") is None


def test_rounding_is_relative_to_the_mean_max_and_min_together():
    series = {
        "critic/advantages/mean": {1: 2e-8},
        "critic/advantages/max": {1: 1.7},
        "critic/advantages/min": {1: -0.5},
        "actor/lr": {1: 1e-5},
    }
    assert metrics.scale_of("critic/advantages/mean", series) == 1.7
    assert metrics.scale_of("actor/lr", series) == 1e-5
    assert metrics.scale_of("rollout_corr/kl", {"rollout_corr/kl": {1: 1e-4}}) == 1.0
