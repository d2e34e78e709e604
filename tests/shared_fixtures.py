"""Shared fixtures: a prepared shared root, a Ray that gives the test's answers, and a submission."""

import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading
import types

import hermetic
import pytest
import requests
from streams import state_of, tar
from wording import said

from verl_regress import cli
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster import nodes, ray_api, ray_internals
from verl_regress.jobs import debug
from verl_regress.store import snapshot

HOOKS = hermetic.REPO / "py" / "hooks"
SPEC = "workload: ppo\n"
BASE = """\
address: ADDRESS
entrypoint_num_cpus: 1
entrypoint_resources: {worker_node: 1}
python_layers: [rehearsal]
runtime_env: {env_vars: {TORCHDYNAMO_DISABLE: "1"}}
trainer_overrides: {ppo: [trainer.device=cpu, +critic.added=1]}
"""

# A trainer like verl's: its config is next to it, and none of it can be imported here.
TRAINER = """\
import hydra, torch
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config): migrate_legacy_reward_impl(config)
"""
CONFIG = """\
trainer:
  {project_name: x, experiment_name: x, logger: [console], total_epochs: 30, save_freq: -1, default_local_dir: x, device: cuda,
   total_training_steps: null, resume_mode: auto, resume_from_path: null, del_local_ckpt_after_load: false}
algorithm: {adv_estimator: gae, kl: {coef: 0.001}}
data: {train_files: x, val_files: x, train_batch_size: 1024}
actor_rollout_ref: {model: {path: x}}
critic: {model: {path: x, tokenizer: "${actor_rollout_ref.model.path}"}, optim: {lr: 1e-5}}
"""
REWARD_CONFIG = "reward: {custom_reward_function: {path: null, name: compute_score}}\n"
SFT_CONFIG = """\
trainer: {project_name: x, experiment_name: x, logger: [console], total_epochs: 4, save_freq: -1, default_local_dir: x}
data: {train_files: x, val_files: null}
model: {path: x}
"""


def pytest_configure(config):
    config.pluginmanager.register(hermetic)


def pytest_collection_modifyitems(items):
    """The longest tests begin first."""
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


@pytest.fixture(autouse=True)
def no_ray(monkeypatch, unused_address, tmp_path):
    """No Ray where the helper looks for it on a node: nothing answers, and there are no logs. The fixture `ray` adds one."""
    monkeypatch.setattr(nodes, "ADDRESS", unused_address)
    monkeypatch.setattr(debug, "_LOCAL_LOGS", tmp_path / "no-ray-logs")
    monkeypatch.setattr(ray_internals, "ALL_LOGS", tmp_path / "no-ray-logs")


@pytest.fixture
def shared(tmp_path):
    """A shared root with the snapshots codeA and codeB, the data set `sums` and the model `tiny`."""
    root = SharedRoot(tmp_path / "shared")
    root.ensure()
    for code_id in ("codeA", "codeB"):
        write(root.snapshots / code_id / "mvp_marker.py", f'MARKER = "{code_id}"\n')
        write(root.snapshots / code_id / "verl" / "__init__.py", "")
        write(root.snapshots / code_id / "verl" / "trainer" / "main_ppo.py", TRAINER)
        write(root.snapshots / code_id / "verl" / "trainer" / "config" / "ppo_trainer.yaml", CONFIG)
        record(root.snapshots / code_id)
    for name in ("sums/train", "sums/test", "sums_sft/train", "sums_sft/val"):
        write(root.datasets / f"{name}.parquet", "rows")
    write(root.models / "tiny" / "config.json", "{}")
    write(root.models / "tiny" / "pytorch_model.bin", "weights")
    for node in ("head", "worker-0", "worker-1", "worker-2"):
        has_packages(root, node, numpy="2.4.6")
    return root


def has_packages(root, node, cluster="c", start=None, python="3.11.7", **versions):
    """The list that a node writes when its Ray is started."""
    names = {name.replace("_", "-"): version for name, version in versions.items()}
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python, "sys_platform": "linux"}
    listed = {"start": start, "python": python, "environment": environment, "packages": names}
    return write(root.ray_logs(cluster) / f"{node}.packages.json", json.dumps(listed))


def record(snapshot_dir):
    """Write the snapshot's record for the current tree: call it after changing a snapshot."""
    text = json.dumps(
        {
            "code_id": snapshot_dir.name, "verl_version": "0.7.1", "source": "pypi:0.7.1", "revision": "0.7.1",
            "dirty": False, "tree_sha256": snapshot.tree_of(snapshot_dir)[0],
            "requirements": {"requires": ["numpy"]},
        }
    )  # fmt: skip
    write(snapshot_dir / snapshot.RECORD_FILE, text)
    return text


def environment(*path, hooks="", job_dir="", **variables):
    """Of a process of a job, with this PYTHONPATH and these hooks."""
    job = {"VERL_REGRESS_HOOKS": hooks, "VERL_REGRESS_JOB_DIR": str(job_dir)}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **job, **variables}


def python(*argv, **more):
    """A Python that has ended, and what it printed."""
    return subprocess.run(
        [sys.executable, *map(str, argv)], capture_output=True, text=True, timeout=60, check=False, **more
    )


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def make_job(shared):
    """Makes a job directory as a submission leaves it; `state` is given by name."""

    def make(name="job", **state):
        job = JobDir(shared.jobs / name)
        for directory in (job.config, job.driver_log.parent, job.checkpoints, job.debug, job.state):
            directory.mkdir(parents=True)
        resolved = {
            "submission_id": name, "workload": "ppo", "code_id": "codeA", "profile": "cpu", "address": "http://ray:1",
            "entrypoint_num_cpus": 1, "entrypoint_resources": {"worker_node": 1},
        }  # fmt: skip
        write(job.config / "resolved.json", json.dumps(resolved))
        for key, content in {"submitted": {"accepted": True}, **state}.items():
            if content is not None:
                job.write_state(key, content)
        return job

    return make


def write_checkpoint(job, step, parts="actor critic data.pt", latest=None):
    """`global_step_N` as verl's FSDP writes it on two ranks: `parts` are directories, and files that end in .pt."""
    checkpoint = job.checkpoints / f"global_step_{step}"
    checkpoint.mkdir(parents=True)
    for part in parts.split():
        home = checkpoint if part.endswith(".pt") else checkpoint / part
        for kind in ("model", "optim", "extra_state"):
            for rank in (0, 1) if home != checkpoint or part.startswith("data_") else ():
                write(home / f"{kind}_world_size_2_rank_{rank}.pt", "weights")
        if part.endswith(".pt"):
            write(checkpoint / part, "rows")
    if latest is not None:
        write(job.checkpoints / "latest_checkpointed_iteration.txt", str(latest))
    return checkpoint


class FakeRay:
    """Answers by path: (status, body); a body that is not bytes is sent as JSON. Records who asked for what."""

    def __init__(self):
        self.answers = {"/api/version": (200, {"ray_version": "2.60.0"}), "/api/jobs/": (200, [])}
        self.seen, self.redirects = [], {}
        self.has_nodes(node_row("head", "10.0.0.1"), node_row("worker-0", "10.0.0.2", CPU=64.0, GPU=8.0, cpu=8.0))
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer()

            def do_POST(self):
                self.answer()

            def answer(self):
                fake.seen.append((self.path, dict(self.headers)))
                status, body = fake.answers.get(self.path, (404, b"does not exist"))
                body = body() if callable(body) else body
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                if status is None:  # not even HTTP
                    self.wfile.write(body)
                    return
                self.send_response(status)
                if self.path in fake.redirects:
                    self.send_header("Location", fake.redirects[self.path])
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that hung up in the middle
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def knows(self, *jobs):
        self.answers["/api/jobs/"] = (200, list(jobs))
        for job in jobs:
            self.answers[f"/api/jobs/{job['submission_id']}"] = (200, job)

    def has_nodes(self, *rows):
        self.answers["/api/v0/nodes?limit=1000&detail=1"] = (200, {"data": {"result": {"result": list(rows)}}})
        ports = [{"nodeId": row["node_id"], "nodeManagerPort": row["port"]} for row in rows if "port" in row]
        self.answers["/nodes?view=summary&nocache=1"] = (
            200,
            {"data": {"summary": [{"raylet": {**port, "state": "ALIVE"}} for port in ports]}},
        )

    def goes_away(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def ray(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeRay()
    monkeypatch.setattr(nodes, "ADDRESS", fake.address)
    monkeypatch.setattr(ray_api, "HEAD", fake.address)
    yield fake
    fake.goes_away()


def node_row(name, address, state="ALIVE", **resources):
    return {
        "node_name": name, "node_id": f"id-{name}-{address}", "node_ip": address, "state": state, "is_head_node": name == "head",
        "resources_total": resources, "labels": {},
    }  # fmt: skip


@pytest.fixture
def sdk(monkeypatch):
    """Ray's Python SDK: `submitted` is what it received, `on_submit` what it does then, with the `client` that received it."""
    for name in ("no_proxy", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.setenv(name, "as it was")
    fake = types.SimpleNamespace(addresses=[], submitted=[], on_submit=lambda **_: None)

    class JobSubmissionClient:
        def __init__(self, address):
            fake.addresses.append(address)
            fake.client = self

        def _do_request(self, method, endpoint, **options):
            """Ray's own (2.60), without the token."""
            return requests.request(method, fake.addresses[-1] + endpoint, **options)

        def submit_job(self, **job):
            fake.submitted.append(job)
            fake.on_submit(**job)

    module = types.ModuleType("ray.job_submission")
    module.JobSubmissionClient = JobSubmissionClient
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    return fake


class Outcome:
    """How a command ended."""

    def __init__(self, status, captured, created):
        self.status, self.out, self.err, self.created = status, captured.out, captured.err, created

    def is_refusal(self, sentence, status=2):
        """Is it one sentence (of which wording.THEIRS is not ours), that status, nothing on stdout, and nothing created or changed?"""
        assert (self.status, self.err, self.out) == (status, said(f"error   {sentence}\n"), "")
        assert self.created == []
        return True


OF_PROFILE = {
    "PROFILE": "cpu",
    "CLUSTER_NAME": "c",
    "RAY_BASE_CONFIG": "env/ray/cpu.yaml",
    "WORKERS": "1",
    "GPUS_PER_WORKER": "1",
}
_KNOB = re.compile(r"[A-Z][A-Z_]*=")


def knobs(*typed, **known):
    """The word with the knobs, as scripts/lib/knob.bash writes it: NAME=VALUE that was typed, and known ones from a profile."""
    values = {name: [value, "env/cpu.env"] for name, value in known.items()}
    values |= {
        name: [value, "the command line or environment"] for name, _, value in (word.partition("=") for word in typed)
    }
    return f"--knobs={json.dumps(values, ensure_ascii=False)}"


@pytest.fixture
def run(shared, capsys):
    """Runs a subcommand of the helper in this process, as the scripts call it; words NAME=VALUE are knobs that were typed."""

    def run(*args):
        typed = [word for word in args if _KNOB.match(str(word))]
        if typed or not {"resume", "retry"}.isdisjoint(args):
            args = (*(word for word in args if word not in typed), knobs(*typed))
        before = state_of(shared.path)
        capsys.readouterr()
        status = cli.main(["--shared-root", str(shared.path), *map(str, args)])
        after = state_of(shared.path)
        changed = [name for name in after if before.get(name) != after[name] and name != "jobs/.lock"]
        return Outcome(status, capsys.readouterr(), changed)

    return run


@pytest.fixture
def submit(run, ray, sdk, shared, monkeypatch):
    """Submits a JobSpec as scripts/lib/job.bash does."""

    def submit(
        *args,
        spec=SPEC,
        base=BASE,
        overrides=None,
        spec_name="my/ppo.yaml",
        dataset="sums",
        model="tiny",
        code_id="codeA",
        owner=(),
    ):
        spec = spec.encode() if isinstance(spec, str) else spec
        members = {"job_spec": spec, "ray_config": base.replace("ADDRESS", ray.address).encode()}
        stream = tar(members if overrides is None else {**members, "overrides": overrides})
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(stream)))
        if "CLUSTER_NAME=mine" in args:
            for node in ("head", "worker-0"):
                has_packages(shared, node, "mine", numpy="2.4.6")
        typed = [word for word in args if _KNOB.match(word)]
        more = {"MODEL": model, "DATASET": dataset, "CODE_ID": code_id, "JOBSPEC": spec_name, **OF_PROFILE}
        words = [word for word in args if word not in typed]
        return run(*owner, "submit", f"--spec-name={spec_name}", knobs(*typed, **more), *words)

    return submit
