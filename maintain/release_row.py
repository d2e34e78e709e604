"""Runs one row of releases.sh on a cluster that is up and prepared: release_row.py ROW CODE_ID IMAGE LOG

Two equal jobs, one after the other, from the snapshot CODE_ID; for a row "resume" one job with validation, which is then
resumed. All by `make submit` and `make resume`, whose output goes to LOG. The record is added to
build/releases/records.jsonl and printed in one line. Exits 0 where the row works, 9 where it does not; Ctrl-C ends the job.

A record: row, steps, works, why (a sentence where it does not work), verl (code_id, version, revision, dirty), inputs and commit of
this checkout, image, packages (their hash), machine, written (the time), jobs (id, status, seconds, steps, fidelity: passed, of), equal (of the metrics of two jobs that are no times: how
many there are, and those that differ: first step, largest difference), resumed (saved, validated, from, steps).
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

import releases
from commit import commit
from releases import FURTHER, STEPS, Row
from verl_regress.base.layout import JobDir
from verl_regress.jobs import checkpoints, progress

REPO = Path(__file__).resolve().parents[1]
# Times, and what is measured of the machine: all else that verl logs has to be equal in two equal jobs.
_NOT_COMPARED = re.compile(r"(timing|perf)(_|/)(?!total_num_tokens)|(^|/)(mfu|tokens_per_sec)")
_VALIDATION = ("val-core/", "val-aux/", "val/")
_STATUS = re.compile(r"exit (\d+) \(")  # of the last line that a script of ours prints
_FIDELITY = re.compile(r"fidelity: (\d+) of (\d+) ")
_EVERY = 2  # steps between two validations, and between two saves


class DoesNotWork(Exception):
    """One sentence that says why a row does not work."""


@dataclass(frozen=True)
class Done:
    """How a command of ours ended: its exit status of the table, and all that it printed."""

    status: int
    said: Sequence[str]

    @property
    def error(self) -> str:
        """Its last sentence of error, without the line that only repeats the exit status."""
        errors = [line[8:] for line in self.said if line.startswith("error   ") and not _STATUS.search(line)]
        return errors[-1] if errors else f"exit status {self.status}"


class Runner:
    """The commands of the product, on one cluster; `log` gets what they print."""

    def __init__(self, jobs: Path, log: TextIO) -> None:
        self._jobs = jobs
        self._log = log

    def run(self, words: Sequence[str], **knobs: str) -> Done:
        """Run a command with these knobs in its environment; it ends with us."""
        said = []
        process = subprocess.Popen(
            words, cwd=REPO, env={**os.environ, **knobs}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            for line in process.stdout or ():
                said.append(line.rstrip("\n"))
                self._log.write(line)
                self._log.flush()
            failed = process.wait() != 0
        except BaseException:
            process.terminate()
            process.wait()
            raise
        statuses = [int(found[1]) for line in said if (found := _STATUS.search(line))]
        return Done((statuses or [1])[-1] if failed else 0, said)

    def follow(self, job: JobDir, target: str, **knobs: str) -> dict[str, Any]:
        """Submit or resume by `make TARGET`, follow the attempt to its end, and say what its directory records.

        A job that is not over by then (interrupted, stalled, never scheduled) is stopped.
        """
        try:
            done = self.run(["make", "--no-print-directory", target], WAIT="1", **knobs)
        except KeyboardInterrupt:
            self.stop(job)
            raise
        submitted, ended = job.read_state("submitted"), job.read_state("ended")
        if submitted is not None and ended is None:
            self.stop(job)
        why = None
        if done.status != 0:
            why = str(ended["reason"]) if ended and ended["exit_code"] != 0 else done.error
            why = why.replace(job.submission_id, "JOB")
        return {
            "id": job.ray_id,
            "status": done.status,
            "why": why,
            "seconds": _between(submitted, ended),
            "steps": [step.number for step in progress.training(progress.rows(job))],
        }

    def stop(self, job: JobDir) -> None:
        """End a job, if it came to be one."""
        self.run(["make", "--no-print-directory", "stop"], JOB=job.submission_id)

    def fidelity(self, job: JobDir) -> dict[str, Any]:
        """How many checks of fidelity passed, of how many, and which did not."""
        said = self.run(["scripts/53_fidelity.sh"], JOB=job.submission_id).said
        counts = [found for line in said if (found := _FIDELITY.search(line))]
        passed, of = map(int, counts[-1].groups()) if counts else (0, 0)
        failed = [line[8:] for line in said if line.startswith("FAIL") and not _FIDELITY.search(line)]
        return {"passed": passed, "of": of, "failed": failed}

    def new_job(self, row: Row, name: str) -> JobDir:
        """The directory that a job of this row will have: `releases-0.9.1-ppo-a-<time>`."""
        return JobDir(self._jobs / f"releases-{row.name}-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")


def twice(runner: Runner, row: Row, code_id: str, record: dict[str, Any]) -> None:
    """Two equal jobs; raises DoesNotWork."""
    overrides = [f"trainer.total_training_steps={STEPS}"] + ["trainer.use_v1=False"] * row.is_v0_asked
    directories = []
    for name in ("a", "b"):
        job = runner.new_job(row, name)
        directories.append(job)
        knobs = {"WORKLOAD": row.workload, "CODE_ID": code_id, "OVERRIDES": " ".join(overrides)}
        found = runner.follow(job, "submit", SUBMISSION_ID=job.submission_id, **knobs)
        record["jobs"].append(found)
        _note(record, job)
        _need_steps(found, range(1, STEPS + 1))
        found["fidelity"] = runner.fidelity(job)
        _need_fidelity(found["fidelity"])
    record["equal"] = compared(*([row.text for row in progress.rows(job)] for job in directories))


def resumed(runner: Runner, row: Row, code_id: str, record: dict[str, Any]) -> None:
    """A job with validation and saves, and further steps from its last checkpoint; raises DoesNotWork."""
    first = runner.new_job(row, "a")
    overrides = f"trainer.total_training_steps={STEPS} trainer.test_freq={_EVERY} trainer.save_freq={_EVERY}"
    knobs = {"WORKLOAD": "ppo", "CODE_ID": code_id, "OVERRIDES": overrides}
    found = runner.follow(first, "submit", SUBMISSION_ID=first.submission_id, **knobs)
    record["jobs"].append(found)
    _note(record, first)
    _need_steps(found, range(1, STEPS + 1))
    again = first.numbered(2)
    further = f"trainer.total_training_steps={STEPS + FURTHER}"
    found = runner.follow(again, "resume", JOB=first.submission_id, OVERRIDES=further)
    record["jobs"].append(found)
    record["resumed"] = {
        "saved": [checkpoints.step_of(name) for job in (first, again) for name in checkpoints.names(job)],
        "validated": [step for job in (first, again) for step in _validated([row.text for row in progress.rows(job)])],
        "from": progress.parent_of(again)["step"],
        "steps": found["steps"],
    }
    _need_steps(found, range(STEPS + 1, STEPS + FURTHER + 1))
    wanted = list(range(_EVERY, STEPS + FURTHER + 1, _EVERY))
    for did in ("saved", "validated"):
        if record["resumed"][did] != wanted:
            raise DoesNotWork(f"it {did} at steps {_listed(record['resumed'][did])}, not {_listed(wanted)}")
    if record["resumed"]["from"] != STEPS:
        raise DoesNotWork(f"it was resumed from step {record['resumed']['from']}, not {STEPS}")


def compared(one: Sequence[str], other: Sequence[str]) -> dict[str, Any]:
    """Of two jobs' metrics, without times: how many there are, and by name which differ."""
    left, right = _by_metric(one), _by_metric(other)
    differ = {}
    for name in sorted(left.keys() | right.keys()):
        a, b = left.get(name, {}), right.get(name, {})
        steps = [step for step in sorted(a.keys() | b.keys()) if not _is_equal(a.get(step), b.get(step))]
        if steps:
            distances = [_distance(a.get(step), b.get(step)) for step in steps]
            differ[name] = {"step": steps[0], "most": max(distances) if all(map(math.isfinite, distances)) else None}
    return {"metrics": len(left.keys() | right.keys()), "differ": differ}


def _by_metric(lines: Sequence[str]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for row in map(json.loads, lines):
        for name, value in row["data"].items():
            if not _NOT_COMPARED.search(name):
                found.setdefault(name, {})[int(row["step"])] = value
    return found


def _is_equal(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


def _distance(a: float | None, b: float | None) -> float:
    return math.inf if a is None or b is None else abs(a - b)


def _validated(lines: Sequence[str]) -> list[int]:
    return [int(row["step"]) for row in map(json.loads, lines) if any(k.startswith(_VALIDATION) for k in row["data"])]


def _need_steps(found: Mapping[str, Any], wanted: Sequence[int]) -> None:
    if found["why"] is not None:
        raise DoesNotWork(found["why"])
    if found["steps"] != list(wanted):
        raise DoesNotWork(f"it recorded the steps {_listed(found['steps'])}, not {_listed(wanted)}")


def _need_fidelity(found: Mapping[str, Any]) -> None:
    if found["passed"] != found["of"] or not found["of"]:
        first = f", {found['failed'][0]}" if found["failed"] else ""
        raise DoesNotWork(f"fidelity: {found['passed']} of {found['of']} checks passed{first}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _note(record: dict[str, Any], job: JobDir) -> None:
    """What the job says of its code and its packages."""
    code = job.read_config("code.json") or {}
    record["verl"].update(version=code.get("verl_version"), revision=code.get("revision"), dirty=code.get("dirty"))
    packages = (job.read_config("packages.json") or {}).get("sha256")
    record["packages"] = packages[:12] if packages else None


def _between(submitted: Mapping[str, Any] | None, ended: Mapping[str, Any] | None) -> int | None:
    if submitted is None or ended is None:
        return None
    begin, end = (datetime.fromisoformat(state["time"]) for state in (submitted, ended))
    return round((end - begin).total_seconds())


def surroundings() -> dict[str, str]:
    """When, of which commit and on what a record was made."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "inputs": releases.inputs(),
        "commit": commit(),
        "machine": f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}",
    }


def main(name: str, code_id: str, image: str, log: str) -> int:
    """Run the row, record it, print its line; 9 where it does not work."""
    row, shared = releases.BY_NAME[name], Path(os.environ["WORKDIR"]) / "shared"
    record: dict[str, Any] = {
        "row": name,
        "works": True,
        "why": None,
        "steps": STEPS,
        "verl": {"code_id": code_id, "version": None, "revision": None, "dirty": None},
        **surroundings(),
        "image": image,
        "packages": None,
        "jobs": [],
        "equal": None,
        "resumed": None,
    }
    with Path(log).open("a", encoding="utf-8") as file:
        runner = Runner(shared / "jobs", file)
        try:
            (resumed if row.is_resume else twice)(runner, row, code_id, record)
        except DoesNotWork as error:
            record.update(works=False, why=str(error))
    with releases.RECORDS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(releases.line(record))
    return 0 if record["works"] else 9


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        raise SystemExit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
