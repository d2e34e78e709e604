"""Who owns a job: what a submission records, whose job `latest` is, and that an id names any user's job."""

import io
import json
import os
import sys

import pytest

ALICE = ("--owner=alice:00000000000000aa", "--owner-workdir=/home/a/work dir")
BOB = "--owner=bob:00000000000000bb"
RECORD = {"user": "alice", "workdir": "/home/a/work dir", "id": "00000000000000aa"}


def own(job, **owner):
    plan = json.loads((job.config / "resolved.json").read_text())
    (job.config / "resolved.json").write_text(json.dumps(plan | {"owner": RECORD | owner}))
    return job


@pytest.fixture
def three(make_job, made_in_order):
    """Alice's, Bob's in the same checkout, and the latest, made by an older version without an owner."""
    jobs = [own(make_job("alices")), own(make_job("bobs"), user="bob"), make_job("nobodys")]
    made_in_order(*jobs)
    return jobs


@pytest.fixture
def made_in_order():
    def set_times(*jobs):
        for number, job in enumerate(jobs):
            os.utime(job.config, (1e9 + number, 1e9 + number))

    return set_times


# promise: acts on another user's job through `JOB=latest`
@pytest.mark.usefixtures("three")
def test_latest_means_the_callers_by_user_and_checkout(run, shared):
    assert run("--owner=alice:00000000000000aa", "where", "latest").out == f"ppo {shared.jobs}/alices\n"
    assert run("--owner=bob:00000000000000aa", "where", "latest").out == f"ppo {shared.jobs}/bobs\n"
    assert run("where", "latest").out == f"ppo {shared.jobs}/nobodys\n"  # the caller is not known
    assert run(BOB, "where", "nobodys").out == f"ppo {shared.jobs}/nobodys\n"
    assert run(BOB, "where", "alices").out == f"ppo {shared.jobs}/alices\n"


# promise: acts on another user's job through `JOB=latest`
@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    "command",
    [["where"], ["wait", "--deadlines=1,2,2,3"], ["stop", "--deadline=1"], ["logs"], ["debug"], ["resume"], ["retry"]],
)
def test_if_no_job_is_the_callers_none_is_taken(run, shared, command):
    assert run(BOB, *command, "latest").is_refusal(
        f"JOB=latest but no job under {shared.jobs} is yours and outside a session: name one that 'make jobs' lists, or submit one."
    )


def test_another_users_job_can_be_stopped_by_its_id(run, make_job, ray):
    job = own(make_job("alices", ended={"exit_code": 0, "reason": "the trainer ended"}))
    plan = json.loads((job.config / "resolved.json").read_text())
    (job.config / "resolved.json").write_text(json.dumps(plan | {"address": ray.address}))
    outcome = run(BOB, "stop", "alices", "--deadline=1")
    assert (outcome.status, outcome.err) == (0, "skip    alices is over: SUCCEEDED (the trainer ended)\n")


def test_every_attempt_records_who_asked_for_it(submit, run, shared, ray):
    outcome = submit("SUBMISSION_ID=mine", owner=ALICE)
    assert (outcome.status, outcome.out) == (0, "mine\n")
    config = shared.jobs / "mine" / "config"
    assert json.loads((config / "resolved.json").read_text())["owner"] == RECORD
    ray.knows({"submission_id": "mine", "status": "FAILED"})
    assert run(BOB, "--owner-workdir=/b", "retry", "mine").out == "mine.a2\n"
    second = shared.jobs / "mine" / "attempts" / "2" / "config" / "resolved.json"
    assert json.loads(second.read_text())["owner"] == {"user": "bob", "workdir": "/b", "id": "00000000000000bb"}
    assert submit("SUBMISSION_ID=nobodys").status == 0
    assert json.loads((shared.jobs / "nobodys" / "config" / "resolved.json").read_text())["owner"] is None


def test_announce_prints_the_id_as_soon_as_the_job_may_exist(submit, sdk, monkeypatch):
    """A script reads it from a pipe: what Python keeps in its buffer, the script does not see."""
    pipe, printed = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    sdk.on_submit = lambda **_: printed.append(pipe.getvalue())
    assert submit("SUBMISSION_ID=mine", "--announce").status == 0
    sys.stdout.flush()
    assert (printed, pipe.getvalue()) == ([b"mine\n"], b"mine\nmine\n")


def test_jobs_as_json_name_their_owner(run, make_job):
    own(make_job("alices"))
    assert [job["owner"] for job in json.loads(run("--no-ray", "jobs", "JSON=1").out)["jobs"]] == [RECORD]
