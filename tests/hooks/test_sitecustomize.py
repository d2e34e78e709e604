"""The one sitecustomize of job processes: loads hooks in order, fails if one is missing, and runs the image's own."""

import os

import pytest
from shared_fixtures import HOOKS, environment, python

COUNTING_HOOK = "def install():\n    print(f'installed {__name__}')\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "first_hook.py").write_text(COUNTING_HOOK)
    (tmp_path / "second_hook.py").write_text(COUNTING_HOOK)
    return tmp_path


def ran(*path, hooks):
    return python("-c", "print('main')", env=environment(*path, hooks=hooks))


def test_without_hooks_the_process_just_runs():
    ended = ran(HOOKS, hooks="")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "main\n", "")


def test_hooks_are_installed_in_the_order_given(folder):
    ended = ran(HOOKS, folder, hooks="second_hook, first_hook")
    assert ended.stdout == "installed second_hook\ninstalled first_hook\nmain\n"


def test_the_next_sitecustomize_on_the_path_runs_after_the_hooks(folder):
    (folder / "sitecustomize.py").write_text("print('the image')\n")
    ended = ran(HOOKS, folder, hooks="first_hook")
    assert ended.stdout == "installed first_hook\nthe image\nmain\n"


def test_a_failing_image_sitecustomize_is_no_worse_than_without_us(folder):
    (folder / "sitecustomize.py").write_text("raise ValueError('of the image')\n")
    ended = ran(HOOKS, folder, hooks="first_hook")
    assert (ended.returncode, ended.stdout) == (0, "installed first_hook\nmain\n")
    assert "of the image" in ended.stderr


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
    ended = ran(HOOKS, folder, hooks="first_hook,wanted_hook")
    assert (ended.returncode, ended.stdout) == (1, "installed first_hook\n")
    assert ended.stderr == (
        f"verl-regress: the hook 'wanted_hook' named in VERL_REGRESS_HOOKS could not be installed: {cause}; "
        "this process stops because it must not run without it "
        f"(PYTHONPATH='{HOOKS}{os.pathsep}{folder}')\n"
    )
