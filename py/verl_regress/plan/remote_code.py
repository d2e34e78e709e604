"""The code that models bring and transformers runs as the job: of which models, from which caches.

It runs with trust_remote_code, and verl's reward loop, which is part of every RL job, loads a model's tokenizer as if that were on (0.7.0 to
0.9.1). So the rule of trust is one for all models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from verl_regress.base.errors import shown
from verl_regress.base.layout import SharedRoot
from verl_regress.base.owner import need_own
from verl_regress.plan.environment import Environment

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


def models(root: SharedRoot, environment: Environment, texts: Iterable[tuple[str, str]]) -> Iterator[Path]:
    """The models on the shared root that verl's config names, by a path or by the name of a repository that the cache has.

    Raises BadInput if another user can change one.
    """
    hub = Path(environment.variables.get(_HUB, f"{environment.variables['HF_HOME']}/hub"))
    named = dict.fromkeys(
        Path(text) if text.startswith("/") else hub / f"models--{text.replace('/', '--')}"
        for _, text in texts
        if text.startswith("/") or _REPO.fullmatch(text)
    )
    for model in named:
        if root.has(model) and _is_model(model):
            need_own(model, f"The model {shown(str(model))}", "or make one of your own under another name")
            yield model


def _is_model(path: Path) -> bool:
    """Is there a model, or the cache's copies of one?"""
    try:
        names = [each.name for each in path.iterdir()]
    except PermissionError:  # its files may be readable by their names
        return True
    except OSError:  # such as a text that is too long for a path
        return False
    return "snapshots" in names or any(name.endswith("config.json") for name in names)
