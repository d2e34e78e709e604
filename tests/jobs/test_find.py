import os
import shutil

import pytest

from verl_regress.jobs import find


def test_latest_is_the_job_created_last(run, make_job):
    for age, name in ((30, "b"), (10, "c"), (20, "a")):
        job = make_job(name)
        os.utime(job.config, (1e9 - age, 1e9 - age))
    assert run("where", "latest").out == f"ppo {job.path.parent}/c\n"
    (job.path.parent / "b" / "logs" / "driver.log").write_text("what runs changes nothing of it")
    assert run("where", "latest").out == f"ppo {job.path.parent}/c\n"
    assert run("where", "a").out == f"ppo {job.path.parent}/a\n"


def make_attempt(job, number, age=0.0):
    attempt = job.numbered(number)
    attempt.config.mkdir(parents=True)
    shutil.copy(job.config / "resolved.json", attempt.config)
    os.utime(attempt.config, (1e9 - age, 1e9 - age))
    return attempt


def test_an_id_means_the_newest_attempt_and_a_numbered_id_that_attempt(run, shared, make_job):
    old, other = make_job("old"), make_job("other")
    os.utime(old.config, (1e9 - 30, 1e9 - 30))
    os.utime(other.config, (1e9 - 20, 1e9 - 20))
    assert run("where", "latest").out == f"ppo {other.path}\n"
    for number in (2, 10, 3):
        make_attempt(old, number, age=10)
    assert [attempt.ray_id for attempt in old.numbered(3).attempts()] == ["old", "old.a2", "old.a3", "old.a10"]
    assert {attempt.submission_id for attempt in old.attempts()} == {"old"}
    for asked in ("latest", "old", "old.a10"):
        assert run("where", asked).out == f"ppo {old.path}/attempts/10\n"
    assert run("where", "old.a1").out == f"ppo {old.path}\n"
    assert run("where", "old.a2").out == f"ppo {old.path}/attempts/2\n"
    assert [job.ray_id for job in find.newest(shared)] == ["old.a10", "other"]
    assert {attempt.root for attempt in old.attempts()} == {shared}


def test_an_attempt_that_is_not_there(run, make_job):
    make_attempt(make_job("one"), 2)
    assert run("where", "one.a3").is_refusal("JOB=one.a3 is not an attempt of one: it has 2, the first is .a1.")
    assert run("where", "one.a0").is_refusal("JOB=one.a0 is not an attempt of one: it has 2, the first is .a1.")


def test_no_job_yet(run, shared):
    sentence = f"JOB=latest but no job under {shared.jobs} is yours and outside a session: name one that 'make jobs' lists, or submit one."
    assert run("where", "latest").is_refusal(sentence)
    shutil.rmtree(shared.jobs)
    assert run("where", "latest").is_refusal(sentence)


def test_jobs_that_may_not_be_listed_are_not_taken_for_none(make_job, shared, monkeypatch):
    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    make_job("one")
    monkeypatch.setattr(os, "listdir", closed)
    with pytest.raises(PermissionError):
        find.newest(shared)


@pytest.mark.parametrize("command", [["where"], ["logs"], ["wait", "--deadlines=1,2,2,3"]])
def test_a_job_that_is_not_there(run, shared, command):
    (shared.path / "x").mkdir()
    for asked in ("nobody", "../x", "../x.a1", ""):
        assert run(*command, asked).is_refusal(
            f"JOB={asked} is not under {shared.jobs}: name one that 'make jobs' lists, or submit one."
        )


def test_a_job_without_a_plan_cannot_be_followed(run, make_job):
    job = make_job("one")
    (job.config / "resolved.json").unlink()
    assert run("wait", "one", "--deadlines=1,2,2,3").is_refusal(
        f"one was never submitted, because its submitter ended before {job.config}/resolved.json was written: submit it again, with "
        "another id."
    )


def test_the_latest_job_is_none_of_a_session(shared, make_job, run):
    mine = make_job("my-20260101T000000Z")  # a user may choose such an id
    session = shared.sessions / "20260102T000000Z"
    session.mkdir(parents=True)
    for number, name in enumerate(("ppo-b", "ppo-a", "ppo-b-again"), 1):
        make_job(f"{name}-{session.name}" + (f"-{number}" if number > 1 else ""))
    assert find.find(shared, "latest") == mine
    assert find.find(shared, f"ppo-b-{session.name}").path.is_dir()
    shutil.rmtree(mine.path)
    assert "outside a session" in run("where", "latest").err


def test_a_beginning_that_only_one_job_has_names_it(run, make_job):
    one = make_job("ppo-codeA-20260131T120000Z-1a2b")
    for other in (
        "ppo-codeA-20260131T120000Z-1a3b",
        "ppo-codeA-20260131T120001Z-0000",
        "sft",
        "sft-long",
        "sft-longer",
    ):
        make_job(other)
    (one.path.parent / "ppo-codeA-20260131T120000Z-1a2x").symlink_to(one.path)
    make_attempt(one, 2)
    for asked in ("ppo-codeA-20260131T120000Z-1a2", "ppo-codeA-20260131T120000Z-1a2.a2"):
        assert run("where", asked).out == f"ppo {one.path}/attempts/2\n"
    assert run("where", "sft").out == f"ppo {one.path.parent}/sft\n"  # an id itself
    assert run("where", "sft-lo").is_refusal(
        "JOB=sft-lo begins the ids of 2 jobs (sft-long, sft-longer): give more of it."
    )
    sentence = "JOB=s begins the ids of 3 jobs (sft, sft-long, sft-longer): give more of it."
    assert run("where", "s").is_refusal(sentence)
