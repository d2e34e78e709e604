"""What `make gc` removes, and the lock that keeps submissions away meanwhile.

It is renamed aside first (`.NAME.gone`), so that nobody takes half of it for whole if gc is killed; the next gc deletes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from verl_regress.base import lock
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.base.owner import is_mine
from verl_regress.store import artefact

_GONE = ".gone"
_LOCK_SECONDS = 1800.0  # `make gc` has the lock until it has deleted all that it found


def uncollected(root: SharedRoot) -> AbstractContextManager[None]:
    """Keep `make gc` from removing what the block begins to use: a submission, until Ray has the job. Raises RegressError."""
    return lock.held(root.jobs_lock, "a submission", _LOCK_SECONDS, shared=True)


@dataclass(frozen=True)
class Waste:
    """One thing to remove; `job` if it is a job's checkpoints."""

    what: str
    paths: tuple[Path, ...]
    job: JobDir | None = None

    @property
    def bytes(self) -> int:
        """Their bytes on disk."""
        return sum(state.st_blocks * 512 for path in self.paths for state in states(path))

    def remove(self) -> None:
        """Remove it, and record that in the state of its job. Raises OSError."""
        record = {"checkpoints": [path.name for path in self.paths], "bytes": self.bytes}
        for aside in [path.rename(path.with_name(f".{path.name}{_GONE}")) for path in self.paths]:
            artefact.delete(aside)
        if self.job is not None:  # last: on a full disk there is space now
            self.job.write_state("collected", record)


def finish(places: Iterable[Path]) -> None:
    """Delete what a gc that was killed has left of ours in these directories. Raises OSError."""
    for path in (path for place in places for path in entries(place)):
        if path.name.startswith(".") and path.suffix == _GONE and is_mine(path):
            artefact.delete(path)


def entries(directory: Path) -> list[Path]:
    """What is in a directory; no links, and nothing if the directory is a link itself: what a link leads to may be in use."""
    with suppress(PermissionError):  # another user closed it
        if not directory.is_symlink():
            return [path for path in sorted(directory.glob("*")) if not path.is_symlink()]
    return []


def states(path: Path) -> Iterator[stat_result]:
    """The stat of a path and of everything below it; leaves out what another process removes meanwhile."""
    with suppress(FileNotFoundError):
        yield path.lstat()
        if path.is_dir() and not path.is_symlink():
            for each in list(path.iterdir()):
                yield from states(each)
