"""Secrets: what a JobSpec may name, the one file in which the values travel, and its removal when the job is over."""

import fcntl
import io
import json
import os
import signal
import stat
import time
import types

import pytest
from shared_fixtures import SPEC, write
from streams import tar
from tests.worker.test_launcher import Launched

from verl_regress.base.errors import BadInput, RegressError
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs.sweep import sweep
from verl_regress.secrets import secret_files

pytestmark = pytest.mark.slow

FILE = "my/ppo.yaml"
VALUES = {"API_KEY": "sk-0123456789", "HF_TOKEN": "hf_ünïcode"}
NAMED = f"{SPEC}secrets:\n  - name: API_KEY\n  - {{name: HF_TOKEN, file: ~/token}}\n"
NEVER = (
    "in my/ppo.yaml is not usable: secrets is a list of names, each '- name: WANDB_API_KEY' (upper case, the variable of that "
    "name) or also with 'file: PATH' (a file on this machine), and never has a value."
)


def sent(values):
    return "".join(f"{name}={value}\0" for name, value in values.items()).encode("utf-8", "surrogateescape") + b"\0"


@pytest.fixture
def submit_with(submit, monkeypatch):
    """Submits with `values` before the tar stream, as scripts/lib/secret.bash prints them."""

    def submit_with(*args, values=VALUES, spec=NAMED, front=None):
        front = sent(values) if front is None else front
        monkeypatch.setattr("shared_fixtures.tar", lambda files: io.BytesIO(front + tar(files).read()))
        return submit("--secrets", "CLUSTER_NAME=mine", "SUBMISSION_ID=me", *args, spec=spec)

    return submit_with


def text_of(directory):
    return "".join(path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file())


# promise: writes a secret into a file of the job, a log, an argument, an export or Ray
def test_the_values_are_in_one_private_file_and_ray_gets_only_its_path(submit_with, shared, sdk):
    file = shared.secrets / "mine" / "me"
    outcome = submit_with()
    assert (outcome.status, outcome.err) == (0, "changed submitted me (ppo, profile cpu, code codeA: pypi:0.7.1)\n")
    assert json.loads(file.read_text()) == VALUES
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, shared.secrets)] == [0o600, 0o700, 0o700]
    env_vars = sdk.submitted[0]["runtime_env"]["env_vars"]
    assert env_vars["VERL_REGRESS_SECRETS"] == str(file)
    assert env_vars["VERL_REGRESS_HOOKS"].startswith("job_secrets,identity")
    for value in VALUES.values():
        assert value not in repr(sdk.submitted)
        assert value not in text_of(shared.jobs)
    assert json.loads((shared.jobs / "me" / "config" / "resolved.json").read_text())["secrets"] == [
        "API_KEY",
        "HF_TOKEN",
    ]


def test_a_submission_that_ray_refuses_leaves_no_file(submit_with, shared, sdk):
    def refuse(**_):
        raise RuntimeError("no")

    sdk.on_submit = refuse
    assert submit_with().status == 1
    assert list((shared.secrets / "mine").iterdir()) == []


def test_a_dry_run_prints_their_names_and_needs_no_values(submit, shared):
    outcome = submit("DRY_RUN=1", spec=NAMED)
    assert (outcome.status, outcome.created) == (0, [])
    assert "# secret: API_KEY (the variable of that name)\n# secret: HF_TOKEN (the file ~/token)\n" in outcome.out


@pytest.mark.parametrize(
    ("front", "sentence"),
    [
        (sent({"API_KEY": "sk-0123456789"}), f"The values of the secrets in {FILE} did not come on stdin: submit with 'make submit'."),
        (
            sent({**VALUES, "HF_TOKEN": "hf_7890"}),
            f"The secret HF_TOKEN (from {FILE}) has 7 characters: give it at least 8, a shorter value cannot be distinguished from other text in a log.",
        ),
        (
            sent({**VALUES, "HF_TOKEN": "x" * 65537}),
            f"The secret HF_TOKEN (from {FILE}) has 65537 bytes: give it at most 65536, because no process can be started with more.",
        ),
    ],
)  # fmt: skip
def test_values_that_cannot_be_used(submit_with, front, sentence):
    assert submit_with(front=front).is_refusal(sentence)


@pytest.mark.parametrize("value", ["x" * 8, "x" * 65536])
def test_the_shortest_and_the_longest_value(value):
    secret_files.check({"API_KEY": value}, [types.SimpleNamespace(name="API_KEY")], FILE)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("secrets: {API_KEY: sk-0123456789}", "secrets"),
        ("secrets: [{name: sk-0123456789}]", "secrets[0].name"),
        ("secrets: [{name: API_KEY, value: sk-0123456789}]", "secrets[0]"),
        ("secrets: [{name: API_KEY, file: [sk-0123456789]}]", "secrets[0].file"),
    ],
)  # fmt: skip
def test_a_value_in_the_jobspec_is_refused_and_not_repeated(submit, text, where):
    assert submit(spec=f"{SPEC}{text}\n").is_refusal(f"{where} {NEVER}")


@pytest.mark.parametrize(
    ("names", "more", "sentence"),
    [
        (["PYTHONPATH"], "", f"The secret PYTHONPATH (from {FILE}) is refused: a job cannot set that variable; name another."),
        (["CUDA_VISIBLE_DEVICES"], "", f"The secret CUDA_VISIBLE_DEVICES (from {FILE}) is refused: a job cannot set that variable; name another."),
        (["API_KEY", "API_KEY"], "", f"The secret API_KEY occurs twice in {FILE}: leave one out."),
        (["API_KEY"], "env_vars: {API_KEY: x}\n", f"API_KEY is in secrets and in env_vars of {FILE}: leave it out of env_vars, which Ray shows as plain text."),
        (["HYDRA_FULL_ERROR"], "", "The secret HYDRA_FULL_ERROR is also set as plain text, by env/ray/cpu.yaml or by the job's own environment: remove it there, or give the secret another name."),
    ],
)  # fmt: skip
def test_names_that_cannot_be_used(submit_with, names, more, sentence):
    spec = f"{SPEC}{more}secrets: [{', '.join(f'{{name: {name}}}' for name in names)}]\n"
    assert submit_with(spec=spec, values=dict.fromkeys(names, "sk-0123456789")).is_refusal(sentence)


def test_a_jobspec_cannot_set_the_path_of_the_file(submit):
    assert submit(spec=f"{SPEC}env_vars: {{VERL_REGRESS_SECRETS: /etc/passwd}}\n").is_refusal(
        f"env_vars.VERL_REGRESS_SECRETS='/etc/passwd' (from {FILE}) is refused: verl-regress sets it; leave it out."
    )


@pytest.fixture
def launched(shared, tmp_path, monkeypatch):
    """The launcher of a job with secrets; `file` is where they are."""
    one = Launched(shared, tmp_path)
    one.file = write(shared.secrets / "mine" / "job", json.dumps(VALUES))
    monkeypatch.setenv("VERL_REGRESS_SECRETS", str(one.file))
    monkeypatch.setattr("tests.worker.test_launcher.HOOKS_OF_A_JOB", "job_secrets,identity")
    yield one
    if one.process and one.process.poll() is None:
        one.process.kill()
        one.process.wait()


SHOWS = """
import os, sys
key = os.environ['API_KEY']
print('started with it:', any(key.encode() in open(f'/proc/{pid}/environ', 'rb').read() for pid in ('self', os.getppid())))
print('has it:', key, key.encode().hex())
for half in (key[:5], key[5:] + '\\n'):
    sys.stdout.write(half); sys.stdout.flush()
"""


# promise: writes a secret into a file of the job, a log, an argument, an export or Ray
def test_the_trainer_has_them_was_not_started_with_them_and_its_log_hides_them(launched):
    status, out = launched.start(SHOWS).finish()
    assert (status, launched.ended) == (0, (0, "the trainer ended"))
    assert out == launched.log
    assert out.decode().splitlines()[-3:] == [
        "started with it: False", "has it: <secret API_KEY> <secret API_KEY>", "<secret API_KEY>",
    ]  # fmt: skip
    assert not launched.file.exists()
    assert "sk-0123456789" not in text_of(launched.job.path)
    names = [json.loads(path.read_text())["names"] for path in launched.job.reports.glob("secrets-*.json")]
    # The launcher, the trainer, and the process that lists Ray's actors.
    assert names == [["API_KEY", "HF_TOKEN"]] * 3


def gone(file):
    end = time.monotonic() + 5
    while file.exists():
        assert time.monotonic() < end, "the file is there still"
        time.sleep(0.01)


# promise: writes a secret into a file of the job, a log, an argument, an export or Ray
@pytest.mark.parametrize(
    ("number", "trainer"),
    [(signal.SIGKILL, "time.sleep(30)"), (signal.SIGTERM, "time.sleep(30)"), (None, "raise SystemExit(3)")],
)
def test_the_file_goes_however_the_launcher_ends(launched, number, trainer):
    launched.start(f"import time; print('ready', flush=True); {trainer}").await_line("ready")
    if number is not None:
        assert secret_files.is_held(launched.file)
        launched.process.send_signal(number)
    launched.process.wait(timeout=20)
    gone(launched.file)


def test_the_reason_of_a_failed_job_names_a_secret_and_does_not_show_it(launched):
    launched.start("import os; raise ValueError('bad key ' + os.environ['API_KEY'])").finish()
    cause = launched.job.read_state("ended")["cause"]
    assert cause["message"] == "bad key <secret API_KEY>"
    assert "ValueError: bad key <secret API_KEY> (" in launched.ended[1]
    assert "sk-0123456789" not in text_of(launched.job.path)


def test_a_launcher_that_ray_started_with_a_secret_in_its_environment_does_not_train(launched, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-0123456789")
    status, out = launched.start("print('trained')").finish()
    reason = (
        "Ray started the job with the secret API_KEY in its environment, where the process list shows it: the hook job_secrets "
        "does not know this release's job supervisor; train without secrets, or with Ray 2.60."
    )
    assert (status, launched.ended, b"trained" in out) == (1, (1, reason), False)
    gone(launched.file)


@pytest.mark.quick
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize(
    ("put", "why"),
    [
        (lambda file: os.chown(file, 4242, 4242), "{file} is refused, because {file} belongs to user 4242, "),
        (lambda file: os.chown(file.parent, 4242, 4242), "{file} is refused, because {file.parent} belongs to user 4242, "),
        (lambda file: file.chmod(0o602), "{file} is refused, because {file} can be changed by every user (mode 0602), "),
        (lambda file: file.symlink_to(file.rename(f"{file}.mine")), "The job's secrets cannot be read from {file} (OSError): submit it again."),
    ],
)  # fmt: skip
def test_what_was_put_in_the_place_of_the_secrets_is_not_read(shared, monkeypatch, put, why):
    """A fix of 1.3.0: another user decided what the launcher took for the job's secrets."""
    file = write(shared.secrets / "mine" / "job", json.dumps(VALUES))
    monkeypatch.setenv("VERL_REGRESS_SECRETS", str(file))
    put(file)
    with pytest.raises(RegressError) as caught:
        secret_files.hold()
    assert str(caught.value).startswith(why.format(file=file))
    assert file.exists()


@pytest.fixture
def swept(shared, ray, capsys):
    """Creates a job's secrets file and sweeps; returns what was printed, and whether the file still exists."""

    def swept(name, *known):
        file = write(shared.secrets / "mine" / name, "{}")
        ray.knows(*known)
        sweep(shared, "mine", RayApi(ray.address))
        return capsys.readouterr().err, file.exists()

    return swept


def test_secrets_of_a_job_that_is_over_that_ray_forgot_or_that_never_was_are_swept(swept, make_job):
    make_job("over", started={}, ended={"exit_code": 1, "reason": "x"})
    said = "changed removed the secrets of the job over (FAILED)\n"
    assert swept("over", {"submission_id": "over", "status": "FAILED"}) == (said, False)
    make_job("lost", started={})
    assert swept("lost") == ("changed removed the secrets of the job lost (LOST)\n", False)
    assert swept("never") == ("changed removed the secrets of the job never (NOT_SUBMITTED)\n", False)


@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
def test_secrets_of_a_job_that_runs_or_waits_stay(swept, make_job, status):
    make_job("job", started={})
    assert swept("job", {"submission_id": "job", "status": status}) == ("", True)


def test_secrets_held_by_a_launcher_or_submitter_stay_without_asking_ray(swept, shared, ray):
    with write(shared.secrets / "mine" / "held", "{}").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        seen = len(ray.seen)
        assert swept("held") == ("", True)
        assert len(ray.seen) == seen


@pytest.mark.parametrize("status", ["FAILED", "RUNNING"])
def test_stopping_a_finished_job_removes_them(run, shared, ray, make_job, status):
    job = make_job("over", started={}, ended={"exit_code": 1, "reason": "x"} if status == "FAILED" else None)
    file = write(shared.secrets / "mine" / "over", "{}")
    (job.config / "resolved.json").write_text(json.dumps({"address": ray.address}))
    (job.config / "runtime_env.json").write_text(json.dumps({"env_vars": {"VERL_REGRESS_SECRETS": str(file)}}))
    ray.knows({"submission_id": "over", "status": status})
    ray.answers["/api/jobs/over/stop"] = (200, {})
    run("stop", "over", "--deadline=0")
    assert file.exists() == (status == "RUNNING")


def test_secrets_are_not_written_where_others_may_write(shared):
    file = shared.secrets / "mine" / "job"
    file.parent.mkdir(parents=True)
    file.parent.chmod(0o702)
    with (
        pytest.raises(BadInput, match=r"/mine can be changed by every user \(mode 0702\)"),
        secret_files.written(file, VALUES),
    ):
        pass
    assert list(file.parent.iterdir()) == []
