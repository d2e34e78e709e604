"""What a submission writes to the shared root and sends to Ray, and what it leaves if Ray refuses or goes away."""

import functools
import json
import os
import re
import shlex
import socket
import tempfile
import time

import pytest
from shared_fixtures import BASE, SPEC, has_packages, node_row, write, write_checkpoint
from wording import THEIRS

from verl_regress.base import layout, lock, processes
from verl_regress.base.layout import JobDir
from verl_regress.cluster import nodes, packages
from verl_regress.jobs import find
from verl_regress.jobs.status import Status, status_of
from verl_regress.store import snapshot

GIVEN = f"# my own words\r\n{SPEC}env_vars: {{A: 'ü'}}   \n\n"


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_submission_makes_one_directory_and_says_its_id(submit, ray, shared):
    outcome = submit()
    assert outcome.status == 0
    assert re.fullmatch(r"ppo-codeA-\d{8}T\d{6}Z-[0-9a-f]{4}\n", outcome.out)
    name = outcome.out.strip()
    assert outcome.err == f"changed submitted {name} (ppo, profile cpu, code codeA: pypi:0.7.1)\n"
    assert [job.submission_id for job in find.newest(shared)] == [name]
    made = {"config", "logs", "checkpoints", "hf_modules", "debug", "state"}
    assert {path.name for path in (shared.jobs / name).iterdir()} == made
    [bundle] = (shared.jobs / name / "debug").iterdir()
    assert bundle.name.endswith("-submitted")
    about = read(bundle / "bundle.json")
    assert (about["submission_id"], about["asked_by"]["ray"]) == (name, ray.address)


@pytest.mark.parametrize(("container", "said"), [("c0ffee", "c0ffee"), (None, socket.gethostname())])
def test_ray_gets_what_was_planned_and_where_it_was_sent_from(submit, ray, sdk, shared, monkeypatch, container, said):
    monkeypatch.setattr(processes, "container", lambda: container)
    monkeypatch.setattr(nodes, "own_address", lambda: "10.0.0.9")
    submit("SUBMISSION_ID=me")
    sent = {"submitted_from_container": said, "submitted_from_ip": "10.0.0.9", "submitted_via": "sdk"}
    assert sdk.addresses == [ray.address]
    assert sdk.submitted == [
        {
            "submission_id": "me",
            "entrypoint": shlex.join(["python3", f"{layout.HELPER_DIR}/py/run.py", "launch", f"{shared.jobs}/me"]),
            "entrypoint_num_cpus": 1,
            "entrypoint_resources": {"worker_node": 1},
            "runtime_env": read(shared.jobs / "me" / "config" / "runtime_env.json"),
            "metadata": {"code_id": "codeA", "workload": "ppo", "profile": "cpu", **sent},
        }
    ]
    state = read(shared.jobs / "me" / "state" / "submitted")
    assert state == {"time": state["time"], "accepted": True, **sent}


def test_a_submission_ends_if_something_keeps_the_lock_of_the_jobs(submit, shared, monkeypatch):
    monkeypatch.setattr("verl_regress.store.retention._GC_SECONDS", 0.0)
    with lock.held(shared.jobs_lock, "the test", 0):
        outcome = submit()
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith(f"error   {shared.jobs_lock} has been locked for 0 s by the test (")


def test_the_arguments_without_which_nothing_can_be_submitted(run):
    assert run("submit").is_refusal(f"run.py submit: {THEIRS} --spec-name, --knobs (see --help).")


def test_the_sdk_follows_the_address_that_it_is_given(submit, sdk):
    seen = {}
    sdk.on_submit = lambda **_: seen.update(os.environ)
    submit()
    assert not {"RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"} & seen.keys()
    assert seen["no_proxy"] == "*"


@pytest.fixture
def ray_command(monkeypatch, tmp_path):
    """A `ray` on PATH that records its argv and environment, prints SAY and exits with STATUS."""
    ray = tmp_path / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text(
        "#!/bin/sh\n"
        f'for word; do printf "%s\\0" "$word"; done >"{tmp_path}/argv"\n'
        f'env >"{tmp_path}/env"; printf "%s\\n" "$SAY" >&2; exit "${{STATUS:-0}}"\n'
    )
    ray.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ray.parent}:{os.environ['PATH']}")
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.setenv(name, "elsewhere")
    return tmp_path


def test_the_command_line_sends_what_the_sdk_sends(submit, sdk, shared, ray_command, monkeypatch):
    monkeypatch.setattr("verl_regress.submit.submit.submitted_from", lambda: {"submitted_from_ip": "10.0.0.1"})
    assert submit("SUBMISSION_ID=me").status == 0
    config = {path.name: path.read_bytes() for path in (shared.jobs / "me" / "config").iterdir()}
    (shared.jobs / "me").rename(shared.path / "first")
    outcome = submit("SUBMISSION_ID=me", "--via=cli")
    assert (outcome.status, outcome.out) == (0, "me\n")
    assert config == {path.name: path.read_bytes() for path in (shared.jobs / "me" / "config").iterdir()}

    [by_sdk] = sdk.submitted
    argv = (ray_command / "argv").read_text().split("\0")[:-1]
    options = dict(zip(argv[3:13:2], argv[4:14:2], strict=True))
    metadata = json.loads(argv[argv.index("--metadata-json") + 1])
    assert argv[:3] == ["job", "submit", "--no-wait"]
    assert options["--submission-id"] == by_sdk["submission_id"] == "me"
    assert float(options["--entrypoint-num-cpus"]) == by_sdk["entrypoint_num_cpus"]
    assert json.loads(options["--entrypoint-resources"]) == by_sdk["entrypoint_resources"]
    assert json.loads(options["--runtime-env-json"]) == by_sdk["runtime_env"]
    assert shlex.join(argv[argv.index("--") + 1 :]) == by_sdk["entrypoint"]
    assert metadata == by_sdk["metadata"] | {"submitted_via": "cli"}
    assert by_sdk["metadata"]["submitted_via"] == "sdk"
    assert "elsewhere" not in (ray_command / "env").read_text()
    # config/ has the same line, without where it was sent from.
    line = shlex.split((shared.jobs / "me" / "config" / "submit_cmd.txt").read_text())
    kept = {"code_id": "codeA", "workload": "ppo", "profile": "cpu"}
    assert json.loads(line[line.index("--metadata-json") + 1]) == kept


@pytest.mark.parametrize(
    ("say", "status", "sentence"),
    [
        ("Traceback:\nRuntimeError: no such thing", 1, "Ray refused the job: RuntimeError: no such thing"),
        (
            "Job with submission_id me already exists. Please use",
            2,
            "submission_id 'me' is taken in Ray: give another one.",
        ),
    ],
)
def test_a_command_line_that_ray_refuses(submit, shared, ray_command, monkeypatch, say, status, sentence):
    monkeypatch.setenv("SAY", say)
    monkeypatch.setenv("STATUS", "1")
    outcome = submit("SUBMISSION_ID=me", "--via=cli")
    assert (outcome.status, outcome.out) == (status, "")
    assert outcome.err == f"error   {sentence} ({shared.jobs}/me is marked as never submitted)\n"


@pytest.mark.parametrize(
    ("name", "text", "files"),
    [
        ("a/ppo.yaml", GIVEN, {"job_spec.json", "job_spec.yaml"}),
        ("a/ppo.json", '{"workload": "ppo",\t"env_vars": {"A": "ü"}}', {"job_spec.json"}),
    ],
)
def test_config_has_the_request_and_the_resolved_plan(submit, shared, name, text, files):
    assert submit("SUBMISSION_ID=me", spec=text, spec_name=name).status == 0
    config = shared.jobs / "me" / "config"
    common = "asked.json ray_config.yaml resolved.json runtime_env.json submit_cmd.txt code.json packages.json verl_config.yaml"
    assert {path.name for path in config.iterdir()} == {*common.split()} | files
    if "job_spec.yaml" in files:
        assert (config / "job_spec.yaml").read_bytes() == text.encode()
    assert read(config / "job_spec.json") == {"workload": "ppo", "env_vars": {"A": "ü"}}
    assert read(config / "code.json") == read(shared.snapshots / "codeA" / "snapshot.json")
    resolved = read(config / "resolved.json")
    assert resolved["argv"][:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    assert resolved["code_path"] == str(shared.snapshots / "codeA")
    assert shlex.split((config / "submit_cmd.txt").read_text())[:3] == ["ray", "job", "submit"]


def test_config_has_the_whole_request_so_that_a_further_attempt_can_repeat_it(submit, shared, monkeypatch):
    has_packages(shared, "worker-0", numpy="2.4.6", debugpy="1.8.22")
    outcome = submit(
        "SUBMISSION_ID=me", "WORKLOAD=ppo", "CODE_ID=codeB", "MAX_RUNNING=3", "DETERMINISTIC=1", "TRAIN_SEED=5", "--perturbed", "ALLOW_PLAIN_SECRETS=1",
        "DEBUGGER=1", "--debugger-host=10.0.0.9", "OVERRIDES_FILE=o.txt", "OVERRIDES=trainer.save_freq=4 +data.new=1",
        "WORKERS=2", "GPUS_PER_WORKER=8",
        base=f"{BASE}deterministic: {{overrides: {{}}}}\n", overrides=b"trainer.total_epochs=2\n",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert read(shared.jobs / "me" / "config" / "asked.json") == {
        "origins": {"job_spec": "my/ppo.yaml", "ray_config": "env/ray/cpu.yaml"},
        "said": {
            "code_id": "codeB",
            "submission_id": "me",
            "overrides": [
                {"text": text, "origin": origin, "optional": False, "fixed": False}
                for text, origin in (
                    ("trainer.total_epochs=2", "OVERRIDES_FILE o.txt line 1"),
                    ("trainer.save_freq=4", "OVERRIDES"),
                    ("+data.new=1", "OVERRIDES"),
                )
            ],
            "deterministic": True,
            "seed": 5,
            "perturbed": True,
            "recompute_rewards": False,
            "plain_secrets": True,
            "debugger": "1",
            "debugger_host": "10.0.0.9",
            "fail_on": [],
        },
        "defaults": {
            "profile": "cpu",
            "model": "tiny",
            "dataset": "sums",
            "code_id": "codeB",
            "cluster": "c",
            "max_running": 3,
            "workers": 2,
            "gpus_per_worker": 8,
        },
    }


def test_a_dry_run_prints_all_that_a_submission_writes_and_creates_nothing(submit, ray, sdk, shared):
    spec = f"{SPEC}env_vars: {{A: ü, B: 5 $, C: 'ü $'}}\ntrainer_overrides: [\"+data.new='ü'\", +trainer.nnodes=1, +trainer.n_gpus_per_node=2]\n"
    outcome = submit("DRY_RUN=1", "SUBMISSION_ID=me", spec=spec)
    assert (outcome.status, outcome.err, outcome.created) == (0, "", [])
    assert (ray.seen, sdk.submitted) == ([], [])
    resolved, verl_config, runtime_env, by_hook, note, line = re.fullmatch(
        r"# resolved config\n(.*)\n# verl's config\n(.*\n)# runtime_env\n(.*)\n# environment that the hook env_vars sets\n(.*)\n(# the same [^\n]*)\n([^\n]*)\n",
        outcome.out,
        re.DOTALL,
    ).groups()
    for text in (resolved, runtime_env, by_hook):
        assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    assert json.loads(by_hook) == {"B": "5 $", "C": "ü $"}
    needs = f"it needs {shared.jobs}/me/config, which a dry run does not write"
    assert note == f"# the same as a command in the head ({needs})"

    assert submit("SUBMISSION_ID=me", spec=spec).status == 0
    config = shared.jobs / "me" / "config"
    asked_of_ray = {
        "devices": {"resource": "cpu", "count": 2, "cluster_has": 8},
        "packages": read(config / "resolved.json")["packages"],
    }
    written = read(config / "resolved.json")
    assert all(each.pop("sha256") for each in written["inputs"])
    assert written == json.loads(resolved.replace(',\n      "sha256": null', "")) | asked_of_ray
    assert (config / "verl_config.yaml").read_text() == verl_config
    env_vars = read(config / "runtime_env.json")["env_vars"]
    del env_vars["VERL_REGRESS_JOB_UIDS"]
    assert {"env_vars": env_vars} == json.loads(runtime_env)
    assert read(config / "env_vars.json") == json.loads(by_hook)
    assert (config / "job_spec.yaml").read_text() == spec
    argv, kept = shlex.split(line), (config / "submit_cmd.txt").read_text()
    at = argv.index("--runtime-env-json") + 1
    assert json.loads(argv[at]) == json.loads(runtime_env)
    argv[at] = json.dumps(read(config / "runtime_env.json"))
    assert kept == f"{shlex.join(argv)}\n"


def raises(error):
    def on_submit(**_):
        raise error

    return on_submit


FAILED = RuntimeError("Request failed with status code 500: Traceback:\n  File x\nValueError: no such thing\n.")


@pytest.mark.parametrize(("error", "said"), [(FAILED, "ValueError: no such thing"), (OSError(), "OSError")])
def test_if_ray_refuses_the_directory_is_marked_as_never_submitted(submit, sdk, shared, error, said):
    sdk.on_submit = raises(error)
    outcome = submit("SUBMISSION_ID=me")
    job = JobDir(shared.jobs / "me")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == f"error   Ray refused the job: {said} ({job.path} is marked as never submitted)\n"
    assert list(shared.queue("c").iterdir()) == []
    state = job.read_state("submitted")
    assert (state["accepted"], state["error"]) == (False, f"Ray refused the job: {said}")
    assert {"submitted_from_container", "submitted_from_ip", "submitted_via"} < set(state)
    judgement = status_of(job, None)
    never = f"never submitted: Ray refused the job: {said}"
    assert (judgement.status, judgement.reason) == (Status.NOT_SUBMITTED, never)


def test_ray_goes_away_during_a_submission(submit, ray, sdk, shared):
    def on_submit(**_):
        ray.goes_away()
        raise ConnectionError("the head hung up")

    sdk.on_submit = on_submit
    outcome = submit("SUBMISSION_ID=me")
    job = JobDir(shared.jobs / "me")
    sentence = (
        f"Ray does not answer at {ray.address} as seen from the head ([Errno 111] Connection refused): bring the cluster "
        "up with 'make up'."
    )
    assert (outcome.status, outcome.out) == (8, "")
    assert outcome.err == f"error   {sentence} ({job.path} is marked as never submitted)\n"
    assert status_of(job, None, reachable=False).status is Status.NOT_SUBMITTED


def test_a_lost_answer_to_a_job_that_was_accepted_is_a_submission(submit, ray, sdk, shared):
    def on_submit(**_):
        ray.knows({"submission_id": "me", "status": "PENDING"})
        raise ConnectionError("the answer was lost")

    sdk.on_submit = on_submit
    outcome = submit("SUBMISSION_ID=me")
    assert (outcome.status, outcome.out) == (0, "me\n")
    assert JobDir(shared.jobs / "me").read_state("submitted")["accepted"] is True


def test_a_submitter_that_dies_before_it_reached_ray(submit, sdk, shared):
    sdk.on_submit = raises(KeyboardInterrupt())
    assert submit("SUBMISSION_ID=me").status == 130
    assert status_of(JobDir(shared.jobs / "me"), None).status is Status.NOT_SUBMITTED


# promise: lets a job wait silently for a node that is down
def test_a_job_that_needs_a_worker_that_was_just_killed_is_refused(submit, sdk, ray):
    """Before: Ray called it ALIVE for half a minute, so the submission was accepted and the job waited."""
    worker = {"CPU": 1.0, "GPU": 4.0, "cpu": 4.0, "worker_node": 1.0}  # what the driver wants, and no more
    with socket.create_server(("127.0.0.1", 0)) as up, socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # bound but not listening: the port stays ours
        ray.has_nodes(
            {**node_row("head", "127.0.0.1"), "port": up.getsockname()[1]},
            {**node_row("worker-0", "127.0.0.1", **worker), "port": up.getsockname()[1], "node_id": "w0"},
            {**node_row("worker-1", "127.0.0.1", **worker), "port": gone.getsockname()[1], "node_id": "w1"},
        )
        assert submit("OVERRIDES=+trainer.nnodes=2 +trainer.n_gpus_per_node=4").is_refusal(
            "The job asks for 8 cpu (trainer.nnodes times trainer.n_gpus_per_node of verl's config), but the nodes that are up have "
            "4: ask for less, or bring up more with 'make up'."
        )
        assert sdk.submitted == []
        assert submit("OVERRIDES=+trainer.nnodes=1 +trainer.n_gpus_per_node=4").status == 0  # worker-0 is enough for it


@pytest.mark.parametrize(
    ("has", "asked", "whole", "cure"),
    [
        ((4, 4), (1, 8), "8 cpu on one node", (2, 4)),
        ((4, 4, 4), (2, 6), "6 cpu on each of 2 nodes", (3, 4)),
        ((6, 2), (2, 4), "4 cpu on each of 2 nodes", (4, 2)),
        ((4, 3), (7, 1), None, None),
        ((8,), (2, 4), None, None),  # two groups on one node
    ],
)
def test_what_must_be_on_one_node_is_compared_with_each_node(submit, ray, sdk, has, asked, whole, cure):
    """Before: only the sums were compared, and the job waited for half an hour, with its devices held."""
    workers = (node_row(f"worker-{n}", f"10.0.0.{n + 2}", CPU=64.0, cpu=float(count)) for n, count in enumerate(has))
    ray.has_nodes(node_row("head", "10.0.0.1"), *workers)
    done = submit("OVERRIDES=+trainer.nnodes={} +trainer.n_gpus_per_node={}".format(*asked))
    if whole is None:
        assert done.status == 0
    else:
        assert done.is_refusal(
            f"trainer.nnodes={asked[0]} and trainer.n_gpus_per_node={asked[1]} of verl's config ask for {whole}, but the nodes that are up have "
            f"{' and '.join(map(str, has))}: write trainer.nnodes={cure[0]} trainer.n_gpus_per_node={cure[1]}."
        )
        assert sdk.submitted == []


@pytest.mark.parametrize(("trainer", "rollout", "is_room"), [(7, 1, True), (7, 2, False), (6, 2, True), (8, 1, False)])
def test_all_devices_of_the_nodes_are_enough_and_one_more_is_refused(submit, ray, sdk, trainer, rollout, is_room):
    """A rollout apart from the trainer is no pool that must be on one node, but counts."""
    ray.has_nodes(
        node_row("head", "10.0.0.1"), *(node_row(f"worker-{n}", f"10.0.0.{n + 2}", CPU=64.0, cpu=4.0) for n in range(2))
    )
    apart = "+trainer.use_v1=True +trainer.v1.trainer_mode=separate_async +actor_rollout_ref.rollout.nnodes=1"
    done = submit(
        f"OVERRIDES=+trainer.nnodes={trainer} +trainer.n_gpus_per_node=1 {apart} +actor_rollout_ref.rollout.n_gpus_per_node={rollout}"
    )
    if is_room:
        assert (done.status, len(sdk.submitted)) == (0, 1)
    else:
        assert done.is_refusal(
            "The job asks for 9 cpu (trainer.nnodes times trainer.n_gpus_per_node of verl's config), but the nodes that are up have "
            "8: ask for less, or bring up more with 'make up'."
        )


@pytest.mark.parametrize(("knobs", "asked"), [((2, 8), "job asks for 16"), ((1, 8), "8 cpu on one node")])
def test_a_shape_that_the_knobs_decide_is_refused_with_the_knobs(submit, ray, knobs, asked):
    """Before: the refusal said to write trainer.nnodes, which the knobs decide."""
    shape = "trainer_overrides: {ppo: ['+trainer.nnodes=${workers}', '+trainer.n_gpus_per_node=${gpus_per_worker}', "
    workers, each = knobs
    ray.has_nodes(*(node_row(f"worker-{n}", f"10.0.0.{n + 2}", CPU=64.0, cpu=4.0) for n in range(2)))
    args = (f"WORKERS={workers}", f"GPUS_PER_WORKER={each}")
    done = submit(*args, base=BASE.replace("trainer_overrides: {ppo: [", shape))
    assert (done.status, done.created) == (2, [])
    assert asked in done.err
    assert done.err.endswith(
        f"; WORKERS={workers} and GPUS_PER_WORKER={each} decide this: set them as for 'make up', best in env/local.env, or bring up more.\n"
    )
    own = submit(*args, "OVERRIDES=trainer.nnodes=3", base=BASE.replace("trainer_overrides: {ppo: [", shape))
    assert "WORKERS" not in own.err


def test_the_plan_records_what_the_queue_needs_and_the_job_is_queued(submit, sdk, shared):
    sdk.on_submit = lambda **_: queued.extend(path.name for path in shared.queue("c").iterdir())
    queued = []
    done = submit("SUBMISSION_ID=me", "MAX_RUNNING=3", "OVERRIDES=+trainer.nnodes=2 +trainer.n_gpus_per_node=4")
    assert done.status == 0
    plan = read(shared.jobs / "me" / "config" / "resolved.json")
    assert plan["devices"] == {"resource": "cpu", "count": 8, "cluster_has": 8}
    assert (plan["max_running"], plan["cluster"]) == (3, "c")
    assert [name.partition("-")[2] for name in queued] == ["8-me"]


def test_a_ray_that_accepts_the_request_and_never_answers(submit, sdk, shared, monkeypatch):
    """A head that is paused: the SDK itself would wait forever."""
    monkeypatch.setattr("verl_regress.cluster.ray_api._SUBMIT_SECONDS", 0.2)
    sdk.on_submit = lambda **_: time.sleep(30)
    began = time.monotonic()
    outcome = submit("SUBMISSION_ID=me")
    assert time.monotonic() - began < 20
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == (
        f"error   Ray refused the job: no answer in 0.2 s ({shared.jobs}/me is marked as never submitted)\n"
    )


def wants(shared, *requires, **others):
    """Make the snapshot declare these requirements."""
    file = shared.snapshots / "codeA" / snapshot.RECORD_FILE
    write(file, json.dumps({**read(file), "requirements": {"requires": requires}, **others}))


# promise: trains on packages that do not fit the snapshot's release
def test_a_snapshot_that_wants_other_packages_is_refused_with_all_of_them(submit, shared, sdk):
    wants(shared, "numpy<2", "TransferQueue==0.1.11", verl_version="0.9.1")
    assert submit().is_refusal(
        "verl 0.9.1 (CODE_ID=codeA) wants numpy<2 (2.4.6 on worker-0), TransferQueue==0.1.11 (none on worker-0): build an image with "
        "them (docker/requirements.in) or name one that has them with NODE_IMAGE, or set ALLOW_MISMATCH=1."
    )
    assert sdk.submitted == []


# promise: trains on packages that do not fit the snapshot's release
def test_an_allowed_mismatch_is_submitted_with_a_warning_and_recorded(submit, shared):
    wants(shared, "numpy<2", verl_version="0.9.1")
    outcome = submit("ALLOW_MISMATCH=1", "SUBMISSION_ID=me")
    problem = "verl 0.9.1 (CODE_ID=codeA) wants numpy<2 (2.4.6 on worker-0)"
    assert outcome.status == 0
    assert outcome.err == (
        f"warning {problem}: ALLOW_MISMATCH=1\nchanged submitted me (ppo, profile cpu, code codeA: pypi:0.7.1)\n"
    )
    resolved, kept = (read(shared.jobs / "me" / "config" / name) for name in ("resolved.json", "packages.json"))
    has = {"numpy": "2.4.6"}
    sha256 = packages.sha256_of(has)
    assert resolved["packages"] == {"mismatch": [problem], "is_allowed": True, "sha256": sha256}
    same = {"nodes": ["head", "worker-0"], "python": "3.11.7", "sha256": sha256, "packages": has}
    assert kept == {**resolved["packages"], "head": "head", "lists": [same]}


def test_a_snapshot_without_requirements_is_submitted_with_a_warning(submit, shared):
    wants(shared, requirements={"problem": "it has no setup.py"})
    outcome = submit("SUBMISSION_ID=me")
    assert (outcome.status, outcome.err) == (
        0,
        "warning verl 0.7.1 (CODE_ID=codeA) does not say which packages it needs (it has no setup.py): it was "
        "not compared with what the nodes have.\nchanged submitted me (ppo, profile cpu, code codeA: pypi:0.7.1)\n",
    )


def test_a_node_without_a_list_is_refused(submit, shared):
    (shared.ray_logs("c") / "worker-0.packages.json").unlink()
    assert submit().is_refusal(
        "The packages of worker-0 are unknown: run 'make up', which lists them, or set ALLOW_MISMATCH=1."
    )
    outcome = submit("ALLOW_MISMATCH=1", "SUBMISSION_ID=me")
    assert outcome.err.startswith("warning The packages of worker-0 are unknown: ALLOW_")
    assert read(shared.jobs / "me" / "config" / "packages.json")["sha256"] is None


def test_workers_with_other_packages_are_refused_unless_they_are_down(submit, shared, ray):
    rows = [node_row("head", "10.0.0.1"), node_row("worker-0", "10.0.0.2", cpu=8.0, CPU=8.0, worker_node=1.0)]
    other = node_row("worker-1", "10.0.0.3", cpu=8.0, CPU=8.0, worker_node=1.0)
    has_packages(shared, "worker-1", numpy="1.26.4")
    ray.has_nodes(*rows, other)
    assert submit().is_refusal(
        "The workers have different packages, numpy 2.4.6 on worker-0 and 1.26.4 on worker-1: give all workers the same packages, or set "
        "ALLOW_MISMATCH=1."
    )
    ray.has_nodes(*rows, {**other, "state": "DEAD"})
    assert submit().status == 0


def test_the_debugger_needs_debugpy_on_the_workers(submit, shared, ray, sdk):
    ray.has_nodes(
        *(node_row(name, f"10.0.0.{i}", CPU=8.0, cpu=8.0) for i, name in enumerate(("head", "worker-0", "worker-1")))
    )
    needs = "DEBUGGER={} needs the package debugpy, and {} it: build the node image again ('make build down up'), or install it there."
    assert submit("DEBUGGER=1").is_refusal(needs.format("1", "worker-0 and worker-1 lack"))
    for worker, status in (("worker-0", 2), ("worker-1", 0)):
        has_packages(shared, worker, numpy="2.4.6", debugpy="1.8.22")
        outcome = submit("DEBUGGER=post-mortem")
        assert outcome.status == status
        assert status == 0 or outcome.is_refusal(needs.format("post-mortem", "worker-1 lacks"))
    assert len(sdk.submitted) == 1


@pytest.mark.parametrize(
    ("debugger", "host", "where"),
    [
        ("1", "10.0.0.9", "10.0.0.9"),
        ("1", None, "its node's address"),
        ("post-mortem", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_where_a_job_with_the_debugger_listens_is_said(submit, shared, debugger, host, where):
    for node in ("head", "worker-0"):
        has_packages(shared, node, numpy="2.4.6", debugpy="1.8.22")
    outcome = submit("SUBMISSION_ID=me", f"DEBUGGER={debugger}", *([f"--debugger-host={host}"] if host else []))
    assert outcome.err.splitlines() == [
        "changed submitted me (ppo, profile cpu, code codeA: pypi:0.7.1)",
        f"warning me has Ray's debugger on (DEBUGGER={debugger}): a process that waits in a breakpoint listens on {where}, without a "
        "password, and whoever connects runs code as the job; 'make debugger JOB=me' lists them.",
    ]
    assert read(shared.jobs / "me" / "config" / "resolved.json")["debugger"] == debugger


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def test_ray_tells_the_launcher_whose_the_directory_of_the_job_is(submit, sdk, shared, monkeypatch):
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "1002 1001")
    assert "VERL_REGRESS_JOB_UIDS" not in submit("DRY_RUN=1").out
    assert submit("SUBMISSION_ID=me").status == 0
    uids = " ".join(sorted({"0", str(os.geteuid()), "1001", "1002"}))
    assert sdk.submitted[0]["runtime_env"]["env_vars"]["VERL_REGRESS_JOB_UIDS"] == uids
    said = f"{SPEC}env_vars: {{VERL_REGRESS_JOB_UIDS: '4242'}}\n"
    assert submit(spec=said).is_refusal(
        "env_vars.VERL_REGRESS_JOB_UIDS='4242' (from my/ppo.yaml) is refused: verl-regress sets it; leave it out."
    )


def of_another(what, path, cure, uid=4242):
    """The refusal of what a job reads, because of a path of another user."""
    return (
        f"{what} is refused, because {path} belongs to user {uid}, and what is there decides what your job does: set TRUSTED_UIDS={uid} if you "
        f"trust that user, or {cure}."
    )


@as_root
def test_a_job_directory_may_be_of_the_servers_user_or_of_one_that_root_resumes(
    submit, run, ray, sdk, shared, monkeypatch
):
    """With root_squash the files that root writes are nobody's."""

    written = []

    class Squashed:
        def __init__(self, dir):
            written.append(dir)
            self._file = tempfile_of(dir=dir)
            os.chown(self._file.fileno(), 65534, 65534)
            os.chown(job.path, 1001, 1001)

        def __enter__(self):
            return self._file

        def __exit__(self, *_args):
            self._file.close()

    tempfile_of = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", Squashed)
    job = JobDir(shared.jobs / "me")
    assert submit("SUBMISSION_ID=me").status == 0
    ray.knows({"submission_id": "me", "status": "FAILED"})
    job.write_state("ended", {"exit_code": 1, "reason": "the trainer ended"})
    assert run("retry", "me").is_refusal(of_another("JOB=me", job.path, "submit a job of your own", uid=1001))
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "1001")
    assert run("retry", "me").status == 0
    sent = [each["runtime_env"]["env_vars"]["VERL_REGRESS_JOB_UIDS"] for each in sdk.submitted]
    assert sent == ["0 65534", "0 1001 65534"]
    assert written == [job.state, job.numbered(2).state]


@as_root
@pytest.mark.parametrize("theirs", ["", "inner", "inner/module.py", "link.py"])
@pytest.mark.slow
def test_a_folder_on_pythonpath_that_another_user_can_change_is_refused(submit, shared, monkeypatch, theirs):
    folder = shared.user_code / "mine"
    write(folder / "inner" / "module.py", "")
    (folder / "link.py").symlink_to("nowhere")
    spec = f"{SPEC}env_vars: {{PYTHONPATH: '/elsewhere:${{shared_root}}/user/code/mine'}}\n"
    assert submit("DRY_RUN=1", spec=spec).status == 0
    os.chown(folder / theirs, 4242, 4242, follow_symlinks=False)
    part = folder / theirs if theirs else folder
    assert submit(spec=spec).is_refusal(
        of_another(f"PYTHONPATH={folder} (from my/ppo.yaml)", part, "name one of your own")
    )
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "4242")
    assert submit("SUBMISSION_ID=me", spec=spec).status == 0
    assert read(shared.jobs / "me" / "config" / "resolved.json")["code_dirs"][0] == str(folder)


@pytest.mark.parametrize("open_", ["", "inner", "inner/module.py", "link.py"])
@pytest.mark.slow
def test_a_folder_on_pythonpath_whose_mode_lets_others_change_it_is_refused(submit, shared, tmp_path, open_):
    """The cure is one command for all of the folder, which changes nothing that a link in it leads to."""
    folder, elsewhere = shared.user_code / "mine", write(tmp_path / "elsewhere.py", "")
    write(folder / "inner" / "module.py", "")
    (folder / "link.py").symlink_to(elsewhere)
    spec = f"{SPEC}env_vars: {{PYTHONPATH: '${{shared_root}}/user/code/mine'}}\n"
    part = folder / open_
    mode = 0o777 if part.is_dir() else 0o666
    part.chmod(mode)
    cure = f"chmod go-w {part}" if open_ == "link.py" else f"chmod -R go-w {folder}"
    assert submit(spec=spec).is_refusal(
        f"PYTHONPATH={folder} (from my/ppo.yaml) is refused, because {part} can be changed by every user (mode {mode:04o}), and what is there "
        f"decides what your job does: type '{cure}', or name one of your own."
    )
    folder.chmod(0o1777)
    part.chmod(0o1777 if part.is_dir() else 0o644)
    assert submit("DRY_RUN=1", spec=spec).status == 0


@as_root
@pytest.mark.parametrize(
    ("args", "spec", "origin"),
    [
        (["CODE_ID=codeB"], SPEC, "the command line"),
        ([], f"{SPEC}code_id: codeB\n", "my/ppo.yaml"),
    ],
)
def test_a_snapshot_that_another_user_can_change_is_refused(submit, shared, args, spec, origin):
    theirs = shared.snapshots / "codeB" / snapshot.RECORD_FILE
    os.chown(theirs, 4242, 4242)
    assert submit(*args, spec=spec).is_refusal(
        of_another(f"CODE_ID=codeB (from {origin})", theirs, "make a snapshot of your own under another CODE_ID")
    )


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(
    ("name", "spec", "origin"),
    [
        ("HF_HOME", "", "the knob SHARED_ROOT"),
        ("HF_HOME", "env_vars: {HF_HOME: HOME}\n", "my/ppo.yaml"),
        ("HF_HUB_CACHE", "env_vars: {HF_HUB_CACHE: HOME}\n", "my/ppo.yaml"),
    ],
)
def test_a_cache_of_hugging_face_that_another_user_can_change_is_refused(
    submit, shared, monkeypatch, name, spec, origin
):
    home = shared.user_code / "hf" if spec else shared.path / "hf"
    home.mkdir(exist_ok=True)
    spec = SPEC + spec.replace("HOME}", f"{home}}}")
    os.chown(home, 4242, 4242)
    assert submit(spec=spec).is_refusal(of_another(f"{name}={home} (from {origin})", home, "let its owner remove it"))
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "4242")
    assert submit("DRY_RUN=1", spec=spec).status == 0


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(
    ("key", "name", "theirs"),
    [
        ("data.val_files", "rows.parquet", "rows.parquet"),
        ("data.train_files", "rows", "rows/part.parquet"),
        ("data.custom_cls.path", "data.py", "helper.py"),
        ("data.sampler.class_path", "sampler.py", "__pycache__/sampler.cpython-311.pyc"),
        ("actor_rollout_ref.model.path", "model", "model/modeling.py"),
        ("actor_rollout_ref.model.tokenizer_path", "tokenizer", "tokenizer/tokenizer.json"),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path", "tools.yaml", "tools.yaml"),
        ("trainer.resume_from_path", "checkpoints/global_step_4", "checkpoints/global_step_4/actor/x.pt"),
        ("actor_rollout_ref.rollout.skip.rollout_tq.dump_dir", "dump", "dump/e_p/GBS8_N1_in8_out8/1/0/tq_batch.pt"),
        ("actor_rollout_ref.rollout.any.next_config_path", "router.yaml", "router.yaml"),
    ],
)
def test_what_verls_config_names_is_refused_if_another_user_can_change_it(
    submit, shared, monkeypatch, key, name, theirs
):
    """Whatever its key. `TRUSTED_UIDS=group` trusts what is of SHARED_GROUP, and the refusal says so."""
    mine = shared.user_code / "mine"
    write_checkpoint(JobDir(mine), 4)
    place, part = mine / name, write(mine / theirs, "x = 1")
    if not place.exists():
        write(place, "import helper\n")
    write(mine / "model" / "config.json", "{}")
    write(mine / "model" / "pytorch_model.bin", "")
    said = f"OVERRIDES=trainer.resume_mode=resume_path ++{key}={place}"
    assert submit("SUBMISSION_ID=me", said).status == 0
    listed = [each["path"] for each in read(shared.jobs / "me" / "config" / "resolved.json")["inputs"]]
    assert str(place) in listed
    os.chown(part, 4242, 4242)
    named = f"{key}={place} (from OVERRIDES)"
    if theirs == "helper.py":
        named = f"{key}={part} (from an import in {place})"
    assert submit(said).is_refusal(of_another(named, part, "name one of your own"))
    os.chown(part, 4242, 42000)
    group = "TRUSTED_UIDS=group if you trust all of SHARED_GROUP, or name one of your own"
    assert submit(said).is_refusal(of_another(named, part, group))
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", ":42000")
    assert submit("SUBMISSION_ID=again", said).status == 0
    assert ":42000" in read(shared.jobs / "again" / "config" / "resolved.json")["trusted_uids"]


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(("cache", "env_vars"), [("hf/hub", ""), ("user/code/hub", "env_vars: {HF_HUB_CACHE: HERE}\n")])
def test_a_model_of_the_hub_is_checked_where_its_cache_has_it(submit, shared, cache, env_vars):
    model = shared.path / cache / "models--org--name"
    submit = functools.partial(submit, spec=SPEC + env_vars.replace("HERE", str(shared.path / cache)))
    theirs = write(model / "snapshots" / "abc" / "modeling.py", "")
    os.chown(theirs, 4242, 4242)
    key = "actor_rollout_ref.model.path"
    assert submit("DRY_RUN=1", f"OVERRIDES={key}=org/other").status == 0
    assert submit(f"OVERRIDES={key}=org/name").is_refusal(
        of_another(f"{key}=org/name (from OVERRIDES)", theirs, "name one of your own")
    )
    os.chown(theirs, 0, 0)
    assert submit("DRY_RUN=1", f"OVERRIDES={key}=org/name").status == 0
