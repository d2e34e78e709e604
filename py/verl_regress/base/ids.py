"""Submission ids, which Ray does not validate (2.60: a `/` leaves an unremovable record), and names of directories on the shared root."""

import re
import secrets
from datetime import datetime, timezone

from verl_regress.base.errors import BadInput, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SFT_SUFFIX = "_sft"  # ends a data set's name: the same data in the form that SFT reads
SUBMISSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# `<submission_id>.aN` is Ray's id of a job's attempt N.
ATTEMPT = re.compile(r"(?P<submission_id>.+)\.a(?P<number>[0-9]+)")


def check(submission_id: str, origin: str) -> str:
    """Return the id of a job to be made unchanged, or raise BadInput; `origin` says where it was given."""
    given = f"submission_id '{shown(submission_id, 40)}' (from {origin}) is not usable"
    if SUBMISSION_ID.fullmatch(submission_id) is None:
        raise BadInput(f"{given}: it must match ^{SUBMISSION_ID.pattern}$, or leave it out to get a generated one.")
    if submission_id == "latest" or ATTEMPT.fullmatch(submission_id) is not None:
        raise BadInput(
            f"{given}: 'latest' and names that end in .a and a number name jobs that exist, so choose another one."
        )
    return submission_id


def make(workload: str, code_id: str) -> str:
    """`<workload>-<code_id>-<UTC yyyymmddThhmmssZ>-<4 hex>`."""
    return f"{workload}-{code_id}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def check_name(name: str, knob: str) -> str:
    """Return a name that becomes a directory unchanged, or raise BadInput; `knob` is where it was given."""
    if NAME.fullmatch(name) is None:
        raise BadInput(
            f"{knob}='{shown(name, 40)}' cannot be used as a name: it must match ^{NAME.pattern}$ "
            "(letters, digits, '_', '.', '-'; at most 64)."
        )
    return name
