"""Did every process of a job run the requested code? Compares the reports of py/hooks/identity.py with the snapshot."""

import functools
import hashlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from node_memory import node_name
from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir
from verl_regress.cluster import ray_internals
from verl_regress.store import artefact, snapshot

_PATIENCE = 60.0  # seconds that an unreachable head gets: a short outage must not cost hours of training


def check(job: JobDir, plan: Mapping[str, Any], driver_pid: int) -> None:
    """Compare what every process reported with the snapshot, and the processes with Ray's list of the job's actors; write `state/identity`.

    `driver_pid` is the trainer's process on this node. Raises RegressError if a process loaded something else, or did not report.
    """
    code_path = Path(plan["code_path"])
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(job.reports.glob("identity-*.json"))]
    actors = _actors(os.environ.get("RAY_ADDRESS", ""), _ray_job_of(reports, driver_pid))
    files = _loaded_files(reports, code_path)
    problems = [
        *_snapshot_problems(job, plan),
        *itertools.chain.from_iterable(_report_problems(report, code_path) for report in reports),
        *_silent_actors(actors, reports),
    ]
    job.write_state(
        "identity",
        {
            "passed": not problems,
            "problems": problems,
            "code_path": str(code_path),
            "processes": sum(1 for report in reports if report["modules"]),
            "actors": len(actors),
            "actors_by_class": dict(sorted(Counter(actor["ActorClassName"] for actor in actors).items())),
            "modules": sum(len(report["modules"]) for report in reports),
            "files": len(files),
            # One hash over everything that was loaded: two versions of verl never have the same.
            "files_sha256": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
        },
    )
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RegressError(f"identity: {problems[0]}{more}: see state/identity of the job.")


def _ray_job_of(reports: Iterable[Mapping[str, Any]], driver_pid: int) -> str:
    """Ray's id of the job, as the driver on this node reported it. Raises RegressError if it did not."""
    here = node_name()
    driver = next((report for report in reports if (report["node"], report["pid"]) == (here, driver_pid)), None)
    if driver is None or driver["job_id"] is None:
        raise RegressError(
            f"identity: the driver (process {driver_pid} on {here}) reported no verl and no Ray job, so there is no proof of which code "
            "this job ran."
        )
    return str(driver["job_id"])


def _loaded_files(reports: Iterable[Mapping[str, Any]], code_path: Path) -> dict[str, str | None]:
    """The hash of each file of the snapshot that a process loaded, by its path there."""
    modules = [each for report in reports for each in report["modules"].values() if _is_of(code_path, each["file"])]
    return {str(Path(each["file"]).relative_to(code_path)): each["sha256"] for each in modules}


def _actors(gcs: str, job_id: str) -> list[dict[str, Any]]:
    """The job's actors that got a process; the others loaded nothing. Raises RegressError."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            actors = ray_internals.actors_from_gcs(gcs, job_id, timeout=_PATIENCE)
            return [actor for actor in actors if actor["Pid"]]
        except RegressError as error:
            if time.monotonic() > end:
                unproved = "so there is no proof that all of them ran the requested code"
                raise RegressError(f"identity: {error}, {unproved}.") from error
            time.sleep(1)


def _snapshot_problems(job: JobDir, plan: Mapping[str, Any]) -> Iterator[str]:
    """The snapshot must still be the tree that the job was submitted with: otherwise its files prove nothing."""
    asked, target = (job.read_config("code.json") or {}).get("tree_sha256"), Path(plan["code_path"])
    try:
        record = snapshot.load(job.root, plan["code_id"])
        snapshot.need_whole(target, record, f"The snapshot {target.name}", trusted=plan.get("trusted_uids"))
    except RegressError as error:
        yield str(error)
        return
    if record["tree_sha256"] != asked:
        yield f"the snapshot {plan['code_path']} was replaced after the job was submitted"


def _silent_actors(actors: Iterable[Mapping[str, Any]], reports: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Ray knows every actor of the job: one without a report may have loaded anything."""
    reported = {report["actor_id"] for report in reports}
    for actor in actors:
        if actor["ActorID"] not in reported:
            yield f"Ray's actor {actor['ActorClassName']} {actor['ActorID']} (process {actor['Pid']}) reported nothing"


def _report_problems(report: Mapping[str, Any], code_path: Path) -> Iterator[str]:
    who = f"process {report['pid']} on {report['node']} ({report['command']})"
    if report.get("died"):
        yield f"{who} stopped looking for what it loaded ({report['died']})"
    for name, loaded in report["modules"].items():
        file, sha256 = loaded["file"], loaded["sha256"]
        if not _is_of(code_path, file):
            yield f"{who} loaded {name} from {file or 'no file'}, which is not under {code_path}"
        elif sha256 != _sha256_of(Path(file)):
            yield f"{who} loaded {name} from other bytes than {file} holds"


def _is_of(code_path: Path, file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(code_path)


@functools.cache
def _sha256_of(file: Path) -> str | None:
    """The hash of a file; each file of the snapshot is read once, however many processes loaded it."""
    return artefact.sha256_of(file) if file.is_file() else None
