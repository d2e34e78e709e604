"""scripts/dev/reliability.py: the page says what the records say, and its check can fail."""

import ast
import json
import re

import pytest
from hermetic import REPO

import reliability

# What our messages quote: of Ray (2.60), and of the C library.
OF_OTHERS = (
    "No space left on device",
    "Worker unexpectedly exits with a connection error code 2",
    "health check failed due to missing too many heartbeats",
)
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
    run = {"written": "", "commit": "", "machine": "", "records": [FAULT, {**FAULT, **change}]}
    assert said in reliability.page([run])


def test_added_records_replace_those_of_the_same_name_and_keep_the_others(here, monkeypatch):
    monkeypatch.setattr(reliability, "machine", lambda: {"written": "now", "commit": "abc", "machine": "a machine"})
    assert reliability.main("write") == 0
    (here / "build/reports/fuzz.json").unlink()
    (here / "build/reports/reliability.jsonl").write_text(
        "".join(json.dumps({**FAULT, "name": name, "tries": 3}) + "\n" for name in ("a node dies", "a disk is full"))
    )
    monkeypatch.setattr(reliability, "machine", lambda: {"written": "later", "commit": "def", "machine": "another"})
    assert reliability.main("add") == 0
    page = (here / "docs/reliability.md").read_text()
    assert [row.split(" | ")[:2] for row in rows_of(page)] == [
        ["| a node dies", "3"], ["| a disk is full", "3"], ["| ids", "700"], ["| 50 at once", "50"]
    ]  # fmt: skip
    assert [line for line in page.splitlines() if line.startswith("- ")] == [
        "- 2 records up to now, the last at commit abc, on a machine.",
        "- 2 records up to later, the last at commit def, on another.",
    ]
    assert reliability.main("check") == 0


def test_a_run_without_a_record_fails(here, monkeypatch):
    monkeypatch.setattr(reliability, "machine", dict)
    (here / "build/reports/reliability.jsonl").unlink()
    (here / "build/reports/fuzz.json").unlink()
    assert [reliability.main(action) for action in ("report", "write", "add")] == [1, 1, 1]
    assert not list((here / "docs").iterdir())


def test_the_shipped_page_matches_its_records(monkeypatch):
    monkeypatch.chdir(REPO)
    assert reliability.main("check") == 0


@pytest.fixture(scope="module")
def texts():
    """The constant parts of all texts in the source, at least two words each: `ended with exit status`."""
    found = set(OF_OTHERS)
    for path in (REPO / "py").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        found |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for path in (path for path in (REPO / "scripts").rglob("*") if path.suffix in (".sh", ".bash") and path.is_file()):
        found |= set(re.split(r'\$\{[^{}]*\}|\$\([^()]*\)|\$\w+|"|%[sd]|\\n|\n', path.read_text()))
    found = {text.strip(" (),.:;") for text in found}
    return sorted(text for text in found if " " in text)


def unknown(sentence, texts):
    """The parts of a message that no text of the source has: four words or more, which no value has."""
    known = [False] * len(sentence)
    for text in (text for text in texts if text in sentence):
        starts, ends = (r"\b" if char.isalpha() else "" for char in (text[0], text[-1]))  # no part of a longer word
        for match in re.finditer(f"{starts}{re.escape(text)}{ends}", sentence):
            known[match.start() : match.end()] = [True] * len(text)
    rest = "".join("|" if is_known else char for char, is_known in zip(sentence, known, strict=True))
    return re.findall(r"(?:[A-Za-z']+[,:;]? ){3,}[A-Za-z']+", rest)


RUNS = json.loads((REPO / "docs/reliability.json").read_text())["runs"]
QUOTED = [row["sentence"] for run in RUNS for row in run["records"] if "sentence" in row]


@pytest.mark.parametrize(
    "sentence", sorted({each for each in QUOTED if re.match("(ok {6}|error {3}|changed |skip {4}|checked )", each)})
)
def test_each_quoted_message_has_the_words_of_the_source(sentence, texts):
    assert unknown(sentence, texts) == []


def test_a_quoted_message_of_an_earlier_version_is_found(texts):
    old = "error   JOB LOST (Ray has forgotten it: its head has begun again, or it was deleted): read 'make logs JOB=JOB'."
    assert unknown(old, texts) == ["Ray has forgotten it: its head has begun again, or it was deleted"]
