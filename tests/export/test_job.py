"""`make export`: the files for other places, by format, profile and workload; and what they call there."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import compose_model
import jsonschema
import pytest
import yaml
from shared_fixtures import BASE, SFT_CONFIG, SPEC, TRAINER, has_packages, knobs, record, write
from streams import tar

from verl_regress.export.job import name_of
from verl_regress.submit.export_command import FORMATS

pytestmark = pytest.mark.slow

REPO = Path(__file__).parents[2]
EXPECTED = REPO / "tests" / "expected"
SCHEMA = REPO / "tests" / "recorded" / "kuberay" / "rayjob_v1.schema.json"
# What scripts/lib/lifecycle/compose.bash hands over for each profile.
SITES = {
    "cpu": ['--worker-resources={"worker_node": 100, "cpu": 4}'],
    "gpu": ['--worker-resources={"worker_node": 100}'],
    "rocm": [
        '--worker-resources={"worker_node": 100}',
        "--unset=ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES", "--worker-env=NCCL_DEBUG=WARN", "--worker-env=NCCL_IB_HCA=",
    ],
    "npu": [
        '--worker-resources={"worker_node": 100}',
        "--driver=/usr/local/Ascend/driver /usr/local/dcmi /usr/local/bin/npu-smi /etc/ascend_install.info",
        "--worker-env=HCCL_CONNECT_TIMEOUT=1500", "--worker-env=RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1",
    ],
}  # fmt: skip
KNOBS = {
    "cpu": {"WORKER_CPUS": "64", "WORKER_GPUS": "4", "SHM_SIZE": "2gb"},
    "rocm": {"WORKER_DEVICES": "/dev/kfd /dev/dri /dev/infiniband"},
    "npu": {"WORKER_DEVICES": "/dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc", "WORKER_GPUS": "4"},
}  # fmt: skip
ON_DSTACK = [name for name in SITES if name != "npu"]
VOLUMES = {"compose": "/srv/workdir/shared", "dstack": "/private", "kuberay": "mvp11-shared"}
SECRETS = "secrets: [{name: WANDB_API_KEY}, {name: HF_TOKEN, file: /nowhere}]\n"


@pytest.fixture
def export(run, shared, monkeypatch):
    """Exports a JobSpec as scripts/lib/job.bash does."""
    monkeypatch.setattr(metadata, "version", lambda _name: "2.60.0")
    trainer = shared.snapshots / "codeA" / "verl" / "trainer"
    write(trainer / "sft_trainer_ray.py", TRAINER.replace("ppo_trainer", "sft_trainer"))
    write(trainer / "config" / "sft_trainer.yaml", SFT_CONFIG)
    record(shared.snapshots / "codeA")

    def export(to, *args, profile="cpu", spec=SPEC, base=BASE, spec_name="my/ppo.yaml"):
        members = {"job_spec": spec.encode(), "ray_config": base.replace("ADDRESS", "http://127.0.0.1:8265").encode()}
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(tar(members))))
        return run(
            "export", f"--to={to}", f"--spec-name={spec_name}", knobs(
                f"TO={to}", "SUBMISSION_ID=My.Job", *(word for word in args if word[0] != "-"),
                PROFILE=profile, CLUSTER_NAME="c", MODEL="tiny", DATASET="sums", CODE_ID="codeA", RAY_BASE_CONFIG="env/ray/cpu.yaml",
                WORKERS="2", GPUS_PER_WORKER="4", OBJECT_STORE_BYTES="500000000", GCS_PORT="6379", CLUSTER_TIMEOUT="120",
                PENDING_TIMEOUT="300", START_TIMEOUT="900", STALL_TIMEOUT="900", UNREACHABLE_TIMEOUT="60",
                **{"SHM_SIZE": "64gb", **KNOBS.get(profile, {})},
            ),
            f"--volume={VOLUMES.get(to, 'x')}", "--image=node:1", "--user=1000:1000", "--worker=0,1,2,3", "--worker=4,5,6,7",
            *SITES[profile], *(word for word in args if word[0] == "-"),
        )  # fmt: skip

    return export


def documents(outcome):
    assert (outcome.status, outcome.created) == (0, []), outcome.err
    return list(yaml.safe_load_all(outcome.out))


def scripts(to, outcome):
    """The Bash in an exported file."""
    if to == "compose":
        [project] = documents(outcome)
        return [service["command"][2].replace("$$", "$") for service in project["services"].values()]
    if to == "dstack":
        [task] = documents(outcome)
        return task["commands"]
    commands = [
        c["command"]
        for c in documents(outcome)[1]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["initContainers"]
    ]
    return [command[2] for command in commands if command[:2] == ["bash", "-c"]]


def strict(schema):
    """The schema with every property unknown to it refused, as `kubectl create --validate=strict` refuses it."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" in schema and isinstance(schema["properties"], dict) and "additionalProperties" not in schema:
        inner = {name: strict(each) for name, each in schema["properties"].items()}
        return {
            **{key: strict(value) for key, value in schema.items() if key != "properties"},
            "properties": inner,
            "additionalProperties": False,
        }
    return {key: strict(value) for key, value in schema.items()}


@pytest.fixture(scope="session")
def kuberay():
    """Checks a RayJob as KubeRay's own resource definition does."""
    schema = strict(json.loads(SCHEMA.read_text()))
    return jsonschema.Draft202012Validator(schema).validate


@pytest.mark.parametrize("profile", SITES)
@pytest.mark.parametrize("workload", ["ppo", "grpo", "sft"])
def test_the_rayjob_is_valid(export, kuberay, profile, workload):
    request, job = documents(export("kuberay", profile=profile, spec=f"workload: {workload}\n"))
    kuberay(job)
    assert request["kind"] == "ConfigMap"
    assert set(request["data"]) == {"asked.json", "job_spec.yaml", "ray_config.yaml"}
    assert job["metadata"]["name"] == request["metadata"]["name"] == name_of("My.Job", 47)


@pytest.mark.parametrize("to", FORMATS)
def test_what_runs_elsewhere_has_no_debugger(export, to):
    assert documents(export(to, "DEBUGGER=1")) == documents(export(to))


def test_the_rayjob_has_the_plan_of_the_submission(export, shared):
    _, job = documents(export("kuberay"))
    spec = job["spec"]
    assert spec["jobId"] == "My.Job"
    assert spec["submissionMode"] == "HTTPMode"
    assert spec["entrypoint"] == f"python3 {REPO}/py/run.py launch {shared.jobs}/My.Job"
    assert spec["entrypointNumCpus"] == 1
    assert json.loads(spec["entrypointResources"]) == {"worker_node": 1}
    variables = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert variables["PYTHONPATH"].split(":")[0] == f"{shared.snapshots}/codeA"
    assert variables["TORCHDYNAMO_DISABLE"] == "1"
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == "2.60.0"
    head, [worker] = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0", "object-store-memory": "500000000"}
    assert (worker["replicas"], worker["minReplicas"], worker["maxReplicas"]) == (2, 2, 2)
    assert worker["resources"] == {"worker_node": "100", "cpu": "4", "CPU": "64", "GPU": "4"}
    for pod in (head["template"]["spec"], worker["template"]["spec"]):
        [container] = pod["containers"]
        assert pod["securityContext"] == {"runAsUser": 1000, "runAsGroup": 1000}
        assert {"name": "shared", "mountPath": str(shared.path)} in container["volumeMounts"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert {"name": "shared", "persistentVolumeClaim": {"claimName": "mvp11-shared"}} in pod["volumes"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2147483648"}} in pod["volumes"]
        assert "resources" not in container


@pytest.mark.parametrize(
    ("profile", "resource"), [("gpu", "nvidia.com/gpu"), ("rocm", "amd.com/gpu"), ("npu", "huawei.com/Ascend910")]
)
def test_the_rayjobs_workers_have_the_gpus_and_its_head_has_none(export, profile, resource):
    cluster = documents(export("kuberay", profile=profile))[1]["spec"]["rayClusterSpec"]
    [head], [worker] = (
        group["template"]["spec"]["containers"] for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0])
    )
    assert worker["resources"] == {"limits": {resource: "4"}}
    assert "resources" not in head


def test_the_worker_of_the_rayjob_has_what_amd_needs(export):
    cluster = documents(export("kuberay", profile="rocm"))[1]["spec"]["rayClusterSpec"]
    [worker] = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert worker["securityContext"] == {
        "capabilities": {"add": ["SYS_PTRACE"]},
        "seccompProfile": {"type": "Unconfined"},
    }
    assert {"name": "NCCL_DEBUG", "value": "WARN"} in worker["env"]
    assert {"name": "NCCL_IB_HCA", "value": ""} in worker["env"]


@pytest.fixture
def elsewhere(run, monkeypatch, tmp_path):
    """Calls `submit-exported` with the files of an exported request, as the place does that they are for."""

    def elsewhere(files, *args, stdin=b""):
        for name, text in files.items():
            write(tmp_path / "request" / name, text)
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(stdin)))
        return run("submit-exported", *args, tmp_path / "request")

    return elsewhere


def test_kuberays_init_container_makes_the_directory_that_the_launcher_reads(export, elsewhere, shared):
    request, job = documents(export("kuberay", "OVERRIDES=trainer.total_epochs=2"))
    [init] = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["initContainers"]
    at = init["command"].index("submit-exported")
    assert init["command"][:at] == ["python3", f"{REPO}/py/run.py", "--shared-root", str(shared.path)]
    assert init["command"][at + 1 :] == ["--reserve=8", "/etc/verl-regress"]
    outcome = elsewhere(request["data"], "--reserve=8")
    assert (outcome.status, outcome.out) == (0, "My.Job\n"), outcome.err
    assert outcome.err == f"changed reserved {shared.jobs}/My.Job for My.Job\n"
    config = shared.jobs / "My.Job" / "config"
    resolved = json.loads((config / "resolved.json").read_text())
    assert resolved["entrypoint"] == job["spec"]["entrypoint"]
    assert resolved["cluster"] == job["metadata"]["name"]
    assert resolved["devices"]["cluster_has"] == 8
    assert "trainer.total_epochs=2" in resolved["argv"]
    assert json.loads((config / "runtime_env.json").read_text()) == yaml.safe_load(job["spec"]["runtimeEnvYAML"])


def test_the_head_of_a_compose_project_submits_the_same_request(export, elsewhere, sdk, ray, shared):
    for node in ("head", "worker-0"):
        has_packages(shared, node, name_of("My.Job", 63), numpy="2.4.6")
    [project] = documents(export("compose"))
    files = {
        name.replace("_yaml", ".yaml").replace("_json", ".json"): c["content"].replace("$$", "$")
        for name, c in project["configs"].items()
    }
    files["ray_config.yaml"] = files["ray_config.yaml"].replace("http://127.0.0.1:8265", ray.address)
    outcome = elsewhere(files)
    assert (outcome.status, outcome.out) == (0, "My.Job\n"), outcome.err
    [job] = sdk.submitted
    assert job["entrypoint_resources"] == {"worker_node": 1}
    assert job["runtime_env"]["env_vars"]["PYTHONPATH"].startswith(f"{shared.snapshots}/codeA:")


@pytest.mark.parametrize("profile", SITES)
def test_a_compose_project_has_what_our_own_has(export, profile):
    [project] = documents(export("compose", profile=profile))
    ours = yaml.safe_load((EXPECTED / f"compose.{profile}.yaml").read_text())
    assert set(project["services"]) == set(ours["services"]) == {"head", "worker-0", "worker-1"}
    for name, service in ours["services"].items():
        exported = project["services"][name]
        for key in (
            "init",
            "shm_size",
            "volumes",
            "ulimits",
            "cap_add",
            "group_add",
            "security_opt",
            "devices",
            "deploy",
        ):
            assert compared(key, exported.get(key)) == compared(key, service.get(key)), (name, key)
        kept = {key: value for key, value in service["environment"].items() if key not in NOT_GIVEN}
        exported["environment"]["SHARED_ROOT"] = kept["SHARED_ROOT"]
        assert {key: exported["environment"].get(key) for key in kept} == kept


# Knobs of the profile rocm of which the fixture hands over two.
NOT_GIVEN = {
    "GPU_MAX_HW_QUEUES", "TORCH_NCCL_HIGH_PRIORITY", "NCCL_CHECKS_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_CROSS_NIC", "CUDA_DEVICE_MAX_CONNECTIONS",
    "NCCL_PROTO", "RCCL_MSCCL_ENABLE", "TOKENIZERS_PARALLELISM", "HSA_NO_SCRATCH_RECLAIM",
}  # fmt: skip


def compared(key, value):
    if key == "shm_size" and isinstance(value, str) and not value.isdigit():
        return str(int(value[:-2]) * compose_model.UNITS[value[-2:]])
    if key == "volumes":
        return [volume["target"] for volume in value[1:]]  # the first is the shared root
    if key == "devices":
        return [device if isinstance(device, str) else device["source"] for device in value or []]
    return str(value) if key == "shm_size" else value or None


def test_dstack_has_no_name_for_the_vendor_of_npus(export):
    outcome = export("dstack", profile="npu")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == (
        "error   TO=dstack cannot ask for the devices of PROFILE=npu, whose vendor dstack does not know: use TO=compose or TO=kuberay.\n"
    )


@pytest.mark.parametrize("profile", ON_DSTACK)
@pytest.mark.parametrize("workload", ["ppo", "grpo", "sft"])
def test_the_dstack_task_has_a_node_more_than_workers(export, profile, workload):
    [task] = documents(export("dstack", profile=profile, spec=f"workload: {workload}\n"))
    assert (task["type"], task["nodes"], task["stop_criteria"]) == ("task", 3, "master-done")
    assert re.fullmatch("[a-z][a-z0-9-]{1,40}", task["name"])
    assert task["volumes"][0].startswith("/private:")
    vendor = {"gpu": "nvidia", "rocm": "amd"}.get(profile)
    assert task["resources"].get("gpu") == (vendor and {"vendor": vendor, "count": 4})


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("secrets", ["", SECRETS])
@pytest.mark.parametrize("profile", ON_DSTACK)
def test_the_scripts_are_bash_that_shellcheck_accepts(export, tmp_path, to, secrets, profile):
    found = scripts(to, export(to, profile=profile, spec=SPEC + secrets))
    assert found or (to == "kuberay" and not secrets)
    shellcheck = shutil.which("shellcheck", path=f"{REPO}/.venv/bin")
    for script in found:
        file = write(tmp_path / "script", script)
        subprocess.run(["bash", "-n", str(file)], check=True)
        checked = subprocess.run([shellcheck, "--shell=bash", str(file)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout


# promise: writes a secret into a file of the job, a log, an argument, an export or Ray
@pytest.mark.parametrize("to", FORMATS)
def test_secrets_are_named_and_nothing_else(export, to, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-value-0123456789")
    outcome = export(to, spec=SPEC + SECRETS)
    assert outcome.status == 0, outcome.err
    assert "WANDB_API_KEY" in outcome.out
    assert "wandb-value" not in outcome.out
    assert "- The job's secrets" in outcome.out or "WANDB_API_KEY=…" in outcome.out


def test_secrets_reach_the_file_from_which_the_job_reads_them(export, elsewhere, shared):
    outcome = export("kuberay", spec=SPEC + SECRETS)
    request, job = documents(outcome)
    [script] = scripts("kuberay", outcome)
    [init] = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["initContainers"]
    assert {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": f"{job['metadata']['name']}-secrets", "key": "HF_TOKEN"}},
    } in init["env"]
    values = {"WANDB_API_KEY": "with spaces 'and' \"quotes\" $HOME", "HF_TOKEN": "hf-0123456789"}
    sent = subprocess.run(
        ["bash", "-c", script, "cat"], env={"PATH": os.environ["PATH"], **values}, check=True, capture_output=True
    ).stdout
    assert elsewhere(request["data"], "--reserve=8").is_refusal(
        "The values of the secrets in my/ppo.yaml did not come on stdin: submit with 'make submit'."
    )
    assert elsewhere(request["data"], "--reserve=8", "--secrets", stdin=sent).status == 0
    [file] = (shared.secrets / job["metadata"]["name"]).iterdir()
    assert json.loads(file.read_text()) == values
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("to", FORMATS)
def test_documents_arrive_byte_for_byte(export, tmp_path, to):
    spec = "workload: ppo\nenv_vars: {A: '$HOME `id` \\ ü', B: \"END\\nEND\"}  # $(id) ${X}\nEND_: x\n".replace(
        "END_: x\n", "#\nEND\n# \n".replace("END\n", "")
    )
    outcome = export(to, spec=spec)
    if to == "kuberay":
        got = documents(outcome)[0]["data"]["job_spec.yaml"]
    elif to == "compose":
        got = documents(outcome)[0]["configs"]["job_spec_yaml"]["content"].replace("$$", "$")
    else:
        [script] = scripts(to, outcome)
        lines = script.splitlines()
        begin = next(at for at, line in enumerate(lines) if line.startswith("mkdir -p /tmp/etc"))
        end = next(at for at, line in enumerate(lines) if line.startswith("set -euo pipefail") and at > begin)
        body = "\n".join(lines[begin:end]).replace("/tmp/etc", f"{tmp_path}/etc")
        subprocess.run(["bash", "-c", body], check=True)
        got = (tmp_path / "etc" / "verl-regress" / "job_spec.yaml").read_text()
    assert got == spec


@pytest.mark.parametrize("to", FORMATS)
def test_the_header_says_how_it_was_made_and_what_is_lost(export, shared, to):
    header = [line for line in export(to).out.splitlines() if line.startswith("#")]
    assert header[1] == f"#   make export TO={to} SUBMISSION_ID=My.Job"
    assert header[0].startswith("# ppo with snapshot codeA (verl 0.7.1), profile cpu, as a ")
    for section in ("# Run it:", "# Before that:", "# Not carried over:"):
        assert section in header
    assert f"#     {shared.snapshots}/codeA" in header
    assert f"#     {shared.models}/tiny" in header
    assert "# - A second run: My.Job gets its directory once. Export again to run it again." in header


@pytest.mark.parametrize(
    ("given", "most", "name"),
    [
        ("ppo-codeA-20261122T144612Z-a54f", 47, "ppo-codea-20261122t144612z-a54f"),
        ("My.Job", 47, "my-job-fadc3422"),
        ("my_job", 47, "my-job-1755cc87"),
        ("1st", 47, "job-1st-e01ddf65"),
        ("a" * 100, 47, f"{'a' * 38}-28165978"),
        ("a" * 41, 41, "a" * 41),
    ],
)
def test_the_name_of_a_job_is_one_for_kubernetes(given, most, name):
    made = name_of(given, most)
    assert made == name
    assert len(made) <= most
    assert re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", made)


def test_every_format_is_a_word_of_the_knob():
    lines = (REPO / "env" / "defaults.env").read_text().splitlines()
    words = lines[lines.index("TO=") - 1].removeprefix("#: one of ").removesuffix(" or empty").split()
    assert set(FORMATS) <= set(words)
