"""What readers of a job's JSON files rely on: the keys that must be there, and the types of those that are read.

A file that was edited by hand, or that another version wrote, ends a command on that job with one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_regress.base.errors import Unreadable, shown

_WORDS = {str: "a text", bool: "true or false", int: "a whole number", dict: "an object", list: "a list"}


_CAUSE = {"type": str, "message": str, "also?": str, "where?": str, "hint?": str, "step?": int}
# By key: its type, or what is in it. A key that ends in ? may be missing or null.
_SHAPES: dict[str, dict[str, Any]] = {
    "state/submitted": {"accepted": bool, "error?": str},
    "state/queued": {"reason": str},
    "state/ended": {"exit_code": int, "reason": str, "lost_nodes?": list, "cause?": _CAUSE},
    "state/observed": {"status?": str, "message?": str, "driver_info?": dict},  # of a job, by Ray (2.60)
    "state/collected": {"time": str},
    "config/resolved.json": {
        **dict.fromkeys(("address?", "cluster?", "code_id?", "workload?", "profile?", "code_path?"), str),
        **dict.fromkeys(("overrides?", "trusted_uids?", "code_dirs?", "caches?", "tokenizers?"), list),
        "devices?": {"count": int},
        "parent?": {"step": int, "attempt?": int},
        "owner?": dict,
        "entrypoint_resources?": dict,
    },
    "config/runtime_env.json": {"env_vars?": dict},
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


def _wrong(shape: Mapping[str, Any], content: Mapping[str, Any], home: str) -> str | None:
    for key, kind in shape.items():
        name, inner = key.removesuffix("?"), kind if isinstance(kind, dict) else None
        value, wanted = content.get(name), dict if inner is not None else kind
        if value is None:
            if name == key:
                return f"it has no {home}{name}"
        elif not _is(value, wanted):
            return f"{home}{name} must be {_WORDS[wanted]}, not {shown(str(value), 40)}"
        elif inner is not None and (found := _wrong(inner, value, f"{home}{name}.")) is not None:
            return found
    return None


def _is(value: Any, wanted: type) -> bool:
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
