"""A command on one job whose files are JSON of another form ends with one sentence that names the file, never with a traceback."""

import json

import pytest
from conftest import write

from verl_regress import cli

pytestmark = pytest.mark.slow

DEADLINES = "--deadlines=300,900,60"
COMMANDS = {
    "status": ["status", "--profile=cpu", "--cluster=c"],
    "jobs": ["jobs"],
    "wait": ["wait", "job", DEADLINES],
    "logs": ["logs", "job"],
    "metrics": ["logs", "job", "--metrics"],
    "stop": ["stop", "job", "--deadline=1"],
    "debug": ["debug", "job"],
    "where": ["where", "job"],
    "latest": ["where", "latest"],
    "live": ["live", "--cluster=c"],
    "gc": ["gc", "--cluster=c", "--keep=0", "--named=codeA", "--named=codeB"],
}
ON_ONE = ("wait", "logs", "metrics", "stop", "debug")
MISSING = object()
INSTEAD = (MISSING, 7, "text", [])

STATES = {
    "submitted": {"accepted": True, "time": "2026-11-23T05:00:00+00:00"},
    "started": {"node": "worker-0", "node_ip": "10.0.0.2"},
    "queued": {"reason": "position 1 of 1: behind other"},
    "observed": {"status": "RUNNING", "message": "it runs", "driver_info": {"node_ip_address": "10.0.0.2"}},
    "collected": {"checkpoints": [], "bytes": 0, "time": "2026-11-23T05:00:00+00:00"},
    "ended": {
        "exit_code": 1, "reason": "the trainer exited", "told_to_stop": False, "lost_nodes": ["worker-0"],
        "cause": {"type": "ValueError", "message": "no", "also": "", "step": 1, "where": "a.py:1", "hint": "none"},
    },
}  # fmt: skip
PLAN = {
    "submission_id": "job", "workload": "ppo", "code_id": "codeA", "profile": "cpu", "cluster": "c", "entrypoint_num_cpus": 1,
    "entrypoint_resources": {"worker_node": 1}, "devices": {"count": 1}, "overrides": [{"text": "a=1"}],
    "owner": {"user": "ann", "id": "0123456789abcdef", "workdir": "/w"}, "code_path": "/x", "max_running": 1,
    "parent": {"attempt": None, "step": 0, "checkpoint": None}, "debugger": None,
}  # fmt: skip


@pytest.fixture
def job(make_job, ray):
    """A job with each file that has a reader; its Ray answers that it knows nothing of it."""
    job = make_job("job", **STATES)
    write(job.config / "resolved.json", json.dumps({**PLAN, "address": ray.address}))
    write(job.config / "runtime_env.json", json.dumps({"env_vars": {"A": "b"}}))
    write(job.metrics, json.dumps({"step": 1, "data": {"critic/score/mean": 0.5}}) + "\n")
    write(job.driver_log, "a line\n")
    return job


def places(content, home=()):
    """The path of each key."""
    for key, value in content.items():
        yield (*home, key)
        if isinstance(value, dict):
            yield from places(value, (*home, key))


def variants(content):
    """The object with one key missing, or of another type."""
    for place in places(content):
        for wrong in INSTEAD:
            changed = json.loads(json.dumps(content))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            if wrong is MISSING:
                del inner[place[-1]]
            else:
                inner[place[-1]] = wrong
            yield changed


FILES = [*(f"state/{name}" for name in STATES), "config/resolved.json", "config/runtime_env.json"]


@pytest.mark.parametrize("name", FILES)
def test_no_command_ends_with_a_traceback(job, ray, shared, capsys, name, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    ray.answers["/api/jobs/job"] = (404, b"does not exist")
    file = job.path / name
    tried = 0
    for changed in variants(json.loads(file.read_text())):
        for command, args in COMMANDS.items():
            file.write_text(json.dumps(changed))
            status = cli.main(["--shared-root", str(shared.path), "--owner=ann:0123456789abcdef", *args])
            said = capsys.readouterr().err.splitlines()
            tried += 1
            errors = [line for line in said if line.startswith("error ") and " cannot be read: " in line]
            for line in errors if command in ON_ONE else []:  # a bundle says it of the part that has none, and goes on
                assert line.startswith(f"error   {file} cannot be read: "), (command, changed)
                assert line.endswith(": restore it from a backup.")
                assert (status, len(errors)) == (1, 1)
    assert tried >= len(INSTEAD) * len(COMMANDS)


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("state/ended", {"exit_code": 0}, "it has no reason"),
        ("state/ended", {"reason": "x"}, "it has no exit_code"),
        ("state/ended", {"exit_code": "0", "reason": "x"}, "exit_code must be a whole number, not 0"),
        ("state/ended", {"exit_code": True, "reason": "x"}, "exit_code must be a whole number, not True"),
        ("state/submitted", {}, "it has no accepted"),
        ("state/submitted", {"accepted": "yes\u001b"}, "accepted must be true or false, not yes\\x1b"),
        ("state/observed", {"driver_info": ["x" * 99]}, f"driver_info must be an object, not ['{'x' * 38}… (103 characters)"),
        ("config/resolved.json", {"cluster": 7}, "cluster must be a text, not 7"),
        ("config/resolved.json", {"address": "http://x", "parent": {}}, "it has no parent.step"),
        ("config/resolved.json", {}, "it has no address"),
        ("config/resolved.json", {"address": "head"}, "address must be a URL, not head"),
    ],
)  # fmt: skip
def test_the_file_and_the_cure(run, job, name, content, wrong):
    if "parent" in content:
        content = content | {"address": json.loads((job.config / name.rpartition("/")[2]).read_text())["address"]}
    write(job.path / name, json.dumps(content))
    outcome = run("wait", "job", DEADLINES)
    assert (outcome.status, outcome.out) == (1, "")
    sentence = f"error   {job.path / name} cannot be read: {wrong}: restore it from a backup."
    assert outcome.err.splitlines()[-1] == sentence


LINES = ["{}", "[]", '{"step": "1", "data": {}}', '{"step": 1, "data": []}', "no json"]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_metrics_that_is_no_step(run, job, ray, line):
    write(job.metrics, f"{line}\n")
    outcome = run("logs", "job", "--metrics")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.splitlines()[-1] == (
        f"error   {job.metrics} cannot be read: {line} is not a step with its data: restore it from a backup."
    )


@pytest.mark.parametrize("line", LINES)
def test_wait_follows_a_job_without_steps_that_cannot_be_read(run, job, ray, line):
    write(job.metrics, f"{line}\n")
    outcome = run("wait", "job", DEADLINES)
    assert (outcome.status, outcome.out) == (7, "7\n")  # as Ray says of the job
    assert (
        f"warning {job.metrics} cannot be read: {line} is not a step with its data: restore it from a backup. job is followed without its steps."
    ) in outcome.err.splitlines()


@pytest.mark.parametrize(("attempt", "shown"), [({"attempt": 1}, "1"), ({}, "None")])
def test_wait_follows_a_job_whose_earlier_attempt_is_not_known(run, job, attempt, shown):
    file = job.config / "resolved.json"
    write(file, json.dumps({"parent": {"step": 1, **attempt}, "address": json.loads(file.read_text())["address"]}))
    outcome = run("wait", "job", DEADLINES)
    assert (outcome.status, outcome.out) == (7, "7\n")
    problem = f"its steps cannot be read: config/resolved.json: parent.attempt must be an earlier attempt, not {shown}"
    assert problem in outcome.err
