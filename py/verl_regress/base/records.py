"""What readers of a job's JSON files rely on: the keys that must be there, and the types of those that are read.

A file that was edited by hand, or that another version wrote, ends a command on that job with one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_regress.base.errors import Unreadable, printable

_WORDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


@dataclass(frozen=True)
class _Key:
    """One key of an object: its type, and what is in it. An optional one may be null, too."""

    type: type
    required: bool = False
    inner: Mapping[str, _Key] = field(default_factory=dict)


def _must(type: type, **inner: _Key) -> _Key:
    return _Key(type, required=True, inner=inner)


_CAUSE = {
    "type": _must(str),
    "message": _must(str),
    **dict.fromkeys(("also", "where", "hint"), _Key(str)),
    "step": _Key(int),
}
_DETAILS = {"status": _Key(str), "message": _Key(str), "driver_info": _Key(dict)}  # of a job, by Ray (2.60)
_SHAPES: dict[str, Mapping[str, _Key]] = {
    "state/submitted": {"accepted": _must(bool), "error": _Key(str)},
    "state/queued": {"reason": _must(str)},
    "state/ended": {
        "exit_code": _must(int),
        "reason": _must(str),
        "lost_nodes": _Key(list),
        "cause": _Key(dict, inner=_CAUSE),
    },
    "state/observed": _DETAILS,
    "state/collected": {"time": _must(str)},
    "config/resolved.json": {
        "address": _Key(str),
        "cluster": _Key(str),
        "code_id": _Key(str),
        "workload": _Key(str),
        "profile": _Key(str),
        "code_path": _Key(str),
        "devices": _Key(dict, inner={"count": _must(int)}),
        "parent": _Key(dict, inner={"step": _must(int), "attempt": _Key(int)}),
        "overrides": _Key(list),
        "owner": _Key(dict),
        "entrypoint_resources": _Key(dict),
        "trusted_uids": _Key(list),
        "code_dirs": _Key(list),
        "caches": _Key(list),
        "tokenizers": _Key(list),
    },
    "config/runtime_env.json": {"env_vars": _Key(dict)},
}


def check(path: Path, content: Mapping[str, Any]) -> None:
    """Raise Unreadable if a file of a job, `state/…` or `config/…`, holds something else."""
    wrong = _wrong(_SHAPES.get(f"{path.parent.name}/{path.name}", {}), content, "")
    if wrong is not None:
        raise not_as_written(path, wrong)


def not_as_written(path: Path, wrong: str) -> Unreadable:
    """The error for a file that holds JSON, but `wrong` is wrong with it."""
    return Unreadable(
        f"{path} cannot be read: {wrong}: restore it from a backup.",
        f"cannot be read: {path.parent.name}/{path.name}: {wrong}",
    )


def need(path: Path, content: Mapping[str, Any], *keys: str) -> None:
    """Raise Unreadable if one of these keys of a job's file is missing, or null."""
    for key in keys:
        if content.get(key) is None:
            raise not_as_written(path, f"it has no {key}")


def _wrong(shape: Mapping[str, _Key], content: Mapping[str, Any], home: str) -> str | None:
    for name, key in shape.items():
        value = content.get(name)
        if value is None:
            if key.required:
                return f"it has no {home}{name}"
            continue
        if not _is(value, key.type):
            shown = printable(str(value))
            return f"{home}{name} must be {_WORDS[key.type]}, not {shown if len(shown) <= 40 else f'{shown[:40]}…'}"
        found = _wrong(key.inner, value, f"{home}{name}.") if key.inner else None
        if found is not None:
            return found
    return None


def _is(value: Any, wanted: type) -> bool:
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
