"""Damaged job directories: each is one line of a list, and one sentence of a command, never the end of it."""

import json
from pathlib import Path

import pytest
from shared_fixtures import write

from verl_regress.base.layout import JobDir

pytestmark = pytest.mark.slow

FILES = ("config/resolved.json", "state/submitted", "state/ended", "logs/driver.log", "logs/metrics.jsonl")


def whole(job, address):
    plan = {"workload": "ppo", "code_id": "codeA", "cluster": "c", "address": address, "overrides": []}
    write(job.config / "resolved.json", json.dumps(plan))
    write(job.state / "submitted", '{"accepted": true}')
    write(job.state / "ended", '{"exit_code": 0, "reason": "the trainer ended"}')
    write(job.driver_log, "")
    return job.path


def fresh(path):
    path.unlink(missing_ok=True)
    return path


HOSTILE = {
    "empty": lambda job: [file.unlink() for file in job.rglob("*") if file.is_file()],
    "deep": lambda job: write(job / "state/ended", "[" * 100_000),
    "cut-off": lambda job: write(job / "state/ended", '{"exit_code": 0, "rea'),
    "no-step": lambda job: write(job / "logs/metrics.jsonl", '{"step": 1, "data": {"loss": 0.5}}\n[]\n'),
    "attempt-x": lambda job: (job / "attempts/x").mkdir(parents=True),
    **{f"{Path(file).name}-{kind}": lambda job, file=file, make=make: make(fresh(job / file))
       for file in FILES
       for kind, make in {"loop": lambda path: path.symlink_to(path), "folder": Path.mkdir}.items()},
}  # fmt: skip


@pytest.fixture
def hostile(shared, ray):
    """A job for each case, a good one, and names that are no job's."""
    for name, change in HOSTILE.items():
        change(whole(JobDir(shared.jobs / name), ray.address))
    whole(JobDir(shared.jobs / "good"), ray.address)
    (shared.jobs / "file").touch()
    (shared.jobs / ".snapshot").mkdir()
    return shared


@pytest.mark.parametrize("words", [["jobs"], ["status", "--profile=cpu"]])
def test_each_is_one_line_of_a_list(run, hostile, words):
    outcome = run("--no-ray", *words, "CLUSTER_NAME=c", "LIMIT=100")
    lines = outcome.out.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("JOB "))
    rows = [line.split() for line in lines[begin + 1 :]]
    assert outcome.status == 0
    assert sorted(row[0] for row in rows) == sorted([*HOSTILE, "good"])
    assert next(row for row in rows if row[0] == "good").count("SUCCEEDED") == 1
    assert len(json.loads(run("--no-ray", *words, "CLUSTER_NAME=c", "LIMIT=100", "JSON=1").out)["jobs"]) == len(rows)
    assert run("--no-ray", "live", "--cluster=c").status == 0
    assert hostile.jobs.is_dir()


def test_a_list_says_what_is_in_the_way(run, hostile):
    rows = json.loads(run("--no-ray", "jobs", "CLUSTER_NAME=c", "LIMIT=100", "JSON=1").out)["jobs"]
    why = {row["submission_id"]: row["reason"] for row in rows}
    assert (why["cut-off"], why["metrics.jsonl-folder"], why["no-step"]) == (
        "cannot be read: state/ended: it is cut off, or no JSON object",
        "cannot be read: Is a directory",
        None,
    )
    assert hostile.jobs.is_dir()


@pytest.mark.parametrize(
    ("command", "options"), [("wait", ["--deadlines=1,1,1,1"]), ("logs", []), ("stop", ["--deadline=1"]), ("debug", [])]
)
@pytest.mark.parametrize("job", [*HOSTILE, "good"])
@pytest.mark.usefixtures("hostile")
def test_a_command_says_one_sentence(run, command, options, job):
    outcome = run("--no-ray", command, job, *options)
    errors = [line for line in outcome.err.splitlines() if line.startswith("error   ")]
    assert (len(errors), "Traceback" in outcome.err) == (outcome.status != 0, False), outcome.err


@pytest.mark.parametrize("option", ["--dry-run", "--keep=0"])
@pytest.mark.usefixtures("hostile")
def test_gc_counts_those_that_it_cannot_read_and_no_snapshot_goes(run, option):
    outcome = run("gc", "--cluster=c", "--keep=100", option)
    assert outcome.status == 0
    assert "keep 2 (" in outcome.err
    assert " cannot be read, and may use it): codeA, codeB\n" in outcome.err
