"""Who owns a job: what a submission records, whose job `latest` is, and that an id names any user's job."""

import io
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from verl_regress.base.owner import foreign

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


@pytest.mark.usefixtures("three")
def test_latest_means_the_callers_by_user_and_checkout(run, shared):
    assert run("--owner=alice:00000000000000aa", "where", "latest").out == f"ppo {shared.jobs}/alices\n"
    assert run("--owner=bob:00000000000000aa", "where", "latest").out == f"ppo {shared.jobs}/bobs\n"
    assert run("where", "latest").out == f"ppo {shared.jobs}/nobodys\n"  # the caller is not known
    assert run(BOB, "where", "nobodys").out == f"ppo {shared.jobs}/nobodys\n"
    assert run(BOB, "where", "alices").out == f"ppo {shared.jobs}/alices\n"


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
    outcome = submit("--submission-id=mine", owner=ALICE)
    assert (outcome.status, outcome.out) == (0, "mine\n")
    config = shared.jobs / "mine" / "config"
    assert json.loads((config / "resolved.json").read_text())["owner"] == RECORD
    ray.knows({"submission_id": "mine", "status": "FAILED"})
    assert run(BOB, "--owner-workdir=/b", "retry", "mine").out == "mine.a2\n"
    second = shared.jobs / "mine" / "attempts" / "2" / "config" / "resolved.json"
    assert json.loads(second.read_text())["owner"] == {"user": "bob", "workdir": "/b", "id": "00000000000000bb"}
    assert submit("--submission-id=nobodys").status == 0
    assert json.loads((shared.jobs / "nobodys" / "config" / "resolved.json").read_text())["owner"] is None


def test_announce_prints_the_id_as_soon_as_the_job_may_exist(submit, sdk, monkeypatch):
    """A script reads it from a pipe: what Python keeps in its buffer, the script does not see."""
    pipe, printed = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    sdk.on_submit = lambda **_: printed.append(pipe.getvalue())
    assert submit("--submission-id=mine", "--announce").status == 0
    sys.stdout.flush()
    assert (printed, pipe.getvalue()) == ([b"mine\n"], b"mine\nmine\n")


def test_jobs_as_json_name_their_owner(run, make_job):
    own(make_job("alices"))
    assert [job["owner"] for job in json.loads(run("--no-ray", "jobs", "--json").out)["jobs"]] == [RECORD]


def test_status_without_ray_reads_the_files_and_changes_nothing(run, make_job, ray):
    make_job("done", ended={"exit_code": 0, "reason": "the trainer ended"})
    outcome = run("--no-ray", "status", "--profile=cpu", "--cluster=c")
    assert (outcome.status, outcome.created, ray.seen) == (0, [], [])
    assert "Ray was not asked: this is what the jobs' own files say" in outcome.out
    assert "done  codeA  SUCCEEDED" in outcome.out


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "who"),
    [
        (stat.S_IFREG | 0o644, 1001, 42000, None),
        (stat.S_IFREG | 0o666, 1001, 1001, "every user (mode 0666)"),
        (stat.S_IFREG | 0o622, 0, 0, "every user (mode 0622)"),
        (stat.S_IFREG | 0o664, 1001, 42000, "the group 42000 (mode 0664)"),
        (stat.S_IFREG | 0o664, 1001, 1001, None),  # the user's own group
        (stat.S_IFREG | 0o664, 1001, 0, None),  # root's
        (stat.S_IFREG | 0o664, 0, 100, "the group 100 (mode 0664)"),
        (stat.S_IFREG | 0o1664, 1001, 100, "the group 100 (mode 1664)"),  # sticky means something only for a directory
        (stat.S_IFDIR | 0o755, 1001, 42000, None),
        (stat.S_IFDIR | 0o777, 1001, 1001, "every user (mode 0777)"),
        (stat.S_IFDIR | 0o2775, 1001, 42000, "the group 42000 (mode 2775)"),
        (stat.S_IFDIR | 0o2775, 1001, 1001, None),
        (stat.S_IFDIR | 0o1777, 0, 0, None),  # as common/ and user/ are without SHARED_GROUP
        (stat.S_IFDIR | 0o3775, 1001, 42000, None),  # … and with it
        (stat.S_IFLNK | 0o777, 1001, 42000, None),
        (stat.S_IFCHR | 0o666, 0, 0, None),
    ],
)
@pytest.mark.parametrize("us", [0, 1001])
def test_who_else_can_change_a_file_or_a_directory_by_its_mode(mode, uid, gid, who, us, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: us)
    found = foreign(Path("/nowhere/a file"), os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0)), [uid])
    assert (found and found.why) == (who and f"can be changed by {who}")
    types = "type" if us in (0, uid) else f"ask user {uid} to type"
    assert found is None or found.cure == f"{types} 'chmod go-w '/nowhere/a file''"
