"""Linux's limits for starting a process: one argument, one variable, and all of them together.

Sources: execve(2), "Limits on size of arguments and environment", and Ray 2.60. A larger job would fail on a node with
"Argument list too long", or stay PENDING; so its submission is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from verl_regress.base.errors import BadInput, shown
from verl_regress.spec.overrides import Override

_ONE = 131072  # MAX_ARG_STRLEN, 32 pages of 4 KiB: one argument or one NAME=VALUE, with its NUL
_ALL = 2097152  # argv and environment together: a quarter of RLIMIT_STACK, which is 8 MiB by default
_OTHERS = 524288  # of _ALL: the job's variables, alone and as JSON, those of the node and Ray's
_POINTER = 8  # each argument has a pointer, which counts too
# Part of _ONE: Ray's own text around the env_vars, RAY_JOB_CONFIG_JSON_ENV_VAR={"runtime_env": …, "metadata": …} of the
# driver (dashboard/modules/job/job_supervisor.py), --serialized-runtime-env-context={…} of a worker
# (_private/services.py).
_RAYS_WORDS = 4096
_CURE = "put long values into files on the shared root, and give their paths instead"


def check(overrides: Sequence[Override], env_vars: Mapping[str, str], origins: Mapping[str, str]) -> None:
    """Refuse a job whose processes could not be started. `origins` says who asked for a variable. Raises BadInput."""
    for override in overrides:
        if "\0" in override.text:
            raise BadInput(f"{override.shown} has a NUL character, which no command line can contain: leave it out.")
        if _size(override.text) > _ONE:
            raise BadInput(
                f"{override.shown} has {_size(override.text) - 1:,} bytes, but Linux allows at most {_ONE - 1:,} in one word of a command "
                f"line (execve(2)): {_CURE}."
            )
    as_json, most = len(json.dumps(env_vars)), _ONE - _RAYS_WORDS
    if as_json > most:
        longest = max(env_vars, key=lambda name: len(env_vars[name]))
        raise BadInput(
            f"The job's {len(env_vars):,} env_vars have {as_json:,} bytes as JSON, but Ray passes them in one variable, in which Linux leaves "
            f"room for {most:,} (execve(2)); the longest is {shown(longest)} (from {origins.get(longest, 'verl-regress')}): {_CURE}."
        )
    total = sum(_size(override.text) + _POINTER for override in overrides)
    if total > _ALL - _OTHERS:
        raise BadInput(
            f"The {len(overrides):,} overrides of the job have {total:,} bytes, and Linux leaves them {_ALL - _OTHERS:,} when it starts a "
            f"process (execve(2)): {_CURE}, or set fewer."
        )


def _size(text: str) -> int:
    """Bytes, with the trailing NUL."""
    return len(text.encode("utf-8")) + 1
