"""What `make check` says of a shared root that lacks something: the checks of scripts/lib/lifecycle/shared.bash, with commands that fail
as they do on such a file system.
"""

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
# Two nodes. The knobs' origins are those of env::load.
LINES = """
source scripts/lib/regress.bash
SHARED_ROOT=$1 WORKDIR=$1 RUN_AS=0:0
ENV_ORIGIN[SHARED_ROOT]=env/local.env ENV_ORIGIN[WORKDIR]=env/local.env
node::list_workers() { echo worker-0; }
node::exec_in() { "${@:2}"; }
node::exec() { shift && "$@" </dev/null; }
PATH=$2:$PATH
"${@:3}"
"""


@pytest.fixture
def bash(tmp_path):
    """Runs a function of the scripts, with stubs of commands; returns its status and what it said."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "root").mkdir()

    def run(*words, lines=LINES, **stubs):
        for name, body in stubs.items():
            stub = tmp_path / "bin" / name
            stub.write_text(f"#!/bin/sh\n{body}\n")
            stub.chmod(0o755)
        done = subprocess.run(
            ["bash", "-c", lines, "lines", str(tmp_path / "root"), str(tmp_path / "bin"), *words],
            cwd=REPO, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert list((tmp_path / "root").iterdir()) == []
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_local_disk_passes_and_nothing_is_left(bash, tmp_path):
    assert bash("shared::need", str(tmp_path / "root"), "WORKDIR") == (0, "")
    assert bash("shared::need_on_nodes") == (0, "")


NO_FILE = """case $* in */root/*) echo 'mktemp: x: {}'; exit 1 ;; *) exec /usr/bin/mktemp "$@" ;; esac"""
NFS_4 = "put {knob} on a file system that has them (a local disk, NFS 4)."
LACKS = {
    "read-only": (
        {"mktemp": NO_FILE.format("Read-only file system")},
        "cannot be written to {on} (Read-only file system): mount it read-write there.",
    ),
    "full": (
        {"mktemp": NO_FILE.format("No space left on device")},
        "cannot be written to {on} (No space left on device): free some space and some inodes there.",
    ),
    "no links": (
        {"ln": "echo 'ln: x: Operation not permitted'; exit 1"},
        "has no hard links {on} (Operation not permitted), which keep a job from being launched twice: " + NFS_4,
    ),
    "renames that do nothing": (
        {"mv": "exit 0"},
        "does not replace a file in one step {on} (the old one was left), so readers could see half a file: put {knob} on a "
        "file system that does (a local disk, NFS 4).",
    ),
    "no locks": (
        {"flock": "echo 'flock: 3: No locks available'; exit 1"},
        "has no locks {on} (No locks available), which the queue needs: mount it by NFS 4, or start rpc.statd for NFS 3.",
    ),
    "locks that exclude nobody": (
        {"flock": "exit 0"},
        "gives one lock to two processes {on}: put {knob} on a file system whose locks exclude (a local disk, NFS 4).",
    ),
    "no modes": (
        {"chmod": "exec /bin/chmod 755 a"},
        "changes mode 600 to 755 {on}, so that others could read secrets: put {knob} on a file system that keeps modes (a "
        "local disk, NFS 4).",
    ),
    "owned by nobody": (
        {"id": "echo 0", "stat": 'case $2 in %u) echo 65534 ;; *) exec /usr/bin/stat "$@" ;; esac'},
        "stores the files of user 0 as those of user 65534 {on}, and files of another user are not run: export it without all_squash (for "
        "root with no_root_squash), and for NFS 4 give idmapd the same domain everywhere.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("stubs", "sentence"), LACKS.values(), ids=LACKS)
def test_what_a_shared_root_lacks_is_one_sentence_with_its_cure(bash, tmp_path, stubs, sentence):
    root = tmp_path / "root"
    for knob, on, words in (
        ("WORKDIR", "on this machine", ("shared::need", str(root), "WORKDIR")),
        ("SHARED_ROOT", "on the head", ("shared::need_on_nodes",)),
    ):
        said = f"error   {root} ({knob}, from env/local.env) {sentence.format(on=on, knob=knob)}\n"
        assert bash(*words, **stubs) == (1, said)


def test_a_check_that_says_nothing_is_no_pass(bash, tmp_path):
    root = tmp_path / "root"
    said = f"error   {root} (WORKDIR, from env/local.env) could not be checked on this machine ('no output'): run 'make check' again.\n"
    assert bash("shared::refuse", str(root), "on this machine", "WORKDIR", "") == (1, said)


def test_root_whose_files_are_nobodys_is_no_problem_if_the_nodes_are_another_user(bash, tmp_path):
    lines = LINES.replace("RUN_AS=0:0", "RUN_AS=1000:1000")
    stubs, _ = LACKS["owned by nobody"]
    assert bash("shared::need", str(tmp_path / "root"), "WORKDIR", lines=lines, **stubs) == (0, "")


def test_a_lock_that_another_node_does_not_see(bash, tmp_path):
    lines = LINES.replace('node::exec() { shift && "$@" </dev/null; }', "node::exec() { echo free; }")
    assert bash("shared::need_on_nodes", lines=lines) == (
        1,
        f"error   worker-0 does not see a lock that the head holds in {tmp_path / 'root'} (SHARED_ROOT, from env/local.env; it says 'free'): "
        "mount it on every node by NFS 4, without the options nolock and local_lock.\n",
    )
