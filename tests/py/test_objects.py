"""What snapshots share: the disk space of a second one, what is not shared, and what is removed again."""

import errno
import fcntl
import os
import random
import subprocess
import sys

import pytest
from streams import special, state_of, tar

from verl_regress.base.layout import SharedRoot
from verl_regress.store import objects, snapshot

CHANGED = "verl/part3/module5.py"


@pytest.fixture
def root(tmp_path):
    yield SharedRoot(tmp_path)
    for folder, _, _ in os.walk(tmp_path):
        os.chmod(folder, 0o755)  # noqa: PTH101


@pytest.fixture(scope="module")
def tree():
    """As large as a release of verl, with no two files alike."""
    words = random.Random(1)
    files = {"verl/__init__.py": b"", "verl/version/version": b"1\n"}
    for part in range(40):
        files[f"verl/part{part}/__init__.py"] = b""
        for number in range(10):
            lines = (f"value_{words.randrange(10**9)} = {words.randrange(10**9)}\n" for _ in range(400))
            files[f"verl/part{part}/module{number}.py"] = "".join(lines).encode()
    return files


def make(root, code_id, tree, members=()):
    return snapshot.create(root, code_id, "path:/verl", "", tar(tree, members=members), dirty=False)


def disk(*directories):
    """Bytes on disk, directories included, each inode once."""
    blocks = {}
    for directory in directories:
        for folder, _, files in os.walk(directory):
            for path in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118
                state = os.lstat(path)
                blocks[state.st_ino] = state.st_blocks * 512
    return sum(blocks.values())


def test_a_snapshot_with_one_changed_file_takes_at_most_a_twentieth_of_the_disk(root, tree, capsys):
    make(root, "codeA", tree)
    first = disk(root.path)
    make(root, "codeB", {**tree, CHANGED: b"value = 1\n", "verl/new.py": b"value = 2\n"})
    assert f", {len(tree) + 1} files ({len(tree) - 1} shared) at " in capsys.readouterr().err
    assert 0 < disk(root.path) - first <= first / 20
    for name in tree:
        same = (root.snapshots / "codeA" / name).samefile(root.snapshots / "codeB" / name)
        assert same == (name != CHANGED)
    for code_id in ("codeA", "codeB"):
        snapshot.verify(root, code_id)


def test_python_takes_the_shared_bytecode_and_tells_the_snapshots_own_path(root, tree):
    fails = {**tree, "verl/part0/fails.py": b"import time\n1 / 0\n"}
    for code_id in ("codeA", "codeB"):
        make(root, code_id, fails)
        target = root.snapshots / code_id
        ended = subprocess.run(
            [sys.executable, "-v", "-c", "import verl.part1.module1, verl.part0.fails"],
            env={"PYTHONPATH": str(target)}, capture_output=True, text=True,
        )  # fmt: skip
        compiled = f"{target}/verl/part1/__pycache__/module1.{sys.implementation.cache_tag}.pyc"
        assert f"# code object from '{compiled}'" in ended.stderr
        assert f'  File "{target}/verl/part0/fails.py", line 2, in <module>' in ended.stderr


def test_a_file_that_was_changed_in_place_does_not_run_from_old_bytecode(root):
    make(root, "codeA", {"verl/__init__.py": b"print('old')\n"})
    file = root.snapshots / "codeA/verl/__init__.py"
    before = file.stat()
    file.chmod(0o644)
    file.write_text("print('new')\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    run = [sys.executable, "-c", "import verl"]
    assert subprocess.run(run, env={"PYTHONPATH": str(file.parents[1])}, capture_output=True).stdout == b"new\n"


def test_an_object_that_is_not_what_its_name_says_is_replaced_and_the_new_snapshot_is_whole(root):
    make(root, "codeA", {"verl/__init__.py": b"print(1)\n"})
    file = root.snapshots / "codeA/verl/__init__.py"
    file.chmod(0o644)
    file.write_text("print(2)\n")
    make(root, "codeB", {"verl/__init__.py": b"print(1)\n"})
    make(root, "codeC", {"verl/__init__.py": b"print(1)\n"})
    snapshot.verify(root, "codeB")
    assert not file.samefile(root.snapshots / "codeB/verl/__init__.py")
    assert (root.snapshots / "codeC/verl/__init__.py").samefile(root.snapshots / "codeB/verl/__init__.py")


def test_what_may_be_executed_and_what_may_not_are_two_objects(root):
    script, plain = special("verl/a.sh", b"0"), special("verl/b.sh", b"0")
    script.mode = 0o755
    make(root, "codeA", {"verl/__init__.py": b"x = 1\n"}, members=[script, plain])
    modes = [(root.snapshots / "codeA/verl" / name).stat().st_mode & 0o777 for name in ("a.sh", "b.sh")]
    assert modes == [0o555, 0o444]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_where_hard_links_do_not_work_each_snapshot_has_its_copies(root, monkeypatch, number, capsys):
    def link(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(objects.os, "link", link)
    for code_id in ("codeA", "codeB"):
        make(root, code_id, {"verl/__init__.py": b"x = 1\n"})
        assert "1 files (0 shared)" in capsys.readouterr().err
        snapshot.verify(root, code_id)
    file = root.snapshots / "codeB/verl/__init__.py"
    assert (file.stat().st_nlink, file.stat().st_mode & 0o777) == (1, 0o444)
    assert list(root.snapshots.glob("**/.*.tmp")) == []


def test_what_is_another_users_is_not_shared(root, monkeypatch, capsys):
    make(root, "codeA", {"verl/__init__.py": b"x = 1\n"})
    monkeypatch.setattr(objects.os, "getuid", lambda: 4242)
    capsys.readouterr()
    make(root, "codeB", {"verl/__init__.py": b"x = 1\n"})
    assert "1 files (0 shared)" in capsys.readouterr().err


def test_what_no_snapshot_holds_any_more_is_removed_and_the_rest_stays(root, tree):
    make(root, "codeA", tree)
    make(root, "codeB", {**tree, CHANGED: b"value = 1\n"})
    target = root.snapshots / "codeB"
    before = {path.name for path in root.objects.iterdir()}
    subprocess.run(snapshot._cure(target).split("(")[1].split(")")[0], shell=True, check=True)
    rest = state_of(root.snapshots)
    make(root, "codeC", tree)
    gone = before - {path.name for path in root.objects.iterdir()}
    # The changed file, its compiled bytecode, and its folder's bytecode.
    assert sorted(len(name) for name in gone) == [26, 66, 65 + len(sys.implementation.cache_tag)]
    assert {name: was for name, was in state_of(root.snapshots).items() if not name.startswith("codeC")} == rest
    assert (root.snapshots / "codeA/verl/part3/__pycache__").is_dir()


def test_nothing_is_removed_while_a_snapshot_is_being_made(root):
    make(root, "codeA", {"verl/__init__.py": b"x = 1\n"})
    (root.objects / f"{'0' * 64}.f").write_text("")
    directory = os.open(root.objects, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_SH)
    objects.prune(root.objects, root.snapshots)
    assert (root.objects / f"{'0' * 64}.f").exists()
    os.close(directory)
    objects.prune(root.objects, root.snapshots)
    assert not (root.objects / f"{'0' * 64}.f").exists()
