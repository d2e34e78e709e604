"""A user's reward function: the JobSpec's reward_fn_path, or what verl's config names, and what its file defines.

The file and verl's own are parsed and never run.
"""

import ast
import re
import symtable
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.plan.compose import LEGACY_REWARD, NEW_REWARD, Composed, Function

MOST_PARSED = 1_000_000  # bytes: Python takes 5 s and 400 MB to parse so much source code
# With one of these, a module may have names that its top level does not show.
_DYNAMIC = re.compile(rb"\bimport \*|\b(__getattr__|exec|global|globals|locals|setattr|vars)\b")
# Where verl keeps its reward managers, each in a file of its name (0.7.1 to 0.9.1), and what they add where a reward model runs.
_MANAGERS = "verl/experimental/reward_loop/reward_manager"
_OF_REWARD_MODEL = {"reward_router_address", "reward_model_tokenizer"}


def parsed(path: Path) -> ast.Module:
    """A Python file; an empty one for what is too large or cannot be parsed."""
    try:
        return ast.parse(path.read_bytes() if path.stat().st_size <= MOST_PARSED else b"")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def check(
    root: SharedRoot, composed: Composed, given: Path | None, origin: str, code_path: Path, code: Mapping[str, Any]
) -> None:
    """Raise BadInput if verl could not load the job's reward function, or if its call can only be a TypeError.

    `given` is the JobSpec's reward_fn_path, and `origin` the JobSpec; `code` is the record of the snapshot at `code_path`.
    A file outside the shared root is not checked, because only the nodes may have it; nor is a module (pkg://).
    """
    function = composed.reward
    if function is None and given is not None:
        raise BadInput(
            f"reward_fn_path={given} (from {origin}) would not be used, because an override empties {NEW_REWARD}.path or sets "
            f"{LEGACY_REWARD}.name, which replaces it: leave that override out, and name a function with {NEW_REWARD}.name."
        )
    if function is None or root.escape_of(path := function.file) is not None:
        return
    set_by = composed.origin_of(f"{function.key}.path") or "an override"
    is_given = path == given
    named = f"reward_fn_path={given}" if is_given else f"{function.key}.path={shown(str(path))}"
    check_file(function, f"{named} (from {origin if is_given else set_by})")
    _check_call(function, f"{shown(str(path))} (from {set_by})", composed, code_path, code)


def check_file(function: Function, named: str) -> None:
    """Raise BadInput, in which `named` is the function's file, if it does not define the function."""
    path = function.file
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


def _check_call(function: Function, named: str, composed: Composed, code_path: Path, code: Mapping[str, Any]) -> None:
    """A function that is decorated, imported or assigned, and a reward manager of the user's own, may do anything: they are not checked."""
    called = _keywords_of_call(code_path / _MANAGERS / f"{composed.value('reward.reward_manager.name')}.py")
    defined = [node for node in parsed(function.file).body if getattr(node, "name", None) == function.name]
    if not called or len(defined) != 1:
        return
    (node,) = defined
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
        return
    passed = dict.fromkeys((*called, *(composed.value(f"{NEW_REWARD}.reward_kwargs") or {})))
    if not _takes(node.args, set(passed)):
        raise BadInput(
            f"{named} defines {shown(f'{node.name}({ast.unparse(node.args)})')}, but verl {code['verl_version']} calls "
            f"it with {', '.join(passed)} by name: write these parameters."
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


def _takes(given: ast.arguments, passed: set[str]) -> bool:
    """Can a function with these parameters be called with these names?"""
    positional = [*given.posonlyargs, *given.args]
    optional = {each.arg for each in positional[len(positional) - len(given.defaults) :]}
    optional |= {each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default}
    by_name = {each.arg for each in (*given.args, *given.kwonlyargs)}
    required = {each.arg for each in (*positional, *given.kwonlyargs)} - optional
    if required & {each.arg for each in given.posonlyargs} or required - passed - _OF_REWARD_MODEL:
        return False
    return given.kwarg is not None or passed <= by_name


def _keywords_of_call(manager: Path) -> list[str]:
    """The names with which a reward manager calls `compute_score`, every time; none if it is not verl's, or it passes them otherwise."""
    calls = [
        [word.arg for word in node.keywords if word.arg]
        for node in ast.walk(parsed(manager))
        if isinstance(node, ast.Call) and "compute_score" in ast.unparse(node.func) and not node.args
    ]
    calls = [names for names in calls if names]
    return [name for name in calls[0] if all(name in names for names in calls)] if calls else []
