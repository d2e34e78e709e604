"""Finding jobs: one by id or by the word `latest`, or all of them."""

import argparse
import contextlib
import re
from pathlib import Path
from typing import Any

from verl_regress.base import ids, trust
from verl_regress.base.errors import BadInput, Unreadable, shown
from verl_regress.base.files import unreadable
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import Owner
from verl_regress.cluster.ray_api import RayApi

_SHOWN = 3  # jobs that begin alike
_OF_SESSION = re.compile(r"-([0-9]{8}T[0-9]{6}Z)(-[0-9]+)?$")  # ends the ids of the jobs of a session or a search


def add_job(parser: argparse.ArgumentParser) -> None:
    """The positional argument JOB of every command on one job."""
    parser.add_argument("job", help="a submission id, or its beginning; <id>.aN for its attempt N; or 'latest'")


def newest(root: SharedRoot) -> list[JobDir]:
    """The newest attempt of every job, the most recent job first. Raises OSError if we may not list them."""
    found = []
    # No id begins with a dot, but the lock and a server's own directories do (.snapshot).
    for path in root.jobs.iterdir() if root.jobs.is_dir() else ():
        if path.name[0] != "." and _is_job(path):
            job = JobDir(path).attempts()[-1]
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found.append((reserved_at(job), path.name, job))
    return [job for *_, job in sorted(found, key=lambda each: each[:2], reverse=True)]


def reserved_at(job: JobDir) -> float:
    """When its directory was reserved (seconds): the time of its config, which is written once. Raises OSError if the job is gone."""
    for path in (job.config, job.path):
        with contextlib.suppress(OSError):  # it has none, or is another user's
            return path.stat().st_mtime
    return job.first.path.stat().st_mtime


def asked_for(args: argparse.Namespace) -> JobDir:
    """The job that a command line names (`add_job`); `latest` means the caller's. Raises BadInput."""
    return find(SharedRoot(args.shared_root), args.job, args.owner)


def find(root: SharedRoot, asked: str, caller: Owner | None = None) -> JobDir:
    """The newest attempt of the job with that id, or whose id alone begins so, or of the latest job of `caller` (None: all users) outside
    sessions and searches; `<id>.aN` is that attempt. Raises BadInput and Unreadable.
    """
    if asked == "latest":
        return _latest(root, caller)
    named = ids.ATTEMPT.fullmatch(asked)
    name = named["submission_id"] if named else asked
    job = JobDir(_directory_of(root, name, asked))
    try:
        next(job.path.iterdir(), None)
    except OSError as error:
        raise unreadable(Path(error.filename or job.path), error) from error
    attempts = job.attempts()
    found = job.numbered(int(named["number"])) if named else attempts[-1]
    if found not in attempts:
        raise BadInput(
            f"JOB={asked} is not an attempt of {job.submission_id}: it has {len(attempts)}, the first is .a1."
        )
    return found


def _latest(root: SharedRoot, caller: Owner | None) -> JobDir:
    """The latest job of `caller` (None: of all users) outside sessions and searches. Raises BadInput."""
    for job in newest(root):
        session = _OF_SESSION.search(job.submission_id)
        is_of_session = session is not None and (root.sessions / session[1]).is_dir()
        if not is_of_session and (caller is None or _belongs_to(caller, job)):
            return job
    raise BadInput(
        f"JOB=latest but no job under {root.jobs} is yours and outside a session: name one that 'make jobs' lists, or submit one."
    )


def _directory_of(root: SharedRoot, name: str, asked: str) -> Path:
    """The directory of the job of that name, or of the only one whose name begins so. Raises BadInput."""
    if ids.SUBMISSION_ID.fullmatch(name) is not None and root.jobs.is_dir():
        found = [path for path in root.jobs.iterdir() if path.name.startswith(name) and _is_job(path)]
        found = [path for path in found if path.name == name] or sorted(found)
        if len(found) > 1:
            some = ", ".join(path.name for path in found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
            raise BadInput(f"JOB={asked} begins the ids of {len(found)} jobs ({some}): give more of it.")
        if found:
            return found[0]
    raise BadInput(f"JOB={shown(asked)} is not under {root.jobs}: name one that 'make jobs' lists, or submit one.")


def _is_job(path: Path) -> bool:
    """A submission never makes a link, which may lead anywhere."""
    return path.is_dir() and not path.is_symlink()


def _belongs_to(caller: Owner, job: JobDir) -> bool:
    """A plan alone may name any owner."""
    with contextlib.suppress(FileNotFoundError, Unreadable):  # removed meanwhile, or another user's
        return caller.has(job.read_config("resolved.json")) and trust.is_trusted(job.first.path.lstat())
    return False


def of_ray_id(root: SharedRoot, ray_id: str) -> JobDir:
    """The attempt that Ray knows by that id, whether it exists or not."""
    if named := ids.ATTEMPT.fullmatch(ray_id):
        return JobDir(root.jobs / named["submission_id"]).numbered(int(named["number"]))
    return JobDir(root.jobs / ray_id)


def plan_of(job: JobDir) -> dict[str, Any]:
    """`config/resolved.json`. Raises BadInput if the submitter died before writing it."""
    plan = job.read_config("resolved.json")
    if plan is None:
        raise BadInput(
            f"{job.ray_id} was never submitted, because its submitter ended before {job.config}/resolved.json was written: submit it "
            "again, with another id."
        )
    return plan


def inputs_of(job: JobDir) -> dict[str, str | None]:
    """What a job read, with its sha256, as the launcher recorded it: nothing before that. Raises Unreadable."""
    return {each["path"]: each["sha256"] for each in (job.read_state("inputs") or {}).get("inputs", ())}


def api_of(job: JobDir) -> RayApi:
    """The Ray at the address in this job's plan. Raises BadInput, Unreadable."""
    return RayApi(plan_of(job)["address"])


def run_where(args: argparse.Namespace) -> int:
    """Print the workload and the directory of a job's newest attempt."""
    job = asked_for(args)
    print(plan_of(job)["workload"], job.path)
    return 0
