"""The contracts between our packages (pyproject.toml): they are kept, and a planted import breaks them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]


@pytest.fixture
def helper(tmp_path):
    """A copy of the helper, beside one of the judge, with the contracts."""
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    for package in ("py/verl_regress", "judge/verl_verdict"):
        shutil.copytree(REPO / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "py/verl_regress"


def broken(helper):
    """The names of the contracts that fail there."""
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=helper.parents[1],
        env={**os.environ, "PYTHONPATH": f"{helper.parent}:{helper.parents[1] / 'judge'}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    names = [line.removesuffix(" BROKEN") for line in linted.stdout.splitlines() if line.endswith(" BROKEN")]
    assert (linted.returncode == 0) == (not names), linted.stdout + linted.stderr
    return names


def test_the_contracts_are_kept(helper):
    assert broken(helper) == []


LAYERS = "Each package imports only packages below it"
CIRCLE = "No modules import each other in a circle"
PLANNING = "Planning a job asks neither Ray nor the network"
JUDGING = "Judging a job's status asks neither Ray nor the network"
RAY = "Only the package cluster imports Ray"
VERDICT = "The judge needs neither the helper, nor Ray, nor the network"
READING = "Reading a record needs the standard library alone, as a worker has it"


@pytest.mark.parametrize(
    ("module", "planted", "names"),
    [
        ("base/errors.py", "from verl_regress.plan import plan", [LAYERS]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("jobs/progress.py", "def late():\n    from verl_regress.store import snapshot", [LAYERS]),
                ("jobs/failure.py", "def late():\n    from verl_regress.jobs import status", [CIRCLE]),
                ("store/snapshot.py", "import urllib.request", [PLANNING]),
                ("plan/devices.py", "from verl_regress.cluster import packages", [PLANNING]),
                ("plan/devices.py", "import requests", [PLANNING]),
                ("jobs/failure.py", "from verl_regress.cluster import ray_api", [JUDGING]),
                ("worker/queue.py", "def late():\n    import ray", [RAY]),
                ("../../judge/verl_verdict/decide/judge.py", "from verl_regress.base import errors", [VERDICT]),
                ("../../judge/verl_verdict/read/records.py", "def late():\n    import ray", [VERDICT]),
                ("../../judge/verl_verdict/errors.py", "from verl_verdict.decide import judge", [CIRCLE]),
                ("../../judge/verl_verdict/read/metrics.py", "def late():\n    import numpy", [READING]),
            ]
        ),
    ],
)
def test_a_planted_import_breaks_its_contract(helper, module, planted, names):
    with (helper / module).open("a") as file:
        file.write(f"\n\n{planted}\n")
    assert set(names) <= set(broken(helper))


def test_a_package_that_has_no_layer_is_refused(helper):
    (helper / "more").mkdir()
    (helper / "more/__init__.py").touch()
    assert broken(helper) == [LAYERS]
