"""Sets the job's environment variables that Ray would change on the way: those whose value has a ``$``.

Ray expands ``$X`` in a runtime_env's env_vars on the node, and has no escape (2.60, ``ray._private.utils.update_envs``). So the submission
writes them to ``config/env_vars.json`` and lists this hook first.
"""

import json
import os
from pathlib import Path

import job_report


def install() -> None:
    """Set the variables. Raises KeyError outside a job, OSError or ValueError if their file cannot be read."""
    file = Path(os.environ[job_report.JOB_DIR_VARIABLE]) / "config" / "env_vars.json"
    os.environ.update(json.loads(file.read_text(encoding="utf-8")))
