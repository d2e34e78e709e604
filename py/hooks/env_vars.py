"""Sets the environment variables of the job that Ray would change on their way.

Ray fills in ``$X`` and ``${X}`` in a runtime_env's env_vars on the node, takes out ``${X}`` where X is not set, and knows no
escape (read in Ray 2.60, ``ray._private.utils.update_envs``). So a value with a ``$`` never goes through Ray: the submission
leaves it in ``config/env_vars.json`` and names this hook first, and each process of the job takes it from there. What they
start has it as any environment variable. Only what is read before Python runs (LD_LIBRARY_PATH) comes too late this way.
"""

import json
import os
from pathlib import Path

import job_report


def install() -> None:
    """Set the variables. Raises KeyError outside a job, OSError or ValueError where their file cannot be read."""
    file = Path(os.environ[job_report.JOB_DIR_VARIABLE]) / "config" / "env_vars.json"
    os.environ.update(json.loads(file.read_text(encoding="utf-8")))
