"""Job directories that no submission made: each is one line of a list, and one sentence of a command, never the end of it."""

import json
import os
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from conftest import write

from verl_regress.base.errors import Exit
from verl_regress.base.layout import JobDir
from verl_regress.jobs import progress

pytestmark = pytest.mark.slow

PY = Path(__file__).parents[2] / "py"
FILES = (
    "config/resolved.json",
    "config/more.json",
    "state/submitted",
    "state/ended",
    "state/launcher",
    "logs/driver.log",
    "logs/metrics.jsonl",
)
MEMORY = 1 << 30  # bytes of address space: less than the largest files


def whole(job):
    plan = {"workload": "ppo", "code_id": "codeA", "cluster": "c", "address": "http://127.0.0.1:1", "overrides": []}
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
    """A job for each case, and one with a name in Latin-1."""
    for name, change in HOSTILE.items():
        change(whole(JobDir(shared.jobs / name)))
    whole(JobDir(shared.jobs / os.fsdecode(b"caf\xe9")))
    whole(JobDir(shared.jobs / "good"))
    (shared.jobs / "file").touch()
    (shared.jobs / ".snapshot").mkdir()
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
        "metrics.jsonl-pipe": "cannot be read: logs/metrics.jsonl is not a regular file",
        "driver.log-device": "cannot be read: logs/driver.log is not a regular file",
    }
    attempts = {row["submission_id"]: row["attempts"] for row in rows}
    assert {attempts[f"attempt-{number}"] for number in range(6)} == {1}


def test_live_jobs_are_found_among_them(hostile):
    said = listed(hostile, "live", "--cluster=c")
    assert "good" not in said


COMMANDS = {
    "wait": ["--deadlines=1,1,1"],
    "logs": [],
    "stop": ["--deadline=1"],
    "debug": [],
}


def outcomes(shared, command, jobs=("",), *options):
    """The exit status and the output of that command on each of these jobs."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "each_job.py", shared.path, str(MEMORY), command, *options, "--", *jobs],
        capture_output=True, text=True, check=True, timeout=200, env={**os.environ, "PYTHONPATH": f"{PY}:{PY / 'hooks'}"},
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_each_ends_well_or_with_one_sentence(hostile, command):
    jobs = [*HOSTILE, "good"]
    if command in ("wait", "logs"):
        jobs.remove("driver.log-large")  # a log may be long: all of it is read, for some minutes
    found = outcomes(hostile, command, jobs, *COMMANDS[command])
    assert list(found) == jobs
    for job, (status, said) in found.items():
        errors = [line for line in said.splitlines() if line.startswith("error   ")]
        assert status in set(Exit), (job, status, said)
        assert len(errors) == (status != 0), (job, status, said)
        assert "Traceback" not in said, (job, status, said)


def test_wait_reports_the_end_of_a_job_whose_steps_cannot_be_read(hostile):
    """Before: exit status 1, although the job had succeeded."""
    problems = {
        "large": f"it has {2 * MEMORY} bytes, far more than the program writes there: restore it from a backup",
        "pipe": "it is not a regular file: remove it",
        "device": "it is not a regular file: remove it",
        "garbage": "[] is not a step with its data: restore it from a backup",
        "folder": "Is a directory: fix that, then run it again",
    }
    garbage = whole(JobDir(hostile.jobs / "metrics.jsonl-garbage"))
    write(garbage / "logs" / "metrics.jsonl", '{"step": 1, "data": {"loss": 0.5}}\n[]\n')
    found = outcomes(hostile, "wait", [f"metrics.jsonl-{kind}" for kind in problems], *COMMANDS["wait"])
    for kind, problem in problems.items():
        status, said = found[f"metrics.jsonl-{kind}"]
        lines = said.splitlines()
        file = hostile.jobs / f"metrics.jsonl-{kind}" / "logs" / "metrics.jsonl"
        assert (status, lines[-2:]) == (0, [f"ok      metrics.jsonl-{kind} SUCCEEDED (the trainer ended)", "0"]), said
        assert (
            f"warning {file} cannot be read: {problem}. metrics.jsonl-{kind} is followed without its steps." in lines
        ), said
        assert sum("its steps cannot be read: " in line for line in lines) == 1, said


@pytest.mark.parametrize("option", ["--dry-run", "--keep=0"])
def test_gc_counts_those_that_it_cannot_read_and_no_snapshot_goes(hostile, option):
    """Before: a MemoryError, due to any large file in `config/`."""
    [(status, said)] = outcomes(hostile, "gc", [""], "--cluster=c", "--keep=100", option).values()
    assert (status, "\nskip    gc (nothing to remove)\n" in said) == (0, True), said
    assert (
        "; 7 jobs cannot be read (more.json-large, resolved.json-folder, resolved.json-loop, …), so every snapshot and helper stays\n"
        in said
    )


def test_a_line_of_a_log_without_an_end_is_never_in_memory_whole(shared):
    """Before: `wait` read it whole."""
    job = JobDir(shared.jobs / "job")
    whole(job)
    with job.driver_log.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\nstep:1 - loss:0.5\n")
    tracemalloc.start()
    try:
        assert progress.lines(job) == ['{"step": 1, "data": {"loss": 0.5}}']
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
