"""Garbage collection in the processes of a rehearsal, at their end."""

import subprocess
import sys
from pathlib import Path

import pytest

REHEARSAL = Path(__file__).parents[2] / "rehearsal"
_PROGRAM = """
import sys
import types

class Announced:
    def __init__(self, name):
        self.name, self.itself = name, self
        self.text, self.bytes = open(f"{name}.txt", "w"), open(f"{name}.bin", "wb")
        self.text.write("last line")
        self.bytes.write(b"last byte")

    def __del__(self):
        print(self.name)

if sys.argv[1] == "seldom":
    from verl_rehearsal import garbage
    garbage.collect_seldom()
loaded = types.ModuleType("loaded")
loaded.deprecated = type("Deprecated", (), {"__class__": property(lambda self: print("asked"))})()
loaded.announced = Announced("loaded")
sys.modules["loaded"] = loaded
del loaded
Announced("lost")
"""


@pytest.fixture
def freed(tmp_path):
    """What a process frees at its end, in order; its files are in `tmp_path`."""

    def freed(how):
        argv = [sys.executable, "-c", _PROGRAM, how]
        environment = {"PYTHONPATH": str(REHEARSAL)}
        return subprocess.run(
            argv, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout.split()

    return freed


def test_a_process_frees_at_its_end_what_nothing_refers_to_and_keeps_modules(freed):
    assert sorted(freed("default")) == ["loaded", "lost"]
    assert freed("seldom") == ["lost"]


def test_files_that_are_open_at_the_end_are_complete(freed, tmp_path):
    freed("seldom")
    for name in ("loaded", "lost"):
        assert (tmp_path / f"{name}.txt").read_text() == "last line"
        assert (tmp_path / f"{name}.bin").read_bytes() == b"last byte"
