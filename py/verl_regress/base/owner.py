"""Who owns a job: a user and a checkout, identified by the id of its WORKDIR (scripts/lib/owner.bash). And which users' files may run as us."""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from verl_regress.base.errors import BadInput

JOB_UIDS = "VERL_REGRESS_JOB_UIDS"  # numbers, too: the users who may own the directory of a job, for its launcher
_TRUSTED_UIDS = "VERL_REGRESS_TRUSTED_UIDS"  # set by scripts/lib/helper.bash: numbers, separated by spaces


@dataclass(frozen=True)
class Owner:
    """The user, and the checkout by its WORKDIR: the id stored there, and its real path on the host."""

    user: str
    id: str
    workdir: str | None = None

    @classmethod
    def parse(cls, text: str) -> Owner:
        """`USER:ID`. Raises ValueError."""
        user, colon, checkout = text.rpartition(":")
        if not (user and colon and checkout):
            raise ValueError(text)
        return cls(user, checkout)

    def recorded(self) -> dict[str, Any]:
        """The owner as `config/resolved.json` records it."""
        return {"user": self.user, "workdir": self.workdir, "id": self.id}

    def has(self, plan: Mapping[str, Any] | None) -> bool:
        """Does this owner own the job with that plan?"""
        recorded = (plan or {}).get("owner") or {}
        return (recorded.get("user"), recorded.get("id")) == (self.user, self.id)


def described(plan: Mapping[str, Any] | None) -> str:
    """The owner of the job with that plan, in words."""
    recorded = (plan or {}).get("owner")
    return f"user {recorded.get('user')}, {recorded.get('workdir')}" if recorded else "an owner that was not recorded"


def trusted_uids() -> list[int]:
    """The users whose files may run as us: root, us, and the knob TRUSTED_UIDS."""
    return sorted({0, os.geteuid(), *map(int, os.environ.get(_TRUSTED_UIDS, "").split())})


def job_uids() -> list[int]:
    """In a process of a job: further users who may own that job's files; elsewhere none."""
    return [*map(int, os.environ.get(JOB_UIDS, "").split())]


def is_trusted(uid: int, trusted: Iterable[int] | None = None) -> bool:
    """May what this uid owns run as us? `trusted` are the `trusted_uids` of a job when it was submitted; None: as they are now."""
    return uid in (0, os.geteuid(), *(trusted_uids() if trusted is None else trusted))


def is_mine(path: Path) -> bool:
    """Is it this user's? Another's stays even where the file system would let us remove it."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


class Foreign(NamedTuple):
    """Something that another user, whom we do not trust, can change: why, and what to do about it."""

    path: Path
    why: str
    cure: str


def foreign(
    path: Path, found: os.stat_result, trusted: Iterable[int] | None = None, folder: Path | None = None
) -> Foreign | None:
    """`path`, whose state is `found`, if others can change it: its owner is not trusted (`is_trusted`), or its mode lets all users or a
    group. The cure is one for all of `folder`.

    A group is trusted if it is root's, or has the number of the owner: most systems give each user such a group, alone in it. Who is
    in any other group is not known here: nodes have groups of their own. A sticky directory is no problem: nobody else
    renames or removes what is in it, and what others add there has an owner of its own.
    Of a link, the mode of its target counts.
    """
    if not is_trusted(found.st_uid, trusted):
        why, cure = f"belongs to user {found.st_uid}", f"set TRUSTED_UIDS={found.st_uid} if you trust that user"
        return Foreign(path, why, cure)
    mode = stat.S_IMODE(found.st_mode)
    if not (stat.S_ISREG(found.st_mode) or (stat.S_ISDIR(found.st_mode) and not mode & stat.S_ISVTX)):
        return None
    if mode & stat.S_IWOTH:
        who = "every user"
    elif mode & stat.S_IWGRP and found.st_gid not in (0, found.st_uid):
        who = f"the group {found.st_gid}"
    else:
        return None
    whole = folder or path
    who_types = "type" if os.geteuid() in (0, found.st_uid) else f"ask user {found.st_uid} to type"
    cure = f"{who_types} 'chmod {'-R ' if whole.is_dir() else ''}go-w {shlex.quote(str(whole))}'"
    return Foreign(path, f"can be changed by {who} (mode {mode:04o})", cure)


def need_own(folder: Path, named: str, then: str, trusted: Iterable[int] | None = None, *, alone: bool = False) -> None:
    """Raise BadInput if others can change a folder whose code runs, or anything in it unless it is asked `alone`, or if that cannot be
    read. `then` is the end of the cure.
    """
    try:
        other = _foreign_in(folder, trusted, alone=alone)
    except OSError as error:
        raise BadInput(
            f"{named} is not usable, because {error.filename} cannot be read ({error.strerror}): make it readable, {then}."
        ) from None
    if other is not None:
        raise BadInput(
            f"{named} is refused, because {other.path} {other.why}, and what is there would run as you: {other.cure}, {then}."
        )


def _foreign_in(place: Path, trusted: Iterable[int] | None, *, alone: bool) -> Foreign | None:
    """The first path, of a file and what can replace it, or of a folder and (but for `alone`) all that is in it, that others can change.

    What can take the place of a Python file is its bytecode, and another file that is put into its folder, or into the folder of what it
    leads to; a sticky folder is for all of a team (`user/code`). Of a link, both its own owner and that of what it leads to count; a
    folder that a link leads to is not searched. What is not there belongs to nobody. Raises OSError for a folder that cannot be listed.
    """
    paths = [place]
    if place.is_file():
        folders = dict.fromkeys((place.parent, place.resolve().parent))
        paths = [*(folder for folder in folders if not folder.stat().st_mode & stat.S_ISVTX), place]
        bytecode = place.parent / "__pycache__"
        if place.suffix == ".py" and bytecode.is_dir():
            paths += [bytecode, *bytecode.glob(f"{glob.escape(place.stem)}.*")]
    walked = () if alone else os.walk(place, onerror=_unlisted)
    inner = (Path(folder) / name for folder, *names in walked for kind in names for name in kind)
    for path in (*paths, *inner):
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile, or a link that leads nowhere
            whole = place if place.is_dir() and not path.is_symlink() else None  # 'chmod -R' follows no link
            for state in (path.lstat, path.stat):
                if (other := foreign(path, state(), trusted, whole)) is not None:
                    return other
    return None


def _unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--owner USER:ID --owner-workdir DIR`, before any subcommand."""
    parser.add_argument("--owner", type=Owner.parse, metavar="USER:ID", help="who calls: the user, and WORKDIR's id")
    parser.add_argument("--owner-workdir", metavar="DIR", help="WORKDIR's real path on the caller's host")
