"""What `make check` says of a shared root that lacks something: the checks of scripts/lib/lifecycle/shared.bash on real mounts."""

import os
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system"),
]

REPO = Path(__file__).parents[2]
# Two nodes, of which the worker has the second mount. The knobs' origins are those of env::load.
LINES = """
source scripts/lib/regress.bash
SHARED_ROOT=$1 WORKDIR=$1 RUN_AS=0:0
ENV_ORIGIN[SHARED_ROOT]=env/local.env ENV_ORIGIN[WORKDIR]=env/local.env
node::list_workers() { echo worker-0; }
node::exec_in() { "${@:2}"; }
node::exec() { shift && "${@/client-0/client-1}" </dev/null; }
"${@:2}"
"""


def bash(root, *words):
    """Runs a function of the scripts; returns its status and what it said."""
    done = subprocess.run(
        ["bash", "-c", LINES, "lines", str(root), *words], cwd=REPO, capture_output=True, text=True, check=False, timeout=60
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def need(root):
    return bash(root, "shared::need", str(root), "WORKDIR")


def test_a_local_disk_and_a_good_mount_pass_and_nothing_is_left(tmp_path, mounted):
    disk = mounted()
    for root in (tmp_path, disk.mounts[0]):
        before = sorted(root.iterdir())
        assert need(root) == (0, "")
        assert sorted(root.iterdir()) == before
    assert bash(disk.mounts[0], "shared::need_on_nodes") == (0, "")
    assert list(disk.backing.iterdir()) == []


NFS_4 = "put {knob} on a file system that has them (a local disk, NFS 4)."
LACKS = {
    "read-only": (
        {"fails": "EROFS"},
        "cannot be written to {on} (Read-only file system): mount it read-write there.",
    ),
    "not ours": (
        {"fails": "EACCES"},
        "cannot be written to {on} (Permission denied): fix its owner or mode.",
    ),
    "full": (
        {"fails": "ENOSPC"},
        "cannot be written to {on} (No space left on device): free some space and some inodes there.",
    ),
    "quota": (
        {"fails": "EDQUOT"},
        "cannot be written to {on} (Disk quota exceeded): free some space and some inodes there.",
    ),
    "no links": (
        {"links": False},
        "has no hard links {on} (Operation not permitted), which keep a job from being launched twice: " + NFS_4,
    ),
    "no renames": (
        {"renames": False},
        "does not replace a file in one step {on} (Operation not permitted), so readers could see half a file: put {knob} on "
        "a file system that does (a local disk, NFS 4).",
    ),
    "renames that do nothing": (
        {"renames": "void"},
        "does not replace a file in one step {on} (the old one was left), so readers could see half a file: put {knob} on a "
        "file system that does (a local disk, NFS 4).",
    ),
    "no symbolic links": (
        {"symlinks": False},
        "has no symbolic links {on} (Operation not permitted), which the queue consists of: " + NFS_4,
    ),
    "no locks": (
        {"locks": "none"},
        "has no locks {on} (No locks available), which the queue needs: mount it by NFS 4, or start rpc.statd for NFS 3.",
    ),
    "locks that exclude nobody": (
        {"locks": "void"},
        "gives one lock to two processes {on}: put {knob} on a file system whose locks exclude (a local disk, NFS 4).",
    ),
    "locks that outlive their process": (
        {"ends": False},
        "keeps the lock of a process that was killed {on}, so that a dead launcher would look alive: put {knob} on a file "
        "system that frees it (a local disk, NFS 4).",
    ),
    "case-insensitive": (
        {"folds": True},
        "is case-insensitive {on} ('a' and 'A' are one name), so that jobs and modules of verl can replace each other: put {knob} "
        "on a case-sensitive file system.",
    ),
    "no modes": (
        {"modes": 0o755},
        "changes mode 600 to 755 {on}, so that others could read secrets: put {knob} on a file system that keeps modes (a "
        "local disk, NFS 4).",
    ),
    "owned by nobody": (
        {"squash": 65534},
        "stores the files of user 0 as those of user 65534 {on}, and files of another user are not run: export it without all_squash (for "
        "root with no_root_squash), and for NFS 4 give idmapd the same domain everywhere.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), LACKS.values(), ids=LACKS)
def test_what_a_shared_root_lacks_is_one_sentence_with_its_cure(mounted, options, sentence):
    for knob, on in (("WORKDIR", "on this machine"), ("SHARED_ROOT", "on the head")):
        disk = mounted(**options)
        root = disk.mounts[0]
        said = f"error   {root} ({knob}, from env/local.env) {sentence.format(on=on, knob=knob)}\n"
        answer = need(root) if knob == "WORKDIR" else bash(root, "shared::need_on_nodes")
        assert answer == (1, said)
        disk.becomes(fails=None)
        assert list(disk.backing.iterdir()) == []


def test_a_check_that_says_nothing_is_no_pass(tmp_path):
    said = f"error   {tmp_path} (WORKDIR, from env/local.env) could not be checked on this machine ('no output'): run 'make check' again.\n"
    assert bash(tmp_path, "shared::refuse", str(tmp_path), "on this machine", "WORKDIR", "") == (1, said)


def test_root_whose_files_are_nobodys_is_no_problem_if_the_nodes_are_another_user(mounted):
    root = mounted(squash=65534).mounts[0]
    lines = LINES.replace("RUN_AS=0:0", "RUN_AS=1000:1000")
    done = subprocess.run(
        ["bash", "-c", lines, "lines", str(root), "shared::need", str(root), "WORKDIR"], cwd=REPO, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_lock_that_another_node_does_not_see(mounted):
    root = mounted(locks="local").mounts[0]
    assert need(root) == (0, "")  # no single machine can notice
    assert bash(root, "shared::need_on_nodes") == (
        1,
        f"error   worker-0 does not see a lock that the head holds in {root} (SHARED_ROOT, from env/local.env; it says 'free'): "
        "mount it on every node by NFS 4, without the options nolock and local_lock.\n",
    )
    assert list(root.iterdir()) == []


def test_it_takes_a_moment_at_5_ms_a_call(mounted):
    disk = mounted(delay=0.005, valid=3)
    began = time.monotonic()
    assert bash(disk.mounts[0], "shared::need_on_nodes") == (0, "")
    seconds = time.monotonic() - began
    calls = disk.becomes(delay=0).total()
    print(f"{calls} calls, {seconds:.2f} s")
    assert calls <= 150
