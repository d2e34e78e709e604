"""Looks up the verl symbols that a hook touches, so that another verl release fails with one clear sentence."""

import inspect
import sys
from pathlib import Path
from types import ModuleType

from verl_rehearsal.errors import RehearsalError

READ_RELEASES = "0.7.1 to 0.9.1"


def require(module: ModuleType, name: str, *parameters: str, hook: str) -> None:
    """Check that ``module.<name>`` (it may be dotted) exists and takes the ``parameters`` that the hook passes on.

    Raises RehearsalError if not.
    """
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise unknown_verl(f"no {module.__name__}.{name}, which", hook)
        found = getattr(found, part)
    taken = inspect.signature(found).parameters if parameters and callable(found) else {}
    for parameter in parameters:
        if parameter not in taken:
            raise unknown_verl(f"no parameter {parameter!r} in {module.__name__}.{name}, which", hook)


def unknown_verl(lack: str, hook: str) -> RehearsalError:
    """Return the error for a verl that lacks what ``hook`` needs; its own ``__init__`` may still be running."""
    file = Path(str(sys.modules["verl"].__file__))
    version_file = file.parent / "version" / "version"
    version = version_file.read_text(encoding="utf-8").strip() if version_file.is_file() else "(of unknown version)"
    return RehearsalError(
        f"verl {version} at {file} has {lack} the rehearsal {hook} hook relies on: rehearse with verl {READ_RELEASES} "
        f"or teach rehearsal/verl_rehearsal/{hook}.py the new name, as maintain/verl-releases.md describes"
    )
