"""Loads the Python of scripts/dev/, which is not a package, as modules."""

import importlib.util
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "scripts" / "dev"))  # where a script finds its neighbours when it is run


def load(name):
    """Return scripts/dev/<name>.py as a module of its own."""
    spec = importlib.util.spec_from_file_location(name, REPO / "scripts" / "dev" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module
