"""The requirements that a tree declares, from real releases and from every form that setup.py may have."""

from pathlib import Path

import pytest
from conftest import write

from verl_regress.store import requirements

RECORDED = Path(__file__).parents[1] / "recorded" / "metadata"
EVERY_RELEASE = ["accelerate", "codetiming", "datasets", "dill", "hydra-core"]
ITS_TRAINER = "import os, torch\nimport transfer_queue as tq\nfrom verl.utils import x\nfrom .here import y\n"


def metadata(release):
    return (RECORDED / f"verl-{release}.METADATA").read_text()


def main(directory):
    """The files of main's checkout that declare them."""
    write(directory / "setup.py", (RECORDED / "verl-main.setup.py.txt").read_text())
    write(directory / "pyproject.toml", (RECORDED / "verl-main.pyproject.toml").read_text())
    write(directory / "verl/trainer/ppo/v1/trainer_base.py", ITS_TRAINER)
    return directory


@pytest.mark.parametrize(
    ("release", "of_all", "numpy", "extras"),
    [("0.7.1", 38, "numpy<2.0.0", 10), ("0.8.0", 38, "numpy<2.0.0", 10), ("0.9.1", 114, "numpy>=2.0.0", 13)],
)
def test_a_release_declares_them_in_its_metadata(tmp_path, release, of_all, numpy, extras):
    found = requirements.declared(tmp_path, metadata(release))
    assert (found["from"], len(found["requires"]), len(found["extras"])) == ("METADATA", of_all, extras)
    assert found["requires"][:6] == [*EVERY_RELEASE, numpy]
    assert ('TransferQueue>=0.1.10; extra == "verl-core"' in found["requires"]) is (release == "0.9.1")


def test_main_declares_them_in_setup_py_and_its_extras_in_pyproject_toml(tmp_path):
    found = requirements.declared(main(tmp_path))
    assert found["from"] == "setup.py and pyproject.toml"
    assert found["requires"][:6] == [*EVERY_RELEASE, "numpy>=2.0.0"]
    assert "transformers>=5.5.3,!=5.6.0,<5.11" in found["requires"]
    url = "TransferQueue @ git+https://github.com/Ascend/TransferQueue.git@main"
    assert f'{url} ; extra == "transferqueue"' in found["requires"]
    assert "trtllm" not in found["extras"], "an extra of setup.py alone, which pyproject.toml overrules"
    assert found["imports"] == ["torch", "transfer_queue"]


def test_the_dist_info_in_a_tree_counts_before_its_setup_py(tmp_path):
    write(main(tmp_path) / "verl-0.8.0.dist-info/METADATA", metadata("0.8.0"))
    found = requirements.declared(tmp_path)
    assert (found["from"], found["requires"][5]) == ("verl-0.8.0.dist-info/METADATA", "numpy<2.0.0")


def test_a_trainers_imports_are_those_it_cannot_be_loaded_without(tmp_path):
    write(tmp_path / "setup.py", "setup()")
    text = """\
import always.inner as one, two
from three.inner import x
from verl.four import x
import json
try:
    import optional
except ImportError:
    optional = None
if True:
    import perhaps
def later():
    import late
"""
    write(tmp_path / "verl/trainer/main_ppo.py", text)
    write(tmp_path / "verl/trainer/broken.py", "import (")
    write(tmp_path / "verl/workers/rollout/vllm.py", "import vllm")
    assert requirements.declared(tmp_path)["imports"] == ["always", "three", "two"]


@pytest.mark.parametrize(
    "text",
    [
        "from setuptools import setup\nsetup(install_requires=['a>=1', 'b'])",
        "import setuptools\nsetuptools.setup(install_requires=('a>=1', 'b'))",
        "needs = ['a>=1', 'b']\nsetup(install_requires=needs)",
    ],
)
def test_setup_py_is_read_and_never_run(tmp_path, text):
    write(tmp_path / "setup.py", f"raise SystemExit\n{text}\n")
    found = requirements.declared(tmp_path)
    assert found == {"from": "setup.py", "requires": ["a>=1", "b"], "extras": [], "imports": []}


def test_the_extras_of_setup_py(tmp_path):
    text = "X = ['a', 'b; python_version < \"3.11\"']\nextras = {'x': X, 'y': ['c']}\n"
    write(tmp_path / "setup.py", f"{text}setup(extras_require=extras)\n")
    found = requirements.declared(tmp_path)
    assert found["extras"] == ["x", "y"]
    assert found["requires"] == [
        'a ; extra == "x"',
        'b ; (python_version < "3.11") and extra == "x"',
        'c ; extra == "y"',
    ]


def test_pyproject_toml_alone(tmp_path):
    write(tmp_path / "pyproject.toml", "[project]\ndependencies = ['a']\noptional-dependencies = {x = ['b']}\n")
    write(tmp_path / "setup.py", "setup(install_requires=['overruled'], extras_require={'z': ['overruled']})\n")
    found = requirements.declared(tmp_path)
    assert (found["from"], found["requires"], found["extras"]) == ("pyproject.toml", ["a", 'b ; extra == "x"'], ["x"])


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "it has no dist-info, pyproject.toml or setup.py"),
        ({"setup.py": "def ("}, "its setup.py is not Python: invalid syntax (<unknown>, line 1)"),
        ({"setup.py": "print()"}, "its setup.py does not call setup()"),
        ({"setup.py": "setup(install_requires=find())"}, "install_requires in its setup.py is computed"),
        ({"setup.py": "n = ['a']\nn += ['b']\nsetup(install_requires=n)"}, "install_requires in its setup.py is computed"),
        ({"setup.py": "n = ['a']\nn.append(b())\nsetup(install_requires=n)"}, "install_requires in its setup.py is computed"),
        ({"pyproject.toml": "[project]\ndependencies = [1]"}, "its pyproject.toml does not list its requirements as text"),
        ({"setup.py": "setup(install_requires=open('needs.txt').read().splitlines())"}, "install_requires in its setup.py is computed"),
        ({"pyproject.toml": "[project]\noptional-dependencies = {x = 'a'}"}, "its pyproject.toml does not list its requirements as text"),
        ({"pyproject.toml": "project = 1"}, "project in its pyproject.toml is not a table"),
        ({"pyproject.toml": "[project"}, "its pyproject.toml is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        ({"pyproject.toml": "[tool.black]"}, "its setup.py is missing"),
        ({"setup.py": b"\xff"}, "its setup.py cannot be read: it is not UTF-8"),
        ({"verl-1.dist-info/METADATA": "nothing"}, "its METADATA has no Metadata-Version"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_reported(tmp_path, files, problem):
    (tmp_path / "tree").mkdir()
    for name, text in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert requirements.declared(tmp_path / "tree")["problem"] == problem
