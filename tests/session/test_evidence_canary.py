"""The secret of a regression session: jobs get it by name, and the search finds it anywhere and in any form."""

import base64
import json
import subprocess
import sys

import pytest
from shared_fixtures import node_row, write

from verl_regress.cluster.ray_api import RayApi
from verl_regress.session import evidence
from verl_regress.store.sessions import CANARY, Session

VALUE = "0123456789abcdef0123456789abcdef01234567"
FORMS = {
    "as it is": VALUE,
    "hex": VALUE.encode().hex(),
    **{
        f"base64 behind {before} bytes": base64.b64encode(b"x" * before + VALUE.encode() + b"y").decode()
        for before in range(3)
    },
}

ACTORS = "/api/v0/actors?limit=1000&detail=1&filter_keys=job_id&filter_predicates=%3D&filter_values=02000000"
NODES = "/api/v0/nodes?limit=1000&detail=1"


@pytest.fixture
def search(shared, ray, tmp_path, make_job, monkeypatch):
    """Searches for VALUE after the one job of a session, `job`; Ray's answers about it are empty unless the test sets them."""
    make_job()
    ray.knows({"submission_id": "job", "job_id": "02000000"})
    ray.answers |= {
        "/api/v0/runtime_envs?limit=1000&detail=1": (200, {"result": []}),
        ACTORS: (200, {"data": {"result": {"result": []}}}),
        "/api/jobs/job/logs": (200, {"logs": "trained\n"}),
    }
    monkeypatch.setattr(Session, "canary", lambda session: VALUE)
    session = Session(tmp_path / "session")
    return lambda: evidence.search(shared, RayApi(ray.address), "mine", session, ["job"])


def test_a_search_that_finds_nothing_says_how_much_it_searched(search):
    assert search() == {"files": 2, "answers": 6, "unanswered": [], "found": []}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize(
    "place", ["jobs/job/logs/driver.log", "jobs/job/config/.x", "ray/mine/head.log", "secrets/mine/job"]
)
def test_it_is_found_in_every_form_in_files(search, shared, place, form):
    file = write(shared.path / place, f"a line\nAuthorization: {form}!\n")
    found = search()
    assert found["found"] == [f"the session's secret is in {file}"]
    assert VALUE not in json.dumps(found)


def test_rays_token_is_searched_too(search, shared, ray, monkeypatch):
    monkeypatch.setattr(evidence.ray_api, "token", lambda: "token-0123456789")
    file = write(shared.path / "jobs/job/logs/driver.log", "a token-0123456789 b")
    ray.answers["/api/jobs/job/logs"] = (200, {"logs": "token-0123456789"})
    assert search()["found"] == [f"Ray's token is in {file}", "Ray's token is in Ray's answer about the log of job"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/api/jobs/job/logs", "Ray's answer about the log of job"),
        ("/api/v0/runtime_envs?limit=1000&detail=1", "Ray's answer about the runtime_envs"),
        ("/api/jobs/", "Ray's answer about all jobs"),
    ],
)
def test_it_is_found_in_every_form_in_answers(search, ray, path, place, form):
    ray.answers[path] = (200, [{"submission_id": "other", "said": f"a {form} b"}])
    assert search()["found"] == [f"the session's secret is in {place}"]


def test_it_is_found_in_what_ray_says_of_the_job_its_actors_and_the_nodes(search, ray):
    ray.knows({"submission_id": "job", "job_id": "02000000", "message": VALUE})
    ray.answers[ACTORS] = (200, {"data": {"result": {"result": [{"class_name": VALUE}]}}})
    ray.has_nodes(node_row("head", "10.0.0.1", **{VALUE: 1.0}))
    places = ("all jobs", "the nodes", "the job job", "the actors of job")
    assert search()["found"] == [f"the session's secret is in Ray's answer about {place}" for place in places]


def test_a_query_that_ray_does_not_answer_is_reported(search, ray):
    del ray.answers["/api/jobs/job/logs"]
    del ray.answers[NODES]
    found = search()
    assert (found["answers"], found["unanswered"]) == (4, ["the nodes", "the log of job"])


def test_on_a_node_it_is_found_in_rays_files_and_in_the_process_list(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "_NODE_LOGS", tmp_path / "ray")
    session = Session.begin(shared)
    canary = session.canary()
    assert ((session.path / "canary").stat().st_mode & 0o777, len(canary)) == (0o600, 40)
    file = write(tmp_path / "ray" / "session_1" / "logs" / "worker.out", "nothing\n")
    clean = evidence.search_here(session)
    assert clean.pop("processes") >= 1
    assert clean == {"files": 1, "found": []}
    file.write_text(f"API_KEY={canary}\n")
    program = [sys.executable, "-c", "print(flush=True); input()", canary]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # it is running: before that its command line may still be empty
        found = evidence.search_here(session)
        process.communicate(b"\n")
    places = (str(file), f"the command line of process {process.pid}")
    assert found["found"] == [f"the session's secret is in {place}" for place in places]
    assert canary not in json.dumps(found)


def test_a_node_is_searched_by_the_name_of_the_session(run, shared, search, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "_NODE_LOGS", tmp_path / "session_of_ray")
    log = write(tmp_path / "session_of_ray" / "raylet.out", VALUE)
    session = Session.begin(shared)
    outcome = run("verify", "search-node", "--session", session.path.name, "--node", "worker-0")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    assert session.read("canary-worker-0")["found"] == [f"the session's secret is in {log}"]


def test_which_processes_of_a_job_got_it(shared, make_job):
    job = make_job()
    for process, job_id, names in (
        ("w0-1", "02000000", [CANARY]),
        ("w0-2", None, [CANARY, "HF_TOKEN"]),
        ("w1-3", "02000000", []),
        ("w1-4", "02000000", None),
        ("w0-5", "01000000", []),  # Ray's supervisor: an actor of another job of Ray's
    ):
        write(job.reports / f"identity-{process}.json", json.dumps({"job_id": job_id}))
        if names is not None:
            write(job.reports / f"secrets-{process}.json", json.dumps({"names": names}))
    assert evidence._secret_reports(job, {"job_id": "02000000"}) == [
        {"process": "w0-1", "names": [CANARY]},
        {"process": "w0-2", "names": [CANARY, "HF_TOKEN"]},
        {"process": "w1-3", "names": []},
        {"process": "w1-4", "names": []},
    ]
