"""A secret is found anywhere and in any form, and the search never returns it."""

import base64
import json
import os
import subprocess
import sys
import tracemalloc

import pytest
from shared_fixtures import node_row, write

from verl_regress.base.layout import JobDir
from verl_regress.cluster.ray_api import RayApi
from verl_regress.session import leaks

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
def search(shared, ray, make_job):
    """Searches for VALUE after the job `job`; Ray's answers about it are empty unless the test sets them."""
    job = make_job()
    ray.knows({"submission_id": "job", "job_id": "02000000"})
    ray.answers |= {
        "/api/v0/runtime_envs?limit=1000&detail=1": (200, {"result": []}),
        ACTORS: (200, {"data": {"result": {"result": []}}}),
        "/api/jobs/job/logs": (200, {"logs": "trained\n"}),
    }
    secrets = leaks.written({"the secret": VALUE, "Ray's token": "token-0123456789", "none": None})
    return lambda *more: leaks.in_outputs(shared, RayApi(ray.address), "mine", [job, *more], secrets)


def test_a_search_that_finds_nothing_says_how_much_it_searched(search):
    assert search() == ([], "2 files, 6 answers of Ray")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize(
    "place", ["jobs/job/logs/driver.log", "jobs/job/config/.x", "ray/mine/head.log", "secrets/mine/job"]
)
def test_it_is_found_in_every_form_in_files(search, shared, place, form):
    file = write(shared.path / place, f"a line\nAuthorization: {form}!\n")
    found = search()
    assert found[0] == [f"the secret is in {file}"]
    assert VALUE not in json.dumps(found)


def test_every_secret_is_searched(search, shared, ray):
    file = write(shared.path / "jobs/job/logs/driver.log", "a token-0123456789 b")
    ray.answers["/api/jobs/job/logs"] = (200, {"logs": "token-0123456789"})
    assert search()[0] == [f"Ray's token is in {file}", "Ray's token is in Ray's answer about the log of job"]


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
    assert search()[0] == [f"the secret is in {place}"]


def test_it_is_found_in_what_ray_says_of_the_job_its_actors_and_the_nodes(search, ray):
    ray.knows({"submission_id": "job", "job_id": "02000000", "message": VALUE})
    ray.answers[ACTORS] = (200, {"data": {"result": {"result": [{"class_name": VALUE}]}}})
    ray.has_nodes(node_row("head", "10.0.0.1", **{VALUE: 1.0}))
    places = ("all jobs", "the nodes", "the job job", "the actors of job")
    assert search()[0] == [f"the secret is in Ray's answer about {place}" for place in places]


def test_a_query_that_ray_does_not_answer_is_reported(search, ray):
    del ray.answers["/api/jobs/job/logs"]
    del ray.answers[NODES]
    said = [f"Ray did not answer about {what}" for what in ("the nodes", "the log of job")]
    assert search() == (said, "2 files, 4 answers of Ray")


def test_a_further_attempt_is_asked_about_and_its_job_is_searched_once(search, shared, ray):
    found, searched = search(JobDir(shared.jobs / "job").numbered(2))
    assert found == [f"Ray did not answer about the {what} job.a2" for what in ("job", "log of")]
    assert searched.startswith("2 files, ")
    ray.answers["/api/jobs/job.a2/logs"] = (200, {"logs": VALUE})
    ray.knows({"submission_id": "job", "job_id": "02000000"}, {"submission_id": "job.a2", "job_id": "02000000"})
    found, _ = search(JobDir(shared.jobs / "job").numbered(2))
    assert found == ["the secret is in Ray's answer about the log of job.a2"]


@pytest.mark.parametrize(
    ("words", "variable", "place"),
    [
        (["any", VALUE], "", "the command line"),
        (["/x/run.py", "launch", "/x"], VALUE, "the environment"),  # a launcher
        (["any"], VALUE, None),  # what a job's process starts inherits its environment
    ],
)
def test_on_a_node_it_is_found_in_what_proc_shows(words, variable, place):
    program = [sys.executable, "-c", "print(flush=True); input()", *words]
    environment = {**os.environ, "API_KEY": variable}
    with subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # it is running: before that its command line may still be empty
        count, found = leaks.in_processes(leaks.written({"it": VALUE}))
        process.communicate(b"\n")
    assert count >= 2
    assert found == ({f"it is in {place} of process {process.pid}"} if place else set())


def test_the_trainer_that_a_launcher_started_and_ray_are_searched_too(monkeypatch):
    def process(parent, command, *environ):
        return leaks.processes.Process(parent, 1, 0.0, environ, command)

    known = {
        1: process(0, "python3 -B /x/run.py launch /job"), 2: process(1, "python3 -m verl.trainer", VALUE.encode()),
        3: process(2, "what the trainer started", VALUE.encode()), 4: process(9, "ray::Worker", b"A=" + VALUE.encode()),
        5: process(9, "/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/ray/x", VALUE.encode()),
        6: process(9, "/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray/x", VALUE.encode()),
        7: process(9, "/x/any /x/raylet", VALUE.encode()),
    }  # fmt: skip
    monkeypatch.setattr(leaks.processes, "table", lambda: known)
    monkeypatch.setattr(leaks.processes, "commands", dict)
    _, found = leaks.in_processes(leaks.written({"it": VALUE}))
    assert found == {f"it is in the environment of process {pid}" for pid in (2, 4, 5, 6)}


def test_which_processes_of_a_job_got_it(shared, make_job):
    job = make_job()
    for process, job_id, names in (
        ("w0-1", "02000000", ["KEY"]),
        ("w0-2", None, ["KEY", "HF_TOKEN"]),
        ("w1-3", "02000000", []),
        ("w1-4", "02000000", None),
        ("w0-5", "01000000", []),  # Ray's supervisor: an actor of another job of Ray's
    ):
        write(job.reports / f"identity-{process}.json", json.dumps({"job_id": job_id}))
        if names is not None:
            write(job.reports / f"secrets-{process}.json", json.dumps({"names": names}))
    assert leaks.reports(job, {"job_id": "02000000"}) == {
        "w0-1": ["KEY"],
        "w0-2": ["KEY", "HF_TOKEN"],
        "w1-3": [],
        "w1-4": [],
    }


def test_a_search_finds_any_form_anywhere_in_a_file_and_names_it(tmp_path):
    canary = 'c/anary"1'
    there = write(tmp_path / "sub" / "there", f"x{canary}")
    write(tmp_path / "empty", "")
    write(tmp_path / "clean", canary[:-1])
    in_json = write(tmp_path / "json", json.dumps([canary]))
    secrets = leaks.written({"it": canary})
    assert sorted(leaks.in_files(leaks.files_below(tmp_path), secrets)) == [
        f"it is in {in_json}",
        f"it is in {there}",
    ]
    assert leaks.in_files([tmp_path / "gone"], secrets) == []


def test_a_search_reads_the_files_that_this_user_can_read_and_nothing_else(tmp_path, monkeypatch):
    """A named pipe would keep it waiting."""
    file, closed = write(tmp_path / "sub" / "file", ""), write(tmp_path / "closed", "")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (closed, os.R_OK))  # root can read all
    assert leaks.files_below(tmp_path) == [file]


@pytest.mark.parametrize("before", range(20))
def test_what_lies_across_two_pieces_of_a_file_is_found(tmp_path, monkeypatch, before):
    monkeypatch.setattr(leaks, "_PIECE", 8)
    file = write(tmp_path / "file", "-" * before + "needle" + "-" * 9)
    assert leaks._holds(file, [b"x", b"needle"])
    assert not leaks._holds(file, [b"x", b"needles"])


@pytest.mark.parametrize("needle", [b"x", b"needle"])
def test_a_file_of_any_size_is_searched_in_the_memory_of_a_few_pieces(tmp_path, monkeypatch, needle):
    monkeypatch.setattr(leaks, "_PIECE", 4096)
    file = write(tmp_path / "file", "-" * (64 * 4096))
    tracemalloc.start()
    try:
        assert not leaks._holds(file, [needle])
        assert tracemalloc.get_traced_memory()[1] < 16 * 4096
    finally:
        tracemalloc.stop()
