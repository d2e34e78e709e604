"""Searches for secrets: in files, in Ray's answers and in what /proc shows of the processes on a node. Never returns a value."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from redaction import forms
from verl_regress.base import processes
from verl_regress.base.errors import RegressError
from verl_regress.base.files import read_json
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.cluster.ray_api import RayApi
from verl_regress.session import evidence

_PIECE = 4 << 20  # bytes of a file in memory

# What no output may contain: what it is, and every form in which it may be written.
Written = Mapping[str, Collection[str]]


def written(secrets: Mapping[str, str | None]) -> dict[str, set[str]]:
    """Every form of each of these values, by what it is; None is left out."""
    return {what: forms(value) for what, value in secrets.items() if value}


def in_outputs(
    root: SharedRoot, api: RayApi, cluster: str, jobs: Iterable[JobDir], secrets: Written
) -> tuple[list[str], str]:
    """Where a secret occurs in the directories of these attempts' jobs, in the cluster's files on the shared root, and in Ray's answers; and
    how much that was. The jobs' own files of secrets are searched too: they are over, so these must be gone.
    """
    attempts = {job.ray_id: job.first.path for job in jobs}
    homes = [*sorted(set(attempts.values())), root.ray_logs(cluster), root.secrets / cluster]
    files = [path for home in homes for path in files_below(home)]
    answers = _answers(api, attempts)
    found = [f"Ray did not answer about {what}" for what, answer in answers.items() if answer is None]
    found += in_files(files, secrets)
    found += [
        f"{secret} is in Ray's answer about {what}"
        for secret, forms_of_it in secrets.items()
        for what, answer in answers.items()
        if any(form in (answer or "") for form in forms_of_it)
    ]
    return found, f"{len(files)} files, {sum(answer is not None for answer in answers.values())} answers of Ray"


def in_processes(secrets: Written) -> tuple[int, set[str]]:
    """How many processes this node has, and where /proc shows a secret: in the command line of any process, or in the environment with which
    a launcher, the trainer that it started, or a process of Ray was started. What the trainer starts inherits its environment.
    """
    commands, own = processes.commands(), processes.table()
    launchers = {pid for pid, row in own.items() if "run.py" in row.command and " launch " in f"{row.command} "}
    started = [
        (pid, entry)
        for pid, row in own.items()
        if pid in launchers or row.parent in launchers or _is_of_ray(row.command)
        for entry in row.environ
    ]
    shown = [
        *(("the command line", pid, command) for pid, command in commands.items()),
        *(("the environment", pid, entry) for pid, entry in started),
    ]
    found = {
        f"{secret} is in {place} of process {pid}"
        for secret, forms_of_it in secrets.items()
        for place, pid, text in shown
        if any(form.encode() in text for form in forms_of_it)
    }
    return len(commands), found


def _is_of_ray(command: str) -> bool:
    """A daemon of Ray, which starts with a path; or a worker, whose title may have overwritten what its environment was."""
    return command.startswith("ray::") or Path(command.partition(" ")[0]).name in ("raylet", "gcs_server")


def reports(found: JobDir, ray: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Every process of this job that reported what it loaded, with the names of the secrets that it has.

    Ray's supervisor reports as an actor of one of Ray's own jobs: it drops the secrets again (py/hooks/job_secrets.py).
    """
    known = {}
    for path in sorted(found.reports.glob("identity-*.json")):
        if (read_json(path) or {}).get("job_id") in (None, (ray or {}).get("job_id")):
            process = path.stem.removeprefix("identity-")
            known[process] = (read_json(found.reports / f"secrets-{process}.json") or {}).get("names", [])
    return known


def _answers(api: RayApi, names: Iterable[str]) -> dict[str, str | None]:
    """Everything Ray tells anyone who asks about these jobs, as text; None if it gave no answer, or no longer knows the job."""
    questions: dict[str, Callable[[], Any]] = {
        "all jobs": api.jobs,
        "the nodes": partial(evidence.nodes, api),
        "the runtime_envs": partial(api.ask, "/api/v0/runtime_envs?limit=1000&detail=1"),
    }
    for name in names:
        questions[f"the job {name}"] = partial(api.job, name)
        questions[f"the actors of {name}"] = partial(api.actors, name)
        questions[f"the log of {name}"] = partial(api.ask, f"/api/jobs/{name}/logs")
    answers: dict[str, str | None] = {}
    for what, ask in questions.items():
        try:
            answer = ask()
        except RegressError:
            answer = None
        answers[what] = None if answer is None else json.dumps(answer, ensure_ascii=False)
    return answers


def files_below(home: Path) -> list[Path]:
    """The files below a directory. Those we cannot read belong to other users, who cannot read a job's secrets either."""
    paths = [Path(directory, name) for directory, _, names in os.walk(home) for name in names]
    return [path for path in paths if path.is_file() and os.access(path, os.R_OK)]


def in_files(files: Iterable[Path], secrets: Written) -> list[str]:
    """Where a secret occurs in these files."""
    found = []
    for path in files:
        for secret, forms_of_it in secrets.items():
            with suppress(FileNotFoundError):  # files of a running Ray
                if _holds(path, [form.encode() for form in forms_of_it]):
                    found.append(f"{secret} is in {path}")
    return found


def _holds(path: Path, needles: Iterable[bytes]) -> bool:
    """Whether a file of any size contains one of these; reads it once, in pieces."""
    needles = list(needles)
    overlap = max(map(len, needles), default=1) - 1  # one may lie across two pieces
    end = b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            text = end + piece
            if any(needle in text for needle in needles):
                return True
            end = text[-overlap:] if overlap else b""
    return False
