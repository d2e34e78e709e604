"""The Python files that a model brings, which transformers runs as the job.

With trust_remote_code it runs all of them. verl's reward loop, which is part of every RL job, loads a model's tokenizer as if that were on
(0.7.0 to 0.9.1).
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from pathlib import Path

from verl_regress.base.errors import Unreadable, shown
from verl_regress.base.files import read_json
from verl_regress.base.owner import need_own


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
