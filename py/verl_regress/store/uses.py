"""What jobs and sessions use of the shared root, as their plans name it, and who owns what there; for `make gc`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_regress.base import lock
from verl_regress.base.errors import Unreadable
from verl_regress.base.files import LONGEST, read_text
from verl_regress.base.layout import JobDir
from verl_regress.store import snapshot
from verl_regress.store.sessions import UNREADABLE, Session

_NAME = r"/([A-Za-z0-9][A-Za-z0-9_.-]*)"


def entries(directory: Path) -> tuple[Path, ...]:
    """What is in a directory, except links; nothing if the directory is a link itself."""
    if directory.is_symlink():
        return ()
    return tuple(path for path in sorted(directory.glob("*")) if not path.is_symlink())


def states(path: Path) -> Iterator[os.stat_result]:
    """The stat of a path and of everything below it; follows no link, and leaves out what another process removes meanwhile."""
    try:
        yield path.lstat()
        inner = list(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    except FileNotFoundError:
        return
    for each in inner:
        yield from states(each)


def is_mine(path: Path) -> bool:
    """Is it this user's? Another's stays even where the file system would let us remove it."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def is_all_mine(path: Path) -> bool:
    """Is all below it this user's, too?"""
    return all(state.st_uid == os.geteuid() for state in states(path))


def is_readable(job: JobDir) -> bool:
    """Can what a job refers to be read? Otherwise another user closed it, or a file of its plan is cut off or far too long."""
    try:
        attempts = job.first.path / "attempts"
        for directory in (job.first.path, *([attempts] if attempts.is_dir() else [])):
            with os.scandir(directory):
                pass
        return all(map(_is_config_readable, job.attempts()))
    except (OSError, Unreadable):
        return False


def _is_config_readable(attempt: JobDir) -> bool:
    """Raises OSError or Unreadable if not even its names can be."""
    attempt.read_config("resolved.json")
    files = list(attempt.config.iterdir()) if attempt.config.is_dir() else []
    has_all = is_mine(attempt.path)  # then so are its files
    return all(
        file.lstat().st_size <= LONGEST and (has_all or os.access(file, os.R_OK, effective_ids=True)) for file in files
    )


def is_readable_session(session: Session) -> bool:
    """Can its evidence be read?"""
    try:
        with os.scandir(session.path / "evidence"):
            pass
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        session.job_ids()
    except UNREADABLE:
        return False
    return True


def plans(jobs: Iterable[JobDir]) -> Iterator[str]:
    """The text of each file of these jobs' plans, of all their attempts. Raises OSError and Unreadable."""
    for job in jobs:
        for attempt in job.attempts():
            for file in entries(attempt.config):
                if file.is_file():
                    yield read_text(file)


def names_under(home: Path, texts: Iterable[str]) -> set[str]:
    """The names under `home` that occur anywhere in these plans."""
    pattern = re.compile(re.escape(str(home)) + _NAME)
    return {name for text in texts for name in pattern.findall(text)}


def linked_bytecode(snapshots: Iterable[Path]) -> set[str]:
    """The names in `objects/` that these snapshots of version 1.1 link to, directories of snapshots."""
    links = (link for each in snapshots for link in each.glob(f"verl/**/{snapshot.BYTECODE}") if link.is_symlink())
    return {link.readlink().name for link in links}


def is_held(attempt: JobDir) -> bool:
    """Does a launcher or a submitter hold its lock, in whatever cluster? If that cannot be asked, it counts as held."""
    for file in (attempt.launcher, attempt.submitting):
        try:
            if lock.is_held(file):
                return True
        except FileNotFoundError:
            pass
        except OSError:
            return True
    return False
