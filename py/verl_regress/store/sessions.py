"""A session's directory `${SHARED_ROOT}/verify/<time>/`, and the evidence recorded of each of its jobs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, Unreadable, shown
from verl_regress.base.files import now, read_json, write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.jobs.status import DAMAGED

LATEST = "latest"  # as a name: the newest session
_JOB = "job-"
_REPORT = "report.json"  # written last


@dataclass(frozen=True)
class Session:
    """The directory of one session; judging needs only its `evidence/` and the jobs' directories."""

    path: Path

    @classmethod
    def begin(cls, root: SharedRoot) -> "Session":
        """Make the directory of a new session, named after the time (UTC)."""
        path = new_directory(root.sessions)
        (path / "evidence").mkdir()
        return cls(path)

    @property
    def evidence_dir(self) -> Path:
        """The directory of what was recorded."""
        return self.path / "evidence"

    @property
    def is_over(self) -> bool:
        """Its report is written; until then it can be continued."""
        return (self.path / _REPORT).exists()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Record one piece of evidence, stamped with the time."""
        write_atomically(self._file(name), json.dumps({**content, "time": now()}, indent=1, ensure_ascii=False) + "\n")

    def read(self, name: str) -> dict[str, Any] | None:
        """One piece of evidence, or None if it was not gathered."""
        return read_json(self._file(name))

    def evidence(self) -> dict[str, Any]:
        """All of it, by name. Raises Unreadable."""
        return {path.stem: read_json(path) or {} for path in sorted(self.evidence_dir.glob("*.json"))}

    def evidence_if_readable(self) -> dict[str, Any]:
        """All of it; nothing if a piece is cut off, or another user closed the session. For lists of all sessions."""
        try:
            return self.evidence()
        except Unreadable:
            return {}

    def failed_checks(self) -> int:
        """How many of its checks failed; they are made when it ends. Raises one of DAMAGED."""
        report = read_json(self.path / _REPORT) or {}
        return sum(bool(check["problems"]) for check in report.get("checks", []))

    @property
    def is_doubtful(self) -> bool:
        """A check failed, so its runs may not be of the code that was asked for; or its report cannot be read."""
        try:
            return self.failed_checks() > 0
        except DAMAGED:
            return True

    def begin_if_readable(self) -> dict[str, Any]:
        """What was recorded first; nothing if that is cut off, or another user closed the session."""
        try:
            return self.read("begin") or {}
        except Unreadable:
            return {}

    def report_if_readable(self) -> dict[str, Any]:
        """Its report; nothing if it is not over, or another user closed the session."""
        try:
            return read_json(self.path / _REPORT) or {}
        except Unreadable:
            return {}

    def write_job(self, run: str, content: Mapping[str, Any]) -> None:
        """Record the evidence of the job of a run."""
        self.write(f"{_JOB}{run}", content)

    def _file(self, name: str) -> Path:
        return self.evidence_dir / f"{name}.json"


def new_directory(parent: Path) -> Path:
    """Make a directory in `parent` that is named after the time (UTC)."""
    now_utc = datetime.now(timezone.utc)
    while True:
        path = parent / f"{now_utc:%Y%m%dT%H%M%SZ}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # another one began in this second
            now_utc += timedelta(seconds=1)
            continue
        return path


def all_of(root: SharedRoot) -> list[Session]:
    """Every session, the newest first."""
    return [Session(path) for path in sorted(root.sessions.glob("*"), reverse=True) if path.is_dir()]


def named(directories: Sequence[Path], knob: str, name: str, kind: str, otherwise: str) -> Path:
    """The one of that name among these, which are the newest first; `latest` is the newest.

    Raises BadInput, which says what they are, and what leaving the knob empty would mean.
    """
    found = next((each for each in directories if name in (LATEST, each.name)), None)
    if found is None:
        known = ", ".join(each.name for each in directories[:3]) or "there is none"
        raise BadInput(f"{knob}={shown(name)} is not {kind} ({known}): name one, or leave it empty for {otherwise}.")
    return found


def need_unfinished(directory: Path, knob: str, name: str) -> None:
    """Raises BadInput for a session or a search that is over; `name` is how the user named it, with this knob."""
    if (directory / _REPORT).exists():
        raise BadInput(
            f"{knob}={shown(name)} ({directory.name}) is over: read {directory}/report.md, or leave {knob} empty for a new one."
        )


def jobs_of(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence of the job of each run, in the order in which they were recorded."""
    jobs = {name.removeprefix(_JOB): content for name, content in evidence.items() if name.startswith(_JOB)}
    return dict(sorted(jobs.items(), key=lambda each: str(each[1]["time"])))
