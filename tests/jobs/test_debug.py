"""Debug bundles against a Ray that gives the test's answers, or none."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from shared_fixtures import HOOKS, node_row, write

import verl_regress
from redaction import Redactor
from verl_regress.cluster import ray_api
from verl_regress.jobs import debug

KINDS = {
    "ray_status.txt", "jobs.json", "job_info.json", "nodes.json", "actors.json", "node_facts.json",
}  # fmt: skip
OWN = "filter_predicates=%3D&filter_values=01"
ACTORS = f"/api/v0/actors?limit=1000&detail=1&filter_keys=job_id&{OWN}"
REPORTED = {
    "now": 1e9, "ip": "10.0.0.2", "hostname": "w0", "mem": [100, 60, 40.0, 40], "disk": {"/": {"free": 7}}, "gpus": [],
    "raylet": {"nodeName": "worker-0", "state": "ALIVE"},
}  # fmt: skip


def table(*rows):
    return 200, {"data": {"result": {"total": len(rows), "result": list(rows)}}}


@pytest.fixture
def full(ray, monkeypatch, tmp_path):
    """A Ray that answers every question about `job`, whose Ray id is 01; this node is the head, and has logs."""
    ray.knows(
        {"submission_id": "job", "status": "RUNNING", "job_id": "01", "runtime_env": {"env_vars": {"KEY": "hidden"}}}
    )
    ray.answers["/api/cluster_status?format=1"] = (200, {"data": {"clusterStatus": "Node status: 2 active"}})
    nodes = [
        {**node_row(name, ip), "node_id": f"id-{name}"} for name, ip in (("head", "10.0.0.1"), ("worker-0", "10.0.0.2"))
    ]
    ray.answers["/api/v0/nodes?limit=1000&detail=1"] = table(*nodes)
    actor = {
        "state": "ALIVE",
        "node_id": "id-worker-0",
        "pid": 7,
        "death_cause": None,
        "serialized_runtime_env": "hidden",
    }
    ray.answers[ACTORS] = table(actor)
    ray.answers["/nodes?view=summary&nocache=1"] = (
        200,
        {"data": {"summary": [REPORTED, {"raylet": {"state": "DEAD"}}]}},
    )
    ray.answers["/api/v0/logs?node_id=id-worker-0&glob=worker-%2A-01-%2A&timeout=2"] = (
        200, {"data": {"result": {"worker_err": ["worker-a-01-7.err"]}}},
    )  # fmt: skip
    for name in ("worker-a-01-7.err", "raylet.out", "raylet.err"):
        path = f"/api/v0/logs/file?node_id=id-worker-0&filename={name}&lines=400&timeout=2"
        ray.answers[path] = (200, f"{name} of worker-0".encode())
    monkeypatch.setenv("VERL_REGRESS_NODE_IP", "10.0.0.1")
    monkeypatch.setattr(debug, "_LOCAL_LOGS", tmp_path / "session")
    write(tmp_path / "session" / "raylet.out", "raylet.out of the head")
    return ray


def content(bundle, name):
    return json.loads((bundle / name).read_text(encoding="utf-8"))


def test_a_bundle_has_every_file_with_the_time_of_its_query(full, make_job):
    job = make_job(started={"pid": 1})
    bundle = debug.take(job, full.address, "running")
    assert bundle.parent == job.debug
    assert re.fullmatch(r"\d{8}T\d{6}Z-running", bundle.name)
    assert {path.name for path in bundle.iterdir()} == KINDS | {"bundle.json"}
    summary = content(bundle, "bundle.json")
    assert (summary["phase"], summary["submission_id"], summary["errors"]) == ("running", "job", {})
    assert summary["version"] == verl_regress.__version__
    assert summary["files"] == sorted(KINDS)
    stamp = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
    for name in KINDS - {"ray_status.txt"}:
        assert re.fullmatch(stamp, content(bundle, name)["asked"])
    assert re.fullmatch(rf"# asked {stamp}\nNode status: 2 active\n", (bundle / "ray_status.txt").read_text())
    info = content(bundle, "job_info.json")["answer"]
    assert (info["ray"]["status"], info["state"]["started"]["pid"], info["state"]["ended"]) == ("RUNNING", 1, None)


def test_a_bundle_asks_only_for_the_rows_of_its_job(full, make_job):
    """Before: all jobs, actors and placement groups of the cluster, other users' among them."""
    job = make_job()
    job.numbered(2).config.mkdir(parents=True)
    full.knows(
        {"submission_id": "job", "status": "FAILED", "job_id": "01"},
        {"submission_id": "job.a2", "status": "RUNNING", "job_id": "02"},
        {"submission_id": "theirs", "status": "RUNNING", "job_id": "03"},
    )
    bundle = debug.take(job, full.address, "running")
    assert [each["submission_id"] for each in content(bundle, "jobs.json")["answer"]] == ["job", "job.a2"]
    assert content(bundle, "actors.json")["answer"]["result"][0]["pid"] == 7
    asked = {path for path, _ in full.seen}
    assert {"/api/jobs/", "/api/v0/actors?limit=1000&detail=1"} & asked == set()
    assert {ACTORS, "/api/jobs/job", "/api/jobs/job.a2"} <= asked


def test_node_facts(full, make_job):
    job = make_job()
    facts = content(debug.take(job, full.address, "running"), "node_facts.json")["answer"]
    node, gone = facts["nodes"]
    assert (node["name"], node["state"], node["mem"], node["disk"]) == (
        "worker-0",
        "ALIVE",
        [100, 60, 40.0, 40],
        {"/": {"free": 7}},
    )
    assert (gone["state"], gone["disk"]) == ("DEAD", None)
    assert facts["shared_storage_bytes"]["free"] > 0


def test_no_runtime_env_and_no_token_is_in_any_file(full, make_job, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(write(tmp_path / "token", "s3cr3t\n")))
    job = make_job()
    write(job.driver_log, "Authorization: Bearer s3cr3t\n")
    bundle = debug.take(job, full.address, "failed", logs=True)
    assert any(headers.get("Authorization") == "Bearer s3cr3t" for _, headers in full.seen)
    texts = {path.name: path.read_text() for path in bundle.rglob("*") if path.is_file()}
    assert texts["driver.log"].endswith("Authorization: Bearer <secret RAY_TOKEN>\n")
    assert [name for name, text in texts.items() if "s3cr3t" in text or "hidden" in text] == []


def with_secrets(job, name="job"):
    """A job with secrets as a submission leaves it; returns the file with their values."""
    file = job.root.secrets / "c" / name
    write(job.config / "runtime_env.json", json.dumps({"env_vars": {"VERL_REGRESS_SECRETS": str(file)}}))
    return write(file, json.dumps({"HF_TOKEN": f"hf_of_{name}"}))


def leaking(full):
    """A worker's output, and the exception that an actor died of, have the value: neither came through our hook."""
    for path in [path for path in full.answers if path.startswith("/api/v0/logs/file?") and "worker-a-01" in path]:
        full.answers[path] = (200, b"hf_of_job\n")
    full.answers[ACTORS] = table(
        {"class_name": "Worker", "node_id": "id-w", "pid": 7, "death_cause": {"creation": "KeyError: hf_of_job"}}
    )


@pytest.mark.parametrize("is_left", [True, False])
def test_no_secret_is_in_a_bundle_even_after_its_launcher_died(full, make_job, is_left):
    """Before: with the launcher the values went, and a bundle taken afterwards had what they should be searched for in."""
    job = make_job()
    file = with_secrets(job)
    with_secrets(make_job("two"), "two")  # a value of its own, under the same name
    write(job.driver_log, "a step of <secret HF_TOKEN>, hf_of_two\n" if is_left else "a step of <secret HF_TOKEN>\n")
    leaking(full)
    if not is_left:
        file.unlink()
    bundle = debug.take(job, full.address, "asked", logs=True)
    texts = {str(path.relative_to(bundle)): path.read_text() for path in bundle.rglob("*") if path.is_file()}
    assert [name for name, text in texts.items() if "hf_of_" in text] == []
    assert "a step of <secret HF_TOKEN>" in texts["logs/driver.log"]
    assert ("logs/worker-0/worker-a-01-7.err" in texts) is is_left
    assert ("KeyError: <secret HF_TOKEN>" in texts["actors.json"]) is is_left
    errors = content(bundle, "bundle.json")["errors"]
    assert errors == (
        {}
        if is_left
        else {
            "logs, death_cause": "left out, because the job's secrets are gone and cannot be searched for there: read the nodes' "
            f"own logs, under {debug._LOCAL_LOGS}."
        }
    )


def test_log_tails_of_every_node(full, make_job):
    job = make_job()
    write(job.driver_log, "".join(f"line {number}\n" for number in range(1000)))
    bundle = debug.take(job, full.address, "failed", logs=True)
    names = {str(path.relative_to(bundle / "logs")) for path in (bundle / "logs").rglob("*") if path.is_file()}
    remote = {f"worker-0/{name}" for name in ("worker-a-01-7.err", "raylet.out", "raylet.err")}
    assert names == {"driver.log", "head/raylet.out"} | remote
    lines = (bundle / "logs" / "driver.log").read_text().splitlines()
    assert lines[0].startswith("# asked ")
    assert lines[1:] == [f"line {number}" for number in range(800, 1000)]
    assert (bundle / "logs/worker-0/worker-a-01-7.err").read_text().splitlines()[1:] == [
        "worker-a-01-7.err of worker-0"
    ]
    assert content(bundle, "bundle.json")["errors"] == {}


def test_a_tail_is_bounded_and_has_no_part_of_a_secret_across_its_cut(tmp_path):
    """Before: a log was cut first, so the end of a secret whose beginning was cut off was not known as one."""
    secret = "0123456789\nabcdefghij"
    for rest in (0, 1, 18, 20):
        text = debug._tail(write(tmp_path / "log", f"x{secret}" + "y" * (65536 - rest)), Redactor({"KEY": secret}))
        assert set(text.replace("<secret KEY>", "")) <= set("<secrt KEY>xy")
        assert 65000 < len(text) <= 65536
    lines = debug._tail(write(tmp_path / "log", f"x\n{secret}" + "\ny" * 199), Redactor({"KEY": secret}))
    assert lines.splitlines() == ["<secret KEY>", *["y"] * 199]


def test_of_many_logs_those_of_errors_are_taken(full, make_job, monkeypatch, tmp_path):
    for kind in ("out", "err"):
        write(tmp_path / "session" / f"worker-x-01-1.{kind}", "said")
    monkeypatch.setattr(debug, "_LOG_FILES", 3)
    bundle = debug.take(make_job(), full.address, "failed", logs=True)
    assert {path.suffix for path in (bundle / "logs").glob("*/*") if path.is_file()} == {".err"}


def test_two_bundles_of_one_second_have_two_names(full, make_job):
    job = make_job()
    assert len({debug.take(job, full.address, "asked") for _ in range(3)}) == len(list(job.debug.iterdir())) == 3


def test_a_failing_source_does_not_affect_the_others(full, make_job):
    full.answers[ACTORS] = (500, b"no")
    full.answers["/api/cluster_status?format=1"] = (200, b"no JSON")
    bundle = debug.take(make_job(), full.address, "running")
    errors = content(bundle, "bundle.json")["errors"]
    assert set(errors) == {"actors.json", "ray_status.txt"}
    assert errors["actors.json"].startswith(f"Unreachable: Ray does not answer at {full.address} ")
    assert content(bundle, "actors.json")["error"] == errors["actors.json"]
    assert (bundle / "ray_status.txt").read_text().splitlines()[1] == f"# {errors['ray_status.txt']}"
    assert content(bundle, "jobs.json")["answer"][0]["status"] == "RUNNING"


def test_without_ray_this_nodes_logs_are_still_collected(full, make_job):
    full.goes_away()
    bundle = debug.take(make_job(started={"pid": 1}), full.address, "failed", logs=True)
    assert (bundle / "logs/here/raylet.out").read_text().splitlines()[1] == "raylet.out of the head"
    assert set(content(bundle, "bundle.json")["errors"]) == KINDS | {"logs/driver.log"}


def test_a_ray_that_never_answers_is_not_waited_for_past_the_deadline(make_job, monkeypatch):
    monkeypatch.setattr(debug, "_DEADLINE", 1.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        bundle = debug.take(make_job(), f"http://127.0.0.1:{silent.getsockname()[1]}", "failed", logs=True)
        assert time.monotonic() - began < 3
    assert "timed out" in content(bundle, "jobs.json")["error"]


def test_a_bundle_that_cannot_be_written_is_one_line(full, make_job, capsys):
    job = make_job()
    job.debug.rmdir()
    job.debug.write_text("in the way")
    debug.attempt(job, full.address, "running")
    [line] = capsys.readouterr().err.splitlines()
    assert line.strip().startswith("no debug bundle 'running' of job: NotADirectoryError: ")


@pytest.mark.parametrize(
    ("address", "gcs", "seen"),
    [
        ("http://127.0.0.1:8265", "10.0.0.1:6379", "http://10.0.0.1:8265"),
        ("http://127.0.0.1:8265", "[fd00::1]:6379", "http://[fd00::1]:8265"),
        ("http://127.0.0.1:8265", "", "http://127.0.0.1:8265"),
        ("http://head.example:8265", "10.0.0.1:6379", "http://head.example:8265"),
    ],
)
def test_the_dashboards_address_as_seen_from_this_node(address, gcs, seen):
    assert ray_api.seen_from_here(address, {"RAY_ADDRESS": gcs} if gcs else {}) == seen


def test_a_bundle_on_demand_is_one_line_and_a_tar_of_all_but_checkpoints(full, make_job, run):
    job = make_job()
    plan = json.loads((job.config / "resolved.json").read_text())
    write(job.config / "resolved.json", json.dumps(plan | {"address": full.address}))
    write(job.checkpoints / "global_step_1" / "weights", "large")
    write(job.driver_log, "said\n")
    write(job.state / "stacks" / "w0-7.txt.tmp", "being written")
    outcome = run("debug", "job", "--tar")
    path = outcome.out.strip()
    assert re.search(r"changed \S+-asked \(11 files, \d\.\d s\)\n$", outcome.err)
    assert path.endswith("-asked.tar.gz")
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert {"job/config/resolved.json", "job/state/submitted", "job/logs/driver.log"} < set(names)
    assert any(name.endswith("-asked/nodes.json") for name in names)
    assert not any("checkpoints" in name or name.endswith((".tar.gz", ".tmp")) for name in names)


# --- the stacks of a running job, and what it does by them


@pytest.fixture
def hanging(make_job, tmp_path):
    """A job whose one process hangs in a reward function."""
    job = make_job(started={"node": "worker-0"})
    (job.state / "stacks_asked").touch()
    write(tmp_path / "code" / "verl.py", "")
    reward = write(
        job.root.user_code / "slow.py",
        "import time, verl\n\ndef compute_score():\n    judge()\n\ndef judge():\n    time.sleep(60)\n\ncompute_score()\n",
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VERL_REGRESS"))}
    env |= {"PYTHONPATH": f"{tmp_path}/code:{HOOKS}", "VERL_REGRESS_HOOKS": "process_memory"}
    env |= {"VERL_REGRESS_JOB_DIR": str(job.path), "VERL_REGRESS_NODE": "worker-0"}
    with subprocess.Popen([sys.executable, reward], env=env) as process:
        while not list(job.state.glob("memory/*.txt")):
            assert process.poll() is None
        yield job, process
        process.kill()


def test_a_bundle_of_a_running_job_has_its_stacks_and_they_say_what_it_does(hanging, unused_address):
    job, process = hanging
    bundle = debug.take(job, unused_address, "stalled", logs=True)
    [file] = (bundle / "stacks").iterdir()
    assert "in judge\n" in file.read_text()
    name = Path(sys.executable).name
    assert (
        debug.activity(job, bundle)
        == f"scoring in judge (user/code/slow.py:7, {name} (process {process.pid}) on worker-0)"
    )


def test_a_process_that_cannot_answer_delays_nothing_nor_does_a_job_that_is_over(hanging, monkeypatch):
    job, process = hanging
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    monkeypatch.setattr(debug, "_STACKS_PATIENCE", 0.3)
    assert debug._stacks(job) == {}
    job.write_state("ended", {"exit_code": 1, "reason": "gone"})
    (job.state / "stacks_asked").unlink()
    assert debug._stacks(job) == {}
    assert not (job.state / "stacks_asked").exists()


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (["_wait in threading", "generate_sequences in agent_loop"], "generating in generate_sequences"),
        (["get in worker", "update_actor in base", "generate in other"], "updating in update_actor"),
        (["_save_checkpoint in ray_trainer", "fit in ray_trainer"], "saving a checkpoint in _save_checkpoint"),
        (["_wait in threading"], None),
    ],
)
def test_what_the_functions_of_verl_say(make_job, tmp_path, frames, words):
    rows = [frame.split(" in ") for frame in frames]
    text = "now W (process 7) on worker-1\n" + "".join(
        f'  File "/x/{module}.py", line 3 in {function}\n' for function, module in rows
    )
    write(tmp_path / "bundle" / "stacks" / "w-7.txt", text)
    found = debug.activity(make_job(), tmp_path / "bundle")
    assert found is None if words is None else found.startswith(f"{words} (/x/")
