from importlib import metadata

import pytest

from verl_regress.base.knobs import Knobs
from verl_regress.doctor import stack
from verl_regress.doctor.checks import Cluster, Plan

NODES = {"head": "10.0.0.1", "worker-0": "10.0.0.2", "worker-1": "10.0.0.3"}


def said(**changes):
    """What each check says where worker-1 differs so."""
    same = {"python": "3.11.2", "ray": "2.60.0", "packages": {"torch": "2.13.0"}}
    facts = {"head": {**same, "packages": {}}, "worker-0": same, "worker-1": {**same, **changes}}
    cluster = Cluster(NODES, "gpu", quick=False, knobs=Knobs({}), training=())
    return [(check.code, *seen[:3]) for check in stack.CHECKS for seen in check.judge(facts, cluster)]


ALL = "head, worker-0, worker-1"
WORKERS = "worker-0, worker-1"
EQUAL = ("VR-STACK-03", "ok", WORKERS, "1 packages")


@pytest.mark.parametrize(
    ("changes", "alarms"),
    [
        ({}, []),
        ({"ray": "2.59.0"}, [("VR-STACK-01", ALL, "ray 2.60.0 on head and worker-0, 2.59.0 on worker-1")]),
        ({"python": "3.12.1"}, [("VR-STACK-02", ALL, "Python 3.11.2 on head and worker-0, 3.12.1 on worker-1")]),
        ({"packages": {}}, [("VR-STACK-03", WORKERS, "torch 2.13.0 on worker-0, none on worker-1")]),
        (
            {"packages": {"torch": "2.13.0", **{f"p{n}": "1" for n in range(7)}}},
            [
                (
                    "VR-STACK-03",
                    WORKERS,
                    "; ".join(f"p{n} none on worker-0, 1 on worker-1" for n in range(5)) + "; and 2 more",
                )
            ],
        ),
    ],
)
def test_what_differs_is_named_with_the_nodes_that_have_it(changes, alarms):
    assert [(code, where, seen) for code, status, where, seen in said(**changes) if status == "alarm"] == alarms


def test_head_without_what_the_workers_have_is_no_fault():
    assert said() == [EQUAL]


def test_node_without_ray_is_a_fault():
    assert ("VR-STACK-01", "alarm", "worker-1", "its python3 has no Ray") in said(ray="none")


@pytest.mark.parametrize("quick", [True, False])
def test_packages_are_listed_unless_it_must_be_quick(quick):
    found = stack.facts(Plan("head", NODES, "c", "cpu", "/private", 6379, quick=quick, trains=False))
    assert (found.get("packages") or {}).get("pytest") == (None if quick else metadata.version("pytest"))
