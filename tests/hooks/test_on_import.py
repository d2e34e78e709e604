"""What is called when a module is imported, also where others hook the same import."""

import itertools
from importlib.machinery import SourceFileLoader

import pytest
from shared_fixtures import HOOKS, environment, python, write

HOOKED = {
    "ours": "on_import.on_import('wanted', lambda module: print('ours', module.VALUE))",
    "ours too": "on_import.on_import('wanted', lambda module: print('ours too', module.VALUE))",
    "wrapt": "wrapt.register_post_import_hook(lambda module: print('wrapt', module.VALUE), 'wanted')",
}


@pytest.mark.parametrize("order", list(itertools.permutations(HOOKED)), ids=", ".join)
def test_each_hook_of_a_module_gets_it_once_whoever_came_first(tmp_path, order):
    write(tmp_path / "wanted.py", "VALUE = __loader__.get_data(__file__).decode()[:5] == 'VALUE'\n")
    program = "\n".join(
        [
            "import on_import, wrapt, importlib.util",
            *(HOOKED[name] for name in order),
            "importlib.util.find_spec('wanted')",
            "import wanted, wanted as again",
        ]
    )
    ended = python("-c", program, env=environment(HOOKS, tmp_path))
    assert sorted(ended.stdout.splitlines()) == [f"{name} True" for name in sorted(HOOKED)]
    assert ended.stderr == ""


def test_the_module_keeps_its_loader_and_the_hooks_error_is_the_imports(tmp_path):
    write(tmp_path / "wanted.py", "")
    program = """
import on_import
on_import.on_import('wanted', lambda module: print(type(module.__loader__).__name__, type(module.__spec__.loader).__name__))
import wanted
on_import.on_import('json.tool', lambda module: 1 / 0)
import json.tool
"""
    ended = python("-c", program, env=environment(HOOKS, tmp_path))
    assert ended.stdout.split() == [SourceFileLoader.__name__] * 2
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")
