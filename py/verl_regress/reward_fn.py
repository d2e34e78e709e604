"""A JobSpec's reward_fn_path: a user's reward function, and verl's own name for it in the snapshot that will run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_regress.errors import BadInput, shown
from verl_regress.layout import SharedRoot

# Where verl's configuration keeps the function's file, the newest first: the key, the file of verl/trainer/config that
# defines it, and the key in that file. Read in verl 0.7.0 (the second) and in 0.7.1 and 0.8.0, where the second is still there
# for compatibility, and the first is what it is copied to.
_KEYS = (
    ("reward.custom_reward_function.path", "reward/reward.yaml", ("custom_reward_function", "path")),
    ("custom_reward_function.path", "ppo_trainer.yaml", ("custom_reward_function", "path")),
)


def check(root: SharedRoot, given: str, origin: str) -> Path:
    """Return `given` as the file it names under user/code/ of the shared root. Raises BadInput, with `origin`."""
    path, home = Path(given), root.user_code
    problem = None
    if not path.is_relative_to(home) or ".." in path.parts:
        problem = f"it must be a file under {home}, without '..'"
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


def key_of(code_path: Path) -> str:
    """Return the key by which the verl at `code_path` finds the file of a reward function. Raises BadInput."""
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
