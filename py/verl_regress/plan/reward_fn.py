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
from verl_regress.plan.compose import Composed

# Where verl's config names the function. Read in verl 0.7.1 to 0.9.1; in 0.7.1 and 0.8.0 the legacy key exists too.
NEW_REWARD, _LEGACY_REWARD = "reward.custom_reward_function", "custom_reward_function"

_MOST_PARSED = 1_000_000  # bytes: Python takes 5 s and 400 MB to parse so much source code
# With one of these, a module may have names that its top level does not show.
_DYNAMIC = re.compile(rb"\bimport \*|\b(__getattr__|exec|global|globals|locals|setattr|vars)\b")
# Where verl keeps its reward managers, each in a file of its name (0.7.1 to 0.9.1), and what they add where a reward model runs.
MANAGERS = "verl/experimental/reward_loop/reward_manager"
_OF_REWARD_MODEL = {"reward_router_address", "reward_model_tokenizer"}


def parsed(path: Path) -> ast.Module:
    """A Python file; an empty one for what is too large or cannot be parsed."""
    try:
        return ast.parse(path.read_bytes() if path.stat().st_size <= _MOST_PARSED else b"")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def named_in(composed: Composed) -> tuple[str, str, str]:
    """The key of verl's config that counts for the reward function, and the file and the name there; both "" if there is none.

    A legacy key that is set replaces the whole new mapping (verl 0.7.1 to 0.9.1, migrate_legacy_reward_impl).
    """
    is_legacy = any(composed.value(f"{_LEGACY_REWARD}.{part}") is not None for part in ("path", "name"))
    key = _LEGACY_REWARD if is_legacy else NEW_REWARD
    path, name = (str(composed.value(f"{key}.{part}") or "") for part in ("path", "name"))
    return key, path, name


def check(root: SharedRoot, composed: Composed, given: Path | None, origin: str) -> None:
    """Raise BadInput if verl could not load the job's reward function.

    `given` is the JobSpec's reward_fn_path, and `origin` the JobSpec.
    """
    key, text, name = named_in(composed)
    if not text and given is not None:
        raise BadInput(
            f"reward_fn_path={given} (from {origin}) would not be used, because an override empties {NEW_REWARD}.path or sets "
            f"{_LEGACY_REWARD}.name, which replaces it: leave that override out, and name a function with {NEW_REWARD}.name."
        )
    path = _checked_path(root, text)
    if path is not None:
        by_spec = f"reward_fn_path={given} (from {origin})"
        named = by_spec if path == given else f"{key}.path={_with_origin(path, key, composed)}"
        check_file(path, name, f"{key}.name", named)


def _checked_path(root: SharedRoot, text: str) -> Path | None:
    """The file of a reward function, if it can be checked: only the nodes may have one outside the shared root, or a module (pkg://)."""
    path = Path(text.removeprefix("file://"))
    return path if text and root.escape_of(path) is None else None


def _with_origin(path: Path, key: str, composed: Composed) -> str:
    return f"{shown(str(path))} (from {composed.origin_of(f'{key}.path') or 'an override'})"


def check_file(path: Path, name: str, key: str, named: str) -> None:
    """Raise BadInput, in which `named` is the function's file, if it does not define the function that `key` of verl's config names."""
    try:
        if path.stat().st_size > _MOST_PARSED:
            raise BadInput(
                f"{named} has more than {_MOST_PARSED:,} bytes, too many to check it before each job: keep its data in another file."
            )
        source = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the job's log shows them
            compile(source, str(path), "exec", dont_inherit=True)  # as an import would; it is not run
            symbols = symtable.symtable(source, str(path), "exec").get_symbols()  # type: ignore[arg-type]  # bytes, too
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise BadInput(
            f"{named} cannot be read by the head's Python {python} ({shown(str(error), 500)}): fix it, or name another file."
        ) from None
    if not name:
        raise BadInput(f"{named} is used with an empty {key}: write the name of its function there.")
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    if name not in names and not _DYNAMIC.search(source):
        raise BadInput(
            f"{named} does not define {shown(name, 80)} at its top level: define it there, or name another function with {key}."
        )


def defines(path: Path, name: str) -> bool:
    """Whether a Python file has this name at its top level, as far as its symbols show."""
    try:
        source = path.read_bytes()
        symbols = symtable.symtable(source, str(path), "exec").get_symbols()  # type: ignore[arg-type]  # bytes, too
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True  # whoever imports it says what is wrong
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    return name in names or _DYNAMIC.search(source) is not None


def check_call(root: SharedRoot, composed: Composed, code_path: Path, code: Mapping[str, Any]) -> None:
    """Raise BadInput if verl's call of the job's reward function can only be a TypeError.

    `code` is the record of the snapshot at `code_path`. A function that is decorated, imported or assigned, and a reward manager of the
    user's own, may do anything: they are not checked.
    """
    key, text, name = named_in(composed)
    path = _checked_path(root, text)
    if path is None or (node := _defined(path, name)) is None:
        return
    called, more = keywords_of_call(composed, code_path), composed.value(f"{NEW_REWARD}.reward_kwargs")
    if not called:
        return
    passed = dict.fromkeys((*called, *(more if isinstance(more, Mapping) else ())))
    if not _takes(node.args, set(passed)):
        signature = shown(f"{node.name}({ast.unparse(node.args)})")
        raise BadInput(
            f"{_with_origin(path, key, composed)} defines {signature}, but verl {code['verl_version']} calls it with {', '.join(passed)} by name: "
            "write these parameters."
        )


def _defined(path: Path, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function of that name in a file; None if it is decorated, or the name is not that of one function alone."""
    defined = [node for node in parsed(path).body if getattr(node, "name", None) == name]
    match defined:
        case [ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]) as node]:
            return node
    return None


def _takes(given: ast.arguments, passed: set[str]) -> bool:
    """Can a function with these parameters be called with these names?"""
    positional = [*given.posonlyargs, *given.args]
    required = {each.arg for each in positional[: len(positional) - len(given.defaults)]}
    required |= {each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if not default}
    if required & {each.arg for each in given.posonlyargs} or required - passed - _OF_REWARD_MODEL:
        return False
    return given.kwarg is not None or passed <= {each.arg for each in (*given.args, *given.kwonlyargs)}


def keywords_of_call(composed: Composed, code_path: Path) -> list[str]:
    """The names with which the reward manager calls `compute_score`, every time; none if it is not verl's, or it passes them otherwise."""
    manager = code_path / MANAGERS / f"{composed.value('reward.reward_manager.name')}.py"
    calls = [
        [word.arg for word in node.keywords if word.arg]
        for node in ast.walk(parsed(manager))
        if isinstance(node, ast.Call) and "compute_score" in ast.unparse(node.func) and not node.args
    ]
    calls = [names for names in calls if names]
    return [name for name in calls[0] if all(name in names for names in calls)] if calls else []
