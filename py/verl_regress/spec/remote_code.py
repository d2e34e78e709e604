"""The code that models bring and transformers runs as the job: of which models, from which caches, and who else may change it.

With trust_remote_code (`compose`) it runs all of them. verl's reward loop, which is part of every RL job, loads a model's tokenizer as if
that were on (0.7.0 to 0.9.1).
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_regress.base.errors import Unreadable, shown
from verl_regress.base.files import read_json
from verl_regress.base.layout import SharedRoot
from verl_regress.base.owner import need_own
from verl_regress.spec.compose import Composed
from verl_regress.spec.environment import Environment
from verl_regress.spec.workloads import Workload

_HUB = "HF_HUB_CACHE"  # in env_vars; without it, the hub's files are in HF_HOME
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def caches(root: SharedRoot, environment: Environment) -> Iterator[Path]:
    """The caches of the Hugging Face libraries on the shared root. Raises BadInput if another user can add to one."""
    for name in ("HF_HOME", _HUB):
        home = environment.variables.get(name)
        if home is not None and root.has(Path(home)):
            origin = environment.origins.get(name, "the knob SHARED_ROOT")
            need_own(Path(home), f"{name}={shown(home)} (from {origin})", "or let its owner remove it", alone=True)
            yield Path(home)


def models(root: SharedRoot, environment: Environment, texts: Iterable[tuple[str, str]]) -> tuple[Path, ...]:
    """The models on the shared root that verl's config names, by a path or by the name of a repository that the cache has."""
    hub = Path(environment.variables.get(_HUB, f"{environment.variables['HF_HOME']}/hub"))
    named = dict.fromkeys(
        Path(text) if text.startswith("/") else hub / f"models--{text.replace('/', '--')}"
        for _, text in texts
        if text.startswith("/") or _REPO.fullmatch(text)
    )
    return tuple(path for path in named if root.has(path) and _is_model(path))


def _is_model(path: Path) -> bool:
    """Is there a model, or the cache's copies of one?"""
    try:
        return any(path.glob("*config.json")) or (path / "snapshots").is_dir()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # as of no file
            raise
        return False


def own_models(named: tuple[Path, ...], composed: Composed) -> tuple[Path, ...]:
    """Those of the `named` models whose Python files all run. Raises BadInput if one is another user's."""
    if not composed.runs_remote_code:
        return ()
    for model in named:
        need_own(model, f"The model {shown(str(model))} with trust_remote_code", "or set trust_remote_code to false")
    return named


def own_tokenizers(named: tuple[Path, ...], composed: Composed, workload: Workload) -> tuple[Path, ...]:
    """Those of the `named` models of which only the tokenizer's code may run. Raises BadInput if that of one is another user's."""
    if composed.runs_remote_code or not workload.has_reward:
        return ()
    for model in named:
        need_own_tokenizer(model, "or name another model")
    return named


def need_own_tokenizer(model: Path, then: str, trusted: Iterable[int] | None = None) -> None:
    """Raise BadInput if a model names code for transformers to run, and another user can change it; `then` is the end of the cure."""
    if _names_code(model):
        named = f"The model {shown(str(model))}, whose tokenizer's code verl's reward loop runs even without trust_remote_code,"
        need_own(model, named, then, trusted)


def _names_code(model: Path) -> bool:
    """Has a config of it an auto_map, of code there or in another model? One that cannot be read may have, as may what a link leads to.

    `configuration_files` names configs of other versions of transformers, which it prefers (5.10).
    """
    try:
        for folder, folders, files in os.walk(model, onerror=_raise):
            if any(Path(folder, name).is_symlink() for name in folders):
                return True
            for name in fnmatch.filter(files, "*config*.json"):
                said = read_json(Path(folder, name)) or {}
                if said.get("auto_map") or said.get("configuration_files"):
                    return True
    except (Unreadable, OSError):
        return True
    return False


def _raise(error: OSError) -> None:
    raise error
