"""Secrets reach the environment of each process of a job, and nothing that outlives it: real processes."""

import json
import os

import pytest
from shared_fixtures import HOOKS, environment, python, write

VALUES = {"API_KEY": "sk-0123456789", "OTHER_KEY": "ünïcode-und-so\nzweite Zeile"}
# The parts of two Ray 2.60 modules that the hook looks for.
RAY = {
    "ray/__init__": "",
    "ray/_private/__init__": "",
    "ray/_private/utils": "import sys\ndef open_log(path, **kwargs):\n    return open(path, 'a', buffering=1, **kwargs)\n",
    "ray/dashboard/__init__": "",
    "ray/dashboard/modules/__init__": "",
    "ray/dashboard/modules/job/__init__": "",
    "ray/dashboard/modules/job/job_supervisor": "class JobSupervisor: pass\n",
}


@pytest.fixture
def process(tmp_path):
    for name, text in RAY.items():
        write(tmp_path / "code" / f"{name}.py", text)
    (tmp_path / "file").write_text(json.dumps(VALUES))

    def run(program, path=(tmp_path / "code", HOOKS), **more):
        more = {"VERL_REGRESS_SECRETS": str(tmp_path / "file"), **more}
        return python("-c", program, env=environment(*path, hooks="job_secrets", job_dir=tmp_path / "job", **more))

    return run


def reports(tmp_path):
    return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("job/state/reports/secrets-*.json"))]


def test_a_process_has_them_in_its_environment_but_was_not_started_with_them(process, tmp_path):
    program = "import os, json; print(json.dumps([os.environ['API_KEY'], os.environ['OTHER_KEY'], 'API_KEY' in open('/proc/self/environ').read()]))"
    ended = process(program)
    assert ended.stderr == ""
    assert json.loads(ended.stdout) == [*VALUES.values(), False]
    [report] = reports(tmp_path)
    assert report["names"] == ["API_KEY", "OTHER_KEY"]
    assert not any(value in json.dumps(report, ensure_ascii=False) for value in VALUES.values())


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "No such file or directory"), ('{"API_KEY": "sk-01234567', "it is not JSON")]
)
def test_a_process_that_cannot_read_them_does_not_run(process, tmp_path, content, problem):
    (tmp_path / "file").unlink()
    if content is not None:
        (tmp_path / "file").write_text(content)
    ended = process("print('ran')", path=[HOOKS])
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "verl-regress: the hook 'job_secrets' named in VERL_REGRESS_HOOKS could not be installed: RuntimeError: the job's "
        f"secrets cannot be read from {tmp_path}/file ({problem}); this process stops because it must not run without it "
        f"(PYTHONPATH='{HOOKS}')\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize(
    ("put", "problem"),
    [
        (lambda file: os.chown(file, 4242, 4242), "the job's secrets in {file} belong to user 4242, who did not submit the job; "),
        (lambda file: file.symlink_to(file.rename(f"{file}.mine")), "the job's secrets cannot be read from {file} (Too many levels"),
    ],
)  # fmt: skip
def test_a_process_does_not_read_what_was_put_in_their_place(process, tmp_path, put, problem):
    put(tmp_path / "file")
    ended = process("print('ran')", path=[HOOKS])
    assert (ended.returncode, ended.stdout) == (1, "")
    assert problem.format(file=tmp_path / "file") in ended.stderr
    assert process("print('ran')", path=[HOOKS], VERL_REGRESS_JOB_UIDS="4242").returncode == ("Too many" in problem)


def test_a_job_without_secrets_is_left_alone(process, tmp_path):
    assert process("import os; print('API_KEY' in os.environ)", VERL_REGRESS_SECRETS="").stdout == "False\n"
    assert reports(tmp_path) == []


SUPERVISOR = (
    "import os, subprocess\n"
    "print('API_KEY' in os.environ)\n"
    "from ray.dashboard.modules.job.job_supervisor import JobSupervisor\n"
    "print('API_KEY' in os.environ, 'sk-0' in subprocess.run('env', capture_output=True, text=True).stdout, JobSupervisor)\n"
)


def test_rays_supervisor_which_hands_its_environment_on_loses_them(process, tmp_path):
    ended = process(SUPERVISOR, RAY_RAYLET_PID="70")
    assert ended.stderr == ""
    assert ended.stdout == "True\nFalse False <class 'ray.dashboard.modules.job.job_supervisor.JobSupervisor'>\n"
    assert reports(tmp_path)[0]["names"] == []


def test_what_a_worker_of_ray_prints_is_logged_without_them(process, tmp_path):
    log = tmp_path / "worker.out"
    program = (
        "import logging, os, sys\n"
        "import ray._private.utils\n"
        f"sys.stdout = sys.stderr = ray._private.utils.open_log({str(log)!r})\n"
        "print('key', os.environ['API_KEY'])\n"
        "sys.stdout.writelines([os.environ['API_KEY'][:5], os.environ['API_KEY'][5:], '\\n'])\n"
        "logging.warning(os.environ['API_KEY'].encode().hex())\n"
        "raise ValueError(os.environ['API_KEY'])\n"
    )
    process(program, RAY_RAYLET_PID="70")
    lines = log.read_text().splitlines()
    assert lines[:3] == ["key <secret API_KEY>", "<secret API_KEY>", "WARNING:root:<secret API_KEY>"]
    assert lines[-1] == "ValueError: <secret API_KEY>"
    assert "sk-0" not in log.read_text()
