"""A misspelt decisive metric is refused before any run, by what jobs have recorded."""

import io
import json
import sys
import types

import pytest
from conftest import write
from verdict_runs import RECORDED, recorded


@pytest.fixture
def checked_alone(run, shared, monkeypatch):
    """Checks a suite that is decided by these metrics; there is no job."""

    def checked(*metrics):
        decisive = {name: {"better": "more"} for name in metrics}
        text = json.dumps({"cases": {"ppo": {"workload": "ppo", "decisive": decisive}, "sft": {"workload": "sft"}}})
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(text.encode())))
        return run("verify", "suite", "--name=my.yaml")

    return checked


@pytest.fixture
def checked(checked_alone, make_job):
    """The same beside a job that has recorded some and one that is damaged."""
    names = ("critic/score/mean", "critic/score/max", "actor/pg_loss", "val-core/sums/acc/mean@1", "perf/top_5")
    rows = [{"step": step, "data": dict.fromkeys(names, 0.5)} for step in (1, 2)]
    write(make_job("known").metrics, "".join(json.dumps(row) + "\n" for row in rows))
    write(make_job("damaged").metrics, "no JSON\n")
    return checked_alone


@pytest.fixture
def searched(run, shared, monkeypatch):
    """Begins a search of SFT by this metric."""

    def searched(metric, bad_tree="4d"):
        text = json.dumps({"cases": {"sft": {"workload": "sft"}}})
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(text.encode())))
        ends = ("--good=1a", "--bad=2b", "--good-tree=3c", f"--bad-tree={bad_tree}")
        return run("bisect", "begin", "--name=my.yaml", "--cluster=c", "--repo=path:r", *ends, f"--metric={metric}")

    return searched


@pytest.mark.parametrize(
    ("metric", "meant"),
    [
        ("critic/score/maen", "critic/score/mean"),
        ("critic/scores/mean", "critic/score/mean"),
        ("actor/pg_los", "actor/pg_loss"),
    ],
)
def test_a_name_that_is_almost_a_recorded_one_is_refused_and_nothing_is_created(checked, metric, meant):
    assert checked("actor/pg_loss", metric).is_refusal(
        f"No job has recorded {metric}, which decides the case 'ppo' of the suite my.yaml: did you mean {meant}? "
        "If not, submit one job that records it first."
    )


def test_a_search_refuses_a_misspelt_metric_before_its_ends_run(checked, searched):
    assert searched("actor/pg_los").is_refusal(
        "No job has recorded actor/pg_los, which METRIC names: did you mean actor/pg_loss? "
        "If not, submit one job that records it first."
    )
    assert searched("actor/pg_loss").status == 0


def test_a_search_between_ends_with_the_same_code_is_refused_before_they_run(searched):
    assert searched("", bad_tree="3c").is_refusal(
        "The folder verl of GOOD=1a and of BAD=2b is the same (tree 3c), so no commit between them can have changed training: name commits that differ in it."
    )


@pytest.mark.parametrize(
    ("metric", "meant"),
    [
        ("critic/score/maen", "critic/score/mean"),
        ("critic/advantage/max", "critic/advantages/max"),
        ("actor/grad_nrom", "actor/grad_norm"),
        ("train/los", "train/loss"),
    ],
)
def test_the_metrics_that_decide_by_default_are_known_before_the_first_job(checked_alone, metric, meant):
    assert checked_alone(metric).is_refusal(
        f"No job has recorded {metric}, which decides the case 'ppo' of the suite my.yaml: did you mean {meant}? "
        "If not, submit one job that records it first."
    )


def test_before_the_first_job_no_metric_that_any_release_writes_is_taken_for_a_misspelt_one(checked_alone, tmp_path):
    paths = sorted(RECORDED.glob("*.json.gz"))
    names = {name for run in recorded(tmp_path, *(path.name[:-8] for path in paths)) for name in run.series}
    assert len(names) > 100
    assert checked_alone(*names).status == 0


@pytest.mark.parametrize(
    "metric",
    ["critic/score/max", "actor/kl_loss", "my/own", "val-core/", "val-core/sumz/acc/mean@1", "critic/scor/", "perf/top_6"],
)  # fmt: skip
def test_other_names_are_taken_as_they_are(checked, metric):
    outcome = checked(metric)
    assert (outcome.status, outcome.out) == (0, "jobspecs/ppo.yaml\0jobspecs/sft.yaml\0")
