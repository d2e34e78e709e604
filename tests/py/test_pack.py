"""The file that run.py imports the helper's modules from (pack.py)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deps

PY = Path(deps.__file__).parent
CODE = """
import deps, redaction, verl_regress, verl_regress.base
def main():
    for module in (deps, redaction, verl_regress, verl_regress.base):
        print(module.__name__, module.__file__, getattr(module, "__path__", None))
    raise LookupError("seen")
"""


@pytest.fixture
def helper(tmp_path):
    """A version of the helper whose only subcommand shows where four modules are from, and then fails."""
    tree = tmp_path / "0123"
    for name in (
        "run.py",
        "pack.py",
        "deps.py",
        "hooks/redaction.py",
        "verl_regress/__init__.py",
        "verl_regress/base/__init__.py",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PY / name, tree / name)
    (tree / "verl_regress" / "cli.py").write_text(CODE, encoding="utf-8")
    return tree


def python(script):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-S", script], env=environment, capture_output=True, text=True, check=False)


def pack(helper):
    assert python(helper / "pack.py").returncode == 0
    (packed,) = (helper / "__pycache__").glob(f"helper.{sys.implementation.cache_tag}.pack")
    shutil.rmtree(helper / "hooks")  # now nothing can come from the files
    (helper / "deps.py").unlink()
    return packed


def test_a_packed_helper_runs_as_from_its_files_and_reads_none_of_them(helper):
    from_files = python(helper / "run.py")
    shutil.rmtree(helper / "__pycache__")
    packed = pack(helper)
    before = sorted(helper.rglob("*"))
    from_pack = python(helper / "run.py")
    assert from_pack.stdout == from_files.stdout
    assert from_pack.stdout.splitlines()[:2] == [
        f"deps {helper}/deps.py None",
        f"redaction {helper}/hooks/redaction.py None",
    ]
    trace = f'File "{helper}/verl_regress/cli.py", line 6, in main\n    raise LookupError("seen")\n'
    assert trace in from_files.stderr
    assert trace in from_pack.stderr
    assert sorted(helper.rglob("*")) == before  # Python keeps bytecode of what it reads
    assert packed in before


def test_a_pack_of_another_python_is_not_read(helper):
    packed = pack(helper)
    packed.rename(packed.with_name("helper.cpython-27.pack"))
    ended = python(helper / "run.py")
    assert ended.stderr.endswith("No module named 'deps'\n")  # whose file is gone


def test_a_pack_that_cannot_be_written_is_one_sentence_and_leaves_nothing(helper):
    (helper / "__pycache__" / f"helper.{sys.implementation.cache_tag}.pack").mkdir(parents=True)
    ended = python(helper / "pack.py")
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error   {helper}/__pycache__/helper.{sys.implementation.cache_tag}.pack cannot be written: Is a directory: "
        "fix that, then run it again.\n"
    )
    assert not list(helper.rglob("*.tmp"))


@pytest.mark.parametrize("content", [b"", b"{", b"nonsense", b"T"])
def test_a_damaged_pack_is_passed_over(helper, content):
    from_files = python(helper / "run.py")
    (helper / "__pycache__" / f"helper.{sys.implementation.cache_tag}.pack").write_bytes(content)
    ended = python(helper / "run.py")
    assert (ended.stdout, ended.stderr) == (from_files.stdout, from_files.stderr)


def test_a_start_that_has_opened_the_pack_keeps_it_while_another_is_written(helper):
    assert python(helper / "pack.py").returncode == 0
    (packed,) = (helper / "__pycache__").glob("helper.*.pack")
    with packed.open("rb") as opened:
        assert python(helper / "pack.py").returncode == 0
        assert os.fstat(opened.fileno()).st_ino != packed.stat().st_ino
