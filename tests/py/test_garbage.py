"""Garbage collection in the processes of a rehearsal, at their end."""

import subprocess
import sys

_PROGRAM = """
import sys
import types

class Announced:
    def __init__(self, name):
        self.name, self.itself = name, self

    def __del__(self):
        print(self.name)

if sys.argv[1] == "seldom":
    from verl_rehearsal import garbage
    garbage.collect_seldom()
loaded = types.ModuleType("loaded")
loaded.announced = Announced("loaded")
sys.modules["loaded"] = loaded
del loaded
Announced("lost")
"""


def _freed_at_the_end(how):
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, how],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "py/rehearsal"},
    ).stdout.split()


def test_a_process_frees_at_its_end_what_nothing_refers_to_and_not_what_it_has_loaded():
    assert sorted(_freed_at_the_end("default")) == ["loaded", "lost"]
    assert _freed_at_the_end("seldom") == ["lost"]
