"""Whole profiles, compared with handwritten files in tests/expected/: there is no GPU here to try them on."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import compose_model
import pytest
import yaml
from shared_fixtures import write

from verl_regress.base import documents, layout
from verl_regress.base.errors import BadInput, Refusals
from verl_regress.base.jobspec import BaseConfig, JobSpec
from verl_regress.base.owner import Owner
from verl_regress.base.workloads import WORKLOADS
from verl_regress.plan import plan
from verl_regress.plan.compose import Composed
from verl_regress.plan.devices import Devices
from verl_regress.plan.overrides import Override, merge, of_profile, of_shape
from verl_regress.plan.request import CommandLine, Defaults, Request

pytestmark = pytest.mark.slow

REPO = Path(__file__).parents[2]
EXPECTED = REPO / "tests" / "expected"
# What a profile leaves to the machine or to a build.
GIVEN = {"WORKDIR": "/srv/workdir", "RUN_AS": "1000:1000"}
# As if /srv/workdir existed, and were alice's.
OWNER = "OWNER_ID=0123456789abcdef; stat() { echo alice; }"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that the scripts read, without env/local.env, and a `docker` that only records its call of Compose."""
    root = tmp_path / "checkout"
    for name in ("scripts", "env", "py", "judge", "rehearsal", "jobspecs"):
        shutil.copytree(REPO / name, root / name, ignore=shutil.ignore_patterns("local.env", "__pycache__"))
    for file in REPO.glob("docker-compose*.yaml"):
        shutil.copy(file, root)
    docker = write(
        tmp_path / "bin" / "docker",
        f'#!/bin/sh\n[ "$1" = compose ] || exit 0\nprintf "%s\\0" "$@" >"{tmp_path}/argv"; cat >"{tmp_path}/stdin"; env -0 >"{tmp_path}/environment"\n',
    )
    docker.chmod(0o755)
    return root


def run_in(checkout, lines, **knobs):
    """The output of these lines of Bash after loading the knobs, in an empty environment."""
    return subprocess.run(
        ["bash", "-c", f"source scripts/lib/regress.bash; cli::begin; env::load; {lines}"],
        cwd=checkout,
        env={"PATH": f"{checkout.parent}/bin:{os.environ['PATH']}", **knobs},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def composed(checkout, **knobs):
    """The project that `docker compose` gets with these knobs."""
    run_in(checkout, f"{OWNER}; compose::run this up", **GIVEN, **knobs)
    argv, environment = ((checkout.parent / name).read_text().split("\0")[:-1] for name in ("argv", "environment"))
    assert argv[:3] == ["compose", "--project-directory", str(checkout)]
    assert argv[-1] == "up"
    files = argv[3:-1]
    assert set(files[::2]) == {"--file"}
    texts = [(checkout.parent / "stdin" if name == "-" else Path(name)).read_text() for name in files[1::2]]
    return compose_model.config(checkout, texts, dict(line.split("=", 1) for line in environment))


def expected(name):
    return yaml.safe_load((EXPECTED / f"{name}.yaml").read_text())


# promise: turns Ray's debugger on for a job that did not ask for it
@pytest.mark.parametrize(
    ("profile", "knobs"),
    [("cpu", {"NODE_IMAGE": "node:1"}), ("gpu", {"NODE_IMAGE": "node:1"}), ("rocm", {}), ("npu", {})],
)
def test_the_whole_project_is_the_expected_one(checkout, profile, knobs):
    assert composed(checkout, PROFILE=profile, **knobs) == expected(f"compose.{profile}")


def gpus_of(project, profile):
    """The GPU ids of every service, as that profile's engine or runtime reads them; an empty list for none."""
    ids = {}
    for name, service in project["services"].items():
        if profile == "gpu":
            reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
            ids[name] = [number for device in reserved for number in device["device_ids"]]
        elif profile == "npu":
            files = [device["source"] for device in service.get("devices", [])]
            ids[name] = [file.removeprefix("/dev/davinci") for file in files if file[-1].isdecimal()]
            counted = ",".join(map(str, range(len(ids[name])))) or None
            assert service["environment"].get("ASCEND_RT_VISIBLE_DEVICES") == counted
        else:
            lists = {service["environment"].get(f"{kind}_VISIBLE_DEVICES") for kind in ("HIP", "ROCR", "CUDA")}
            assert len(lists) == 1
            ids[name] = [number for numbers in lists if numbers for number in numbers.split(",")]
    return ids


@pytest.mark.parametrize("profile", ["gpu", "rocm", "npu"])
@pytest.mark.parametrize(
    ("workers", "each", "ids"),
    [
        ("1", "8", {"worker-0": "01234567"}),
        ("3", "2", {"worker-0": "01", "worker-1": "23", "worker-2": "45"}),
        ("2", "1", {"worker-0": "0", "worker-1": "1"}),
    ],
)
def test_each_gpu_is_assigned_once_and_never_to_the_head(checkout, profile, workers, each, ids):
    project = composed(checkout, PROFILE=profile, WORKERS=workers, GPUS_PER_WORKER=each)
    assert gpus_of(project, profile) == {"head": [], **{name: list(numbers) for name, numbers in ids.items()}}


def test_gpus_that_the_user_chose_are_assigned_in_that_order(checkout):
    project = composed(checkout, PROFILE="gpu", NODE_IMAGE="node:1", GPUS_PER_WORKER="2", GPU_IDS="7,3,0,5")
    assert gpus_of(project, "gpu") == {"head": [], "worker-0": ["7", "3"], "worker-1": ["0", "5"]}


def test_what_local_env_exports_wins_over_the_profile_and_reaches_only_the_workers(checkout):
    (checkout / "env" / "local.env").write_text("export NCCL_IB_HCA==mlx5_0:1\n")
    services = composed(checkout, PROFILE="gpu", NCCL_DEBUG="info")["services"]
    assert services["worker-1"]["environment"]["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert "NCCL_DEBUG" not in services["worker-1"]["environment"]
    assert "NCCL_IB_HCA" not in services["head"]["environment"]


def test_devices_of_the_workers_are_a_knob_of_every_profile(checkout):
    services = composed(checkout, PROFILE="gpu", WORKER_DEVICES="/dev/infiniband")["services"]
    device = {"source": "/dev/infiniband", "target": "/dev/infiniband", "permissions": "rwm"}
    assert [services[name].get("devices") for name in ("head", "worker-0", "worker-1")] == [None, [device], [device]]


@pytest.fixture
def prepared(shared):
    """The shared root after `make prepare snapshot` under a GPU profile."""
    write(shared.models / "Qwen2.5-0.5B-Instruct" / "config.json", "{}")
    for split in ("train", "test"):
        write(shared.datasets / "gsm8k" / f"{split}.parquet", "rows")
    return shared


def as_said(_path, _code, _module, overrides, _wrong):
    """The overrides unchanged, and the devices that they ask for."""
    said = dict(override.text.split("=", 1) for override in overrides)
    values = {key: int(value) if value.isdecimal() else value for key, value in said.items()}
    composed = Composed(tuple(overrides), (), "")
    composed.__dict__["devices"] = Devices.from_config(values.get)
    return composed


@pytest.mark.parametrize("profile", ["gpu", "rocm"])
def test_the_whole_submission_is_the_expected_one(checkout, prepared, monkeypatch, profile):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    # Real snapshots, and composing against them, are in the container tests.
    monkeypatch.setattr(plan, "compose", as_said)
    monkeypatch.setattr(plan, "trusted", lambda: ["0", "1000"])
    printed = run_in(
        checkout,
        'printf "%s\\n" "$RAY_BASE_CONFIG" "$PROFILE" "$MODEL" "$DATASET" "$CODE_ID" "$CLUSTER_NAME" "$WORKERS" "$GPUS_PER_WORKER"',
        PROFILE=profile,
    )
    base, *defaults, workers, each = printed.splitlines()
    request = Request(
        JobSpec.from_document(
            documents.parse((REPO / "jobspecs/ppo.yaml").read_text(), "jobspecs/ppo.yaml", "jobspec")
        ),
        BaseConfig.from_document(documents.parse((REPO / base).read_text(), base, "base_config")),
        CommandLine(submission_id="expected"),
        Defaults(*defaults, workers=int(workers), gpus_per_worker=int(each)),
        owner=Owner("alice", "0123456789abcdef", "/srv/workdir"),
    )
    planned = plan.make(prepared, request)
    text = json.dumps({"resolved": planned.resolved(), "runtime_env": planned.environment.runtime_env()})
    text = text.replace(str(prepared.path), "/private").replace(str(layout.HELPER_DIR), "/helper")
    assert json.loads(text) == expected(f"plan.ppo.{profile}")


@pytest.mark.parametrize("workload", ["ppo", "grpo", "sft"])
@pytest.mark.parametrize(("workers", "each"), [(1, 1), (1, 8), (2, 4), (4, 8)])
@pytest.mark.parametrize(("base", "ranks"), [("dev", "gpus"), ("prod", "gpus"), ("npu", "gpus"), ("cpu", "workers")])
def test_each_shape_of_a_cluster_divides_the_batches(workload, workers, each, base, ranks):
    document = documents.parse((REPO / f"env/ray/{base}.yaml").read_text(), base, "base_config")
    merged = merge(*of_profile(WORKLOADS[workload], document.content["trainer_overrides"], base), wrong=Refusals())
    said = dict(of_shape(override.text, workers, each).lstrip("+").split("=", 1) for override in merged)

    def number(key, otherwise=None):
        return int(said.get(key, otherwise))

    count = number("trainer.nnodes") * number("trainer.n_gpus_per_node")
    assert (number("trainer.nnodes"), count) == (workers, workers * each if ranks == "gpus" else workers)
    if workload == "sft":  # each rank's part of the batch, in micro-batches
        assert number("data.train_batch_size") % (count * number("data.micro_batch_size_per_gpu")) == 0
        return
    # What verl 0.7.1 to 0.9.1 assert (validate_config, train_mini_batch, prepare_micro_batches).
    answers = number("actor_rollout_ref.rollout.n", 1)
    mini = number("actor_rollout_ref.actor.ppo_mini_batch_size")
    assert number("data.train_batch_size") % mini == 0
    for part in ("actor_rollout_ref.actor", *(["critic"] if workload == "ppo" else [])):
        assert mini * answers % (count * number(f"{part}.ppo_micro_batch_size_per_gpu")) == 0
    for part in ("rollout", "ref"):
        micro = number(f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu")
        assert number("data.train_batch_size") * answers % (count * micro) == 0


@pytest.mark.parametrize(("workers", "each"), [(1, 8), (2, 4)])
@pytest.mark.parametrize("workload", ["ppo", "grpo", "sft"])
def test_a_dry_run_on_npus_asks_for_all_of_them(prepared, monkeypatch, workload, workers, each):
    for split in ("train", "val"):
        write(prepared.datasets / "gsm8k_sft" / f"{split}.parquet", "rows")
    monkeypatch.setattr(plan, "compose", as_said)
    base = documents.parse((REPO / "env/ray/npu.yaml").read_text(), "env/ray/npu.yaml", "base_config")
    request = Request(
        JobSpec.from_document(documents.parse(f"workload: {workload}\n", "it.yaml", "jobspec")),
        BaseConfig.from_document(base),
        CommandLine(submission_id="it"),
        Defaults("npu", "Qwen2.5-0.5B-Instruct", "gsm8k", "codeA", "mvp11", workers=workers, gpus_per_worker=each),
    )
    resolved = plan.make(prepared, request).resolved()
    assert {key: resolved["devices"][key] for key in ("resource", "count")} == {"resource": "NPU", "count": 8}
    shape = {f"trainer.nnodes={workers}", f"trainer.n_gpus_per_node={each}"}
    assert {"trainer.device=npu", *shape} <= set(resolved["argv"])
    assert ("actor_rollout_ref.actor.use_torch_compile=False" in resolved["argv"]) == (workload != "sft")
    changed = replace(request, said=CommandLine(overrides=(Override("trainer.device=cuda", "OVERRIDES"),)))
    with pytest.raises(BadInput, match=r"trainer\.device"):
        plan.make(prepared, changed)


@pytest.mark.parametrize(("profile", "page"), [("gpu", "gpu"), ("rocm", "gpu"), ("npu", "ascend")])
def test_every_image_that_a_profile_names_is_in_the_table_of_images(checkout, profile, page):
    text = (REPO / "env" / f"{profile}.env").read_text()
    named = set(re.findall(r"NODE_IMAGE=(\S+)", text))
    default = run_in(checkout, 'printf %s "$NODE_IMAGE"', PROFILE=profile)
    assert default in named if default else profile == "gpu"
    rows = [line for line in (REPO / f"docs/{page}.md").read_text().splitlines() if line.startswith("| ")]
    assert not [image for image in named if not any(f"`{image}`" in row for row in rows)]
    assert len(named) == 1


@pytest.mark.parametrize("workload", ["ppo", "grpo", "sft"])
def test_a_gpu_run_has_nothing_of_the_rehearsal(workload):
    text = (REPO / "env/ray/dev.yaml").read_text()
    document = documents.parse(text, "env/ray/dev.yaml", "base_config").content
    assert "python_layers" not in document
    assert "VERL_REGRESS_HOOKS" not in document["runtime_env"]["env_vars"]
    overrides = document["trainer_overrides"][workload]
    assert not [text for text in overrides if "cpu" in text or "tiny" in text]
