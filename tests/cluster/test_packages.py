"""The packages of a node: how it lists them, and how the list is read."""

import json
import sys
from importlib import metadata

import pytest
from shared_fixtures import has_packages, write

from verl_regress.cluster import packages
from verl_regress.cluster.ray_api import Node

LIST = ("list-packages", "--cluster=c", "--node=worker-7")


def node(name="worker-0", start=None):
    labels = {} if start is None else {"start": start}
    return Node(name, f"id-{name}", "10.0.0.2", name == "head", True, {}, labels)


def test_a_node_lists_what_its_python_has(run, shared):
    write(shared.ray_logs("c") / "worker-7.start", "12-3\n")
    outcome = run(*LIST)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    [known], unknown = packages.of_nodes(shared, "c", [node("worker-7", "12-3")])
    assert (unknown, known.packages["pytest"]) == ([], metadata.version("pytest"))
    assert known.environment["python_version"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert packages.is_listed(shared.ray_logs("c"), "worker-7")
    assert not packages.is_listed(shared.ray_logs("c"), "worker-8")
    write(shared.ray_logs("c") / "worker-7.start", "12-4\n")
    assert not packages.is_listed(shared.ray_logs("c"), "worker-7")


def test_names_are_normalised_and_the_first_complete_package_on_the_path_counts(tmp_path, monkeypatch):
    import deps

    for folder, name, text in (
        ("one", "Flash_Attn-2.0", "Metadata-Version: 2.1\nName: Flash_Attn\nVersion: 2.0\n"),
        ("one", "half-1.0", "Metadata-Version: 2.1\n"),
        ("two", "flash_attn-1.0", "Metadata-Version: 2.1\nName: flash.attn\nVersion: 1.0\n"),
        ("helper", "PyYAML-6.0", "Metadata-Version: 2.1\nName: PyYAML\nVersion: 6.0\n"),
    ):
        write(tmp_path / folder / f"{name}.dist-info/METADATA", text)
    monkeypatch.setattr(deps, "PACKAGES", tmp_path / "helper")
    monkeypatch.setattr(sys, "path", [*(str(tmp_path / name) for name in ("one", "two", "helper"))])
    assert packages.own_packages()["packages"] == {"flash-attn": "2.0"}


@pytest.mark.parametrize("text", [None, '{"start": "0", "packages": {}}', '{"start'])
def test_a_node_that_is_missing_a_list_of_its_latest_start_is_named(shared, text):
    file = shared.ray_logs("c") / "worker-0.packages.json"
    file.unlink()
    if text is not None:
        write(file, text)
    assert packages.of_nodes(shared, "c", [node(start="1")]) == ([], ["worker-0"])


def test_the_record_of_a_job_has_each_list_once(shared):
    has_packages(shared, "head", numpy="1")
    for name in ("worker-0", "worker-10", "worker-2"):
        has_packages(shared, name, numpy="2", TransferQueue="3")
    known, _ = packages.of_nodes(shared, "c", [node("worker-10"), node("worker-2"), node("head"), node()])
    record = json.loads(json.dumps(packages.recorded(known)))
    assert [one["nodes"] for one in record["lists"]] == [["head"], ["worker-0", "worker-2", "worker-10"]]
    assert record["lists"][1]["packages"] == {"TransferQueue": "3", "numpy": "2"}
    assert record["sha256"] == record["lists"][1]["sha256"] != record["lists"][0]["sha256"]
    assert packages.in_job(record) == {"Python": "3.11.7", "numpy": "2", "TransferQueue": "3"}

    has_packages(shared, "worker-0", numpy="4")
    other = packages.recorded(packages.of_nodes(shared, "c", [node("worker-2"), node("head"), node()])[0])
    assert other["sha256"] not in {None, *(one["sha256"] for one in other["lists"])}
    assert packages.in_job(other) == {"Python": "3.11.7", "numpy": "2/4", "TransferQueue": "3"}
