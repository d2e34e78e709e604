import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from streams import special, state_of, tar
from wording import said

from verl_regress.base import trust
from verl_regress.base.errors import BadInput
from verl_regress.base.layout import SharedRoot
from verl_regress.store import snapshot

TREE = {"verl/__init__.py": b"", "verl/version/version": b"0.7.1\n", "verl/trainer/main_ppo.py": b"print()\n"}

UNBORN = {snapshot.COMMIT_MEMBER: b""}  # a commit without a file


@pytest.fixture
def root(tmp_path):
    return SharedRoot(tmp_path)


@pytest.fixture(autouse=True)
def removable(tmp_path):
    """Makes everything writable again, so that pytest can remove it."""
    yield
    for folder, _, _ in os.walk(tmp_path):
        os.chmod(folder, 0o755)  # noqa: PTH101


def make(root, code_id="codeA", tree=TREE, source="pypi:0.7.1", revision="0.7.1", members=()):
    return snapshot.create(root, code_id, source, revision, tar(tree, members=members))


def refusal(root, code_id="codeA", *args, **kwargs):
    before = state_of(root.snapshots)
    with pytest.raises(BadInput) as caught:
        make(root, code_id, *args, **kwargs)
    assert state_of(root.snapshots) == before
    return str(caught.value)


def test_a_snapshot_is_the_tree_its_marker_and_its_record(root, capsys):
    record = make(root)
    target = root.snapshots / "codeA"
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    tag = sys.implementation.cache_tag
    bytecode = {f"verl/__pycache__/__init__.{tag}.pyc", f"verl/trainer/__pycache__/main_ppo.{tag}.pyc"}
    assert files == {*TREE, *bytecode, "mvp_marker.py", "snapshot.json"}
    assert (target / "mvp_marker.py").read_text() == 'MARKER = "codeA"\n'
    assert record == json.loads((target / "snapshot.json").read_text()) == snapshot.load(root, "codeA")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record.pop("created"))
    assert re.fullmatch(r"[0-9a-f]{64}", record.pop("tree_sha256"))
    assert record == {
        "code_id": "codeA",
        "source": "pypi:0.7.1",
        "revision": "0.7.1",
        "dirty": False,
        "changed": 0,
        "file_count": 3,
        "verl_version": "0.7.1",
        "requirements": {"problem": "its setup.py does not say it: No such file or directory"},
    }
    assert capsys.readouterr().err == (
        f"changed snapshot codeA made from pypi:0.7.1 (verl 0.7.1), 3 files at {target}\n"
    )


def test_it_is_read_only_and_readable_by_everyone(root):
    script = special("run.sh", tarfile.REGTYPE)
    script.mode = 0o755
    make(root, members=[script, special("verl/link", tarfile.SYMTYPE, "__init__.py")])
    target = root.snapshots / "codeA"
    modes = {
        path.relative_to(target).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in [target, *target.rglob("*")]
    }
    assert modes["."] == modes["verl"] == modes["verl/trainer"] == modes["verl/__pycache__"] == modes["run.sh"] == 0o555
    assert modes["verl/__init__.py"] == modes["mvp_marker.py"] == modes["snapshot.json"] == 0o444


def test_python_takes_the_snapshots_own_bytecode_which_names_its_own_path(root):
    make(root, tree={**TREE, "verl/fails.py": b"import time\n1 / 0\n", "verl/template.py": b"{{ no Python }}"})
    target = root.snapshots / "codeA"
    ended = subprocess.run(
        [sys.executable, "-v", "-c", "import verl.fails"],
        env={"PYTHONPATH": str(target)}, capture_output=True, text=True,
    )  # fmt: skip
    compiled = target / "verl/__pycache__" / f"fails.{sys.implementation.cache_tag}.pyc"
    assert f"# code object from '{compiled}'" in ended.stderr
    assert f'  File "{target}/verl/fails.py", line 2, in <module>' in ended.stderr
    assert (compiled.stat().st_mode & 0o777, compiled.is_symlink(), compiled.stat().st_nlink) == (0o444, False, 1)
    assert str(target).encode() in compiled.read_bytes()


def test_bytecode_that_came_with_a_tree_is_dropped(root):
    brought = {"verl/__pycache__/__init__.cpython-311.pyc": b"", "other/__pycache__/x.pyc": b"", "verl/a/b.py": b""}
    link = special("verl/a/__pycache__", tarfile.SYMTYPE, "../__pycache__")
    assert make(root, tree={**TREE, **brought}, members=[link])["file_count"] == 4
    found = sorted(path.parent.relative_to(root.snapshots / "codeA").as_posix() for path in root.path.rglob("*.pyc"))
    assert found == ["verl/__pycache__", "verl/a/__pycache__", "verl/trainer/__pycache__"]


def test_a_file_that_was_changed_in_place_does_not_run_from_old_bytecode(root):
    make(root, tree={"verl/__init__.py": b"print('old')\n"})
    file = root.snapshots / "codeA/verl/__init__.py"
    before = file.stat()
    file.chmod(0o644)
    file.write_text("print('new')\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    run = [sys.executable, "-c", "import verl"]
    assert subprocess.run(run, env={"PYTHONPATH": str(file.parents[1])}, capture_output=True).stdout == b"new\n"


@pytest.mark.parametrize("part", ["", "verl", "verl/__pycache__", "verl/__pycache__/*.pyc", "mvp_marker.py"])
def test_a_job_refuses_a_snapshot_that_became_another_users(root, monkeypatch, part):
    """Before: what was beside the hashed sources had to belong to whoever owned the snapshot by then, and ran."""
    record, target = make(root), root.snapshots / "codeA"
    path = next(target.glob(part)) if part else target
    snapshot.need_whole(target, record, "codeA", trusted=[])
    lstat = os.lstat
    theirs = {path, *path.rglob("*")}

    def of_another_user(path, **options):
        found = lstat(path, **options)
        return os.stat_result((*found[:4], 4242, *found[5:])) if Path(path) in theirs else found

    monkeypatch.setattr(trust.os, "lstat", of_another_user)

    def refused(**options):
        use = snapshot.Use(then=", and submit the job again")
        with pytest.raises(BadInput) as caught:
            snapshot.need_whole(target, record, "The snapshot codeA", use, **options)
        return str(caught.value)

    sentence = (
        f"The snapshot codeA is refused, because {path} belongs to user 4242, and what is there decides what your job does: set TRUSTED_UIDS=4242 if you "
        "trust that user, or make a snapshot of your own under another CODE_ID, and submit the job again."
    )
    assert (refused(), refused(trusted=[4243])) == (sentence, sentence)
    for use in (lambda: snapshot.find(root, "codeA", "pypi:0.7.1", "0.7.1"), lambda: make(root)):
        with pytest.raises(BadInput, match=f"^CODE_ID=codeA is refused, because {path} belongs to user 4242"):
            use()
    snapshot.need_whole(target, record, "codeA", trusted=["4243", "4242"])
    monkeypatch.setenv("VERL_REGRESS_TRUSTED_UIDS", "4242")
    snapshot.need_whole(target, record, "codeA")  # for a session: the knob as it is now
    assert refused(trusted=[]) == sentence  # for a job: as it was when the job was submitted


def test_a_second_run_changes_no_byte_and_no_time(root, capsys):
    make(root)
    before = state_of(root.snapshots)
    capsys.readouterr()
    assert snapshot.find(root, "codeA", "pypi:0.7.1", "0.7.1") == "codeA"
    make(root)
    assert state_of(root.snapshots) == before
    line = f"skip    snapshot codeA at {root.snapshots}/codeA (exists, same source)\n"
    assert capsys.readouterr().err == 2 * line


def test_the_same_tree_from_elsewhere_is_skipped_too(root, capsys):
    make(root)
    capsys.readouterr()
    assert make(root, source="path:/home/me/verl", revision="")["source"] == "pypi:0.7.1"
    assert capsys.readouterr().err == (
        f"skip    snapshot codeA at {root.snapshots}/codeA (exists, same tree from pypi:0.7.1 (verl 0.7.1))\n"
    )


def test_another_tree_is_an_error_that_names_both(root):
    old = make(root)["tree_sha256"][:12]
    tree = {**TREE, "verl/trainer/main_ppo.py": b"print(1)\n", "verl/new.py": b"", **UNBORN}
    new = make(root, "codeB", tree)["tree_sha256"][:12]
    target = root.snapshots / "codeA"
    assert refusal(root, "codeA", tree, "path:/home/me/verl", "abcdef0123456789") == (
        f"CODE_ID=codeA is a snapshot of pypi:0.7.1 (verl 0.7.1), tree {old}, and VERL_SOURCE now gives "
        f"the tree /home/me/verl at abcdef01 and 4 changed files (verl 0.7.1), tree {new}; a snapshot is never "
        f"changed: choose another CODE_ID, or remove it (chmod -R u+w {target} && rm -rf {target})."
    )


def commit_of(files, mode="100644", algorithm="sha1"):
    """The member of the stream that says what a commit has, as git lists it."""
    rows = (
        f"{mode} blob {hashlib.new(algorithm, b'blob %d' % len(content) + bytes(1) + content).hexdigest()}\t{name}\0"
        for name, content in files.items()
    )
    return {snapshot.COMMIT_MEMBER: "".join(rows).encode()}


def lfs_pointer(content):
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(content).hexdigest()}\nsize {len(content)}\n".encode()


@pytest.mark.parametrize(
    ("commit", "changes"),
    [
        (commit_of(TREE), ""),
        (commit_of(TREE, algorithm="sha256"), ""),
        (commit_of({**TREE, "mvp_marker.py": b"", "verl/__pycache__/a.pyc": b""}), ""),
        (commit_of({**TREE, "verl/version/version": lfs_pointer(b"0.7.1\n")}), ""),
        (commit_of({**TREE, "verl/__init__.py": b"\r\n"}), "verl/__init__.py (1 in all)"),
        (commit_of(TREE, mode="100755"), "verl/__init__.py, verl/trainer/main_ppo.py, verl/version/version (3 in all)"),
        (commit_of({"verl/__init__.py": b"", "a": b"", "recipe": b""}), "a, recipe, verl/trainer/main_ppo.py, … (4 in all)"),
    ],
)  # fmt: skip
def test_a_tree_is_that_of_its_commit_if_git_has_the_same_hashes(root, capsys, commit, changes):
    assert make(root, tree={**TREE, **commit})["dirty"] == bool(changes)
    made, *more = capsys.readouterr().err.splitlines()
    assert (" changed file" in made) == bool(changes)
    assert more == ([f"        not as in the commit: {changes}"] if changes else [])
    assert not (root.snapshots / "codeA" / snapshot.COMMIT_MEMBER).exists()


def test_files_that_git_lfs_did_not_fetch_are_refused(root):
    tree = {**TREE, "verl/weights.bin": lfs_pointer(b"12")}
    assert refusal(root, "codeA", {**tree, **commit_of(tree)}, "git:https://example.org/verl@main") == (
        "git:https://example.org/verl@main (from VERL_SOURCE) has only the Git LFS pointers of verl/weights.bin: run 'git lfs pull' in a "
        "checkout, and name that as path:DIR."
    )


def test_the_hash_of_the_tree_follows_all_of_its_files_but_not_the_code_id(root):
    plain, script, link = (special("verl/x", kind, "a") for kind in (tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE))
    script.mode = 0o755
    trees = [
        ({}, plain),
        ({}, script),
        ({}, link),
        ({"verl/a.py": b"1"}, plain),
        ({"verl/__init__.py": b"\n"}, plain),
        ({}, plain),
    ]
    hashes = [
        make(root, f"code{i}", {**TREE, **tree}, members=[member])["tree_sha256"]
        for i, (tree, member) in enumerate(trees)
    ]
    assert len(set(hashes)) == 5
    assert hashes[0] == hashes[-1]


def test_a_copy_of_a_snapshot_gets_its_own_marker(root):
    first = make(root)
    copied = {**TREE, "mvp_marker.py": b'MARKER = "codeA"\n', "snapshot.json": b"{}"}
    assert make(root, "codeB", copied)["tree_sha256"] == first["tree_sha256"]
    assert (root.snapshots / "codeB/mvp_marker.py").read_text() == 'MARKER = "codeB"\n'


def test_a_tree_without_verl_is_refused(root):
    assert refusal(root, tree={"README.md": b""}, source="git:https://example.org/x@main") == (
        "git:https://example.org/x@main (from VERL_SOURCE) has no verl/__init__.py, so it is not a verl source tree: name the folder or the repository that contains the folder 'verl'."
    )
    assert list(root.snapshots.iterdir()) == []


@pytest.mark.parametrize("code_id", ["../x", "", "a/b"])
def test_a_bad_code_id_is_refused(root, code_id):
    assert refusal(root, code_id) == (
        f"CODE_ID={code_id!r} cannot be used as a name: it must match ^[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}$ "
        "(letters, digits, '_', '.', '-'; at most 64)."
    )
    assert not root.snapshots.exists()


def test_a_hostile_or_broken_stream_leaves_nothing(root):
    refusal(root, members=[special("verl/up", tarfile.SYMTYPE, "../../..")])
    refusal(root, tree={**TREE, "../evil": b""})
    with pytest.raises(BadInput):
        snapshot.create(root, "codeA", "pypi:1", "1", io.BytesIO(tar(TREE).getvalue()[:2048]))
    assert list(root.snapshots.iterdir()) == []


def test_a_directory_that_is_not_a_snapshot_is_left_alone(root):
    (root.snapshots / "codeA").mkdir(parents=True)
    assert "has no complete snapshot (snapshot.json is missing)" in refusal(root)


def test_two_concurrent_creators_one_creates_and_the_other_skips(root, capsys, monkeypatch):
    barrier = threading.Barrier(2)
    write_ours = snapshot._write_ours

    def together(*args):
        barrier.wait(timeout=10)
        write_ours(*args)

    monkeypatch.setattr(snapshot, "_write_ours", together)
    threads = [threading.Thread(target=make, args=[root]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.split()[0] for line in capsys.readouterr().err.splitlines()) == ["changed", "skip"]
    assert [path.name for path in root.snapshots.iterdir()] == ["codeA"]
    snapshot.need_whole(root.snapshots / "codeA", snapshot.load(root, "codeA"), "codeA")


def test_a_snapshot_that_cannot_get_its_name_keeps_the_cause(root, monkeypatch):
    def refuses(self, target):
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(snapshot.Path, "rename", refuses)
    with pytest.raises(PermissionError):
        make(root)
    assert list(root.snapshots.iterdir()) == []


def test_one_that_is_named_by_its_tree_is_found_beside_one_whose_record_is_damaged(root):
    named, source = f"verl-{snapshot.TREE}", ("pypi:0.7.1", "0.7.1")
    found = make(root, named)["code_id"]
    (root.snapshots / "another").mkdir()
    (root.snapshots / "another/snapshot.json").write_text("{}")
    assert snapshot.find(root, named, *source) == found
    assert snapshot.find(root, named, *source[:1], "0.8.0") is None
    make(root, "dirty", {**TREE, **UNBORN})
    assert snapshot.find(root, "dirty", *source) is None


def test_a_code_id_without_a_snapshot_lists_those_that_exist(root):
    none = (
        f"CODE_ID=codeX (from the command line) has no snapshot under {root.snapshots}: "
        "make one with 'make snapshot CODE_ID=codeX VERL_SOURCE=…'"
    )
    with pytest.raises(BadInput) as caught:
        snapshot.load(root, "codeX")
    assert str(caught.value) == f"{none}."
    make(root, "codeB")
    make(root)
    (root.snapshots / "no-snapshot").mkdir()
    assert list(snapshot.list_snapshots(root)) == ["codeA", "codeB"]
    with pytest.raises(BadInput) as caught:
        snapshot.load(root, "codeX")
    assert str(caught.value) == f"{none} or use one of: codeA, codeB."


def spoil(target, how):
    for folder, _, _ in os.walk(target):
        os.chmod(folder, 0o755)  # noqa: PTH101
    how(target)


def refused_by_load(root):
    with pytest.raises(BadInput) as caught:
        snapshot.load(root, "codeA", "my.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (None, "is missing"),
        (
            b'{"code_id": "codeA"}',
            "cannot be used: it lacks dirty, requirements, revision, source, tree_sha256, verl_version",
        ),
        (
            b"[]",
            "cannot be used: it lacks code_id, dirty, requirements, revision, source, tree_sha256, verl_version",
        ),
    ],
)
def test_a_snapshot_without_a_complete_record_is_refused(root, record, problem):
    make(root)
    target = root.snapshots / "codeA"
    spoil(target, lambda target: (target / "snapshot.json").unlink())
    if record is not None:
        (target / "snapshot.json").write_bytes(record)
    assert refused_by_load(root) == said(
        f"CODE_ID=codeA (from my.yaml) is not usable, because {target} has no complete snapshot (snapshot.json {problem}): move it away and "
        "make it again with 'make snapshot CODE_ID=codeA VERL_SOURCE=…', or name another CODE_ID."
    )


def test_a_releases_requirements_are_in_its_record_and_not_in_its_tree(root):
    bare = make(root)
    said = b"Metadata-Version: 2.4\nName: verl\nRequires-Dist: numpy<2.0.0\nProvides-Extra: gpu\n"
    released = make(root, "codeB", {**TREE, snapshot.METADATA_MEMBER: said})
    assert not (root.snapshots / "codeB" / snapshot.METADATA_MEMBER).exists()
    assert released["tree_sha256"] == bare["tree_sha256"]
    assert released["requirements"] == {"requires": ["numpy<2.0.0"]}
    assert snapshot.load(root, "codeB") == released


def test_a_checkout_says_what_it_requires_in_its_setup_py(root):
    tree = {**TREE, "setup.py": b"setup(install_requires=['numpy'])"}
    assert make(root, tree=tree)["requirements"] == {"requires": ["numpy"]}


def test_an_id_that_names_a_tree_names_no_other(root):
    tree = make(root, "verl-{tree}")["tree_sha256"][:8]
    assert make(root, f"verl-{tree}")["tree_sha256"][:8] == tree
    other = {**TREE, "verl/new.py": b""}
    made = make(root, "other", other)["tree_sha256"][:8]
    named = f"CODE_ID=verl-0123abcd names the tree 0123abcd, but pypi:0.7.1 (from VERL_SOURCE) has the tree {made}"
    assert refusal(root, "verl-0123abcd", other) == f"{named}: name it verl-{made}, or something else."
    (root.snapshots / "other").rename(root.snapshots / "verl-0123abcd")
    with pytest.raises(BadInput) as caught:
        snapshot.load(root, "verl-0123abcd")
    assert str(caught.value) == (
        f"CODE_ID=verl-0123abcd (from the command line) names the tree 0123abcd, but {root.snapshots}/verl-0123abcd has the tree {made}: name it "
        f"verl-{made}, or something else."
    )
    make(root, "verl-main", other)  # no hash


def test_a_file_that_does_not_compile_is_in_the_record_and_said(root, capsys):
    """Before: the step that compiles dropped it, and the job failed when it imported the file."""
    record = make(root, tree={**TREE, "verl/trainer/broken.py": b"def f(:\n"})
    assert [*record["broken"]] == ["verl/trainer/broken.py"]
    assert "(verl/trainer/broken.py: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "revision", "changed", "said"),
    [
        ("pypi:0.9.1", "0.9.1", 0, "pypi:0.9.1"),
        ("git:https://x/verl@main", "abcdef0123456789", 0, "git:https://x/verl@main at abcdef01"),
        ("path:/home/me/verl", "abcdef0123456789", 0, "the tree /home/me/verl at abcdef01"),
        ("path:/home/me/verl", "abcdef0123456789", 1, "the tree /home/me/verl at abcdef01 and 1 changed file"),
        ("path:/home/me/verl", "", 0, "the tree /home/me/verl"),
    ],
)
def test_what_the_code_is_in_words(source, revision, changed, said):
    record = {"source": source, "revision": revision, "dirty": changed > 0, "changed": changed}
    assert snapshot.origin_of(record) == said
    old = {"source": source, "revision": revision, "dirty": True}  # as earlier versions wrote it
    assert snapshot.origin_of(old).endswith(" and changed files")
