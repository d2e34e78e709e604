"""maintain/reliability.py: the page says what the records say, and its check can fail."""

import json

import pytest
from hermetic import REPO

import reliability

FAULT = {
    "kind": "fault", "tries": 1, "name": "a node dies", "status": 7, "sentence": "error   JOB LOST (a | b)", "seconds": 4.0,
    "up_status": 0, "up_seconds": 8.0,
}  # fmt: skip
LOAD = {"kind": "load", "name": "50 at once", "tries": 50, "status": 0}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A repository whose last run of fault tests left these records; `machine` is the machine of its runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reliability, "machine", lambda: {"written": "now", "commit": "abc", "machine": "a machine"})
    (tmp_path / "maintain").mkdir()
    (tmp_path / "build" / "reports").mkdir(parents=True)
    reliability.RECORDS.write_text(json.dumps({"runs": []}))
    tried(FAULT, {**FAULT, "seconds": 6.0}, LOAD)
    return tmp_path


def tried(*rows):
    reliability.TRIED.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows():
    return [line for line in reliability.PAGE.read_text().splitlines() if line.startswith(("| a", "| 5"))]


def test_each_record_is_in_the_table(here):
    assert reliability.main("add") == 0
    assert rows() == [
        "| a node dies | 2 | 7: `JOB LOST (a / b)` | 5.0 s (at most 6.0 s) | 8.0 s (at most 8.0 s) |",
        "| 50 at once | 50 | 0 | - | - |",
    ]
    assert reliability.main("check") == 0
    reliability.PAGE.write_text("made by hand\n")
    assert reliability.main("check") == 1


def test_added_records_replace_those_of_the_same_name_and_keep_the_others(here, monkeypatch):
    assert reliability.main("add") == 0
    tried({**FAULT, "tries": 3}, {**FAULT, "name": "a disk is full"})
    monkeypatch.setattr(reliability, "machine", lambda: {"written": "later", "commit": "def", "machine": "another"})
    assert reliability.main("add") == 0
    assert [row.split(" | ")[:2] for row in rows()] == [
        ["| 50 at once", "50"],
        ["| a node dies", "3"],
        ["| a disk is full", "1"],
    ]
    assert [line for line in reliability.PAGE.read_text().splitlines() if line.startswith("- ")] == [
        "- 1 records up to now, commit abc, a machine.",
        "- 2 records up to later, commit def, another.",
    ]


def test_a_run_without_a_record_fails(here):
    reliability.TRIED.unlink()
    assert reliability.main("add") == 1
    assert not reliability.PAGE.exists()


def test_the_shipped_page_matches_its_records(monkeypatch):
    monkeypatch.chdir(REPO)
    assert reliability.main("check") == 0
