"""Gathering evidence from the outside: Ray's API, the files of the jobs, their hashes. Judges nothing."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_regress import jobs, progress
from verl_regress.layout import JobDir, SharedRoot, read_json
from verl_regress.ray_api import RayApi

_WHOLE = 64 << 20  # bytes: a larger file (weights of real models) is told apart by its size and time
_SCORE = "critic/score/mean"
_LOSSES = ("actor/pg_loss", "train/loss")


def digest(directory: Path) -> str:
    """One value for all that is in a directory: every path, and every file's bytes (size and time above 64 MiB)."""
    found = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        found.update(os.fsencode(f"{path.relative_to(directory)}\0"))
        stat = path.stat()
        content = path.read_bytes() if stat.st_size <= _WHOLE else f"{stat.st_size} {stat.st_mtime_ns}".encode()
        found.update(hashlib.sha256(content).digest())
    return found.hexdigest()


def job_digests(root: SharedRoot, names: Iterable[str] | None = None) -> dict[str, str]:
    """The digest of each named job directory, of all of them where none is named; jobs that still run are left out."""
    directories = jobs.newest_first(root) if names is None else [JobDir(root.jobs / name) for name in names]
    over = [
        job for job in directories if job.path.is_dir() and (job.read_state("ended") or not job.read_state("started"))
    ]
    return {job.submission_id: digest(job.first.path) for job in over}


def artefacts(root: SharedRoot) -> dict[str, dict[str, list[Any]]]:
    """Every prepared directory's files: `[mtime in ns, sha256]` by name; what has no manifest is not ours to look at."""
    prepared = [path.parent for home in (root.datasets, root.models) for path in sorted(home.glob("*/manifest.json"))]
    return {
        str(directory): {
            str(path.relative_to(directory)): [path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()]
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        }
        for directory in prepared
    }


def nodes(api: RayApi) -> list[dict[str, Any]]:
    """Ray's ALIVE nodes as plain data."""
    return [
        {"name": node.name, "address": node.address, "is_head": node.is_head, "resources": dict(node.resources)}
        for node in api.nodes()
        if node.alive
    ]


def job(found: JobDir, api: RayApi) -> dict[str, Any]:
    """All that the lines ask of one job that has ended."""
    plan = jobs.plan_of(found)
    steps = progress.steps(progress.joined(found))
    return {
        "submission_id": found.submission_id,
        "job_dir": str(found.path),
        "plan": {key: plan[key] for key in ("workload", "code_id", "code_path", "profile", "overrides")},
        "code": found.read_config("code.json"),
        "ray": _without_environment(api.job(found.ray_id)),
        "state": {name: found.read_state(name) for name in ("submitted", "started", "ended", "observed", "identity")},
        "steps": [step.number for step in steps],
        "total_steps": progress.total_steps(found),
        "scores": [step.metrics.get(_SCORE) for step in steps],
        "losses": [next((step.metrics[name] for name in _LOSSES if name in step.metrics), None) for step in steps],
        "checkpoints": progress.checkpoints(found),
        "prechecks": progress.log_lines(found, "MVP_PRECHECK_"),
        "bundles": [_bundle(path) for path in sorted((found.path / "debug").glob("*/bundle.json"))],
        "entries": sorted(path.name for path in found.path.iterdir()),
        "config": sorted(path.name for path in found.config.iterdir()),
        "digest": digest(found.path),
    }


def token_search(root: SharedRoot, api: RayApi, names: Iterable[str], token: str) -> dict[str, Any]:
    """Where Ray's token stands: every file of the named jobs, and every answer of Ray about them. Never says the token."""
    needle = token.encode()
    files = [path for name in names for path in (root.jobs / name).rglob("*") if path.is_file()]
    answers = {"jobs": api.jobs(), "nodes": nodes(api), **{name: api.actors(name) for name in names}}
    return {
        "token_characters": len(token),
        "files": len(files),
        "answers": len(answers),
        "found_in": [str(path) for path in files if _holds(path, needle)]
        + [
            f"Ray's answer about {name}" for name, answer in answers.items() if token in json.dumps(answer, default=str)
        ],
    }


def _holds(path: Path, needle: bytes) -> bool:
    """Whether a file, however large, has these bytes."""
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(needle) != -1


def _bundle(path: Path) -> dict[str, Any]:
    bundle = read_json(path) or {}
    return {"name": path.parent.name, **{key: bundle.get(key) for key in ("phase", "asked", "files", "errors")}}


def _without_environment(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if details is None else {key: value for key, value in details.items() if key != "runtime_env"}
