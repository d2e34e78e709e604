"""What must be equal for A and B, and what is said of a difference."""

import dataclasses

import pytest
from verdict_runs import changed, recorded

from verl_verdict.decide import judge
from verl_verdict.decide.verdicts import Word

A = ("grpo-0.9.1-v1-1", "grpo-0.9.1-v1-2")


def differing(tmp_path, **facts):
    a = recorded(tmp_path, *A)
    b = changed(tmp_path, A[0])
    return a, [dataclasses.replace(b, facts={**b.facts, **facts})]


@pytest.mark.parametrize(
    ("name", "of_a", "of_b"),
    [
        *((name, None, "other") for name in ("profile", "model", "dataset", "devices", "nodes")),
        *((name, "1", "2") for name in ("model sha256", "data sha256", "image", "packages")),  # a session records these
        ("override data.shuffle", None, "data.shuffle=False"),
        ("variable OMP_NUM_THREADS", None, "8"),
    ],
)
def test_what_must_be_equal(tmp_path, name, of_a, of_b):
    a, b = differing(tmp_path, **{name: of_b})
    if of_a:
        a = [dataclasses.replace(run, facts={**run.facts, name: of_a}) for run in a]
    verdict = judge.case(a, b)
    said = f"{name}: A {a[0].facts.get(name, 'without it')}, B {of_b}"
    assert (verdict.word, [each.name for each in verdict.differs]) == (Word.INCOMPARABLE, [name])
    assert verdict.reason == f"'{A[0]}' and 'b' differ in more than their code: {said}"


def test_many_differences_are_counted(tmp_path):
    a, b = differing(tmp_path, devices="1", model="2", nodes="3", profile="4", dataset="5")
    assert judge.case(a, b).reason.endswith(" and 2 more")


def test_runs_of_a_must_be_comparable_with_each_other(tmp_path):
    a, b = differing(tmp_path)
    a[1] = dataclasses.replace(a[1], facts={**a[1].facts, "profile": "gpu"})
    assert judge.case(a, b).word is Word.INCOMPARABLE


def test_an_accepted_difference_is_a_second_cause(tmp_path):
    a, b = differing(tmp_path, packages="2")
    a = [dataclasses.replace(run, facts={**run.facts, "packages": "1"}) for run in a]
    verdict = judge.case(a, b, accept=["packages"])
    assert verdict.word is Word.IDENTICAL
    assert "packages also differ: the code is not the only possible cause" in verdict.notes
    assert [str(each) for each in verdict.differs] == ["packages: A 1, B 2"]


def test_accepted_packages_are_named_and_cannot_be_separated_from_the_code(tmp_path):
    a, b = differing(tmp_path, packages="2")
    old, new = (
        {"Python": "3.11", "torch": "2.10.0", "numpy": "2.4"},
        {"Python": "3.11", "torch": "2.11.0", "ray": "2.60"},
    )
    a = [dataclasses.replace(run, facts={**run.facts, "packages": "1"}, packages=old) for run in a]
    b = [dataclasses.replace(run, packages=new) for run in b]
    differ = "packages that differ (A, B): numpy (2.4, without it), ray (without it, 2.60), torch (2.10.0, 2.11.0)"
    notes = judge.case(a, b, accept=["packages"]).notes
    assert f"{differ}; code and packages cannot be separated unless one of the two codes runs with both" in notes
    # A ran with B's packages, too.
    a[1] = dataclasses.replace(a[1], facts={**a[1].facts, "packages": "2"}, packages=new)
    notes = judge.case(a, b, accept=["packages"]).notes
    assert f"{differ}; A ran with both: compare its own runs, and those of A and B with equal packages" in notes


def test_what_was_not_recorded_is_listed(tmp_path):
    verdict = judge.case(*differing(tmp_path))
    assert "not compared, because it is not in the records: model sha256, data sha256, image, packages" in verdict.notes
