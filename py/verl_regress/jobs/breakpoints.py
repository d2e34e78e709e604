"""The breakpoints in which the processes of a job wait for Ray's debugger, by the records of py/hooks/debugger.py."""

from contextlib import suppress
from dataclasses import dataclass

from verl_regress.base import lock
from verl_regress.base.errors import Unreadable
from verl_regress.base.files import read_json
from verl_regress.base.layout import JobDir


@dataclass(frozen=True)
class Breakpoint:
    """Where a process of a job waits, or is when a debugger is `attached` to it; with an `exception`, after that was raised.

    `task` is Ray's title of the process. `host` and `port` are where the debugger listens, as the processes on `node` see it.
    """

    task: str
    file: str
    line: int
    function: str
    exception: str | None
    node: str | None
    host: str
    port: int
    pid: int
    since: str
    attached: bool

    def place(self, job: JobDir) -> str:
        """`user/code/reward.py:12`: the file relative to the shared root, or to the snapshot."""
        plan = job.read_config("resolved.json") or {}
        for home in (plan.get("code_path"), str(job.root.path)):
            if home is not None and self.file.startswith(f"{home}/"):
                return f"{self.file.removeprefix(f'{home}/')}:{self.line}"
        return f"{self.file}:{self.line}"


def read(job: JobDir) -> list[Breakpoint]:
    """One for each process that lives, the longest wait first: its threads wait for the same debugger."""
    records = []
    for file in (job.state / "breakpoints").glob("*.json"):
        with suppress(OSError, TypeError, Unreadable):
            if lock.is_held(file):
                records.append(Breakpoint(**(read_json(file) or {}), attached=file.name.endswith(".attached.json")))
    found: dict[tuple[str | None, int], Breakpoint] = {}
    for one in sorted(records, key=lambda one: (one.since, one.node or "", one.pid, one.port)):
        found.setdefault((one.node, one.pid), one)
    return list(found.values())


def words(job: JobDir) -> str | None:
    """`waits in a breakpoint (user/code/reward.py:12)` if one waits or is being debugged; None for any other job."""
    if not (found := read(job)):
        return None
    waiting = [one for one in found if not one.attached]
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"{'waits in a breakpoint' if waiting else 'is in a debugger'} ({(waiting or found)[0].place(job)}{more})"
