"""The judge as a distribution of its own (judge/pyproject.toml): it needs what `make verify` brings to a node."""

from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


def test_it_needs_what_a_node_gets_for_it():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((REPO / "judge/pyproject.toml").read_text())["project"]
    assert project["dependencies"]
    assert set(project["dependencies"]) < set((REPO / "py/requirements-judge.txt").read_text().splitlines())
