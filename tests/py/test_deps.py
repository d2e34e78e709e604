"""What the helper needs of a node's Python, and what run.py says if it is missing."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

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
        ("a>=1.2  # why", "1.2.0rc1", False),
        ("a>=2.3,<2.4", "2.2", True),
        ("a>=2.3,<2.4", "2.4.1", False),
        ("a==4.9.3", "4.9.2", False),
        ("a==4.9.3", None, True),
        ("a", "0", False),
        ("# a", None, False),
        ("", None, False),
    ],
)
def test_what_is_missing(versions, line, have, is_missing):
    if have:
        versions["a"] = have
    assert deps.missing([line]) == ([line.partition(" ")[0]] if is_missing else [])


def test_every_requirement_is_understood_and_in_the_node_image(versions):
    names = [
        re.split("[=><]", line)[0] for line in (PY / "requirements.txt").read_text().splitlines() if line[0] != "#"
    ]
    assert [
        re.split("[=><]", line)[0] for line in deps.missing((PY / "requirements.txt").read_text().splitlines())
    ] == names
    lock = (PY.parent / "docker" / "requirements.lock").read_text().lower().replace("_", "-")
    assert [name for name in names if f"\n{name.lower().replace('_', '-')}==" not in lock] == []


def test_a_missing_package_names_the_command_that_installs_it(tmp_path):
    for name in ("run.py", "deps.py"):
        shutil.copy(PY / name, tmp_path)
    (tmp_path / "verl_regress").mkdir()
    (tmp_path / "verl_regress" / "cli.py").write_text("import no_such_package")
    ended = subprocess.run([sys.executable, tmp_path / "run.py"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error   This node's Python has no package 'no_such_package': bring it with 'make deps'.\n"


def test_the_nodes_own_packages_win_over_the_helpers(tmp_path):
    helper = tmp_path / "0123"
    (helper / "verl_regress").mkdir(parents=True)
    for name in ("run.py", "deps.py"):
        shutil.copy(PY / name, helper)
    packages = tmp_path / deps.PACKAGES.name
    packages.mkdir()
    (packages / "brought.py").write_text("")
    (packages / "json.py").write_text("raise RuntimeError")
    (helper / "verl_regress" / "cli.py").write_text("import json, brought\ndef main(): return 7")
    assert subprocess.run([sys.executable, helper / "run.py"], env=dict(os.environ), check=False).returncode == 7
