"""The one rule of trust, as git's safe.directory: what decides what a job does belongs to us, to root or to whom we trust, and nobody else
may write there.

Whom we trust is a list of words, as chown(1) writes them: `1001` is a user, and `:42000` a group, all of whose members we trust.
"""

import contextlib
import glob
import grp
import os
import shlex
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from verl_regress.base.errors import BadInput

JOB_UIDS = "VERL_REGRESS_JOB_UIDS"  # such words, too: who may own the directory of a job, for its launcher
_TRUSTED_UIDS = "VERL_REGRESS_TRUSTED_UIDS"  # the knob, set by scripts/lib/helper.bash


class Foreign(NamedTuple):
    """Why another user, whom we do not trust, can change a file or a folder, and what to do about it."""

    why: str
    cure: str


def trusted() -> list[str]:
    """Whom we trust: root, us, and the knob TRUSTED_UIDS. Raises BadInput for a group that this node does not know."""
    asked = os.environ.get(_TRUSTED_UIDS, "").split()
    return sorted(
        {"0", str(os.geteuid()), *(f":{group_number(each[1:])}" if each[0] == ":" else each for each in asked)}
    )


def of_job() -> list[str]:
    """In a process of a job: who else may own that job's files; elsewhere nobody."""
    return os.environ.get(JOB_UIDS, "").split()


def group_number(name: str) -> int:
    """The number of a group of this node, by name or number. Raises BadInput."""
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadInput(
            f"SHARED_GROUP={name} is not a group of {os.uname().nodename}: give its number, or a group that every node has."
        ) from None


def is_trusted(found: os.stat_result, whom: Collection[str] | None = None) -> bool:
    """Does this belong to us, root or `whom` (None: `trusted`)? Only its members can give a file to a group."""
    return not _words(whom).isdisjoint((str(found.st_uid), f":{found.st_gid}"))


def _words(whom: Collection[str] | None) -> set[str]:
    return {"0", str(os.geteuid()), *(trusted() if whom is None else whom)}


def foreign(found: os.stat_result, whom: Collection[str] | None, target: Path) -> Foreign | None:
    """Can others than we, root and `whom` change what has the state `found`? The cure is one for all of `target`, a folder that it is in.

    A group that has the number of a user is that user's: most systems give each user such a group, alone in it. A sticky directory is no
    problem: nobody else renames or removes what is in it, and that is checked itself. Of a link, the mode of its target counts.
    """
    if not is_trusted(found, whom):
        is_of_group = found.st_gid not in (0, found.st_uid)
        all_of = ", or TRUSTED_UIDS=group if you trust all of SHARED_GROUP" if is_of_group else ""
        return Foreign(
            f"belongs to user {found.st_uid}", f"set TRUSTED_UIDS={found.st_uid} if you trust that user{all_of}"
        )
    mode = stat.S_IMODE(found.st_mode)
    if not (stat.S_ISREG(found.st_mode) or (stat.S_ISDIR(found.st_mode) and not mode & stat.S_ISVTX)):
        return None
    cure = f"type 'chmod {'-R ' if target.is_dir() else ''}go-w {shlex.quote(str(target))}'"
    cure = cure if os.geteuid() in (0, found.st_uid) else f"ask user {found.st_uid} to {cure}"
    if mode & stat.S_IWOTH:
        return Foreign(f"can be changed by every user (mode {mode:04o})", cure)
    if mode & stat.S_IWGRP and _words(whom).isdisjoint((str(found.st_gid), f":{found.st_gid}")):
        cure += ", or set TRUSTED_UIDS=group if that is SHARED_GROUP and you trust its members"
        return Foreign(f"can be changed by the group {found.st_gid} (mode {mode:04o})", cure)
    return None


def need(place: Path, named: str, then: str, whom: Collection[str] | None = None, *, alone: bool = False) -> None:
    """Raise BadInput if others can change a file, or a folder and anything in it unless it is asked `alone`, or if that cannot be read.
    `then` is the end of the cure. What is not there belongs to nobody.
    """
    whom = trusted() if whom is None else whom
    try:
        is_folder = place.is_dir()
        for path in _parts(place, alone=alone):
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                found = [os.lstat(path)]
                if is_link := stat.S_ISLNK(found[0].st_mode):
                    with contextlib.suppress(FileNotFoundError):  # one that leads nowhere is checked itself
                        found.append(path.stat())
                target = path if is_link or not is_folder else place  # 'chmod -R' follows no link
                for other in (foreign(state, whom, target) for state in found):
                    if other is not None:
                        raise BadInput(
                            f"{named} is refused, because {path} {other.why}, and what is there decides what your job does: {other.cure}, {then}."
                        )
    except OSError as error:
        raise BadInput(
            f"{named} is not usable, because {error.filename} cannot be read ({error.strerror}): make it readable, {then}."
        ) from None


def _parts(place: Path, *, alone: bool) -> Iterator[Path]:
    """A file and what can replace it, or a folder and (but for `alone`) all that is in it. Raises OSError for a folder that cannot be listed.

    What can take the place of a Python file is its bytecode, and another file that is put into its folder, or into the folder of what it
    leads to; a sticky folder is for all of a team (`user/code`). A folder that a link leads to is not searched.
    """
    yield place
    if place.is_file():
        folders = dict.fromkeys((place.parent, place.resolve().parent))
        yield from (folder for folder in folders if not folder.stat().st_mode & stat.S_ISVTX)
        bytecode = place.parent / "__pycache__"
        if place.suffix == ".py" and bytecode.is_dir():
            yield from (bytecode, *bytecode.glob(f"{glob.escape(place.stem)}.*"))
    elif not alone:
        for folder, *names in os.walk(place, onerror=_unlisted):
            yield from (Path(folder, name) for kind in names for name in kind)


def _unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
