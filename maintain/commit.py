"""Which code of ours made a record: the commit of this checkout or, in an unpacked tarball, the version."""

import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def commit() -> str:
    """As `release::commit` in release.bash: `0123456789ab`, `0123456789ab-dirty` or `version 1.2.3`."""
    result = subprocess.run(
        [
            "bash",
            "-c",
            'source "$0/scripts/lib/regress.bash"; source "$0/maintain/release.bash"; release::commit',
            REPO,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()
