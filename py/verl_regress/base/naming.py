"""Names that become directories on the shared root."""

from __future__ import annotations

import re

from verl_regress.base.errors import BadInput, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SFT_SUFFIX = "_sft"  # ends a data set's name: the same data in the form that SFT reads


def check(name: str, knob: str) -> str:
    """Return `name` unchanged, or raise BadInput; `knob` is where it was given."""
    if NAME.fullmatch(name) is None:
        raise BadInput(
            f"{knob}='{shown(name, 40)}' cannot be used as a name: it must match ^{NAME.pattern}$ "
            "(letters, digits, '_', '.', '-'; at most 64)."
        )
    return name
