"""Access to what only a rehearsal needs: the package `verl_rehearsal`, next to this one."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "rehearsal"


def module(name: str) -> ModuleType:
    """Import and return `verl_rehearsal.<name>`."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module(f"verl_rehearsal.{name}")


def path(name: str) -> Path:
    """Return the file of `verl_rehearsal.<name>` without importing it."""
    return FOLDER / "verl_rehearsal" / f"{name}.py"
