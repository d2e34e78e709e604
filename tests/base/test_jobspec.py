"""The typed JobSpec and base config: every field of the schemas arrives in them, and what is left out is empty."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from verl_regress import base
from verl_regress.base import documents
from verl_regress.base.jobspec import BaseConfig, Deterministic, JobSpec, Secret

SCHEMAS = Path(base.__file__).parents[1]
SHIPPED = Path(__file__).parents[2] / "env" / "ray"
JOBSPEC = """\
submission_id: me
workload: sft
shared_root: /private
code_id: codeA
model: tiny
dataset: sums
reward_fn_path: /private/user/code/mine.py
ray: {address: http://ray:1}
resources: {entrypoint_num_cpus: 0, entrypoint_resources: {worker_node: 2}}
trainer_overrides: [a=1, b=2]
env_vars: {A: a}
secrets: [{name: ONE}, {name: TWO, file: ~/two}]
"""
BASE_CONFIG = """\
address: http://ray:1
entrypoint_num_cpus: 1.5
entrypoint_resources: {worker_node: 1}
python_layers: [rehearsal]
runtime_env: {env_vars: {A: a}}
trainer_overrides: {ppo: [a=1]}
deterministic: {overrides: {rl: [b=2]}, env_vars: {B: b}}
"""


def job_spec(text):
    return JobSpec.from_document(documents.parse(text, "my.yaml", "jobspec"))


def base_config(text):
    return BaseConfig.from_document(documents.parse(text, "cpu.yaml", "base_config"))


def test_a_jobspec_with_every_field():
    spec = job_spec(JOBSPEC)
    assert spec == JobSpec(
        document=documents.parse(JOBSPEC, "my.yaml", "jobspec"),
        workload="sft",
        submission_id="me",
        shared_root="/private",
        code_id="codeA",
        code_path=None,
        model="tiny",
        dataset="sums",
        reward_fn_path="/private/user/code/mine.py",
        address="http://ray:1",
        entrypoint_num_cpus=0,
        entrypoint_resources={"worker_node": 2},
        trainer_overrides=["a=1", "b=2"],
        env_vars={"A": "a"},
        secrets=(Secret("ONE"), Secret("TWO", "~/two")),
    )
    assert spec.origin == "my.yaml"
    assert job_spec("{workload: ppo, code_path: /private/common/code/verl/codeA}").code_path.endswith("/codeA")


def test_a_base_config_with_every_field():
    base = base_config(BASE_CONFIG)
    assert base == BaseConfig(
        document=documents.parse(BASE_CONFIG, "cpu.yaml", "base_config"),
        address="http://ray:1",
        entrypoint_num_cpus=1.5,
        entrypoint_resources={"worker_node": 1},
        python_layers=["rehearsal"],
        env_vars={"A": "a"},
        trainer_overrides={"ppo": ["a=1"]},
        deterministic=Deterministic({"rl": ["b=2"]}, {"B": "b"}),
    )
    assert base.origin == "cpu.yaml"


@pytest.mark.parametrize(
    ("schema", "typed", "without_fields"),
    [("jobspec", JobSpec, {"ray", "resources"}), ("base_config", BaseConfig, {"runtime_env"})],
)
def test_every_key_of_a_schema_has_its_field(schema, typed, without_fields):
    """`without_fields` are the mappings whose keys are fields of their own."""
    keys = json.loads((SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))["properties"]
    inner = {key for name in without_fields for key in keys[name]["properties"]}
    assert {field.name for field in fields(typed)} == (keys.keys() - without_fields) | inner | {"document"}


def shipped(name):
    return documents.parse((SHIPPED / name).read_text(encoding="utf-8"), f"env/ray/{name}", "base_config").content


@pytest.mark.parametrize("name", sorted(path.name for path in SHIPPED.glob("*.yaml")))
def test_a_shipped_base_config_keeps_the_driver_off_the_head(name):
    assert shipped(name)["entrypoint_resources"]["worker_node"] > 0


def test_prod_trains_what_dev_trains():
    assert shipped("prod.yaml")["trainer_overrides"] == shipped("dev.yaml")["trainer_overrides"]
