"""A user's reward function: the JobSpec's reward_fn_path, the snapshot's config key for it, and what its file defines.

The file is parsed and never run.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import symtable
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.base.owner import by_mode, by_owner, bytecode_of, of_folders
from verl_regress.spec.overrides import Override

# Where verl's configuration names the function's file, newest first: the key, the file of verl/trainer/config that
# defines it, and the key in that file. Read in verl 0.7.0 (the second) and in 0.7.1 and 0.8.0, where the second still
# exists for compatibility and is copied to the first.
_KEYS = (
    ("reward.custom_reward_function.path", "reward/reward.yaml", ("custom_reward_function", "path")),
    ("custom_reward_function.path", "ppo_trainer.yaml", ("custom_reward_function", "path")),
)

_NEW, _LEGACY = (key.removesuffix(".path") for key, _, _ in _KEYS)
# With one of these, a module may have names that its top level does not show.
_DYNAMIC = re.compile(rb"\bimport \*|\b(__getattr__|exec|global|globals|locals|setattr|vars)\b")


@dataclass(frozen=True)
class Function:
    """The reward function in verl's config: its file and its name, under `key`."""

    path: str
    name: str | None
    key: str

    @classmethod
    def of(cls, value: Callable[[str], Any]) -> Function | None:
        """The function that a job with verl's config loads; `value` gives the value at a dotted key, None if there is none.

        A legacy key that is set replaces the whole new mapping (verl 0.7.1 and 0.8.0, migrate_legacy_reward_impl).
        """
        legacy = any(value(f"{_LEGACY}.{part}") is not None for part in ("path", "name"))
        key = _LEGACY if legacy else _NEW
        path, name = value(f"{key}.path"), value(f"{key}.name")
        return cls(str(path), None if name is None else str(name), key) if path else None


def check(root: SharedRoot, given: str, origin: str) -> Path:
    """Return the file under user/code/ of the shared root that `given` names. Raises BadInput, with `origin`."""
    path, home = Path(given), root.user_code
    problem = None
    if not path.is_relative_to(home) or ".." in path.parts:
        problem = "it must be a file under ${shared_root}/user/code, without '..'"
    elif (escape := root.escape_of(path)) is not None:
        problem = escape
    elif not path.is_file():
        problem = "there is no such file"
    else:
        try:
            path.open("rb").close()
        except OSError as error:
            problem = f"it cannot be read ({error.strerror})"
    if problem is not None:
        raise BadInput(
            f"reward_fn_path={shown(given)} (from {origin}) is not usable: {shown(problem, 500)}; put it under ${{shared_root}}/user/code/."
        )
    return path


def check_function(
    root: SharedRoot, function: Function | None, given: Path | None, origin: str, overrides: Iterable[Override]
) -> Path | None:
    """Return the file of the job's reward function. Raises BadInput if verl could not load it, or if it is another user's.

    `given` is the JobSpec's reward_fn_path, and `origin` the JobSpec; `overrides` are those of the job.
    A file outside the shared root is not checked, because only the nodes may have it; nor is a module (pkg://). The answer
    is then None, as for a job without a function.
    """
    if function is None:
        if given is not None:
            raise BadInput(
                f"reward_fn_path={given} (from {origin}) would not be used, because an override empties {_NEW}.path or sets "
                f"{_LEGACY}.name, which replaces it: leave that override out, and name a function with {_NEW}.name."
            )
        return None
    path = Path(function.path.removeprefix("file://"))
    if root.escape_of(path) is not None:
        return None
    key = f"{function.key}.path"
    set_by = next((override.origin for override in overrides if override.parts()[1] == key), "an override")
    named = f"reward_fn_path={given} (from {origin})" if path == given else f"{key}={shown(str(path))} (from {set_by})"
    if function.name is None:
        raise BadInput(
            f"{named} names no function, because {function.key}.name is empty: set it, for example to compute_score."
        )
    try:
        source, foreign = _read(path)
        names = _names_in(path, source) if foreign is None else set[str]()
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"{named} is not usable, because {_problem(error)}.") from None
    if foreign is not None:
        raise BadInput(f"{named} is refused, {foreign}.")
    if function.name in names or _DYNAMIC.search(source):
        return path
    near = difflib.get_close_matches(function.name, names, n=1)
    hint = f" (did you mean {shown(near[0], 80)}?)" if near else ""
    raise BadInput(
        f"{named} does not define {shown(function.name, 80)} at its top level{hint}: define it there, or name another function "
        f"with {function.key}.name."
    )


def foreign_owner(path: Path, file: BinaryIO, trusted: Iterable[int] | None = None) -> str | None:
    """Why the reward function at `path`, which is open as `file`, is not run, and what to do; None if it may be run.

    Everything that decides what runs must belong to a user whom we trust (`is_trusted`), and nobody else may change it: the
    file, a link to it, and the bytecode next to it, which Python runs instead of the file.
    """
    states = [(path, os.fstat(file.fileno())), (path, path.lstat())]
    for part in bytecode_of(path):
        states += [(part, part.stat()), (part, part.lstat())]
    owned = (by_owner(part, found.st_uid, trusted) for part, found in states)
    changed = (by_mode(part, found) for part, found in states)
    for foreign in (*owned, *changed, of_folders(path, trusted)):
        if foreign is not None:
            return (
                f"because {foreign}, and what is there would run as you: {foreign.cure}, or name a file in a folder of your own under "
                "${shared_root}/user/code"
            )
    return None


def _read(path: Path) -> tuple[bytes, str | None]:
    """The file's content, and what `foreign_owner` says of it. Raises OSError."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file")
    with path.open("rb") as file:
        return file.read(), foreign_owner(path, file)


def _names_in(path: Path, source: bytes) -> set[str]:
    """The names that the file with this source binds at its top level; it is compiled as an import would, and not run.

    Raises SyntaxError, and whatever else Python raises for a file that is not source code.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the job's log shows them
        compile(source, str(path), "exec", dont_inherit=True)
        top = symtable.symtable(source, str(path), "exec")  # type: ignore[arg-type]  # bytes, too
    return {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror}): name a file that can"
    line = f"line {error.lineno} of it" if isinstance(error, SyntaxError) and error.lineno else "it"
    said = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
    return f"{line} cannot be parsed by the head's Python {sys.version_info[0]}.{sys.version_info[1]} ({shown(said)}): fix it"


def key_of(code_path: Path) -> str:
    """Return the config key for a reward function's file in the verl at `code_path`. Raises BadInput."""
    config = code_path / "verl" / "trainer" / "config"
    for key, file, path in _KEYS:
        if _has(config / file, path):
            return key
    raise BadInput(
        f"The snapshot {code_path} has none of the keys {' and '.join(key for key, _, _ in _KEYS)} in verl/trainer/config: "
        "leave reward_fn_path out and name your function in trainer_overrides, as this release wants it."
    )


def _has(file: Path, path: tuple[str, ...]) -> bool:
    try:
        found: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return False
        found = found[key]
    return True
