"""Access to what only a rehearsal needs: the package `verl_rehearsal`, next to this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from verl_regress.base.errors import RegressError

FOLDER = Path(__file__).parents[2] / "rehearsal"


def module(name: str) -> ModuleType:
    """Import and return `verl_rehearsal.<name>`."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module(f"verl_rehearsal.{name}")


def run(name: str, arguments: Sequence[str]) -> str:
    """Run `verl_rehearsal.<name>` as a program and return its output; raises RegressError with its last words if it fails."""
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", f"verl_rehearsal.{name}", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise RegressError((done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1])
    return done.stdout
