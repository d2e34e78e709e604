"""Puts a job's secrets into the environment of each of its Python processes.

The values travel in a file that only its owner can read and that is removed when the job is over; only its path is in
runtime_env, which Ray shows to anyone who asks. So the process list and /proc/<pid>/environ, which show the environment
that a process was started with, do not contain them. A process that cannot read the file must not run on.

In a process that Ray started, sys.stdout and sys.stderr go through a Redactor, because Ray keeps this output in its own
files on the node (``ray._private.utils.open_log``). Ray's job supervisor is such a process too, but it passes its
environment on to a shell. So a process that imports the supervisor's class, and so becomes one, drops the secrets
again. Read in Ray 2.60; if the second part fails, the launcher does not run.
"""

import json
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import job_report
from on_import import on_import
from redaction import Redactor

FILE_VARIABLE = "VERL_REGRESS_SECRETS"
_SUPERVISOR = "ray.dashboard.modules.job.job_supervisor"
_LOGS = "ray._private.utils"


def install() -> None:
    """Set the secrets of ``VERL_REGRESS_SECRETS`` in ``os.environ``. Raises RuntimeError if they cannot be read."""
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return
    secrets = read(path)
    os.environ.update(secrets)
    _report(secrets)
    if "RAY_RAYLET_PID" in os.environ:  # set in Ray's workers, not in the driver
        on_import(_SUPERVISOR, lambda _: _forget(secrets))
        on_import(_LOGS, lambda module: _redact_logs(module, Redactor(secrets)))


def read(path: str) -> dict[str, str]:
    """Return the secrets in the file, value by name. Raises RuntimeError, which quotes nothing from the file."""
    try:
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - every process would pay for pathlib
            return {str(name): str(value) for name, value in json.load(stream).items()}
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not JSON"
    raise RuntimeError(f"the job's secrets cannot be read from {path} ({problem})")


def _report(secrets: dict[str, str]) -> None:
    """Report which secrets this process has; neither values nor hashes."""
    job_report.write("secrets", {"hostname": job_report.hostname(), "pid": os.getpid(), "names": sorted(secrets)})


def _forget(secrets: dict[str, str]) -> None:
    for name in secrets:
        os.environ.pop(name, None)
    _report({})


def _redact_logs(module: ModuleType, redactor: Redactor) -> None:
    open_log: Callable[..., Any] = module.open_log

    def open_redacted(*args: Any, **kwargs: Any) -> Any:
        stream = open_log(*args, **kwargs)
        write = stream.write
        stream.write = lambda text: write(redactor.text(text))
        stream.writelines = lambda texts: write(redactor.text("".join(texts)))
        return stream

    module.open_log = open_redacted  # type: ignore[attr-defined]
