"""A user's reward function: the JobSpec's reward_fn_path, or what verl's config names, and what its file defines.

The file is parsed and never run.
"""

from __future__ import annotations

import ast
import re
import symtable
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.plan.overrides import Override

MOST_PARSED = 1_000_000  # bytes: Python takes 5 s and 400 MB to parse so much source code
# Where verl's config names the function. Read in verl 0.7.1 to 0.9.1; in 0.7.1 and 0.8.0 the legacy key exists too.
NEW, _LEGACY = "reward.custom_reward_function", "custom_reward_function"
# With one of these, a module may have names that its top level does not show.
_DYNAMIC = re.compile(rb"\bimport \*|\b(__getattr__|exec|global|globals|locals|setattr|vars)\b")


@dataclass(frozen=True)
class Function:
    """The reward function in verl's config: its file and its name, under `key`."""

    path: str
    name: str | None
    key: str

    @classmethod
    def from_config(cls, value: Callable[[str], Any]) -> Function | None:
        """The function that a job with verl's config loads; `value` gives the value at a dotted key, None if there is none.

        A legacy key that is set replaces the whole new mapping (verl 0.7.1 and 0.8.0, migrate_legacy_reward_impl).
        """
        legacy = any(value(f"{_LEGACY}.{part}") is not None for part in ("path", "name"))
        key = _LEGACY if legacy else NEW
        path, name = value(f"{key}.path"), value(f"{key}.name")
        return cls(str(path), None if name is None else str(name), key) if path else None


def parsed(path: Path) -> ast.Module:
    """A Python file; an empty one for what is too large or cannot be parsed."""
    try:
        return ast.parse(path.read_bytes() if path.stat().st_size <= MOST_PARSED else b"")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def check_function(
    root: SharedRoot, function: Function | None, given: Path | None, origin: str, overrides: Iterable[Override]
) -> None:
    """Raise BadInput if verl could not load the job's reward function.

    `given` is the JobSpec's reward_fn_path, and `origin` the JobSpec; `overrides` are the job's.
    A file outside the shared root is not checked, because only the nodes may have it; nor is a module (pkg://).
    """
    if function is None:
        if given is not None:
            raise BadInput(
                f"reward_fn_path={given} (from {origin}) would not be used, because an override empties {NEW}.path or sets "
                f"{_LEGACY}.name, which replaces it: leave that override out, and name a function with {NEW}.name."
            )
        return
    path = Path(function.path.removeprefix("file://"))
    if root.escape_of(path) is not None:
        return
    key = f"{function.key}.path"
    set_by = next((override.origin for override in overrides if override.parts()[1] == key), "an override")
    named = f"reward_fn_path={given} (from {origin})" if path == given else f"{key}={shown(str(path))} (from {set_by})"
    try:
        if path.stat().st_size > MOST_PARSED:
            raise BadInput(
                f"{named} has more than {MOST_PARSED:,} bytes, too many to check it before each job: keep its data in another file."
            )
        source = path.read_bytes()
        names = _names_in(path, source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise BadInput(
            f"{named} cannot be read by the head's Python {python} ({shown(str(error), 500)}): fix it, or name another file."
        ) from None
    if function.name not in names and not _DYNAMIC.search(source):
        raise BadInput(
            f"{named} does not define {shown(str(function.name), 80)} at its top level: define it there, or name another function with "
            f"{function.key}.name."
        )


def _names_in(path: Path, source: bytes) -> set[str]:
    """The names that the file with this source binds at its top level; it is compiled as an import would, and not run.

    Raises SyntaxError, and whatever else Python raises for a file that is not source code.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the job's log shows them
        compile(source, str(path), "exec", dont_inherit=True)
        top = symtable.symtable(source, str(path), "exec")  # type: ignore[arg-type]  # bytes, too
    return {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
