"""The one sitecustomize of job processes: loads hooks in order, fails if one is missing, and runs the image's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[3] / "py" / "hooks"
COUNTING_HOOK = "def install():\n    print(f'installed {__name__}')\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "first_hook.py").write_text(COUNTING_HOOK)
    (tmp_path / "second_hook.py").write_text(COUNTING_HOOK)
    return tmp_path


def python(*path, hooks=None):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VERL_REGRESS"))}
    env["PYTHONPATH"] = os.pathsep.join(map(str, path))
    if hooks is not None:
        env["VERL_REGRESS_HOOKS"] = hooks
    return subprocess.run(
        [sys.executable, "-c", "print('main')"], env=env, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("hooks", [None, "", " , "])
def test_without_hooks_the_process_just_runs(hooks):
    ran = python(HOOKS, hooks=hooks)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "main\n", "")


def test_hooks_are_installed_in_the_order_given(folder):
    ran = python(HOOKS, folder, hooks="second_hook, first_hook")
    assert ran.stdout == "installed second_hook\ninstalled first_hook\nmain\n"


def test_the_next_sitecustomize_on_the_path_runs_after_the_hooks(folder):
    (folder / "sitecustomize.py").write_text("print('the image')\n")
    ran = python(HOOKS, folder, hooks="first_hook")
    assert ran.stdout == "installed first_hook\nthe image\nmain\n"


def test_a_failing_image_sitecustomize_is_no_worse_than_without_us(folder):
    (folder / "sitecustomize.py").write_text("raise ValueError('of the image')\n")
    ran = python(HOOKS, folder, hooks="first_hook")
    assert (ran.returncode, ran.stdout) == (0, "installed first_hook\nmain\n")
    assert "of the image" in ran.stderr


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (None, "ModuleNotFoundError: No module named 'wanted_hook'"),
        ("", "AttributeError: module 'wanted_hook' has no attribute 'install'"),
        ("def install():\n    raise ValueError('wrong verl')\n", "ValueError: wrong verl"),
    ],
)
def test_a_hook_that_cannot_be_installed_is_fatal_with_one_sentence(folder, source, cause):
    if source is not None:
        (folder / "wanted_hook.py").write_text(source)
    ran = python(HOOKS, folder, hooks="first_hook,wanted_hook")
    assert (ran.returncode, ran.stdout) == (1, "installed first_hook\n")
    assert ran.stderr == (
        f"verl-regress: the hook 'wanted_hook' named in VERL_REGRESS_HOOKS could not be installed: {cause}; "
        "this process stops because it must not run without it "
        f"(PYTHONPATH='{HOOKS}{os.pathsep}{folder}')\n"
    )
