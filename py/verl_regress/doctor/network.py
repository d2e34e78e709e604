"""Network: each node reaches each other one as Ray, Gloo and NCCL will."""

from typing import Any

from verl_regress.doctor.checks import Check, Plan


def facts(_plan: Plan) -> dict[str, Any]:
    """Nothing yet."""
    return {}


CHECKS: tuple[Check, ...] = ()
