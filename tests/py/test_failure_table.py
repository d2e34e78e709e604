"""The cause found for each real failure of a real job (tests/recorded/failures/README.md), and the hints for them."""

import re
from pathlib import Path

import pytest
import yaml

from verl_regress.jobs import failure, hints

HOME = Path(__file__).parents[1] / "recorded" / "failures"
CASES = yaml.safe_load((HOME / "cases.yaml").read_text())
FILES = sorted(path for path in HOME.iterdir() if path.suffix in (".json", ".log"))
BY_NAME = {case["name"]: case for case in CASES}
RECORDED = [hint for hint in hints.HINTS if re.fullmatch(r"\w+", hint.seen)]


def plan_of(case):
    code_id = f"failure-{case['name'].replace('_', '-')}" if "edits" in case else "codeA"
    return {"code_path": f"/private/common/code/verl/{code_id}", "shared_root": "/private"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_root_exception_its_place_its_step_and_what_to_do(make_job, file):
    """From what the job's processes recorded, or from the end of the driver's log."""
    job, case = make_job(), BY_NAME[file.stem]
    if file.suffix == ".json":
        job.reports.mkdir(parents=True)
    kept = job.driver_log if file.suffix == ".log" else job.reports / "exceptions-all-1.json"
    kept.write_bytes(file.read_bytes())
    found, wanted = failure.of_job(job, plan_of(case), 1), case["cause"]
    assert found == (wanted if file.suffix == ".log" else {**wanted, "step": None})  # the step is in the log


def test_the_table_is_complete_and_its_files_are_small():
    assert len(CASES) == len(BY_NAME) >= 15
    assert {case["workload"] for case in CASES} == {"ppo", "grpo", "sft"}
    assert {path.stem for path in FILES} == set(BY_NAME)
    assert max(path.stat().st_size for path in FILES) <= 20_000


@pytest.mark.parametrize("hint", RECORDED, ids=lambda hint: hint.seen)
def test_every_recorded_case_gets_its_hint(hint):
    filled_in = re.sub(r"\\\{\w+\\\}", ".+", re.escape(hint.advice))
    assert re.fullmatch(filled_in, BY_NAME[hint.seen]["cause"]["hint"])


@pytest.mark.parametrize("hint", [hint for hint in hints.HINTS if hint not in RECORDED], ids=lambda hint: hint.pattern)
def test_every_hint_without_a_recorded_case_matches_its_quoted_words(hint):
    """`TEXT (SOURCE)`: the words, and their source."""
    text, _, source = hint.seen.rpartition(" (")
    assert source.endswith(")")
    assert hints.of(text) == hint.advice


def test_every_hint_is_one_line_with_a_cure():
    assert len(hints.HINTS) >= 15
    for hint in hints.HINTS:
        assert ": " in hint.advice
        assert hint.advice.isprintable()
        assert not hint.advice.endswith(".")


def test_an_unknown_exception_has_no_hint():
    assert hints.of("ZeroDivisionError: division by zero") is None
