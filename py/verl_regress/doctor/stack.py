"""Stack: Ray, Python and packages are the same on all nodes."""

import platform
from typing import Any

from verl_regress.doctor.checks import Check, Plan


def facts(_plan: Plan) -> dict[str, Any]:
    """The version of Python."""
    return {"python": platform.python_version()}


CHECKS: tuple[Check, ...] = ()
