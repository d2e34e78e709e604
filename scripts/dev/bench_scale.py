"""What scripts/dev/bench_scale.bash needs of the shared root: many jobs, their checkpoints, and what a submitter waits.

jobs MODEL JOBS COUNT            the directory JOBS with so many jobs of 20 users, each as the finished job MODEL
checkpoints JOBS                 an old checkpoint of each job of the caller's in JOBS, every 20th
longest_wait JOBS COMMAND...     runs it; prints how long a submitter waited at most for the lock of JOBS meanwhile (s)
next_start HOME COUNT            so many jobs wait, and the one that runs ends; prints when the next has its slot (s), on a shared root in HOME
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from verl_regress.base import lock
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import Owner
from verl_regress.jobs import find, liveness
from verl_regress.worker import queue

_USERS = 20  # the caller is the first of them
_LARGE = ("debug", "hydra", "memory", "reports")  # directories that no list reads
_OLD = 2 * 3600  # seconds; gc leaves alone what is younger than an hour
_DEADLINE = 60.0


def _jobs(model: JobDir, jobs: Path, count: int) -> None:
    """They were made a minute apart. All files but those that differ are the model's own (hard links)."""
    plan, ended = model.read_config("resolved.json"), (model.state / "ended").read_text(encoding="utf-8")
    if plan is None:
        raise SystemExit(f"error   {model.path} has no plan")
    newest = int(time.time()) - _OLD
    for number in range(count):
        made = newest - 60 * (count - number)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(made))
        job = JobDir(jobs / f"{plan['workload']}-{plan['code_id']}-{stamp}-{number:04x}")
        for part in ("config", "logs", "state"):
            ignored = shutil.ignore_patterns(*_LARGE)
            shutil.copytree(model.path / part, job.path / part, copy_function=os.link, ignore=ignored)
        user = number % _USERS
        owner = plan["owner"] if user == 0 else {**plan["owner"], "user": f"user{user}"}
        _replace(job.config / "resolved.json", json.dumps({**plan, "owner": owner, "submission_id": job.submission_id}))
        _replace(job.state / "ended", ended)
        os.utime(job.state / "ended", (made, made))
        os.utime(job.config, (made, made))
        find.mark(job, Owner(**owner))


def _replace(linked: Path, text: str) -> None:
    linked.unlink()
    linked.write_text(text, encoding="utf-8")


def _checkpoints(jobs: Path) -> None:
    old = time.time() - _OLD
    for name in sorted(path.name for path in jobs.iterdir() if path.is_dir())[::_USERS]:
        checkpoint = jobs / name / "checkpoints" / "global_step_1"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.pt").write_text("weights", encoding="utf-8")
        for path in (checkpoint / "model.pt", checkpoint):
            os.utime(path, (old, old))


def _longest_wait(jobs: Path, command: Sequence[str]) -> float:
    """One submitter comes after the other, as `make submit` does."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    longest = 0.0
    while process.poll() is None:
        began = time.monotonic()
        with lock.sharing(jobs, _DEADLINE):
            longest = max(longest, time.monotonic() - began)
        time.sleep(0.01)
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    return longest


def _next_start(home: Path, count: int) -> float:
    """All launchers are threads of this process, with the locks and the loops of real ones."""
    plan = {"cluster": "c", "max_running": 1, "devices": {"count": 1, "cluster_has": count, "resource": "GPU"}}
    jobs = [JobDir(SharedRoot(home).jobs / f"job{number:03}") for number in range(1 + count)]
    for number, job in enumerate(jobs):
        for part in (job.config, job.state):
            part.mkdir(parents=True)
        (job.config / "resolved.json").write_text(json.dumps(plan), encoding="utf-8")
        os.utime(job.config, ns=(number, number))
        queue.line_up(job, "c", 1)
    running, *waiting = jobs
    launchers = [liveness.hold(job) for job in jobs]
    queue.wait(running, plan, lambda _: None)
    asked, has_slot = threading.Semaphore(0), threading.Event()

    def launch(job: JobDir) -> None:
        queue.wait(job, plan, lambda _: asked.release())
        has_slot.set()

    for job in waiting:
        threading.Thread(target=launch, args=[job], daemon=True).start()
    for _ in waiting:
        asked.acquire()
    os.close(launchers[0])
    began = time.monotonic()
    if not has_slot.wait(_DEADLINE):
        raise SystemExit(f"error   no job got the slot within {_DEADLINE:.0f} s")
    return time.monotonic() - began


def main(argv: Sequence[str]) -> int:
    """Run a subcommand."""
    match argv:
        case ["jobs", model, jobs, count]:
            _jobs(JobDir(Path(model)), Path(jobs), int(count))
        case ["checkpoints", jobs]:
            _checkpoints(Path(jobs))
        case ["longest_wait", jobs, *command]:
            print(f"{_longest_wait(Path(jobs), command):.6f}")
        case ["next_start", home, count]:
            print(f"{_next_start(Path(home), int(count)):.6f}")
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
