"""The requirements that a tree declares, from real releases and from the forms that setup.py may have."""

from pathlib import Path

import pytest
from shared_fixtures import write

from verl_regress.store import requirements

RECORDED = Path(__file__).parents[1] / "recorded" / "metadata"
EVERY_RELEASE = ["accelerate", "codetiming", "datasets", "dill", "hydra-core"]


def metadata(release):
    return (RECORDED / f"verl-{release}.METADATA").read_text()


def main(directory):
    """The files of main's checkout that declare them."""
    write(directory / "setup.py", (RECORDED / "verl-main.setup.py.txt").read_text())
    write(directory / "pyproject.toml", (RECORDED / "verl-main.pyproject.toml").read_text())
    return directory


@pytest.mark.parametrize(
    ("release", "of_all", "numpy"),
    [("0.7.1", 38, "numpy<2.0.0"), ("0.8.0", 38, "numpy<2.0.0"), ("0.9.1", 114, "numpy>=2.0.0")],
)
def test_a_release_declares_them_in_its_metadata(tmp_path, release, of_all, numpy):
    found = requirements.declared(tmp_path, metadata(release))
    assert len(found["requires"]) == of_all
    assert found["requires"][:6] == [*EVERY_RELEASE, numpy]
    assert ('TransferQueue>=0.1.10; extra == "verl-core"' in found["requires"]) is (release == "0.9.1")


def test_main_declares_them_in_setup_py_to_which_its_pyproject_toml_leaves_them(tmp_path):
    found = requirements.declared(main(tmp_path))
    assert found["requires"][:6] == [*EVERY_RELEASE, "numpy>=2.0.0"]
    assert "transformers>=5.5.3,!=5.6.0,<5.11" in found["requires"]


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
    assert requirements.declared(tmp_path) == {"requires": ["a>=1", "b"]}


def test_pyproject_toml_alone(tmp_path):
    write(tmp_path / "pyproject.toml", "[project]\ndependencies = ['a']\n")
    write(tmp_path / "setup.py", "setup(install_requires=['overruled'])\n")
    assert requirements.declared(tmp_path) == {"requires": ["a"]}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "setup.py does not say it: No such file or directory"),
        ({"setup.py": "def ("}, "setup.py does not say it: invalid syntax (<unknown>, line 1)"),
        ({"setup.py": "setup()"}, "setup.py does not say it: it has no install_requires"),
        ({"setup.py": "n = ['a']\nn += ['b']\nsetup(install_requires=n)"}, "setup.py does not say it: install_requires is computed"),
        ({"setup.py": "setup(install_requires=open('needs.txt').read().splitlines())"}, "setup.py does not say it: install_requires is computed"),
        ({"pyproject.toml": "[project]\ndependencies = [1]"}, "pyproject.toml does not say it: its requirements are not a list of text"),
        ({"pyproject.toml": "[project"}, "pyproject.toml does not say it: Expected ']' at the end of a table declaration (at end of document)"),
        ({"pyproject.toml": "project = 1"}, "pyproject.toml does not say it: 'int' object has no attribute 'get'"),
        ({"setup.py": b"\xff"}, "setup.py does not say it: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_reported(tmp_path, files, problem):
    (tmp_path / "tree").mkdir()
    for name, text in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert requirements.declared(tmp_path / "tree")["problem"] == f"its {problem}"
