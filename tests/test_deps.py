"""What the helper needs of a node's Python, and what run.py says if it is missing."""

import hashlib
import itertools
import os
import re
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from shared_fixtures import python, write

import deps

PY = Path(deps.__file__).parent


@pytest.fixture
def versions(monkeypatch):
    """The packages that this Python has, by name."""
    have = {}

    def version(name):
        if name not in have:
            raise metadata.PackageNotFoundError
        return have[name]

    monkeypatch.setattr(metadata, "version", version)
    return have


@pytest.mark.parametrize(
    ("line", "have", "is_missing"),
    [
        ("a>=1.2", None, True),
        ("a>=1.2", "1.1.9", True),
        ("a>=1.2", "1.10", False),
        ("a>=2.3,<2.4", "2.2", True),
        ("a>=2.3,<2.4", "2.4.1", False),
        ("a==4.9.3", "4.9.2", False),
        ("a", "0", False),
        ("# a", None, False),
    ],
)
def test_what_is_missing(versions, line, have, is_missing):
    if have:
        versions["a"] = have
    assert deps.missing([line]) == ([line.partition(" ")[0]] if is_missing else [])


@pytest.mark.parametrize("of", ["helper", "judge"])
def test_every_requirement_is_understood_and_in_the_node_image(versions, of):
    lines = (PY / {"helper": "requirements.txt", "judge": "requirements-judge.txt"}[of]).read_text().splitlines()
    names = [re.split("[=><]", line)[0] for line in lines if line[0] != "#"]
    assert [re.split("[=><]", line)[0] for line in deps.missing_here(of)] == names
    lock = (PY.parent / "docker" / "requirements.lock").read_text().lower().replace("_", "-")
    assert [name for name in names if f"\n{name.lower().replace('_', '-')}==" not in lock] == []


@pytest.mark.parametrize("name", ["requirements", "requirements-gpu"])
def test_a_lock_of_the_node_image_is_made_from_its_list(name):
    docker = PY.parent / "docker"
    listed = (docker / f"{name}.in").read_bytes()
    header, *lines = (docker / f"{name}.lock").read_text().splitlines()
    assert f"whose SHA-256 begins with {hashlib.sha256(listed).hexdigest()[:12]}" in header
    assert all("--hash=sha256:" in after for line, after in itertools.pairwise(lines) if "==" in line)


# Everything that the judge needs, with its dependencies: of a WHEELHOUSE, only these reach the head.
JUDGE = {
    "numpy": "2.4.6", "scipy": "1.17.1", "contourpy": "1.3.3", "cycler": "0.12.1", "fonttools": "4.68.0", "kiwisolver": "1.5.1",
    "matplotlib": "3.11.2", "packaging": "25.0", "pillow": "13.0.0", "pyparsing": "3.3.3", "python-dateutil": "4.0.0", "six": "1.17.0",
    "tzdata": "2026.6",
}  # fmt: skip


@pytest.fixture
def node(tmp_path):
    """A node with deps.py, the packages `own`, and pip's part played by a program that records its arguments."""

    def node(argv, own=(), status=0):
        (tmp_path / "0123/py").mkdir(parents=True)
        for name in ("deps.py", "requirements.txt", "requirements-judge.txt"):
            shutil.copy(PY / name, tmp_path / "0123/py")
        for name, version in own:
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            write(tmp_path / f"own/{name}-{version}.dist-info/METADATA", text)
        write(tmp_path / "own/pip.py", PIP.format(record=str(tmp_path / "record"), status=status))
        env = {**os.environ, "PYTHONPATH": str(tmp_path / "own")}
        return python("-S", tmp_path / "0123/py/deps.py", *argv, env=env)

    return node


PIP = """
import pathlib, sys
argv = sys.argv[1:]
if argv != ["--version"]:
    value = dict(zip(argv, argv[1:]))
    constraints = pathlib.Path(value["--constraint"]).read_text()
    source = value.get("--find-links", "index")
    pathlib.Path({record!r}).write_text(" ".join([pathlib.Path(value["--requirement"]).name, source, *constraints.split()]))
    pathlib.Path(value["--target"], "brought.py").write_text("")
    sys.exit({status})
"""


@pytest.mark.parametrize(
    ("argv", "own", "asked"),
    [
        (["helper"], [("numpy", "1.26.4")], "requirements.txt index"),
        (["helper", "/wheels"], [], "requirements.txt /wheels"),
        (["judge"], [], "requirements-judge.txt index"),
        (["judge"], [("numpy", "1.26.4")], "requirements-judge.txt index numpy==1.26.4"),
        (["judge", "/wheels"], [("numpy", "2.1.0+vendor")], "requirements-judge.txt /wheels numpy==2.1.0"),
    ],
)
def test_a_set_goes_into_its_directory_and_the_judges_fits_the_nodes_own_numpy(tmp_path, node, argv, own, asked):
    ended = node(["install", *argv], own)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert (tmp_path / "record").read_text() == asked
    assert [path.name for path in tmp_path.rglob("brought.py")] == ["brought.py"]
    assert (tmp_path / deps.packages(argv[0]).name / "brought.py").exists()


def test_a_set_that_pip_cannot_install_leaves_nothing_and_names_the_version(tmp_path, node):
    ended = node(["install", "judge"], [("numpy", "1.26.4")], status=3)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1,
        "",
        "The judge's packages must fit this node's own numpy==1.26.4: pip needs that version too.\n",
    )
    assert list(tmp_path.rglob("brought.py")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0123", "own", "record"]


def test_what_an_earlier_installation_brought_is_neither_missing_nor_the_nodes(tmp_path, node):
    brought = tmp_path / deps.packages("judge").name
    for name, version in JUDGE.items():
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        write(brought / f"{name.replace('-', '_')}-{version}.dist-info/METADATA", text)
    assert node(["missing", "judge"]).stdout == "\n"
    shutil.rmtree(tmp_path / "0123")
    assert node(["install", "judge"]).returncode == 0
    assert (tmp_path / "record").read_text() == "requirements-judge.txt index"


JUDGES = (
    "'make verify' and 'make history' bring it to the head of a cluster that is up, from WHEELHOUSE if you set that"
)


@pytest.mark.parametrize(
    ("module", "package", "cure"),
    [
        ("no_such_package", "no_such_package", "bring it with 'scripts/12_install_py_deps.sh'"),
        ("matplotlib.style", "matplotlib", JUDGES),
        ("scipy.special", "scipy", JUDGES),
    ],
)
def test_a_missing_package_names_the_command_that_installs_it(tmp_path, module, package, cure):
    for name in ("run.py", "deps.py"):
        write(tmp_path / "py" / name, (PY / name).read_text())
    write(tmp_path / "py/verl_regress/cli.py", f"import {module}")
    ended = python("-S", tmp_path / "py/run.py")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"error   This node's Python has no package '{package}': {cure}.\n"


def test_the_nodes_own_packages_win_over_the_helpers(tmp_path):
    helper = tmp_path / "0123/py"
    write(helper / "verl_regress" / "cli.py", "import json, brought\ndef main(): return 7")
    for name in ("run.py", "deps.py"):
        shutil.copy(PY / name, helper)
    packages = tmp_path / deps.PACKAGES.name
    write(packages / "brought.py", "")
    write(packages / "json.py", "raise RuntimeError")
    assert python(helper / "run.py").returncode == 7


def test_a_set_that_cannot_be_renamed_leaves_the_older_one(tmp_path, monkeypatch):
    old = write(tmp_path / "packages" / "old.py", "")
    target = write(tmp_path / "new" / "new.py", "").parent
    rename = Path.rename

    def full(path, other):
        if path == target:
            raise OSError(28, "No space left on device")
        return rename(path, other)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        deps._put(target, old.parent)
    assert old.is_file()
