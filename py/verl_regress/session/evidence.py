"""Gathers evidence from outside: Ray's API, the files of the jobs, their hashes. Judges nothing."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl_regress.base.files import read_json
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster.ray_api import RayApi
from verl_regress.jobs import checkpoints, find, progress, recorded_run
from verl_regress.store.hashes import digest


def job_digests(root: SharedRoot, names: Iterable[str]) -> dict[str, str]:
    """The digest of each of these job directories that is there, without further attempts."""
    jobs = [JobDir(root.jobs / name) for name in names]
    return {job.submission_id: digest(job.first.path) for job in jobs if job.path.is_dir()}


def loaded(found: JobDir, code_path: Path) -> dict[str, str]:
    """The files of the snapshot that any process of the job loaded, with the first digits of their sha256 (py/hooks/identity.py)."""
    reports = [read_json(path) or {} for path in sorted(found.reports.glob("identity-*.json"))]
    modules = [module for report in reports for module in report.get("modules", {}).values() if module["file"]]
    return {
        str(Path(module["file"]).relative_to(code_path)): str(module["sha256"])[:16]
        for module in modules
        if Path(module["file"]).is_relative_to(code_path)
    }


def artefact_hashes(found: JobDir) -> dict[str, str]:
    """What a job read, by content, as facts of the judge: hashes of its inputs, and of what we add to its processes.

    Inputs of one fact that are not all known, such as a model that is still to be fetched, have none.
    """
    contents: dict[str, set[str | None]] = {}
    for each in (found.read_state("inputs") or {}).get("inputs", ()):
        if each["fact"]:
            contents.setdefault(each["fact"], set()).add(each["sha256"])
    hashes = {
        fact: hashlib.sha256(json.dumps(sorted(map(str, content))).encode()).hexdigest()[:12]
        for fact, content in contents.items()
        if None not in content
    }
    return {"hooks sha256": _hooks_hash(found), **hashes}


def _hooks_hash(found: JobDir) -> str:
    """One hash over the Python files of ours that a job's processes import: hooks, and in a rehearsal the rollout."""
    variables = (found.read_config("runtime_env.json") or {}).get("env_vars", {})
    entries = variables.get("PYTHONPATH", "").split(":")
    text = "".join(
        f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for folder in (Path(entry) for entry in entries if "/verl_regress/" in entry)
        for path in sorted(folder.rglob("*.py"))
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def nodes(api: RayApi) -> list[dict[str, Any]]:
    """Ray's ALIVE nodes as plain data."""
    return [
        {"name": node.name, "address": node.address, "is_head": node.is_head, "resources": dict(node.resources)}
        for node in api.nodes()
        if node.alive
    ]


def job(found: JobDir, api: RayApi) -> dict[str, Any]:
    """Everything that the checks need of one finished job."""
    plan = find.plan_of(found)
    newest = checkpoints.newest(found)
    ray = api.job(found.ray_id) or found.read_state("observed")  # Ray forgets its jobs when the head is made again
    return {
        "submission_id": found.submission_id,
        "job_dir": str(found.path),
        "plan": {key: plan[key] for key in ("workload", "code_id", "code_path", "profile", "overrides")},
        "code": found.read_config("code.json"),
        "packages": found.read_config("packages.json"),
        "ray": ray and {key: value for key, value in ray.items() if key != "runtime_env"},
        "state": {name: found.read_state(name) for name in ("submitted", "started", "ended", "observed", "identity")},
        "steps": [step.number for step in progress.training(progress.joined(found))],
        "total_steps": progress.total_steps(found),
        "checkpoints": checkpoints.names(found),
        "weights": newest and checkpoints.weights_hash(newest),
        "sampled": recorded_run.sampled(found.path),
        "sampled_first": recorded_run.sampled(found.path, {"1"}),
        "loaded": loaded(found, Path(plan["code_path"])),
        "prechecks": progress.log_lines(found, "MVP_PRECHECK_"),
        "digest": digest(found.path),
        "inputs": find.inputs_of(found),
    }
