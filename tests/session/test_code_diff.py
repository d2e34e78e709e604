"""`verify begin` and `open`: what a session begins with, and which one is continued."""

import io
import json
import sys
from pathlib import Path

import pytest
from shared_fixtures import write

from verl_regress.store.sessions import Session

OLD, NEW, ELSEWHERE = "20261122T100000Z", "20261122T110000Z", "20261122T120000Z"


def session(shared, name, cluster="mine"):
    session = Session(shared.sessions / name)
    (session.path / "evidence").mkdir(parents=True)
    codes = {"A": "codeA", "B": "codeB"}
    session.write("begin", {"cluster": cluster, "codes": codes, "suite": {}})


@pytest.fixture(params=["session", "search"])
def kind(request, run, shared):
    """How a session, or the search for a commit, is opened: with its knob, its word, its folder, and what is answered."""
    for name, cluster in ((OLD, "mine"), (NEW, "mine"), (ELSEWHERE, "another")):
        session(shared, name, cluster)
        begin = {"cluster": cluster, "repo": "path:/r", "good": f"good of {name}", "bad": "bad"}
        write(shared.bisections / name / "begin.json", json.dumps(begin))
    if request.param == "session":
        opened, words = ["verify", "open"], ("SESSION", "session", shared.sessions, "codeA\0codeB\0")
    else:
        opened, words = ["bisect", "open"], ("BISECT", "search", shared.bisections, "path:/r\0good of {}\0bad\0")
    return lambda name: run(*opened, f"--name={name}", "--cluster=mine"), *words


@pytest.mark.parametrize(("name", "found"), [("latest", NEW), (OLD, OLD)])
def test_it_is_opened_by_its_name_or_as_the_newest_of_this_cluster(kind, name, found):
    opened, _, _, home, answer = kind
    outcome = opened(name)
    assert (outcome.status, outcome.out) == (0, f"{home}/{found}\0{answer.format(found)}")


def test_one_that_is_not_of_this_cluster_is_refused(kind):
    opened, knob, word, _, _ = kind
    said = f"{knob}={ELSEWHERE} is not a {word} of the cluster mine ({NEW}, {OLD}): name one, or leave it empty for a new one."
    assert opened(ELSEWHERE).is_refusal(said)


def test_one_that_is_over_is_refused(kind):
    opened, knob, _, home, _ = kind
    write(home / NEW / "report.json", "{}")
    over = f"{knob}=latest ({NEW}) is over: read {home}/{NEW}/report.md, or leave {knob} empty for a new one."
    assert opened("latest").is_refusal(over)


def test_a_cluster_without_a_session_says_so(run):
    said = "SESSION=latest is not a session of the cluster mine (there is none): name one, or leave it empty for a new one."
    assert run("verify", "open", "--name=latest", "--cluster=mine").is_refusal(said)


@pytest.mark.parametrize(
    ("only", "reuse", "said"),
    [
        ("", "true", "        this session makes 2 to 4 runs, less those of A that earlier sessions made\n"),
        ("", "false", "        this session makes 2 to 4 runs\n"),
        ("placement,outputs", "true", ""),
    ],
)
def test_a_session_begins_with_its_suite_both_codes_and_a_secret(run, monkeypatch, only, reuse, said):
    suite = f"reuse: {reuse}\ncases: {{ppo: {{workload: ppo}}}}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(suite.encode())))
    codes = ["--code-a=codeA", "--code-b=codeB", f"--only={only}"]
    outcome = run("verify", "begin", "--name=my.yaml", "--profile=cpu", "--cluster=mine", *codes)
    assert (outcome.status, outcome.err) == (0, said)
    begun = Session(Path(outcome.out.strip()))
    begin = begun.read("begin")
    assert (begin["codes"], begin["only"]) == ({"A": "codeA", "B": "codeB"}, sorted(filter(None, only.split(","))))
    assert len(begun.canary()) == 40
