"""Sets the job's environment variables that Ray would change on the way: those whose value has a ``$``.

It expands ``$X`` in a runtime_env's env_vars on the node (2.60), so the submission writes them to ``config/env_vars.json``.
"""

import json
import os
from pathlib import Path

import job_report


def install() -> None:
    """Set the variables. Raises KeyError outside a job, OSError or ValueError if their file cannot be read."""
    file = Path(os.environ[job_report.JOB_DIR_VARIABLE]) / "config" / "env_vars.json"
    os.environ.update(json.loads(file.read_text(encoding="utf-8")))
