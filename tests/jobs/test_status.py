import errno
import fcntl
import json
import os

import pytest
from shared_fixtures import write

from verl_regress.base.layout import JobDir
from verl_regress.jobs.status import (
    Judgement,
    Status,
    hold_launcher_lock,
    observe,
    status_for_cluster,
    status_of,
    submission_of,
)

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
FORGOTTEN = "Ray has forgotten it: its head was restarted, or it was deleted there"


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
        ({**STARTED, "ended": ASKED_TO_STOP}, "gone", "UNKNOWN", f"{KILLED['reason']}, and there is no word from Ray who ended it"),
        ({**STARTED, "ended": ASKED_TO_STOP, "observed": {"status": "STOPPED", "message": "by me"}}, None, "STOPPED", "by me"),
        ({**STARTED, "ended": ASKED_TO_STOP}, "STOPPED", "STOPPED", "bad news"),
        ({**STARTED, "ended": {**OK, "told_to_stop": True}}, "SUCCEEDED", "SUCCEEDED", OK["reason"]),
        # it failed when Ray's head had gone
        ({**STARTED, "ended": HEADLESS}, None, "LOST", HEADLESS["reason"]),
        ({**STARTED, "ended": HEADLESS}, "FAILED", "LOST", HEADLESS["reason"]),
        # or when a node had
        ({"ended": {**BAD, "lost_nodes": ["w"]}}, "FAILED", "LOST", BAD["reason"]),
        ({"ended": {**KILLED, "lost_nodes": ["w"]}}, None, "LOST", KILLED["reason"]),
        ({"ended": {**BAD, "lost_nodes": []}}, "FAILED", "FAILED", BAD["reason"]),
        # its submitter died before it could record Ray's answer, and Ray has forgotten the job since
        ({**STARTED, "submitted": None}, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        ({**STARTED, "submitted": None}, "gone", "UNKNOWN", "the job recorded no end, and there is no word from Ray"),
        ({**STARTED, "submitted": REFUSED}, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        ({"submitted": None, "observed": {"status": "PENDING"}}, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        # no end was recorded
        ({}, "FAILED", "FAILED", "bad news"),
        (STARTED, "FAILED", "LOST", LAUNCHER_GONE.format("FAILED")),
        (STARTED, "SUCCEEDED", "LOST", LAUNCHER_GONE.format("SUCCEEDED")),
        (STARTED, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        (STARTED, "gone", "UNKNOWN", "the job recorded no end, and there is no word from Ray"),
        # Ray forgot it, but its answer was recorded before
        ({**STARTED, "observed": {"status": "RUNNING"}}, None, "LOST", f"the job recorded no end, and {FORGOTTEN}"),
        ({**STARTED, "observed": {"status": "STOPPED", "message": "by me"}}, None, "STOPPED", "by me"),
        ({"observed": {"status": "FAILED", "message": "by it"}}, None, "FAILED", "by it"),
        ({**STARTED, "observed": {"status": "FAILED", "message": "bad news"}}, "gone", "LOST", LAUNCHER_GONE.format("FAILED")),
    ],
)  # fmt: skip
def test_the_status_of_a_job(make_job, state, ray, status, reason):
    details = None if ray in (None, "gone") else {"status": ray, "message": "first line\nbad news\n"}
    judgement = status_of(make_job(**state), details, reachable=ray != "gone")
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
    assert status_of(job, {"status": "SUCCEEDED", **ray} if ray else None).driver_ip == address


def test_a_job_whose_submitter_is_at_work_is_not_over_yet(make_job):
    job = make_job(submitted=None)
    with submission_of(job):
        assert "the submission of job" in job.submitting.read_text()
        judgement = status_of(job, None)
        assert (judgement.status, judgement.reason) == (Status.SUBMITTING, "the submitter is at work")
        assert status_of(job, None, reachable=False).status is Status.SUBMITTING
        assert status_of(job, {"status": "PENDING"}).status is Status.PENDING
    assert status_of(job, None).status is Status.NOT_SUBMITTED


def test_rays_answers_are_recorded_and_the_final_one_stays(make_job):
    job = make_job()
    observe(job, None)
    assert job.read_state("observed") is None
    for said, kept in (("PENDING", "PENDING"), ("RUNNING", "RUNNING"), ("STOPPED", "STOPPED"), ("RUNNING", "STOPPED")):
        driver = {"driver_info": {"node_ip_address": "10.0.0.3"}}
        observe(job, {"status": said, **driver, "runtime_env": {"env_vars": {"A": "b"}}})
        assert job.read_state("observed")["status"] == kept
    assert "runtime_env" not in job.read_state("observed")
    assert status_of(job, None).driver_ip == "10.0.0.3"


def test_a_full_disk_does_not_hide_the_status(make_job, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    job = make_job()
    monkeypatch.setattr(JobDir, "write_state", full)
    observe(job, {"status": "RUNNING"})
    assert job.read_state("observed") is None


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
    lock = hold_launcher_lock(job)
    judgement = status_of(job, ray and {"status": ray})
    os.close(lock)
    assert judgement.status.value == status
    if status == "QUEUED":
        assert judgement.shown == "QUEUED (position 2 of 5: behind other)"


def test_a_launcher_that_was_killed_while_it_waited_is_lost(make_job):
    job = make_job(**QUEUED)
    os.close(hold_launcher_lock(job))
    assert status_of(job, {"status": "RUNNING"}).status is Status.RUNNING  # Ray will say so in a moment
    judgement = status_of(job, {"status": "FAILED", "message": "bad news"})
    assert (judgement.status, judgement.reason) == (Status.LOST, LAUNCHER_GONE.format("FAILED"))


# --- a list asks one cluster only

ELSEWHERE = "the job recorded no end, and the Ray of its cluster theirs was not asked"
ALIVE_ELSEWHERE = "its launcher on the cluster theirs is alive"
NO_ANSWER = "the job recorded no end, and there is no word from Ray"


def of_cluster(job, cluster):
    write(job.config / "resolved.json", json.dumps({"cluster": cluster} if cluster else {}))
    return job


@pytest.mark.parametrize(
    ("cluster", "asked", "known", "status", "reason"),
    [
        ("ours", "ours", {}, Status.LOST, f"the job recorded no end, and {FORGOTTEN}"),
        ("ours", "ours", None, Status.UNKNOWN, NO_ANSWER),
        ("ours", "ours", {"job": {"status": "RUNNING", "message": "hello"}}, Status.RUNNING, "hello"),
        (None, "ours", {}, Status.LOST, f"the job recorded no end, and {FORGOTTEN}"),
        ("theirs", None, {}, Status.LOST, f"the job recorded no end, and {FORGOTTEN}"),
        ("theirs", None, None, Status.UNKNOWN, NO_ANSWER),
        ("theirs", "ours", {}, Status.UNKNOWN, ELSEWHERE),
        ("theirs", "ours", None, Status.UNKNOWN, ELSEWHERE),
        # Ray of our cluster may know another job by that id
        ("theirs", "ours", {"job": {"status": "FAILED", "message": "not it"}}, Status.UNKNOWN, ELSEWHERE),
    ],
)
def test_a_list_asks_one_cluster_and_its_ray_knows_nothing_of_others(make_job, cluster, asked, known, status, reason):
    job = of_cluster(make_job(**STARTED), cluster)
    judgement = status_for_cluster(asked, job, known)
    assert (judgement.status, judgement.reason) == (status, reason)


def test_a_job_of_another_cluster_runs_while_its_launcher_lives(make_job):
    job = of_cluster(make_job(**STARTED), "theirs")
    lock = hold_launcher_lock(job)
    assert status_for_cluster("ours", job, {}) == Judgement(Status.RUNNING, ALIVE_ELSEWHERE)
    os.close(lock)
    assert status_for_cluster("ours", job, {}) == Judgement(Status.UNKNOWN, ELSEWHERE)


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        ({"ended": OK}, Status.SUCCEEDED, OK["reason"]),
        ({"ended": BAD}, Status.FAILED, BAD["reason"]),
        ({"submitted": REFUSED}, Status.NOT_SUBMITTED, "never submitted: Ray refused the job: no"),
        ({"observed": {"status": "STOPPED", "message": "by me"}}, Status.STOPPED, "by me"),
        ({"ended": ASKED_TO_STOP}, Status.UNKNOWN, ELSEWHERE),
    ],
)
def test_what_a_job_of_another_cluster_recorded_counts(make_job, state, status, reason):
    judgement = status_for_cluster("ours", of_cluster(make_job(**state), "theirs"), {})
    assert (judgement.status, judgement.reason) == (status, reason)


# --- the rest of a judgement


def test_a_running_job_says_in_which_breakpoint_it_waits(make_job):
    record = {
        "task": "t", "file": "/r.py", "line": 1, "function": "f", "exception": None, "node": "n", "host": "h", "port": 1, "pid": 7,
        "since": "2026",
    }  # fmt: skip
    job = make_job(**STARTED)
    file = write(job.state / "breakpoints" / "a.json", json.dumps(record))
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        judgement = status_of(job, {"status": "RUNNING"})
    assert (judgement.status, judgement.shown) == (Status.RUNNING, "RUNNING, waits in a breakpoint (/r.py:1)")
    assert status_of(job, {"status": "RUNNING"}).shown == "RUNNING"


def test_a_reason_in_a_table_is_one_line_of_100_characters():
    def why(reason):
        return Judgement(Status.FAILED, reason).why

    assert why("a\n b\t c") == "a b c"
    assert why("x" * 100) == "x" * 100
    assert why("x" * 101) == "x" * 99 + "…"


@pytest.mark.parametrize(
    ("started", "where"),
    [
        ({"node": "worker-1", "node_ip": "10.0.0.2"}, "worker-1"),
        ({"node_ip": "10.0.0.2"}, "10.0.0.2"),
        ({}, "a node that Ray does not name"),
    ],
)
def test_a_lost_launcher_is_named_by_its_node(make_job, started, where):
    judgement = status_of(make_job(started=started), {"status": "FAILED", "driver_exit_code": 137})
    assert judgement == Judgement(
        Status.LOST, f"the launcher on {where} was ended by SIGKILL before it could record an end"
    )
