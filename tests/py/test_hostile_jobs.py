"""Job directories that no submission made: each is one line of `jobs` and `status`, and never the end of the list."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write

from verl_regress.base.layout import JobDir

pytestmark = pytest.mark.slow

PY = Path(__file__).parents[2] / "py"
FILES = (
    "config/resolved.json",
    "state/submitted",
    "state/ended",
    "state/launcher",
    "logs/driver.log",
    "logs/metrics.jsonl",
)
MEMORY = 1 << 30  # bytes of address space: less than the largest files


def whole(job):
    plan = {"workload": "ppo", "code_id": "codeA", "cluster": "c", "address": "http://ray:1", "overrides": []}
    write(job.config / "resolved.json", json.dumps(plan))
    write(job.state / "submitted", '{"accepted": true}')
    write(job.state / "ended", '{"exit_code": 0, "reason": "the trainer ended"}')
    write(job.driver_log, "")
    return job.path


def gone(path):
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    return path


def large(path):
    with gone(path).open("wb") as file:
        file.truncate(2 * MEMORY)


def typed(job):
    write(
        job / "config" / "resolved.json", json.dumps({"workload": {"a": 1}, "code_id": [1], "cluster": 7, "owner": "x"})
    )


def waiting_for_a_launcher(job):
    gone(job / "state" / "ended")
    write(job / "state" / "queued", '{"reason": "position 1"}')
    os.mkfifo(job / "state" / "launcher")


def being_submitted(job):
    for name in ("ended", "submitted"):
        gone(job / "state" / name)
    os.mkfifo(job / "state" / "submitting")


def linked(part):
    def link(job):
        (job / part).rename(job / f"{part}-of-old")
        (job / part).symlink_to(job)

    return link


HOSTILE = {
    "empty": lambda job: [file.unlink() for file in job.rglob("*") if file.is_file()],
    "typed": typed,
    "deep": lambda job: write(job / "state" / "ended", "[" * 100_000),
    "latin1": lambda job: (job / "state" / "ended").write_bytes(b'{"reason": "caf\xe9"}'),
    "queued": waiting_for_a_launcher,
    "sending": being_submitted,
    **{f"attempt-{number}": lambda job, name=name: (job / "attempts" / name).mkdir(parents=True)
       for number, name in enumerate(("0", "1", "03", "\N{ARABIC-INDIC DIGIT THREE}", "-2", "x"))},
    "attempts-pipe": lambda job: os.mkfifo(job / "attempts"),
    "attempts-link": lambda job: (job / "attempts").symlink_to(job),
    **{f"{part}-link": linked(part) for part in ("config", "state", "logs")},
    **{f"{Path(file).name}-{kind}": lambda job, file=file, make=make: make(job / file)
       for file in FILES
       for kind, make in {
           "large": large,
           "pipe": lambda path: os.mkfifo(gone(path)),
           "device": lambda path: gone(path).symlink_to("/dev/zero"),
           "loop": lambda path: gone(path).symlink_to(path),
           "nowhere": lambda path: gone(path).symlink_to("/nowhere"),
           "folder": lambda path: gone(path).mkdir(),
       }.items()},
}  # fmt: skip


@pytest.fixture
def hostile(shared):
    """A job for each case, one with a name in Latin-1, and marks that nobody made."""
    for name, change in HOSTILE.items():
        change(whole(JobDir(shared.jobs / name)))
    whole(JobDir(shared.jobs / os.fsdecode(b"caf\xe9")))
    whole(JobDir(shared.jobs / "good"))
    (shared.jobs / "file").touch()
    (shared.jobs / ".snapshot").mkdir()
    (shared.jobs / ".made-9999999999-good").mkdir()
    (shared.jobs / os.fsdecode(b".made-1-caf\xe9")).touch()
    return shared


def listed(shared, *words):
    """The lines of a list, by job, from a process that may neither wait nor take much memory."""
    done = subprocess.run(
        [sys.executable, PY / "run.py", "--shared-root", shared.path, "--no-ray", *words], capture_output=True, text=True,
        check=False, timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("words", [["jobs"], ["status", "--profile=cpu"]])
def test_each_is_one_line_of_a_list(hostile, words):
    lines = listed(hostile, *words, "--cluster=c", "--limit=100").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("JOB "))
    rows = [line.split() for line in lines[begin + 1 :]]
    assert sorted(row[0] for row in rows) == sorted([*HOSTILE, "good", "caf\\udce9"])
    assert next(row for row in rows if row[0] == "good").count("SUCCEEDED") == 1
    assert len(json.loads(listed(hostile, *words, "--cluster=c", "--limit=100", "--json"))["jobs"]) == len(rows)


def test_a_list_says_what_is_in_the_way(hostile):
    rows = json.loads(listed(hostile, "jobs", "--cluster=c", "--limit=100", "--json"))["jobs"]
    why = {row["submission_id"]: row["reason"] for row in rows}
    too_long = f"has {2 * MEMORY} bytes, far more than the program writes there"
    assert {
        name: why[name] for name in ("ended-large", "resolved.json-large", "metrics.jsonl-pipe", "driver.log-device")
    } == {
        "ended-large": f"cannot be read: state/ended {too_long}",
        "resolved.json-large": f"cannot be read: config/resolved.json {too_long}",
        "metrics.jsonl-pipe": "cannot be read: logs/metrics.jsonl is no regular file",
        "driver.log-device": "cannot be read: logs/driver.log is no regular file",
    }
    attempts = {row["submission_id"]: row["attempts"] for row in rows}
    assert {attempts[f"attempt-{number}"] for number in range(6)} == {1}


def test_which_jobs_are_live_can_be_told_with_them(hostile):
    said = listed(hostile, "live", "--cluster=c")
    assert "good" not in said
