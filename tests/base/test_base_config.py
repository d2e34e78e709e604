"""The shipped Ray base configs: each is valid, and a platform's nodes train what one host trains."""

from pathlib import Path

import pytest

from verl_regress.base import documents

CONFIGS = Path(__file__).parents[2] / "env" / "ray"


def load(name):
    return documents.parse((CONFIGS / name).read_text(encoding="utf-8"), f"env/ray/{name}", "base_config").content


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_it_is_a_base_config_that_keeps_the_driver_off_the_head(name):
    assert load(name)["entrypoint_resources"]["worker_node"] > 0


def test_prod_trains_what_dev_trains():
    assert load("prod.yaml")["trainer_overrides"] == load("dev.yaml")["trainer_overrides"]
