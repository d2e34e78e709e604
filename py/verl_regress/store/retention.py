"""`make gc`: which checkpoints, snapshots and helper versions nobody needs any more, and who needs the others.

A job's config/, logs/, state/ and debug/ and the reports of sessions are never removed. What can be reached from a root stays: from the
newest KEEP jobs that have checkpoints, a job that may still run, a session that is not over, a job of another checkout, cluster or user, a
knob that names a code. So does whatever is less than a day old. No link is followed or
removed: what it leads to may be in use.

The lock that submissions share is held from the first look to the last removal, so nothing new can need what goes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_regress.base import layout, lock, say
from verl_regress.base.errors import Unreadable, first, printable
from verl_regress.base.files import read_json, read_text
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import is_mine
from verl_regress.cluster import nodes
from verl_regress.cluster.ray_api import RayApi, Unreachable
from verl_regress.jobs import find, sweep
from verl_regress.jobs.status import DAMAGED, Status, judge_listed
from verl_regress.store import removal, snapshot
from verl_regress.store.removal import Waste
from verl_regress.store.sessions import Session, all_of

_LOCK_SECONDS = 300.0  # a submission has the lock for seconds
_GRACE = 86400.0  # seconds: what was made or written since then may be about to be used
_SESSION = 7 * 86400.0  # seconds without new evidence: until then, a session may be continued
_YOUNG = "less than a day old"
_HELPER = re.compile(r"[0-9a-f]{12}")  # scripts/lib/helper.bash: the first digits of its hash
_CHECKOUT = re.compile(r"[0-9a-f]{16}")  # scripts/lib/owner.bash: the id of a WORKDIR
_NAME = r"/([A-Za-z0-9][A-Za-z0-9_.-]*)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`gc --cluster NAME --keep N [--named CODE …] [--dry-run]`."""
    parser.add_argument("--cluster", required=True, help="the knob CLUSTER_NAME: whose lost jobs' secrets go too")
    parser.add_argument("--keep", type=int, required=True, help="the knob KEEP: how many jobs keep their checkpoints")
    parser.add_argument("--named", action="append", default=[], help="a code id or source that a knob names")
    parser.add_argument("--dry-run", action="store_true", help="say the same, remove nothing")


def run(args: argparse.Namespace) -> int:
    """Remove what nobody needs, or with --dry-run only list it. Raises RegressError without the lock."""
    root = SharedRoot(args.shared_root)
    with lock.held(root.jobs_lock, "make gc", _LOCK_SECONDS, shared=args.dry_run):
        if not args.dry_run:
            sweep.attempt(root, args.cluster)
            attempts = (attempt for job in find.newest(root) for attempt in job.attempts())
            removal.finish([root.snapshots, *_helper_homes(root), *(attempt.checkpoints for attempt in attempts)])
        known = _ask_ray(RayApi(nodes.ADDRESS))
        found, freed = survey(root, args, known, time.time()), 0
        for line in (line for kind in found for line in kind.lines()):
            say.info(line)
        waste = [each for kind in found for each in kind.waste]
        for each in waste:
            size = each.bytes
            freed += size
            if args.dry_run:
                say.info(f"would remove {each.what}: {_mb(size)}")
            else:
                each.remove()
                say.changed(f"removed {each.what}: {_mb(size)}")
    if not waste:
        say.skip("gc (nothing to remove)")
    elif args.dry_run:
        say.info(f"would free {_mb(freed)} in all (DRY_RUN=1)")
    else:
        say.ok(f"freed {_mb(freed)} in all")
    return 0


def _mb(size: int) -> str:
    return f"{size / 10**6:.1f} MB"


@dataclass
class Kind:
    """One kind of thing: what of it goes, and why the rest stays."""

    what: str
    gone: int = 0
    waste: list[Waste] = field(default_factory=list)
    stays: dict[str, list[str]] = field(default_factory=dict)  # the names, by the reason

    def decide(self, name: str, reasons: Iterable[str | None], waste: Iterable[Waste]) -> None:
        """It stays for the first of the reasons that is one, or is `waste`."""
        reason = next(filter(None, reasons), None)
        if reason is None:
            self.gone += 1
            self.waste += waste
        else:
            self.stays.setdefault(reason, []).append(name)

    def lines(self) -> list[str]:
        """`3 snapshots: 1 to remove, 2 to keep`, and for each reason how many it keeps, with the first of them; nothing if there are none."""
        kept = sum(map(len, self.stays.values()))
        total = f"{self.gone + kept} {self.what}: {self.gone} to remove, {kept} to keep"
        reasons = [f"  keep {len(names)} ({reason}): {first(names)}" for reason, names in self.stays.items()]
        return [total, *map(printable, reasons)] if self.gone or kept else []


@dataclass(frozen=True)
class _Job:
    """What decides about a job. `plan` is the text of all files of its plans; None if they cannot be read."""

    job: JobDir
    attempts: list[JobDir]
    plan: str | None
    is_foreign: bool
    is_over: bool

    @property
    def name(self) -> str:
        return self.job.submission_id

    @property
    def checkpoints(self) -> list[Path]:
        return [path for attempt in self.attempts for path in _checkpoints(attempt)]

    def names(self, home: Path) -> set[str]:
        """The names under `home` that occur in its plans."""
        return set(re.findall(re.escape(str(home)) + _NAME, self.plan or ""))


@dataclass(frozen=True)
class _Claim:
    """What a session that is not over needs: each job and code that its evidence names. `text` is None if that cannot be read, or has only
    begun: then it may need any.
    """

    text: str | None
    reason: str

    def is_for(self, name: str) -> bool:
        return self.text is None or json.dumps(name) in self.text


def survey(root: SharedRoot, mine: argparse.Namespace, known: Mapping[str, Any] | None, now: float) -> list[Kind]:
    """Check everything and change nothing. `mine` are the arguments, with the `owner` whose jobs may lose something (None: nobody's),
    `known` is what Ray says of each of its jobs, None if it does not answer, and `now` is in seconds since the epoch.
    """
    jobs = [_read(job, mine, known, now) for job in find.newest(root)]
    claims = [_claim_of(session) for session in all_of(root) if _is_at_work(session, now)]
    why = _why_kept(root, jobs, claims, mine, now)
    full = Kind("jobs with checkpoints")
    for job in jobs:
        found = [(attempt, paths) for attempt in job.attempts if (paths := _checkpoints(attempt))]
        waste = [
            Waste(f"checkpoints of {attempt.ray_id} ({', '.join(path.name for path in paths)})", tuple(paths), attempt)
            for attempt, paths in found
        ]
        if waste:
            full.decide(job.name, [why.get(job.name)], waste)
    return [full, _snapshots(root, jobs, claims, why, mine, now), _helpers(root, jobs, now)]


def _read(job: JobDir, mine: argparse.Namespace, known: Mapping[str, Any] | None, now: float) -> _Job:
    try:
        attempts = job.attempts()
        plan = "\n".join(text for attempt in attempts for text in _texts(attempt.config))
        is_foreign = not all(_is_ours(attempt, mine) for attempt in attempts)
    except DAMAGED:  # another user closed it, or a file is cut off or far too long
        return _Job(job, job.attempts(), None, is_foreign=True, is_over=False)
    try:
        is_over = all(_is_over(attempt, known, now, mine.cluster) for attempt in attempts)
    except DAMAGED:  # a state of it is cut off
        is_over = False
    return _Job(job, attempts, plan, is_foreign, is_over)


def _texts(config: Path) -> list[str]:
    """The files of a plan; a job has none if its submitter was killed. Raises OSError and Unreadable."""
    try:
        names = sorted(os.listdir(config))  # noqa: PTH208 (raises for a directory that another user closed)
    except FileNotFoundError:
        return []
    return [read_text(config / name) for name in names if not (config / name).is_symlink()]


def _is_ours(attempt: JobDir, mine: argparse.Namespace) -> bool:
    plan = attempt.read_config("resolved.json") or {}
    is_owners = mine.owner is not None and mine.owner.has(plan) and plan.get("cluster") == mine.cluster
    files = (state for path in _checkpoints(attempt) for state in removal.states(path))
    return is_owners and is_mine(attempt.path) and all(state.st_uid == os.geteuid() for state in files)


def _is_over(attempt: JobDir, known: Mapping[str, Any] | None, now: float, cluster: str) -> bool:
    """LOST and NOT_SUBMITTED are also what jobs of other clusters look like, and submissions that are still at work."""
    judged = judge_listed(attempt, known)
    if judged.status not in (Status.LOST, Status.NOT_SUBMITTED):
        return judged.status.exit is not None
    if (attempt.read_config("resolved.json") or {}).get("cluster") != cluster:
        return attempt.read_state("ended") is not None  # only its own Ray knows more
    return _written([attempt.config, attempt.driver_log, *_checkpoints(attempt)]) < now - _GRACE


def _written(paths: Iterable[Path]) -> float:
    """When one of these paths, or anything below, was last written (seconds); 0 if there is none."""
    return max((state.st_mtime for path in paths for state in removal.states(path)), default=0.0)


def _checkpoints(attempt: JobDir) -> list[Path]:
    return removal.entries(attempt.checkpoints)


def _is_at_work(session: Session, now: float) -> bool:
    """Can it still be continued? Until its report is written, or for a week after its last evidence."""
    try:
        return not session.is_over and _written([session.path]) > now - _SESSION
    except PermissionError:  # another user closed it
        return session.path.stat().st_mtime > now - _SESSION


def _claim_of(session: Session) -> _Claim:
    name, path = session.path.name, session.path
    if is_mine(path):
        cure = f"continue it with 'make verify SESSION={name}', or give it up with 'rm -r {path}'"
    else:
        cure = f"ask user {path.stat().st_uid} to continue it, or to give it up with 'rm -r {path}'"
    reason = f"the session {name} is not over: {cure}"
    evidence = session.evidence_if_readable()
    return _Claim(json.dumps(evidence) if "codes" in evidence.get("begin", {}) else None, reason)


def _why_kept(
    root: SharedRoot, jobs: Sequence[_Job], claims: Sequence[_Claim], mine: argparse.Namespace, now: float
) -> dict[str, str]:
    """The reason why a job keeps its checkpoints and its snapshot, by its id; jobs that keep neither are left out."""
    full = [job for job in jobs if not job.is_foreign and job.checkpoints]
    newest = {job.name for job in full[: mine.keep]}
    readers = {name: job.name for job in jobs if not job.is_over for name in job.names(root.jobs) - {job.name}}

    def reasons(job: _Job) -> Iterator[str]:
        if job.plan is None:
            yield "cannot be read"
        if job.is_foreign:
            yield "of another checkout, cluster or user"
        if not job.is_over:
            yield "may still run"
        if job.name in newest:
            yield f"the newest, KEEP={mine.keep}"
        yield from (claim.reason for claim in claims if claim.is_for(job.name))
        if job.name in readers:
            yield f"the job {readers[job.name]} reads them"
        ended = (path for attempt in job.attempts for path in attempt.state.glob("ended"))
        if _written([*job.checkpoints, *ended]) > now - _GRACE:
            yield _YOUNG

    return {job.name: reason for job in jobs if (reason := next(reasons(job), None))}


def _snapshots(
    root: SharedRoot,
    jobs: Sequence[_Job],
    claims: Sequence[_Claim],
    why: Mapping[str, str],
    mine: argparse.Namespace,
    now: float,
) -> Kind:
    # The newest jobs keep their snapshot even without checkpoints: 'make retry' needs it.
    users = [job for number, job in enumerate(jobs) if job.name in why or number < mine.keep]
    used = {code: f"the job {job.name} uses it" for job in reversed(users) for code in job.names(root.snapshots)}
    kind, known = Kind("snapshots"), set(snapshot.list_snapshots(root))
    for path in (path for path in removal.entries(root.snapshots) if path.name in known):
        record = path / snapshot.RECORD_FILE
        reasons = (
            None if is_mine(path) else "another user's",
            "CODE_ID, CODE_A or CODE_B names it" if {path.name, _source(record)} & {*mine.named} else None,
            used.get(path.name),
            *(claim.reason for claim in claims if claim.is_for(path.name)),
            _may_use(jobs),
            _YOUNG if record.stat().st_mtime > now - _GRACE else None,
        )
        kind.decide(path.name, reasons, [Waste(f"snapshot {path.name}", (path,))])
    return kind


def _source(record: Path) -> str | None:
    try:
        return (read_json(record) or {}).get("source")
    except Unreadable:
        return None


def _may_use(jobs: Iterable[_Job]) -> str | None:
    """The reason to keep what no plan names, if there are plans that cannot be read."""
    closed = [job.name for job in jobs if job.plan is None]
    return f"{first(closed)} cannot be read, and may use it" if closed else None


def _helpers(root: SharedRoot, jobs: Sequence[_Job], now: float) -> Kind:
    kind, homes, running = Kind("helper versions"), _helper_homes(root), [job for job in jobs if not job.is_over]
    used = {name: f"the job {job.name} runs from it" for home in homes for job in running for name in job.names(home)}
    for path in (path for home in homes for path in removal.entries(home) if _HELPER.fullmatch(path.name)):
        reasons = (
            None if is_mine(path) else "another user's",
            "in use" if path.name == layout.HELPER_DIR.name else None,
            used.get(path.name),
            _may_use(jobs),
            _YOUNG if path.stat().st_ctime > now - _GRACE else None,
        )
        kind.decide(path.name, reasons, [Waste(f"helper {path.name}", (path,))])
    return kind


def _helper_homes(root: SharedRoot) -> list[Path]:
    """Where versions of the helper are: with SHARED_GROUP each checkout has its own place (scripts/lib/helper.bash)."""
    return [root.helpers, *(path for path in removal.entries(root.helpers) if _CHECKOUT.fullmatch(path.name))]


def _ask_ray(api: RayApi) -> Mapping[str, Any] | None:
    """What Ray says of its jobs; None, and a line that says what follows, if it does not answer."""
    try:
        return api.jobs()
    except Unreachable as error:
        say.info(f"{error} A job that recorded no end counts as unfinished.")
        return None
