"""`VERL_REHEARSAL=1` activates the rehearsal by the wheel's .pth file; without it, a process loads nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

REHEARSAL = Path(__file__).parents[2] / "rehearsal"
FAKES = {
    "verl.py": "",
    "ray.py": "def is_initialized(): return False\ndef init(*args, **kwargs): "
    "print('init', args, kwargs); import os; print(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))\n",
}
START = (
    f"import site; site.addsitedir({str(REHEARSAL)!r}); site.addsitedir({str(REHEARSAL)!r}); "  # twice, as in a venv
)


@pytest.fixture
def run(tmp_path):
    """Runs a program in a process that has read the .pth file, with a fake Ray and verl; returns what it printed."""
    for name, text in FAKES.items():
        (tmp_path / name).write_text(text)

    def run(program, **variables):
        environment = {"PYTHONPATH": str(tmp_path), **variables}
        return subprocess.run(
            [sys.executable, "-c", START + program], env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize("variables", [{}, {"VERL_REHEARSAL": ""}, {"VERL_REHEARSAL": "0"}])
def test_without_the_variable_nothing_is_loaded(run, variables):
    program = "import sys; print([name for name in ('verl_rehearsal', 'wrapt') if name in sys.modules])"
    assert run(program, **variables).stdout == "[]\n"


def test_with_it_the_hooks_are_there_and_neither_torch_nor_verl(run):
    program = (
        "import sys, wrapt.importer as hooks; from verl_rehearsal import HOOKS; "
        "print({len(hooks._post_import_hooks[name]) for name, _ in HOOKS if name == 'torch'}, 'verl' in sys.modules)"
    )
    assert run(program, VERL_REHEARSAL="1").stdout == "{1} False\n"


def test_a_process_that_cannot_rehearse_ends_with_one_sentence(run, tmp_path):
    (tmp_path / "wrapt.py").write_text("raise ImportError('no wrapt here')\n")
    ended = run("print('trained')", VERL_REHEARSAL="1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"verl-rehearsal: this Python ({sys.executable}) cannot rehearse, as VERL_REHEARSAL=1 asks: ImportError: no wrapt here; "
        "install verl-rehearsal again with pip, or unset VERL_REHEARSAL.\n"
    )


@pytest.mark.parametrize(
    ("call", "environment", "received"),
    [
        ("ray.init()", {}, "() {'address': 'local', 'num_cpus': 64, 'num_gpus': 64, 'resources': {'cpu': 64}}"),
        (
            "ray.init(num_cpus=8, resources={'cpu': 2})",
            {},
            "() {'num_cpus': 8, 'resources': {'cpu': 2}, 'address': 'local', 'num_gpus': 64}",
        ),
        ("ray.init('auto')", {}, "('auto',) {}"),
        ("ray.init(address='ray://head:1')", {}, "() {'address': 'ray://head:1'}"),
        ("ray.init()", {"RAY_ADDRESS": "auto"}, "() {}"),
    ],
)
def test_only_a_ray_of_the_drivers_own_declares_resources(run, call, environment, received):
    assert run(f"import ray; {call}", VERL_REHEARSAL="1", **environment).stdout == f"init {received}\nNone\n"


@pytest.fixture
def on_gpus(run, tmp_path):
    """The same on a machine with two NVIDIA GPUs, in a process that prints what it sees of them."""
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).mkdir(parents=True)
    program = (
        "import os, pathlib, subprocess, sys; from verl_rehearsal import activation; "
        f"activation.hide_gpus(pathlib.Path({str(tmp_path / 'dev')!r})); import verl; print(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    )
    return lambda **variables: run(program, VERL_REHEARSAL="1", **variables)


def test_the_driver_says_once_that_it_will_not_use_the_gpus_and_hides_them(on_gpus, tmp_path):
    driver = on_gpus()
    assert driver.stdout == "''\n"
    assert driver.stderr == (
        "verl-rehearsal: VERL_REHEARSAL=1 (from the environment) trains on the CPU, so the GPUs of this machine "
        f"({tmp_path}/dev/nvidia0, {tmp_path}/dev/nvidia1) are not used; unset it to train on them.\n"
    )
    for of_its_child in ({"CUDA_VISIBLE_DEVICES": ""}, {"RAY_RAYLET_PID": "7"}):
        child = on_gpus(**of_its_child)
        assert (child.stdout, child.stderr) == ("''\n", "")


def test_the_drivers_ray_sees_the_gpus_that_it_declares_and_the_driver_does_not(run):
    program = "import os, ray; ray.init(); print(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    started = run(program, VERL_REHEARSAL="1", CUDA_VISIBLE_DEVICES="")
    assert started.stdout.splitlines()[1:] == ["None", "''"]


def test_a_machine_without_gpus_is_left_as_it_is(on_gpus, tmp_path):
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / "dev" / name).rmdir()
    process = on_gpus()
    assert (process.stdout, process.stderr) == ("None\n", "")
