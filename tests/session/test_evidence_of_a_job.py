"""Everything that a session records of one job, key by key."""

import hashlib
import json

import pytest
from shared_fixtures import node_row, write, write_checkpoint

from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import checkpoints
from verl_regress.session import evidence
from verl_regress.store.hashes import digest


@pytest.fixture
def job(make_job):
    """A finished job, with something in every place that is recorded."""
    job = make_job(
        started={"node": "worker-0"},
        ended={"exit_code": 0, "reason": "the trainer ended"},
        observed={"status": "SUCCEEDED", "job_id": "02", "runtime_env": {"env_vars": {"A": "b"}}},
        identity={"passed": True, "files_sha256": "abc"},
        inputs={"inputs": [{"path": "/own/train.parquet", "sha256": "abc"}]},
    )
    plan = json.loads((job.config / "resolved.json").read_text())
    plan |= {"code_path": "/code", "overrides": [{"text": "trainer.save_freq=2", "origin": "x"}], "argv": ["python3"]}
    write(job.config / "resolved.json", json.dumps(plan))
    write(job.config / "code.json", '{"tree_sha256": "t"}')
    write(job.config / "packages.json", '{"numpy": "2"}')
    steps = [
        {"step": 1, "data": {"critic/score/mean": 0.25, "actor/pg_loss": 0.5}},
        {"step": 2, "data": {"train/loss": 5.0}},
        {"step": 3, "data": {"other": 1.0}},
    ]
    write(job.metrics, "".join(f"{json.dumps(step)}\n" for step in steps))
    write(job.driver_log, "MVP_PRECHECK_MARKER: codeA\nanother line\nTotal training steps: 3\n")
    write_checkpoint(job, 2)
    write(job.checkpoints / "latest_checkpointed_iteration.txt", "2")
    write(job.debug / "20261124-ended" / "bundle.json", "{}")
    modules = {"verl": {"file": "/code/verl/__init__.py", "sha256": "f" * 64}}
    write(job.reports / "identity-w-7.json", json.dumps({"job_id": "02", "modules": modules}))
    write(job.reports / "identity-w-8.json", '{"job_id": "01", "modules": {}}')
    write(job.samples / "1.jsonl", '{"input": "1+1", "output": "2"}\n')
    return job


def test_a_job_is_recorded_whole(job, ray):
    assert evidence.job(job, RayApi(ray.address)) == {
        "submission_id": "job",
        "job_dir": str(job.path),
        "plan": {
            "workload": "ppo", "code_id": "codeA", "code_path": "/code", "profile": "cpu",
            "overrides": [{"text": "trainer.save_freq=2", "origin": "x"}],
        },
        "code": {"tree_sha256": "t"},
        "packages": {"numpy": "2"},
        "ray": {"time": job.read_state("observed")["time"], "status": "SUCCEEDED", "job_id": "02"},
        "state": {
            name: job.read_state(name) for name in ("submitted", "started", "ended", "observed", "identity")
        },
        "steps": [1, 2, 3],
        "total_steps": 3,
        "checkpoints": ["global_step_2"],
        "weights": checkpoints.weights_hash(job.checkpoints / "global_step_2"),
        "sampled": hashlib.sha256(b'["1", [["1+1", "2"]]]').hexdigest(),
        "sampled_first": hashlib.sha256(b'["1", [["1+1", "2"]]]').hexdigest(),
        "loaded": {"verl/__init__.py": "f" * 16},
        "prechecks": ["MVP_PRECHECK_MARKER: codeA"],
        "digest": digest(job.path),
        "inputs": {"/own/train.parquet": "abc"},
    }  # fmt: skip


def test_ray_itself_is_asked_before_the_record_of_what_it_said(job, ray):
    ray.knows({"submission_id": "job", "status": "RUNNING", "job_id": "02", "runtime_env": {}})
    assert evidence.job(job, RayApi(ray.address))["ray"] == {
        "submission_id": "job",
        "status": "RUNNING",
        "job_id": "02",
    }


def test_only_alive_nodes_are_recorded(ray):
    ray.has_nodes(node_row("head", "10.0.0.1", CPU=0.0), node_row("worker-0", "10.0.0.2", state="DEAD"))
    assert evidence.nodes(RayApi(ray.address)) == [
        {"name": "head", "address": "10.0.0.1", "is_head": True, "resources": {"CPU": 0.0}}
    ]
