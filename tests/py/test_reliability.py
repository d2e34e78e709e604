"""scripts/dev/reliability.py: the page says what the records say, and its check can fail."""

import json

import pytest
from hermetic import REPO

import reliability

FAULT = {
    "kind": "fault", "tries": 1, "name": "a node dies", "status": 7, "sentence": "error   JOB LOST (a | b)", "seconds": 4.0,
    "files_before": 9, "hash_before": "aa", "files_after": 9, "hash_after": "aa", "up_status": 0, "up_seconds": 8.0,
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A repository with the records of one run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "build" / "reports").mkdir(parents=True)
    rows = [FAULT, {**FAULT, "seconds": 6.0}, {"kind": "load", "name": "50 at once", "tries": 50, "status": 0}]
    (tmp_path / "build/reports/reliability.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "build/reports/fuzz.json").write_text(json.dumps({"seed": 1, "cases": {"ids": 700}}))
    return tmp_path


def rows_of(page):
    return [
        line for line in page.splitlines() if line.startswith("| ") and " --- " not in line and "| what |" not in line
    ]


def test_each_record_is_in_its_table(here, monkeypatch):
    monkeypatch.setattr(reliability, "machine", lambda: {"written": "now", "commit": "abc", "machine": "a machine"})
    assert reliability.main("write") == 0
    assert rows_of((here / "docs/reliability.md").read_text()) == [
        "| a node dies | 2 | 7: `JOB LOST (a / b)` | 5.0 s (at most 6.0 s) | 9 files aa, the same after | 8.0 s (at most 8.0 s) |",
        "| ids | 700 | - |",
        "| 50 at once | 50 | 0 | - | - | - |",
    ]
    assert reliability.main("check") == 0
    (here / "docs/reliability.md").write_text("made by hand\n")
    assert reliability.main("check") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hash_after": "bb", "files_after": 8}, "9 files aa, CHANGED: 8 files bb"),
        ({"up_status": 1}, "FAILED (1)"),
    ],
)
def test_failures_are_listed(change, said):
    page = reliability.page({"written": "", "commit": "", "machine": "", "records": [FAULT, {**FAULT, **change}]})
    assert said in page


def test_a_run_without_a_record_fails(here, monkeypatch):
    monkeypatch.setattr(reliability, "machine", dict)
    monkeypatch.setattr(reliability, "page", lambda _: "")
    (here / "build/reports/reliability.jsonl").unlink()
    (here / "build/reports/fuzz.json").unlink()
    assert reliability.main("report") == 1


def test_the_shipped_page_matches_its_records(monkeypatch):
    monkeypatch.chdir(REPO)
    assert reliability.main("check") == 0
