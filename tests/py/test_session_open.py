"""`verify open` and `verify hold`: which session is continued, and that only one shell drives it."""

import contextlib
import json
import os
import select
import subprocess
import sys

import pytest
from conftest import write

import deps
from verl_regress.base import lock
from verl_regress.session import driver
from verl_regress.store.sessions import Session

KNOBS = ["--dataset=", "--dataset-source=synthetic", "--model=", "--model-source=tiny:qwen2"]
OLD, NEW, ELSEWHERE = "20261122T100000Z", "20261122T110000Z", "20261122T120000Z"


def session(shared, name, cluster="mine", suite=True):
    session = Session(shared.sessions / name)
    (session.path / "evidence").mkdir(parents=True)
    codes = {"A": "codeA", "B": "codeB"}
    session.write("begin", {"cluster": cluster, "codes": codes, "nodes": [], **({"suite": {}} if suite else {})})
    return session


@pytest.fixture
def opened(run, shared):
    for name, cluster in ((OLD, "mine"), (NEW, "mine"), (ELSEWHERE, "another")):
        session(shared, name, cluster)
    return lambda name: run("verify", "open", f"--name={name}", "--cluster=mine", *KNOBS)


@pytest.mark.parametrize(("name", "found"), [("latest", NEW), (OLD, OLD)])
def test_a_session_is_opened_by_its_name_or_as_the_newest_of_this_cluster(opened, shared, name, found):
    outcome = opened(name)
    assert (outcome.status, outcome.out) == (0, f"{shared.sessions}/{found}\0codeA\0codeB\0")


def test_a_session_that_is_not_of_this_cluster_is_refused(opened):
    said = f"SESSION={ELSEWHERE} is not a session of the cluster mine ({NEW}, {OLD}): name one, or leave it empty for a new one."
    assert opened(ELSEWHERE).is_refusal(said)


def test_a_session_that_is_over_or_of_an_earlier_version_is_refused(opened, shared):
    write(shared.sessions / NEW / "report.json", "{}")
    over = (
        f"SESSION=latest ({NEW}) is over: read {shared.sessions}/{NEW}/report.md, or leave SESSION empty for a new one."
    )
    assert opened("latest").is_refusal(over)
    session(shared, "20261122T113000Z", suite=False)
    earlier = "SESSION=latest (20261122T113000Z) is of an earlier version, which had no suites: leave SESSION empty for a new one."
    assert opened("latest").is_refusal(earlier)


def test_a_search_for_a_commit_is_opened_by_its_name_or_as_the_newest_of_this_cluster_until_it_is_over(run, shared):
    for name, cluster in ((OLD, "mine"), (NEW, "mine"), (ELSEWHERE, "another")):
        begin = {"cluster": cluster, "repo": "path:/r", "good": f"good of {name}", "bad": "bad"}
        write(shared.bisections / name / "begin.json", json.dumps(begin))

    def opened(name):
        return run("bisect", "open", f"--name={name}", "--cluster=mine")

    for name, found in (("latest", NEW), (OLD, OLD)):
        assert opened(name).out == f"{shared.bisections}/{found}\0path:/r\0good of {found}\0bad\0"
    said = f"BISECT={ELSEWHERE} is not a search of the cluster mine ({NEW}, {OLD}): name one, or leave it empty for a new one."
    assert opened(ELSEWHERE).is_refusal(said)
    write(shared.bisections / NEW / "report.json", "{}")
    over = (
        f"BISECT=latest ({NEW}) is over: read {shared.bisections}/{NEW}/report.md, or leave BISECT empty for a new one."
    )
    assert opened("latest").is_refusal(over)


def test_a_cluster_without_a_session_says_so(run):
    said = "SESSION=latest is not a session of the cluster mine (there is none): name one, or leave it empty for a new one."
    assert run("verify", "open", "--name=latest", "--cluster=mine", *KNOBS).is_refusal(said)


@pytest.mark.parametrize(
    ("given", "kind", "began", "says", "means"),
    [
        ("--model=other", "model", "tiny", "MODEL=other", "other"),
        ("--model-source=hub:x/other", "model", "tiny", "MODEL_SOURCE=hub:x/other", "other"),
        ("--dataset=mine", "dataset", "sums", "DATASET=mine", "mine"),
        ("--dataset-source=hub", "dataset", "sums", "DATASET_SOURCE=hub", "gsm8k"),
    ],
)
def test_a_session_goes_on_with_the_data_and_the_model_that_it_began_with(run, shared, given, kind, began, says, means):
    """Before: its check `prepare` failed at the end, as if the second prepare had changed something."""
    one = session(shared, NEW)
    words = ("verify", "open", "--name=latest", "--cluster=mine", *KNOBS)
    assert run(*words, given).status == 0  # a session of an earlier version
    one.write("begin", {**one.read("begin"), "prepared": {"dataset": "sums", "model": "tiny"}})
    assert run(*words, "--model=tiny", "--dataset=sums").status == 0
    knob = kind.upper()
    assert run(*words, "--model=tiny", "--dataset=sums", f"--{kind}=", given).is_refusal(
        f"SESSION=latest ({NEW}) uses the {kind} {began}, but {says} means {means}: give {knob} and {knob}_SOURCE as when it began, or leave "
        "SESSION empty for a new one."
    )


WORDS = ["--head-identity=id1", "--head-address=10.0.0.1"]


@pytest.fixture
def holding(shared):
    """Starts a process that holds the session NEW for `who`; it has the lock when its line is read."""
    with contextlib.ExitStack() as processes:

        def holding(who):
            argv = [sys.executable, f"{deps.__file__.rpartition('/')[0]}/run.py", "--shared-root", shared.path]
            argv += ["verify", "hold", "--session", shared.sessions / NEW, f"--driver={who}", *WORDS]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield holding


def test_a_session_has_one_driver_and_the_next_one_when_that_is_gone(opened, run, holding, shared, monkeypatch):
    first = holding("pid 7 of alice on box since 2026")
    assert first.stdout.readline() == b"held\n"
    monkeypatch.setattr(driver, "_GRACE", 0.2)
    said = f"The session {NEW} is driven by pid 7 of alice on box since 2026: wait until that process ends, or stop it on that machine, then run this again."
    refused = run("verify", "hold", "--session", shared.sessions / NEW, "--driver=pid 8", *WORDS)
    assert refused.is_refusal(said)
    second = holding("pid 8 of bob on box since 2026")  # waits for a moment, in which the first one is killed
    first.kill()
    assert second.stdout.readline() == b"held\n"
    assert (shared.sessions / NEW / "driver").read_text() == "pid 8 of bob on box since 2026\n"
    assert Session(shared.sessions / NEW).read("heads")["heads"] == [{"identity": "id1", "address": "10.0.0.1"}]
    second.stdin.close()
    assert second.wait(20) == 0


def test_the_lock_ends_with_a_driver_that_is_silent(opened, shared, monkeypatch, capsys):
    monkeypatch.setattr(driver, "_SILENCE", 0.3)
    reading, writing = os.pipe()
    os.write(writing, b".\n")
    standard = os.dup(0)
    try:
        os.dup2(reading, 0)
        assert driver.hold(Session(shared.sessions / NEW), "pid 7", {"identity": "id1", "address": "10.0.0.1"}) == 0
        assert select.select([reading], [], [], 0)[0] == []  # it read what there was, and the pipe is still open
    finally:
        os.dup2(standard, 0)
        for descriptor in (reading, writing, standard):
            os.close(descriptor)
    assert capsys.readouterr().out == "held\n"
    assert not lock.is_held(shared.sessions / NEW / "driver")


def test_a_session_that_ended_while_another_shell_drove_it_is_refused(opened, run, shared):
    write(shared.sessions / NEW / "report.json", "{}")
    said = (
        f"SESSION={NEW} ({NEW}) is over: read {shared.sessions}/{NEW}/report.md, or leave SESSION empty for a new one."
    )
    outcome = run("verify", "hold", "--session", shared.sessions / NEW, "--driver=pid 7", *WORDS)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"error   {said}\n")
