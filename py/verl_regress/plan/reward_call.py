"""Whether a user's reward function takes what this snapshot's verl calls it with. Both files are parsed, and neither is run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.plan.compose import Composed
from verl_regress.plan.reward_fn import parsed

# Where verl keeps its reward managers, each in a file of its name (0.7.1 to 0.9.1), and what they add where a reward model runs.
_MANAGERS = "verl/experimental/reward_loop/reward_manager"
_OF_REWARD_MODEL = {"reward_router_address", "reward_model_tokenizer"}


def check(root: SharedRoot, code_path: Path, code: Mapping[str, Any], composed: Composed) -> None:
    """Raise BadInput if the call of the job's reward function can only be a TypeError.

    A function that is decorated, imported or assigned, and a reward manager of the user's own, may do anything: they are not checked.
    """
    function = composed.reward
    if function is None or (path := Path(function.path.removeprefix("file://"))).suffix != ".py" or not root.has(path):
        return
    manager = composed.value("reward.reward_manager.name")
    called = _keywords_of_call(code_path / _MANAGERS / f"{manager}.py")
    defined = [node for node in parsed(path).body if getattr(node, "name", None) == function.name]
    if not called or len(defined) != 1:
        return
    (node,) = defined
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
        return
    passed = dict.fromkeys((*called, *(composed.value("reward.custom_reward_function.reward_kwargs") or {})))
    if not _takes(node.args, set(passed)):
        origin = composed.origin_of(f"{function.key}.path") or "an override"
        raise BadInput(
            f"{shown(str(path))} (from {origin}) defines {shown(f'{node.name}({ast.unparse(node.args)})')}, but verl {code['verl_version']} calls "
            f"it with {', '.join(passed)} by name: write these parameters."
        )


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
