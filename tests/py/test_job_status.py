import errno
import os
import subprocess
import sys

import pytest

from verl_regress.base.errors import Exit
from verl_regress.base.layout import JobDir
from verl_regress.jobs import liveness
from verl_regress.jobs.status import Status, judge, observe, submission_of

OK = {"exit_code": 0, "reason": "the trainer ended"}
BAD = {"exit_code": 7, "reason": "the trainer ended with exit status 7"}
KILLED = {"exit_code": -15, "reason": "the trainer was ended by SIGTERM"}
REFUSED = {"accepted": False, "error": "Ray refused the job: no"}
STARTED = {"started": {"node_ip": "10.0.0.2"}}
LAUNCHER_GONE = "the launcher recorded no end, Ray says {}: bad news"
ABOUT = "{}, Ray is about to say how"
ASKED_TO_STOP = {**KILLED, "told_to_stop": True}
HEADLESS = {
    "exit_code": 1,
    "reason": "the trainer ended, and Ray's head is gone",
    "told_to_stop": False,
    "head_gone": True,
}
FORGOTTEN = (
    "Ray has forgotten it: its head was restarted (GCS_STORAGE=rocksdb keeps what it knows), or it was deleted there"
)


@pytest.mark.parametrize(
    ("state", "ray", "status", "reason"),
    [
        # not yet, or never, in Ray
        ({"submitted": None}, None, "NOT_SUBMITTED", "the submitter has not reached Ray, or ended before it did"),
        ({"submitted": None}, "gone", "NOT_SUBMITTED", "the submitter has not reached Ray, or ended before it did"),
        ({"submitted": REFUSED}, None, "NOT_SUBMITTED", "never submitted: Ray refused the job: no"),
        # Ray does know it: the answer was lost, or its submitter died
        ({"submitted": REFUSED}, "RUNNING", "RUNNING", "bad news"),
        ({"submitted": None}, "PENDING", "PENDING", "bad news"),
        # being submitted
        ({}, "PENDING", "PENDING", "bad news"),
        (STARTED, "RUNNING", "RUNNING", "bad news"),
        (STARTED, "STOPPED", "STOPPED", "bad news"),
        # the launcher recorded the end
        ({**STARTED, "ended": OK}, "SUCCEEDED", "SUCCEEDED", OK["reason"]),
        ({**STARTED, "ended": OK}, None, "SUCCEEDED", OK["reason"]),
        ({**STARTED, "ended": OK}, "gone", "SUCCEEDED", OK["reason"]),
        ({**STARTED, "ended": OK}, "FAILED", "SUCCEEDED", OK["reason"]),
        ({**STARTED, "ended": BAD}, "FAILED", "FAILED", BAD["reason"]),
        ({**STARTED, "ended": BAD}, None, "FAILED", BAD["reason"]),
        ({"ended": BAD}, "FAILED", "FAILED", BAD["reason"]),
        # stopped: the launcher saw a signal, only Ray knows why
        ({**STARTED, "ended": KILLED}, "RUNNING", "RUNNING", ABOUT.format(KILLED["reason"])),
        ({**STARTED, "ended": KILLED}, "STOPPED", "STOPPED", "bad news"),
        ({**STARTED, "ended": KILLED}, "FAILED", "FAILED", KILLED["reason"]),
        ({**STARTED, "ended": KILLED, "observed": {"status": "STOPPED"}}, None, "STOPPED", ""),
        # ended by a signal of unknown origin
        ({**STARTED, "ended": ASKED_TO_STOP}, None, "LOST", f"{KILLED['reason']}, and {FORGOTTEN}"),
        (
            {**STARTED, "ended": ASKED_TO_STOP},
            "gone",
            "UNKNOWN",
            f"{KILLED['reason']}, and Ray does not answer who ended it",
        ),
        (
            {**STARTED, "ended": ASKED_TO_STOP, "observed": {"status": "STOPPED", "message": "by me"}},
            None,
            "STOPPED",
            "by me",
        ),
        ({**STARTED, "ended": ASKED_TO_STOP}, "STOPPED", "STOPPED", "bad news"),
        ({**STARTED, "ended": {**OK, "told_to_stop": True}}, "SUCCEEDED", "SUCCEEDED", OK["reason"]),
        # it failed when Ray's head had gone
        ({**STARTED, "ended": HEADLESS}, None, "LOST", HEADLESS["reason"]),
        ({**STARTED, "ended": HEADLESS}, "FAILED", "LOST", HEADLESS["reason"]),
        # its submitter died before it could record Ray's answer, and Ray has forgotten the job since
        ({**STARTED, "submitted": None}, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        ({**STARTED, "submitted": None}, "gone", "UNKNOWN", "Ray does not answer and the job recorded no end"),
        ({**STARTED, "submitted": REFUSED}, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        (
            {"submitted": None, "observed": {"status": "PENDING"}},
            None,
            "LOST",
            f"the job recorded no end, and {FORGOTTEN}",
        ),
        # no end was recorded
        ({}, "FAILED", "FAILED", "bad news"),
        (STARTED, "FAILED", "LOST", LAUNCHER_GONE.format("FAILED")),
        (STARTED, "SUCCEEDED", "LOST", LAUNCHER_GONE.format("SUCCEEDED")),
        (STARTED, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        (STARTED, "gone", "UNKNOWN", "Ray does not answer and the job recorded no end"),
        # Ray forgot it, but its answer was recorded before
        (
            {**STARTED, "observed": {"status": "RUNNING"}},
            None,
            "LOST",
            f"the job recorded no end, and {FORGOTTEN}",
        ),
        ({**STARTED, "observed": {"status": "STOPPED", "message": "by me"}}, None, "STOPPED", "by me"),
        ({"observed": {"status": "FAILED", "message": "by it"}}, None, "FAILED", "by it"),
        (
            {**STARTED, "observed": {"status": "FAILED", "message": "bad news"}},
            "gone",
            "LOST",
            LAUNCHER_GONE.format("FAILED"),
        ),
    ],
)
def test_the_status_of_a_job(make_job, state, ray, status, reason):
    details = None if ray in (None, "gone") else {"status": ray, "message": "first line\nbad news\n"}
    judgement = judge(make_job(**state), details, reachable=ray != "gone")
    assert (judgement.status.value, judgement.reason) == (status, reason)


@pytest.mark.parametrize(
    ("ray", "observed", "address"),
    [
        (None, None, None),
        ({"driver_info": None}, None, None),
        ({"driver_info": {"node_ip_address": "10.0.0.2"}}, None, "10.0.0.2"),
        (None, {"driver_info": {"node_ip_address": "10.0.0.3"}}, "10.0.0.3"),
        ({"driver_info": None}, {"driver_info": {"node_ip_address": "10.0.0.3"}}, "10.0.0.3"),
    ],
)
def test_where_the_driver_is(make_job, ray, observed, address):
    job = make_job(**STARTED, ended=OK, observed=observed)
    assert judge(job, {"status": "SUCCEEDED", **ray} if ray else None).driver_ip == address


def test_every_final_status_has_an_exit_status():
    assert {status: status.exit for status in Status} == {
        Status.NOT_SUBMITTED: Exit.BAD_INPUT,
        Status.SUBMITTING: None,
        Status.PENDING: None,
        Status.QUEUED: None,
        Status.RUNNING: None,
        Status.UNKNOWN: None,
        Status.SUCCEEDED: Exit.SUCCEEDED,
        Status.FAILED: Exit.JOB_FAILED,
        Status.STOPPED: Exit.STOPPED,
        Status.LOST: Exit.LOST,
    }


def test_a_job_whose_submitter_is_at_work_is_not_over_yet(make_job):
    job = make_job(submitted=None)
    with submission_of(job):
        judgement = judge(job, None)
        assert (judgement.status, judgement.reason) == (Status.SUBMITTING, "the submitter is at work")
        assert judge(job, None, reachable=False).status is Status.SUBMITTING
        assert judge(job, {"status": "PENDING"}).status is Status.PENDING
    assert judge(job, None).status is Status.NOT_SUBMITTED


def test_the_lock_of_a_submitter_goes_with_its_process(make_job):
    job = make_job(submitted=None)
    hold = f"import sys, time; sys.path = {sys.path!r}; from verl_regress.base import layout; from verl_regress.jobs import status; from pathlib import Path\nwith status.submission_of(layout.JobDir(Path({str(job.path)!r}))): print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as submitter:
        submitter.stdout.readline()
        assert judge(job, None).status is Status.SUBMITTING
        submitter.kill()
    assert judge(job, None).status is Status.NOT_SUBMITTED


def test_rays_answers_are_recorded_and_the_final_one_stays(make_job):
    job = make_job()
    observe(job, None)
    assert job.read_state("observed") is None
    for said, kept in (("PENDING", "PENDING"), ("RUNNING", "RUNNING"), ("STOPPED", "STOPPED"), ("RUNNING", "STOPPED")):
        observe(job, {"status": said, "runtime_env": {"env_vars": {"A": "b"}}})
        assert job.read_state("observed")["status"] == kept
    assert "runtime_env" not in job.read_state("observed")


def test_an_unchanged_answer_is_not_written_again(make_job):
    job = make_job()
    observe(job, {"status": "RUNNING"})
    before = (job.state / "observed").stat().st_ino
    observe(job, {"status": "RUNNING"})
    assert (job.state / "observed").stat().st_ino == before
    observe(job, {"status": "RUNNING", "driver_info": {"node_ip_address": "10.0.0.2"}})
    assert (job.state / "observed").stat().st_ino != before


def test_a_full_disk_does_not_hide_the_status(make_job, monkeypatch):
    job = make_job()
    monkeypatch.setattr(JobDir, "write_state", Full())
    observe(job, {"status": "RUNNING"})
    assert job.read_state("observed") is None


class Full:
    def __call__(self, *_args):
        raise OSError(errno.ENOSPC, "No space left on device")


QUEUED = {"queued": {"reason": "position 2 of 5: behind other"}}


@pytest.mark.parametrize(
    ("state", "ray", "status"),
    [
        ({}, "RUNNING", "QUEUED"),
        ({}, "PENDING", "QUEUED"),  # Ray's table lags behind
        ({}, None, "QUEUED"),  # the lock needs no Ray
        ({"turn": {}}, "RUNNING", "RUNNING"),
        ({"queued": None}, "RUNNING", "RUNNING"),
        ({}, "STOPPED", "STOPPED"),
        ({"observed": {"status": "STOPPED"}}, "RUNNING", "STOPPED"),
        ({"ended": KILLED}, "STOPPED", "STOPPED"),
        ({"ended": KILLED}, None, "FAILED"),
        ({}, "FAILED", "LOST"),
    ],
)
def test_a_job_that_waits_in_the_queue(make_job, state, ray, status):
    job = make_job(**{**QUEUED, **state})
    lock = liveness.hold(job)
    judgement = judge(job, ray and {"status": ray})
    os.close(lock)
    assert judgement.status.value == status
    if status == "QUEUED":
        assert judgement.shown == "QUEUED (position 2 of 5: behind other)"


def test_a_launcher_that_was_killed_while_it_waited_is_lost(make_job):
    job = make_job(**QUEUED)
    os.close(liveness.hold(job))
    assert judge(job, {"status": "RUNNING"}).status is Status.RUNNING  # Ray will say so in a moment
    judgement = judge(job, {"status": "FAILED", "message": "bad news"})
    assert (judgement.status, judgement.reason) == (Status.LOST, LAUNCHER_GONE.format("FAILED"))
