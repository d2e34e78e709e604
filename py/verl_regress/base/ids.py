"""Makes and checks submission ids. Ray does not validate them (2.60: a `/` leaves an unremovable record)."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

from verl_regress.base.errors import BadInput, shown

SUBMISSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# `<submission_id>.aN` is Ray's id of a job's attempt N.
ATTEMPT = re.compile(r"(?P<submission_id>.+)\.a(?P<number>[0-9]+)")


def check(submission_id: str, origin: str) -> str:
    """Return the id unchanged, or raise BadInput; `origin` says where it was given."""
    if submission_id == "latest":
        raise BadInput(f"submission_id 'latest' (from {origin}) is not usable: that word stands for the latest job.")
    if SUBMISSION_ID.fullmatch(submission_id) is None:
        raise BadInput(
            f"submission_id '{shown(submission_id, 40)}' (from {origin}) is not usable: it must match "
            f"^{SUBMISSION_ID.pattern}$, or leave it out to get a generated one."
        )
    if ATTEMPT.fullmatch(submission_id) is not None:
        raise BadInput(
            f"submission_id {submission_id!r} (from {origin}) is not usable: an id that ends in .a and a number names an attempt of a job; end it differently, or leave it out to get a generated one."
        )
    return submission_id


def make(workload: str, code_id: str) -> str:
    """`<workload>-<code_id>-<UTC yyyymmddThhmmssZ>-<4 hex>`."""
    return f"{workload}-{code_id}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
