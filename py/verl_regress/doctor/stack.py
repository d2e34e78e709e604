"""Stack: Ray, Python and the packages are the same on all nodes. What the snapshot needs of them, each submission checks (store/mismatch.py)."""

import contextlib
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from verl_regress.cluster.packages import plain_name
from verl_regress.doctor.checks import Check, Cluster, Facts, Plan, Seen, alarm, ok

_FEW = 5  # packages that are named


def facts(plan: Plan) -> dict[str, Any]:
    """The versions of Python and Ray, and unless it must be quick of every package."""
    found: dict[str, Any] = {"python": platform.python_version(), "ray": "none"}
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["ray"] = metadata.version("ray")
    if not plan.quick:
        known = ((one.metadata["Name"], one.version) for one in metadata.distributions())
        found["packages"] = {plain_name(name): version for name, version in known if name}
    return found


def _judge_ray(facts: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    yield from _judge_one("ray", {node: found["ray"] for node, found in facts.items()})
    for node, found in facts.items():
        if found["ray"] == "none":
            yield alarm(node, "its python3 has no Ray")


def _judge_python(facts: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    yield from _judge_one("Python", {node: found["python"] for node, found in facts.items()})


def _judge_one(name: str, versions: Mapping[str, str]) -> Iterator[Seen]:
    if len(set(versions.values())) > 1:
        yield alarm(", ".join(versions), _described(name, versions))


def _described(name: str, versions: Mapping[str, str]) -> str:
    """`torch 2.13.0 on worker-0, none on worker-1`."""
    nodes = defaultdict(list)
    for node, version in versions.items():
        nodes[version].append(node)
    return f"{name} " + ", ".join(f"{version} on {' and '.join(having)}" for version, having in nodes.items())


def _judge_packages(facts: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    of_workers = {node: facts[node]["packages"] for node in cluster.workers if node in facts}
    names = sorted({name for packages in of_workers.values() for name in packages})
    versions = {name: {node: packages.get(name, "none") for node, packages in of_workers.items()} for name in names}
    different = [_described(name, found) for name, found in versions.items() if len(set(found.values())) > 1]
    if different:
        more = f"; and {len(different) - _FEW} more" if len(different) > _FEW else ""
        yield alarm(", ".join(of_workers), "; ".join(different[:_FEW]) + more)
    else:
        yield ok(", ".join(of_workers), f"{len(names)} packages")


_IMAGE = (
    "give all nodes one image ('make build down up', NODE_IMAGE), or one environment (path= in NODES_FILE, NODES_PATH)"
)
CHECKS = (
    Check("VR-STACK-01", "the same Ray", _judge_ray, "Ray refuses the node", _IMAGE, quick=True),
    Check(
        "VR-STACK-02",
        "the same Python",
        _judge_python,
        "Ray refuses the node, or actors fail there",
        _IMAGE,
        quick=True,
    ),
    Check(
        "VR-STACK-03",
        "the same packages on all workers",
        _judge_packages,
        "a job fails on one worker, or trains differently",
        _IMAGE,
    ),
)
