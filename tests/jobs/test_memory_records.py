"""What py/hooks/process_memory.py recorded of a job's processes, as the judge takes it."""

import json

import pytest
from verdict_runs import unpack

from verl_regress.jobs import memory_records, recorded_run
from verl_verdict.read.records import Memory, ProcessMemory


@pytest.mark.parametrize(
    ("text", "process"),
    [
        ("1.0 5 x\n2.0 6\n3.0 7 y\n", ProcessMemory("y", (1.0, 2.0, 3.0), (5.0, 6.0, 7.0))),
        ("1.0 5\n2.0\n\n3.0 nan\ninf 3\nx\n4.0 6\n3.5 1\n5.0 7", ProcessMemory("", (1.0, 4.0, 5.0), (5.0, 6.0, 7.0))),
        ("1.0", None),
    ],
)
def test_only_complete_lines_in_the_order_of_time_count(text, process):
    assert memory_records.parse(text) == process


def recorded(directory, name, to=None, sizes=(5, 6)):
    """A recorded job, with a memory of each process that reported verl."""
    job = unpack(directory, name, to)
    reports = job / "state/reports"
    reports.mkdir(parents=True, exist_ok=True)
    for pid, modules in ((7, {"verl": {}}), (8, {})):
        content = {"node": "n1", "pid": pid, "command": "python3 -m it", "modules": modules}
        (reports / f"identity-n1-{pid}.json").write_text(json.dumps(content))
    (job / "state/memory").mkdir()
    (job / "state/memory/n1-7.txt").write_text("".join(f"{at}.0 {size}\n" for at, size in enumerate(sizes)))
    return job


def test_a_job_directory_has_the_memory_of_its_processes(tmp_path):
    run = recorded_run.read(recorded(tmp_path, "ppo-0.9.1-v1-1"))
    assert run.memory == Memory(((ProcessMemory("", (0.0, 1.0), (5.0, 6.0)),),))


def test_a_process_that_loaded_verl_and_has_no_record_is_named(tmp_path):
    job = recorded(tmp_path, "ppo-0.9.1-v1-1")
    (job / "state/memory/n1-7.txt").rename(job / "state/memory/n1-9.txt")
    assert recorded_run.read(job).memory.lacking == ("process 7 on n1 (python3 -m it)",)
    (job / "state/memory/n1-7.txt").mkdir()  # which cannot be read
    assert recorded_run.read(job).memory.lacking == ("process 7 on n1 (python3 -m it)",)
    (job / "state/reports/identity-n1-7.json").write_text('{"node": "n1", "pi')
    assert recorded_run.read(job).memory.lacking == ("a process whose report identity-n1-7.json cannot be read",)
