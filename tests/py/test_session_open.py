"""`verify open`: which session is continued."""

import json

import pytest
from conftest import write

from verl_regress.session import command
from verl_regress.store.sessions import Session

KNOBS = ["--dataset=", "--dataset-source=synthetic", "--model=", "--model-source=tiny:qwen2"]
OLD, NEW, ELSEWHERE = "20261122T100000Z", "20261122T110000Z", "20261122T120000Z"


def session(shared, name, cluster="mine"):
    session = Session(shared.sessions / name)
    (session.path / "evidence").mkdir(parents=True)
    codes = {"A": "codeA", "B": "codeB"}
    prepared = {"dataset": "sums", "model": "tiny-qwen2"}
    session.write("begin", {"cluster": cluster, "codes": codes, "nodes": [], "suite": {}, "prepared": prepared})
    return session


@pytest.fixture(params=["session", "search"])
def kind(request, run, shared):
    """How a session, or the search for a commit, is opened: with its knob, its word, its folder, and what is answered."""
    for name, cluster in ((OLD, "mine"), (NEW, "mine"), (ELSEWHERE, "another")):
        session(shared, name, cluster)
        begin = {"cluster": cluster, "repo": "path:/r", "good": f"good of {name}", "bad": "bad"}
        write(shared.bisections / name / "begin.json", json.dumps(begin))
    if request.param == "session":
        opened, words = ["verify", "open", *KNOBS], ("SESSION", "session", shared.sessions, "codeA\0codeB\0")
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
    one = session(shared, NEW)
    words = ("verify", "open", "--name=latest", "--cluster=mine", *KNOBS)
    one.write("begin", {**one.read("begin"), "prepared": {"dataset": "sums", "model": "tiny"}})
    assert run(*words, "--model=tiny", "--dataset=sums").status == 0
    knob = kind.upper()
    assert run(*words, "--model=tiny", "--dataset=sums", f"--{kind}=", given).is_refusal(
        f"SESSION=latest ({NEW}) uses the {kind} {began}, but {says} means {means}: give {knob} and {knob}_SOURCE as when it began, or leave "
        "SESSION empty for a new one."
    )


def test_a_head_that_was_made_again_is_recorded_once(shared):
    one = session(shared, NEW)
    one.write("begin", {**one.read("begin"), "head": {"identity": "id0", "address": "10.0.0.1"}})
    for identity in ("id0", "id1", "id1", "id0"):
        command._see_head(one, {"identity": identity, "address": "10.0.0.1"})
    assert one.read("heads")["heads"] == [{"identity": "id1", "address": "10.0.0.1"}]
