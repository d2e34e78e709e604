"""Who owns a job: a user and a checkout, identified by the id of its WORKDIR (scripts/lib/owner.bash). And whose files may run as us."""

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
from typing import Any

from verl_regress.base.errors import BadInput

JOB_UIDS = "VERL_REGRESS_JOB_UIDS"  # numbers, too: whose the directory of a job may be, for its launcher
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
    """The users whose files may run as us: root, us, and those of the knob TRUSTED_UIDS."""
    return sorted({0, os.geteuid(), *map(int, os.environ.get(_TRUSTED_UIDS, "").split())})


def job_uids() -> list[int]:
    """In a process of a job: whose the files of that job may be, too; elsewhere none."""
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


@dataclass(frozen=True)
class Foreign:
    """Something that another user, whom we do not trust, can change: why, and what to do about it."""

    path: Path
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


def by_owner(path: Path, uid: int, trusted: Iterable[int] | None = None) -> Foreign | None:
    """`path` if it belongs to a user whom we do not trust (`is_trusted`)."""
    if is_trusted(uid, trusted):
        return None
    return Foreign(path, f"belongs to user {uid}", f"set TRUSTED_UIDS={uid} if you trust that user")


def by_mode(path: Path, found: os.stat_result, folder: Path | None = None) -> Foreign | None:
    """`path`, whose state is `found`, if its mode lets others change it: all users, or a group. The cure is one for all of `folder`.

    A group is trusted if it is root's, or has the number of the owner: most systems give each user such a group, alone in it. Who is
    in any other group is not known here: nodes have groups of their own. A sticky directory is no problem: nobody else
    renames or removes what is in it, and what others add there has an owner of its own.
    The mode of a link is that of what it leads to.
    """
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
        foreign = _foreign_in(folder, trusted, alone=alone)
    except OSError as error:
        raise BadInput(
            f"{named} is not usable, because {error.filename} cannot be read ({error.strerror}): make it readable, {then}."
        ) from None
    if foreign is not None:
        raise BadInput(
            f"{named} is refused, because {foreign}, and what is there would run as you: {foreign.cure}, {then}."
        )


def _foreign_in(place: Path, trusted: Iterable[int] | None, *, alone: bool) -> Foreign | None:
    """The first path, of a file and its bytecode, or of a folder and (but for `alone`) all that is in it, that a user whom we do not trust
    can change.

    Of a link, both its own owner and that of what it leads to count; a folder that a link leads to is not searched. What is
    not there belongs to nobody. Raises OSError for a folder that cannot be listed.
    """
    if place.is_file() and (foreign := of_folders(place, trusted)) is not None:
        return foreign
    folders = () if alone else os.walk(place, onerror=_unlisted)
    inner = (Path(folder) / name for folder, *names in folders for kind in names for name in kind)
    for path in (place, *(bytecode_of(place) if place.suffix == ".py" else ()), *inner):
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile, or a link that leads nowhere
            foreign = by_owner(path, (found := path.lstat()).st_uid, trusted)
            if foreign is None and stat.S_ISLNK(found.st_mode):
                found = path.stat()
                foreign = by_owner(path, found.st_uid, trusted) or by_mode(path, found)
            elif foreign is None:
                foreign = by_mode(path, found, place if place.is_dir() else None)
            if foreign is not None:
                return foreign
    return None


def of_folders(file: Path, trusted: Iterable[int] | None) -> Foreign | None:
    """Who else can put another file in the place of `file`, or bytecode next to it, after this check: who writes in its folder, or in that
    of the file that it leads to, and whose folder it is.

    A sticky folder is for all of a team (`user/code`), so it belongs to one of them.
    """
    for folder in dict.fromkeys((file.parent, file.resolve().parent)):
        found = folder.stat()
        is_shared = bool(found.st_mode & stat.S_ISVTX)
        foreign = by_mode(folder, found) or (None if is_shared else by_owner(folder, found.st_uid, trusted))
        if foreign is not None:
            return foreign
    return None


def bytecode_of(file: Path) -> tuple[Path, ...]:
    """The folder of the bytecode next to a Python file, and its bytecode there, which Python runs instead of the file."""
    folder = file.parent / "__pycache__"
    return (folder, *folder.glob(f"{glob.escape(file.stem)}.*")) if folder.is_dir() else ()


def _unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--owner USER:ID --owner-workdir DIR`, before any subcommand."""
    parser.add_argument("--owner", type=Owner.parse, metavar="USER:ID", help="who calls: the user, and WORKDIR's id")
    parser.add_argument("--owner-workdir", metavar="DIR", help="WORKDIR's real path on the caller's host")
