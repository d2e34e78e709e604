"""The property tests try what they claim: enough cases in every class, and the same cases for the same seed."""

import re
from pathlib import Path

import fuzzing
import pytest
from conftest import Outcome


def test_a_run_tries_at_least_three_thousand_cases():
    assert sum(fuzzing.CASES.values()) >= 3_000
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("test_fuzz_*.py"))
    assert sorted(re.findall(r'@fuzz\(\s*"([^"]+)"', sources)) == sorted(fuzzing.CASES)


def test_a_fuzz_class_that_ran_fewer_cases_than_planned_fails(monkeypatch):
    from hypothesis import strategies as st

    monkeypatch.setitem(fuzzing.CASES, "few", 50)
    monkeypatch.setitem(fuzzing.tried, "few", 0)

    @fuzzing.fuzz("few", bit=st.booleans())
    def two_cases(bit):
        pass

    with pytest.raises(AssertionError, match="few: 2 cases were tried, not 50"):
        two_cases()


def outcome(err, status=2, out="", created=()):
    return Outcome(status, type("Captured", (), {"out": out, "err": err}), list(created))


@pytest.mark.parametrize(
    "wrong",
    [
        {"err": "Traceback (most recent call last):\n"},
        {"err": "error   x names FILE.\nerror   a second line.\n"},
        {"err": "error   FILE has no end\n"},
        {"err": "error   FILE rings \x07.\n"},
        {"err": "error   It names nothing.\n"},
        {"err": f"error   FILE {'x' * 1_000}.\n"},
        {"err": "error   FILE is bad.\n", "status": 1},
        {"err": "error   FILE is bad.\n", "out": "something"},
        {"err": "error   FILE is bad.\n", "created": ["jobs/x"]},
        {"err": "", "status": 0, "created": ["jobs/x"]},
        {"err": "Traceback (most recent call last):\n", "status": 0},
    ],
)
def test_a_violated_property_fails(wrong):
    assert fuzzing.is_refused(outcome("error   FILE is bad.\n"), "FILE")
    assert not fuzzing.is_refused(outcome("", status=0, out="a plan"), "FILE")
    with pytest.raises(AssertionError):
        fuzzing.is_refused(outcome(**wrong), "FILE")
