"""A pytest plugin for mutmut, which conftest.py loads in its processes.

- Tests that noticed the last mutants run first, because the first failure ends a run. `noticed`, beside the copy of the
  checkout, has a line for each.
- A plan is made in the test's own process: mutmut does not see which functions a test reaches in a child, and would not run
  the test for their mutants.
- A test in which a mutant plans without end fails, long before mutmut would end it.
"""

import itertools
from pathlib import Path

import pytest

from verl_regress.submit import beside

NOTICED = Path(__file__).parents[3] / "noticed"
PLANS = 100


def pytest_collection_modifyitems(items):
    lines = NOTICED.read_text(encoding="utf-8").splitlines() if NOTICED.exists() else []
    last = {nodeid: number for number, nodeid in enumerate(lines, start=1)}
    items.sort(key=lambda item: last.get(item.nodeid, 0), reverse=True)


def pytest_runtest_logreport(report):
    if report.failed:
        with NOTICED.open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(autouse=True)
def plans_in_this_process(monkeypatch):
    monkeypatch.setattr(beside, "in_child", in_this_process())


def in_this_process():
    """What replaces `beside.in_child` in one test."""
    plans = itertools.count(1)

    def run(work, meanwhile):
        assert next(plans) <= PLANS, f"this test makes more than {PLANS} plans"
        meanwhile()
        return work()

    return run
