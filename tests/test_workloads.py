"""Every place that must know a workload has it: what a new one still lacks is named here, and no place keeps one that went."""

import json

import pytest
import yaml
from hermetic import REPO

from verl_regress.base.workloads import WORKLOADS
from verl_rehearsal import fidelity, train
from verl_verdict.read import metrics


def schema(name, *keys):
    """A part of a schema of ours."""
    part = json.loads((REPO / f"py/verl_regress/{name}.schema.json").read_text())
    for key in keys:
        part = part[key]
    return part


PLACES = {
    "jobspecs/": lambda: {yaml.safe_load(path.read_text())["workload"] for path in (REPO / "jobspecs").glob("*.yaml")},
    "jobspec.schema.json": lambda: schema("jobspec", "properties", "workload", "enum"),
    "suite.schema.json": lambda: schema("suite", "$defs", "case", "properties", "workload", "enum"),
    "base_config.schema.json": lambda: set(schema("base_config", "$defs", "by_workload", "properties")) - {"rl"},
    "WORKLOADS of judge/verl_verdict/read/metrics.py": lambda: metrics.WORKLOADS,
    "TRAINERS of rehearsal/verl_rehearsal/train.py": lambda: train.TRAINERS,
    "KINDS of rehearsal/verl_rehearsal/fidelity.py": lambda: fidelity.KINDS,
    "ci.schema.json": lambda: set(schema("ci", "properties", "cases", "items", "enum")) - {"resume"},
    "ci.schema.json, overrides": lambda: (
        set(schema("ci", "properties", "overrides", "propertyNames", "enum")) - {"resume"}
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_has_the_workloads_of_the_helper(place):
    assert sorted(PLACES[place]()) == sorted(WORKLOADS)
