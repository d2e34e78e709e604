"""What `make check` says of a shared root that lacks something: the checks of scripts/lib/lifecycle/shared.bash, with commands that fail
as they do on such a file system.
"""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPO = Path(__file__).parents[1]
# The knobs' origins are those of env::load.
LINES = """
source scripts/lib/regress.bash
WORKDIR=$1 ENV_ORIGIN[WORKDIR]=env/local.env
PATH=$2:$PATH
"${@:3}"
"""


@pytest.fixture
def bash(tmp_path):
    """Runs a function of the scripts, with stubs of commands; returns its status and what it said."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "root").mkdir()

    def run(*words, **stubs):
        for name, body in stubs.items():
            stub = tmp_path / "bin" / name
            stub.write_text(f"#!/bin/sh\n{body}\n")
            stub.chmod(0o755)
        done = subprocess.run(
            ["bash", "-c", LINES, "lines", str(tmp_path / "root"), str(tmp_path / "bin"), *words],
            cwd=REPO, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert list((tmp_path / "root").iterdir()) == []
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_local_disk_passes_and_nothing_is_left(bash):
    assert bash("shared::need") == (0, "")


NO_FILE = """case $* in */root/*) echo 'mktemp: x: {}'; exit 1 ;; *) exec /usr/bin/mktemp "$@" ;; esac"""
LACKS = {
    "read-only": ({"mktemp": NO_FILE.format("Read-only file system")}, "cannot be written to (Read-only file system)"),
    "no links": ({"ln": "exit 1"}, "has no hard links"),
    "renames that do nothing": ({"mv": "exit 0"}, "does not replace a file in one step"),
    "no locks": ({"flock": "echo 'flock: 3: No locks available'; exit 1"}, "has no locks (No locks available)"),
    "locks that exclude nobody": ({"flock": "exit 0"}, "gives one lock to two processes"),
    "no modes": ({"chmod": "exec /bin/chmod 755 a"}, "changes mode 600 to 755"),
}


@pytest.mark.parametrize(("stubs", "problem"), LACKS.values(), ids=LACKS)
def test_what_a_shared_root_lacks_is_one_sentence_with_its_cure(bash, tmp_path, stubs, problem):
    root = tmp_path / "root"
    assert bash("shared::need", **stubs) == (
        1,
        f"error   {root} (WORKDIR, from env/local.env) {problem} on this machine: fix that, or put WORKDIR on a local disk or NFS 4 "
        "(docs/shared-root.md has what is needed).\n",
    )
