"""Puts a job's secrets into the environment of each of its Python processes.

The values are in a file that only its owner can read; only its path is in runtime_env, which Ray shows to anyone who asks.
In a process that Ray started, sys.stdout and sys.stderr go through a Redactor, because Ray keeps this output in its own files on the
node. Ray's job supervisor passes its environment on to a shell, so it drops the secrets again.
"""

import json
import os
from typing import Any

import job_report
import ray_private
from on_import import on_import
from redaction import Redactor

FILE_VARIABLE = "VERL_REGRESS_SECRETS"
JOB_UIDS = "VERL_REGRESS_JOB_UIDS"  # as verl_regress/base/trust.py has it: who submitted the job
held: dict[str, str] = {}  # the job's secrets, in its processes


def install() -> None:
    """Set the secrets of ``VERL_REGRESS_SECRETS`` in ``os.environ``. Raises RuntimeError if they cannot be read."""
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return
    held.update(read(path))
    os.environ.update(held)
    job_report.write("secrets", {"names": sorted(held)})
    if ray_private.WORKER_VARIABLE in os.environ:
        on_import(ray_private.SUPERVISOR, lambda _: _forget())
        redactor = Redactor(held)
        ray_private.on_log(lambda stream: _redact(stream, redactor))


def read(path: str) -> dict[str, str]:
    """Return the secrets in the file, value by name. Raises RuntimeError, which quotes nothing from the file."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as stream:
            uid = os.fstat(stream.fileno()).st_uid
            if str(uid) not in ("0", str(os.geteuid()), *os.environ.get(JOB_UIDS, "").split()):
                raise RuntimeError(f"the job's secrets in {path} belong to user {uid}, who did not submit the job")
            return {str(name): str(value) for name, value in json.load(stream).items()}
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not JSON"
    raise RuntimeError(f"the job's secrets cannot be read from {path} ({problem})")


def _forget() -> None:
    for name in held:
        os.environ.pop(name, None)
    job_report.write("secrets", {"names": []})


def _redact(stream: Any, redactor: Redactor) -> None:
    write = stream.write
    stream.write = lambda text: write(redactor.text(text))
    stream.writelines = lambda texts: write(redactor.text("".join(texts)))
