"""What a node says before the helper is there."""

import os
import subprocess
import sys
from importlib import invalidate_caches, metadata
from pathlib import Path

import pytest

from verl_regress.cluster import node_probe


@pytest.mark.parametrize(
    ("version", "oldest", "older"),
    [
        ("2.53.1", "2.54", True),
        ("2.9.0", "2.54", True),
        ("2.54.0", "2.54", False),
        ("2.54.0rc1", "2.54", False),
        ("2.100.0", "2.54", False),
        ("10.0", "2.54", False),
        ("unknown", "2.54", True),
    ],
)
def test_which_release_is_older(monkeypatch, capsys, version, oldest, older):
    monkeypatch.setattr(metadata, "version", {"ray": version}.__getitem__)
    assert node_probe.main(["ray", oldest]) == 0
    assert capsys.readouterr().out == (f"{version} older\n" if older else f"{version}\n")


def test_a_python_without_ray(monkeypatch, capsys):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(node_probe.sys, "executable", "/opt/python3")
    assert node_probe.main(["ray", "2.54"]) == 1
    assert capsys.readouterr() == ("", "error   /opt/python3 has no package 'ray'.\n")


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """A folder with torch and another package, both without bytecode."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(node_probe, "_LARGE", ("torch",))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    for name in ("torch", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    invalidate_caches()
    return tmp_path


def test_packages_are_compiled_once(packages, capsys):
    assert node_probe.main(["compile"]) == 0
    assert capsys.readouterr().out == f"{packages}\t\n"
    assert len(list(packages.glob("*/__pycache__/*.pyc"))) == 2
    assert node_probe.main(["compile"]) == 0
    assert capsys.readouterr().out == ""


def test_a_script_on_stdin_compiles_whatever_starts_its_workers(packages):
    fork = "import multiprocessing\nmultiprocessing.set_start_method('forkserver')\n"  # as compileall has it from Python 3.12 on
    script = Path(node_probe.__file__).read_text().replace("if __name__", f"{fork}if __name__")
    command, env = [sys.executable, "-S", "-", "compile"], {**os.environ, "PYTHONPATH": str(packages)}
    ended = subprocess.run(command, input=script, env=env, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{packages}\t\n", "")


def test_packages_that_this_user_cannot_write_are_not_compiled(packages, monkeypatch, capsys):
    monkeypatch.setattr(node_probe.os, "access", lambda folder, mode: False)
    assert node_probe.main(["compile"]) == 0
    assert capsys.readouterr().out == f"{packages}\ttorch\n"
    assert not list(packages.glob("*/__pycache__"))
