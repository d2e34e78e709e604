"""Whole sentences about what a snapshot needs and the nodes lack, for real releases' requirements and the image's lock."""

from pathlib import Path

import pytest
from tests.store.test_requirements import main, metadata

from verl_regress.base.errors import BadInput
from verl_regress.cluster import packages
from verl_regress.cluster.packages import NodePackages
from verl_regress.store import mismatch, requirements

PINS = Path(__file__).parents[2] / "docker" / "requirements.in"
# What verl 0.9.1 needs in addition to 0.7.1 and 0.8.0, and what those ran with before it.
TODAY = {"transformers": "5.10.4", "numpy": "2.4.6", "transferqueue": "0.1.11"}
BEFORE = {"transformers": "4.57.6", "numpy": "1.26.4", "transferqueue": None}
ENVIRONMENT = {
    "python_version": "3.11",
    "python_full_version": "3.11.7",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}
CURES = "build an image with them (docker/requirements.in) or name one that has them with NODE_IMAGE, or set ALLOW_MISMATCH=1."


ON = "on worker-0, worker-1"


def image(**others):
    """The packages of the node image, with `others` replaced; None removes one."""
    lines = [line.split("==") for line in PINS.read_text().splitlines() if line and line[0] != "#"]
    has = {packages.plain_name(name): version for name, version in lines} | others
    return {name: version for name, version in has.items() if version is not None}


def node(name, has, python="3.11.7"):
    return NodePackages(name, name == "head", python, ENVIRONMENT, has)


def cluster(has):
    return [node(name, has) for name in ("head", "worker-0", "worker-1")]


def code(version="0.9.1", **record):
    return {"verl_version": version, "code_id": "codeB", **record}


def release(tmp_path, version):
    if version != "main":
        return code(version, requirements=requirements.declared(tmp_path, metadata(version)))
    return code("0.10.0.dev", requirements=requirements.declared(main(tmp_path)))


def declares(*requires):
    return code(requirements={"requires": requires})


def refusal(found):
    with pytest.raises(BadInput) as caught:
        found.check()
    return str(caught.value)


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0"])
def test_the_releases_before_0_9_run_on_both_sets_though_they_declare_an_older_numpy(tmp_path, version):
    for has in (BEFORE, TODAY):
        assert mismatch.compare(release(tmp_path, version), cluster(image(**has)), []) == mismatch.Mismatch()
    limited = code("0.9.0", requirements={"requires": ["numpy<2.0.0"]})
    assert mismatch.compare(limited, cluster({"numpy": "2.4.6"}), []).problems


@pytest.mark.parametrize("version", ["0.9.1", "main"])
def test_the_default_release_runs_on_the_current_packages(tmp_path, version):
    assert mismatch.compare(release(tmp_path, version), cluster(image(**TODAY)), []) == mismatch.Mismatch()


@pytest.mark.parametrize(
    ("version", "verl", "more"),
    [
        ("0.9.1", "0.9.1", f", TransferQueue>=0.1.10 (none {ON})"),
        ("main", "0.10.0.dev", ""),
    ],
)  # fmt: skip
def test_all_missing_packages_are_in_one_sentence_without_those_of_extras(tmp_path, version, verl, more):
    assert refusal(mismatch.compare(release(tmp_path, version), cluster(image(**BEFORE)), [])) == (
        f"verl {verl} (CODE_ID=codeB) wants numpy>=2.0.0 (1.26.4 {ON}), transformers!=5.6.0,<5.11,>=5.5.3 (4.57.6 {ON}){more}: {CURES}"
    )


def test_markers_are_those_of_the_nodes_and_names_need_no_spelling():
    said = declares(
        "a; python_version < '3.10'",
        "b; sys_platform == 'win32'",
        "Flash_Attn>=2; python_version >= '3.10'",
        "torch==2.11.0",
    )
    has = {"flash-attn": "2.0rc1.post1", "torch": "2.11.0+cu130"}
    assert refusal(mismatch.compare(said, cluster(has), [])) == (
        f"verl 0.9.1 (CODE_ID=codeB) wants Flash_Attn>=2 (2.0rc1.post1 {ON}): {CURES}"
    )
    assert mismatch.compare(said, cluster({**has, "flash-attn": "2.1rc1"}), []) == mismatch.Mismatch()


def test_packages_missing_on_one_worker_are_in_the_same_sentence():
    nodes = [node("head", {}), node("worker-0", {"a": "1", "c": "1"}), node("worker-1", {"a": "2"})]
    found = mismatch.compare(declares("a>=2", "c", "d"), nodes, [])
    assert refusal(found) == (
        "verl 0.9.1 (CODE_ID=codeB) wants a>=2 (1 on worker-0), c (none on worker-1), d (none on worker-0, worker-1); the workers have different "
        "packages, a 1 on worker-0 and 2 on worker-1, c 1 on worker-0 and none on worker-1: build an image with them "
        "(docker/requirements.in) or name one that has them with NODE_IMAGE, give all workers the same packages, or set ALLOW_MISMATCH=1."
    )


def test_another_python_is_a_difference_and_three_are_named():
    many = {f"p{i}": "1" for i in range(7)}
    nodes = [node("head", {}), node("worker-0", many), node("worker-1", {}, python="3.12.1")]
    assert refusal(mismatch.compare(declares(), nodes, [])) == (
        "The workers have different packages, p0 1 on worker-0 and none on worker-1, p1 1 on worker-0 and none on worker-1, p2 1 on "
        "worker-0 and none on worker-1, …: give all workers the same packages, or set ALLOW_MISMATCH=1."
    )
    assert "Python 3.11.7 on worker-0 and 3.12.1 on worker-1" in refusal(
        mismatch.compare(declares(), [node("worker-0", {}), node("worker-1", {}, python="3.12.1")], [])
    )


def test_a_requirement_that_cannot_be_parsed_is_reported():
    found = mismatch.compare(declares("numpy>>2"), cluster({}), [])
    assert found.problems == ()
    assert "does not say which packages it needs (Expected semicolon (after name" in found.note


def test_the_package_differences_between_two_jobs():
    a = {"Python": "3.11.7", "numpy": "1", "gone": "1", **{f"p{i}": "1" for i in range(5)}}
    assert mismatch.differences_between(a, dict(a)) is None
    assert mismatch.differences_between({"numpy": "1", "x": "1"}, {"numpy": "2", "y": "1"}) == (
        "numpy 1 with A and 2 with B, x 1 with A and none with B, y none with A and 1 with B"
    )
    assert mismatch.differences_between(a, {"Python": "3.11.7"}).endswith(", p0 1 with A and none with B, …")
