"""Sets the variables of ``config/env_vars.json``, which Ray 2.60 would change or refuse.

Those with a ``$``, which it expands on the node, and those that verl passes to its actors itself: Ray takes none from both.
"""

import json
import os
from pathlib import Path

import job_report


def install() -> None:
    """Set them. Raises KeyError outside a job, OSError or ValueError if their file cannot be read."""
    file = Path(os.environ[job_report.JOB_DIR_VARIABLE]) / "config" / "env_vars.json"
    os.environ.update(json.loads(file.read_text(encoding="utf-8")))
