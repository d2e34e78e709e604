"""`logs`: the bytes of a driver's log, to the end if asked to follow."""

import subprocess
import sys
from pathlib import Path

import pytest

from verl_regress.jobs import listing


def logs(shared, *args, stdout=subprocess.PIPE):
    run = Path(listing.__file__).parents[2] / "run.py"
    return subprocess.Popen([sys.executable, run, "--shared-root", shared.path, "logs", *args], stdout=stdout)


def test_logs_are_the_bytes_of_the_drivers_log(shared, make_job):
    make_job("job").driver_log.write_bytes(b"one\n\xff two")
    with logs(shared, "latest") as process:
        assert process.communicate(timeout=10)[0] == b"one\n\xff two"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("state", "follow", "why"),
    [
        ({}, False, "UNKNOWN: the job recorded no end, and there is no word from Ray"),
        ({"submitted": {"accepted": False, "error": "no"}}, True, "NOT_SUBMITTED: never submitted: no"),
    ],
)
def test_no_log_yet(run, make_job, state, follow, why):
    make_job("job", **state)
    outcome = run("logs", "job", *(["--follow"] if follow else []))
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err.strip() == f"job has no driver.log yet ({why})."


def test_following_goes_on_until_the_end(shared, make_job):
    job = make_job("job")
    with logs(shared, "job", "--follow") as process:
        with job.driver_log.open("wb", buffering=0) as log:
            log.write(b"first\n")
            assert process.stdout.readline() == b"first\n"
            log.write(b"last")
        assert process.poll() is None
        job.write_state("ended", {"exit_code": 0, "reason": "the trainer ended"})
        assert process.communicate(timeout=10)[0] == b"last"
    assert process.returncode == 0
