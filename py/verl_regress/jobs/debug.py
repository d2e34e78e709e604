"""Debug bundles: Ray's answers and the state of the nodes at one moment of a job, as `debug/<UTC time>-<phase>/`.

All sources are asked at once, with one deadline for the whole bundle. One that fails is noted in its own file.
"""

import argparse
import json
import os
import re
import shutil
import socket
import tarfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from redaction import Redactor
from verl_regress import __version__
from verl_regress.base import say, trust
from verl_regress.base.files import as_json, end_of, read_text
from verl_regress.base.layout import JobDir
from verl_regress.cluster import nodes, ray_internals
from verl_regress.cluster.ray_api import RayApi, seen_from_here, token
from verl_regress.jobs import find
from verl_regress.secrets import secret_files

_DEADLINE = 5.0  # seconds for a whole bundle
_TAIL_LINES = 200
_TAIL_BYTES = 65536  # of one log; twice as much is read, so that a secret across the cut is found
_LOG_FILES = 60
_LOCAL_LOGS = ray_internals.LOGS
_EVERY_NODE = ("raylet.out", "raylet.err")  # these say which process was killed for memory
# Other people's jobs are in these answers too, and env_vars is where they keep what they should not.
_LEFT_OUT = ("runtime_env", "serialized_runtime_env", "runtime_env_info")

_STACKS_PATIENCE = 2.5  # seconds: each process looks every second (py/hooks/process_memory.py)
_LOOK_EVERY = 0.1
# What the functions of verl 0.7.1 to 0.9.1 and of reward functions are called. The first that any process is in counts: who generates
# may wait for a score.
_DOING = (
    ("scoring", re.compile(r"compute_(?:score|reward)\w*")),
    ("saving a checkpoint", re.compile(r"_?save_checkpoint")),
    ("updating", re.compile(r"_?update_(?:actor|critic)|_?compute_(?:\w+_)?(?:log_prob|values)|train_(?:mini_)?batch")),
    ("generating", re.compile(r"generate(?:_sequences)?")),
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`debug JOB [--tar]`."""
    find.add_job(parser)
    parser.add_argument("--tar", action="store_true", help="leave a tar of the job's records, without its checkpoints")


def run(args: argparse.Namespace) -> int:
    """Make a bundle of any job, running or over; its directory (or the tar) is the one line on stdout."""
    job = find.asked_for(args)
    began = time.monotonic()
    bundle = take(job, find.api_of(job).address, "asked", logs=True)
    facts = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    for name, error in facts["errors"].items():
        say.info(f"{name}: {error}")
    say.changed(f"{bundle} ({len(facts['files'])} files, {time.monotonic() - began:.1f} s)")
    print(say.shown(_tar(job, bundle) if args.tar else bundle))
    return 0


def attempt(job: JobDir, address: str, phase: str, *, logs: bool = False) -> Path | None:
    """`take` that never raises: any error is reported in one line."""
    try:
        return take(job, address, phase, logs=logs)
    except Exception as error:
        say.info(f"no debug bundle '{phase}' of {job.ray_id}: {type(error).__name__}: {error}")
        return None


def take(job: JobDir, address: str, phase: str, *, logs: bool = False) -> Path:
    """Ask all sources; with `logs` also for the tails of the job's logs, and the stacks of its processes while it runs. Returns the bundle.

    `address` is the dashboard as the head sees it. Raises OSError if the job directory cannot be written, and BadInput if another user can
    change it, who could read what we write.
    """
    whom, ask = [*trust.trusted(), *trust.of_job()], f"ask that user to run 'make debug JOB={job.ray_id}'"
    trust.need(job.first.path, f"JOB={job.ray_id}", f"or {ask}", whom, alone=True)
    began, end = datetime.now(timezone.utc), time.monotonic() + _DEADLINE
    api = RayApi(seen_from_here(address, os.environ), timeout=_DEADLINE - 1)
    # First: they may be removed meanwhile. Neither Ray's token nor a secret should be in any answer, but a log may have one.
    redactor, is_blind = secret_files.redactor(job.root, RAY_TOKEN=token() or ""), secret_files.are_unknown(job)
    files = _ask(_sources(job, api, (*_LEFT_OUT, "death_cause") if is_blind else _LEFT_OUT), end)
    threads = {}
    if logs:
        # The launcher removed the secrets from it.
        driver = {"logs/driver.log": partial(_tail, job.driver_log, redactor)}
        files |= _ask(driver if is_blind else driver | _log_sources(api, files, redactor), end)
        threads = {f"stacks/{name}.txt": text for name, text in _stacks(job).items()}
    errors = {name: answer.error for name, answer in sorted(files.items()) if answer.error is not None}
    if is_blind:
        errors["logs, death_cause" if logs else "death_cause"] = (
            "left out, because the job's secrets are gone and cannot be searched for there: read the nodes' own logs, under "
            f"{_LOCAL_LOGS}."
        )
    summary = {
        "submission_id": job.ray_id,
        "phase": phase,
        "asked": began.isoformat(timespec="milliseconds"),
        "version": __version__,
        "asked_by": {"host": socket.gethostname(), "ray": api.address},
        "seconds": round(time.monotonic() - end + _DEADLINE, 3),
        "files": sorted([*files, *threads]),
        "errors": errors,
    }
    texts = {name: answer.text(name) for name, answer in files.items()}
    while (bundle := job.debug / f"{began:%Y%m%dT%H%M%SZ}-{phase}").exists():
        began += timedelta(seconds=1)
    return _write(bundle, {**texts, **threads, "bundle.json": as_json(summary)}, redactor)


class _Answer(threading.Thread):
    """One source, asked in parallel to the others; one that never answers delays nobody."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.asked = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self.content: Any = None
        self.error: str | None = f"no answer within the {_DEADLINE:.0f} s that a bundle may take"

    def run(self) -> None:
        try:
            self.content = self._ask()
            self.error = None
        except Exception as error:  # any error affects this source alone
            self.error = f"{type(error).__name__}: {error}"

    def text(self, name: str) -> str:
        """The file `name`: JSON, or plain text after a line with the time of the question."""
        if name.endswith(".json"):
            said = {"answer": self.content} if self.error is None else {"error": self.error}
            return as_json({"asked": self.asked, **said})
        return f"# asked {self.asked}\n{self.content if self.error is None else f'# {self.error}'}\n"


def _ask(sources: Mapping[str, Callable[[], Any]], end: float) -> dict[str, _Answer]:
    answers = {name: _Answer(ask) for name, ask in sources.items()}
    for answer in answers.values():
        answer.start()
    for answer in answers.values():
        answer.join(max(0.0, end - time.monotonic()))
    return answers


def _sources(job: JobDir, api: RayApi, left_out: Collection[str]) -> dict[str, Callable[[], Any]]:
    """File name -> question. The paths are from Ray 2.60's dashboard. Answers lack the keys in `left_out`."""
    stripped = partial(_without_keys, left_out)
    states, ids = ("submitted", "started", "ended", "observed"), [each.ray_id for each in job.attempts()]
    return {
        "ray_status.txt": lambda: api.ask(ray_internals.CLUSTER_STATUS)["data"]["clusterStatus"],
        "jobs.json": lambda: [stripped(known) for each in ids if (known := api.job(each)) is not None],
        "job_info.json": lambda: {
            "state": {name: job.read_state(name) for name in states},
            "ray": stripped(api.job(job.ray_id)),
        },
        "nodes.json": lambda: stripped(api.ask("/api/v0/nodes?limit=1000&detail=1")["data"]["result"]),
        "actors.json": lambda: {"result": stripped(api.actors(job.ray_id))},
        "node_facts.json": lambda: _node_facts(api, job),
    }


def _without_keys(keys: Collection[str], content: Any) -> Any:
    """A document without these keys, at any depth."""
    if isinstance(content, list):
        return [_without_keys(keys, item) for item in content]
    if isinstance(content, dict):
        return {key: _without_keys(keys, value) for key, value in content.items() if key not in keys}
    return content


def _node_facts(api: RayApi, job: JobDir) -> dict[str, Any]:
    """What Ray's reporter measured on every node (every 5 s; memory is total, available, percent, used), and the shared storage."""
    measured = ("ip", "hostname", "cpu", "loadAvg", "mem", "shm", "disk", "gpus")
    rows = []
    for row in api.ask(ray_internals.NODES_SUMMARY)["data"]["summary"]:
        raylet = {"name": row["raylet"].get("nodeName"), "state": row["raylet"].get("state")}
        rows.append({**raylet, **{key: row.get(key) for key in measured}})
    return {"nodes": rows, "shared_storage_bytes": shutil.disk_usage(job.path)._asdict()}


def _log_sources(api: RayApi, asked: Mapping[str, _Answer], redactor: Redactor) -> dict[str, Callable[[], Any]]:
    """The tails of the logs of the job's processes and of the raylets on every node.

    Logs on this node are read as files, so they are there after Ray is gone; the others come through Ray's log API.
    """
    job_id = ((asked["job_info.json"].content or {}).get("ray") or {}).get("job_id")
    rows, here = (asked["nodes.json"].content or {}).get("result", []), nodes.own_address()
    others = [node for node in rows if node["state"] == "ALIVE" and node["node_ip"] != here]
    remote = {node["node_name"]: node["node_id"] for node in others}
    own = next((node["node_name"] for node in rows if node["node_ip"] == here), "here")
    lists = _ask({name: partial(_list_logs, api, remote[name], job_id) for name in remote}, time.monotonic() + 1)
    patterns = (*_EVERY_NODE, *([f"worker-*-{job_id}-*"] if job_id else []))
    found = [(own, path.name) for pattern in patterns for path in _LOCAL_LOGS.glob(pattern)]
    found += [(node, name) for node, answer in lists.items() for name in answer.content or ()]
    found.sort(key=lambda log: (not log[1].endswith(".err"), log))  # the most telling first
    return {
        f"logs/{node}/{name}": partial(_remote_tail, api, remote[node], name, redactor)
        if node in remote
        else partial(_tail, _LOCAL_LOGS / name, redactor)
        for node, name in found[:_LOG_FILES]
    }


def _list_logs(api: RayApi, node_id: str, job_id: str | None) -> list[str]:
    query = urllib.parse.urlencode({"node_id": node_id, "glob": f"worker-*-{job_id}-*", "timeout": 2})
    kinds = api.ask(f"/api/v0/logs?{query}")["data"]["result"] if job_id else {}
    return [*_EVERY_NODE, *(name for names in kinds.values() for name in names)]


def _remote_tail(api: RayApi, node_id: str, name: str, redactor: Redactor) -> str:
    query = urllib.parse.urlencode({"node_id": node_id, "filename": name, "lines": 2 * _TAIL_LINES, "timeout": 2})
    return _last_lines(api.ask(f"/api/v0/logs/file?{query}", parse=bytes), redactor)


def _tail(path: Path, redactor: Redactor) -> str:
    return _last_lines(end_of(path, 2 * _TAIL_BYTES), redactor)


def _last_lines(content: bytes, redactor: Redactor) -> str:
    text = redactor.text(content.decode("utf-8", "replace"))
    return "\n".join(text[-_TAIL_BYTES:].splitlines()[-_TAIL_LINES:])


def _stacks(job: JobDir) -> dict[str, str]:
    """What each Python process of a running job answers in time, by `<node>-<pid>`."""
    if job.read_state("ended") is not None or job.read_state("started") is None:
        return {}
    asked = datetime.now(timezone.utc).isoformat()
    (job.state / "stacks_asked").write_text(asked, encoding="ascii")
    end, answers = time.monotonic() + _STACKS_PATIENCE, dict[str, str]()
    processes = {path.stem for path in (job.state / "memory").glob("*.txt")}
    while len(answers) < len(processes) and time.monotonic() < end:
        time.sleep(_LOOK_EVERY)
        answers = {name: text for name, text in _stacks_in(job.state).items() if text.startswith(asked)}
    return answers


def activity(job: JobDir, bundle: Path) -> str | None:
    """What a job does, by its bundle: `scoring in compute_score (user/code/slow.py:7, Worker (process 12) on worker-1)`, or None."""
    plan = job.read_config("resolved.json") or {}
    homes = {f"{job.root.user_code}/": "user/code/", f"{plan.get('code_path')}/": ""}
    frames = [
        (*frame, text.partition("\n")[0].partition(" ")[2])
        for text in _stacks_in(bundle).values()
        for frame in _FRAME.findall(text)
    ]
    for doing, pattern in _DOING:
        for file, line, function, who in frames:
            home = next((home for home in homes if file.startswith(home)), "")
            if pattern.fullmatch(function) or (doing == "scoring" and homes.get(home) == "user/code/"):
                return f"{doing} in {function} ({homes.get(home, '')}{file.removeprefix(home)}:{line}, {who})"
    return None


def _stacks_in(folder: Path) -> dict[str, str]:
    return {path.stem: read_text(path) for path in sorted(folder.glob("stacks/*.txt"))}


def _write(bundle: Path, texts: Mapping[str, str], redactor: Redactor) -> Path:
    """Write the files to a temporary directory, then rename it."""
    unfinished = bundle.with_name(f".{bundle.name}.{os.getpid()}.tmp")
    try:
        for name, text in texts.items():
            path = unfinished / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(redactor.text(text), encoding="utf-8", errors="replace")
        return unfinished.rename(bundle)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _tar(job: JobDir, bundle: Path) -> Path:
    """`debug/<bundle>.tar.gz`: everything the job has recorded except its checkpoints."""
    target = bundle.with_name(f"{bundle.name}.tar.gz")
    unfinished = bundle.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with tarfile.open(unfinished, "w:gz") as archive:
            for path in sorted(
                path for part in ("config", "state", "logs", "debug") for path in (job.path / part).rglob("*")
            ):
                # What is being written (.tmp) would be gone by then.
                if path.is_file() and not path.name.endswith((".tar.gz", ".tmp")):
                    archive.add(path, f"{job.ray_id}/{path.relative_to(job.path)}")
        return unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
