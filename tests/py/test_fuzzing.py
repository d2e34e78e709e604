"""The property tests try what they claim: enough cases in every class, and the same cases for the same seed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import fuzzing
import pytest
from conftest import Outcome

REPO = Path(__file__).parents[2]


def test_a_run_tries_at_least_three_thousand_cases():
    assert sum(fuzzing.CASES.values()) >= 3_000
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("test_fuzz_*.py"))
    assert sorted(re.findall(r'@fuzz\(\s*"([^"]+)"', sources)) == sorted(fuzzing.CASES)


def test_a_class_that_tried_fewer_cases_than_planned_fails(monkeypatch):
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
def test_what_must_hold_of_every_case_can_fail(wrong):
    assert fuzzing.is_refused(outcome("error   FILE is bad.\n"), "FILE")
    assert not fuzzing.is_refused(outcome("", status=0, out="a plan"), "FILE")
    with pytest.raises(AssertionError):
        fuzzing.is_refused(outcome(**wrong), "FILE")


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_and_another_seed_is_another(tmp_path):
    """Seen from outside: the values drawn for a class, printed by a separate run."""
    code = (
        "import fuzzing\nfuzzing.CASES['s'] = 20\nfuzzing.tried['s'] = 0\n"
        "@fuzzing.fuzz('s', text=fuzzing.hostile)\ndef run(text): print(repr(text))\nrun()\n"
    )

    def drawn(seed):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,  # hypothesis writes files to the current directory
            env={"FUZZ_SEED": seed, "PYTHONPATH": f"{REPO}/py:{REPO}/tests/py"},
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout

    assert drawn("1") == drawn("1") != drawn("2")


def test_the_report_says_how_many_and_with_which_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, "REPORT", tmp_path / "reports" / "fuzz.json")
    monkeypatch.setattr(fuzzing, "tried", {"a": 3, "b": 4, "none": 0})
    assert fuzzing.write_report() == f"fuzz: 7 cases of 2 classes, seed {fuzzing.SEED} (FUZZ_SEED), see fuzz.json"
    assert json.loads(fuzzing.REPORT.read_text()) == {"seed": fuzzing.SEED, "cases": {"a": 3, "b": 4}}
