"""`verify open` and `bisect open`: which session or search is continued."""

import json

import pytest
from shared_fixtures import write

from verl_regress.session import suites
from verl_regress.store.sessions import Session

OLD, NEW, ELSEWHERE = "20261122T100000Z", "20261122T110000Z", "20261122T120000Z"


def session(shared, name, cluster="mine"):
    session = Session(shared.sessions / name)
    (session.path / "evidence").mkdir(parents=True)
    codes = {"A": "codeA", "B": "codeB"}
    suite = suites.parse("cases: {ppo: {workload: ppo}, grpo: {workload: grpo}}", "my.yaml").recorded()
    session.write("begin", {"cluster": cluster, "codes": codes, "suite": suite})


@pytest.fixture(params=["session", "search"])
def kind(request, run, shared):
    """How a session, or the search for a commit, is opened: with its knob, its word, its folder, and what is answered."""
    for name, cluster in ((OLD, "mine"), (NEW, "mine"), (ELSEWHERE, "another")):
        session(shared, name, cluster)
        begin = {"cluster": cluster, "repo": "path:/r", "good": f"good of {name}", "bad": "bad"}
        write(shared.bisections / name / "evidence/begin.json", json.dumps(begin))
    if request.param == "session":
        opened, words = (
            ["verify", "open"],
            ("SESSION", "session", shared.sessions, "{}\0jobspecs/ppo.yaml\0jobspecs/grpo.yaml\0"),
        )
    else:
        opened, words = (
            ["bisect", "open"],
            ("BISECT", "search", shared.bisections, f"{shared.bisections}/{{0}}\0path:/r\0good of {{0}}\0bad\0"),
        )
    return lambda name: run(*opened, f"--name={name}", "--cluster=mine"), *words


@pytest.mark.parametrize(("name", "found"), [("latest", NEW), (OLD, OLD)])
def test_it_is_opened_by_its_name_or_as_the_newest_of_this_cluster(kind, name, found):
    opened, _, _, _, answer = kind
    outcome = opened(name)
    assert (outcome.status, outcome.out) == (0, answer.format(found))


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
