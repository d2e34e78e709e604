"""The tiny model and the sums of a rehearsal: commands of `verl_rehearsal`, which no module of the helper imports."""

import os
import subprocess
import sys

from verl_regress.base.errors import RegressError, last_line
from verl_regress.base.layout import HELPER_DIR

DIRECTORY = HELPER_DIR / "rehearsal"


def run(asked: str, *arguments: str) -> str:
    """What `python -m verl_rehearsal ARGUMENTS…` prints; raises RegressError with `asked` and its last words if it fails."""
    path = os.pathsep.join(filter(None, (str(DIRECTORY), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "verl_rehearsal", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        said = last_line(done.stderr, f"it ended with status {done.returncode}")
        raise RegressError(f"{asked}: {said.removesuffix('.')}.")
    return done.stdout
