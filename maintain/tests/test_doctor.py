"""docs/doctor.md says what the record and the doctor's table say; each fault is found by a check that exists."""

import json

import pytest
from hermetic import REPO

import doctor
from doctor_faults import FAULTS
from verl_regress.doctor import command

FOUND = {
    "name": "a | b", "code": "VR-NET-01", "found": True, "where": "worker-1", "seen": "no answer", "others": ["VR-NET-09"], "seconds": 9.5,
    "written": "2026-01-31T12:00+00:00", "commit": "abc", "machine": "a machine", "without": {"status": 8, "said": "worker-1 cannot | <join>", "seconds": 93.2},
}  # fmt: skip
LOST = {**FOUND, "name": "c", "found": False, "where": "", "seen": "", "others": [], "without": None}
HEALTHY = {"seconds": 66.3, "written": "2026-01-31T13:00+00:00", "commit": "def", "machine": "a machine"}
RECORD = {"healthy": [{"alarms": [], "seconds": 8.0}], "gates": [0.8], "faults": [FOUND, LOST], "without": HEALTHY}


def test_page_is_what_the_record_and_the_table_make():
    assert doctor.main("check", []) == 0


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page of its own, whose record is RECORD."""
    monkeypatch.setattr(doctor, "PAGE", tmp_path / "doctor.md")
    monkeypatch.setattr(doctor, "RECORD", tmp_path / "doctor.json")
    doctor.PAGE.write_text((REPO / "docs/doctor.md").read_text())
    doctor.RECORD.write_text(json.dumps(RECORD))
    return doctor.PAGE


def test_check_fails_where_the_page_is_another(page, capsys):
    assert doctor.main("check", []) == 1
    assert "docs/doctor.md is not what maintain/doctor.json and the table make" in capsys.readouterr().out
    assert doctor.main("write", []) == 0
    assert doctor.main("check", []) == 0


def test_page_has_a_row_for_each_fault_and_each_check(page):
    doctor.main("write", [])
    lines = page.read_text().splitlines()
    assert (
        "| a / b | `VR-NET-01` (also VR-NET-09) | worker-1: no answer | 9.5 s | 93 s: worker-1 cannot / &lt;join> |"
        in lines
    )
    assert "| c | **not found** (`VR-NET-01`) | - | 9.5 s | not measured |" in lines
    assert (
        "*Without the doctor* was recorded with commit def (2026-01-31), a machine; on healthy nodes `make up` and the job took 66 s there."
        in lines
    )
    assert "1 of 2 planted faults were found by their code; 1 runs on healthy nodes raised" in lines
    assert {line.split("`")[1] for line in lines if line.startswith("| `VR-")} == {
        check.code for check in command.CHECKS
    }


def test_faults_name_codes_of_the_table():
    assert {fault.code for fault in FAULTS.values()} <= {check.code for check in command.CHECKS}


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        ("ok      the job SUCCEEDED (the trainer ended)\n", 0, "nothing, a job succeeds"),
        ("… waiting for Ray's nodes (head), 9 s\nerror   interrupted\n", 124, "still waiting for Ray's nodes (head)"),
        ("error   ppo-codeA-20260131T120000Z-1a2b FAILED (exit status 1): read 'make logs JOB=x'.\n", 3, "the job FAILED (exit status 1)"),
        ("error   the job FAILED (\\x1b[36mray::x\\x1b[39m ^^^^…\n", 3, "the job FAILED (ray::x…"),
        ("cp: no space\nerror   12_x: exit 1 (our own error) after 1 s\n", 1, "cp: no space"),
    ],
)  # fmt: skip
def test_what_a_person_reads_without_the_doctor(output, status, said):
    assert doctor.spoken(output, status) == said


def test_unknown_fault_is_refused(capsys):
    assert doctor.main("try", ["a fault"]) == 2
    assert capsys.readouterr().err == "a fault: these are no faults of maintain/doctor_faults.py\n"
