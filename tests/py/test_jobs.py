import os

import pytest


def test_latest_is_the_one_that_was_made_last(run, make_job):
    for age, name in ((30, "b"), (10, "c"), (20, "a")):
        job = make_job(name)
        os.utime(job.config, (1e9 - age, 1e9 - age))
    assert run("where", "latest").out == f"{job.path.parent}/c\n"
    (job.path.parent / "b" / "logs" / "driver.log").write_text("what runs changes nothing of it")
    assert run("where", "latest").out == f"{job.path.parent}/c\n"
    assert run("where", "a").out == f"{job.path.parent}/a\n"


def test_no_job_yet(run, shared):
    sentence = f"JOB=latest but {shared.jobs} has no job yet: submit one with 'make submit'."
    assert run("where", "latest").is_refusal(sentence)
    shared.jobs.rmdir()
    assert run("where", "latest").is_refusal(sentence)


@pytest.mark.parametrize("command", [["where"], ["logs"], ["wait", "--deadlines=1,2,3"]])
def test_a_job_that_is_not_there(run, shared, make_job, command):
    assert run(*command, "nobody").is_refusal(f"JOB=nobody is not under {shared.jobs}: the latest are none.")
    make_job("one")
    assert run(*command, "nobody").is_refusal(f"JOB=nobody is not under {shared.jobs}: the latest are one.")


def test_a_name_that_is_no_id(run):
    assert run("where", "../x").is_refusal(
        "submission_id '../x' (from JOB) is not usable: it must match ^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$, or leave it out "
        "and one is made."
    )


def test_a_job_without_a_plan_cannot_be_followed(run, make_job):
    job = make_job("one")
    (job.config / "resolved.json").unlink()
    assert run("wait", "one", "--deadlines=1,2,3").is_refusal(
        f"{job.config}/resolved.json is not there: submit with 'make submit', which writes it first.", status=1
    )
