"""scripts/dev/specs.py: the check of what we ship can fail, for each thing it checks."""

import shutil

import pytest
from hermetic import REPO

import specs

MODELINE = "# yaml-language-server: $schema=../py/verl_regress/jobspec.schema.json"


@pytest.fixture
def root(tmp_path):
    """A copy of what is shipped."""
    for folder in ("jobspecs", "env", "docs"):
        shutil.copytree(REPO / folder, tmp_path / folder)
    (tmp_path / "py" / "verl_regress").mkdir(parents=True)
    for schema in (REPO / "py" / "verl_regress").glob("*.schema.json"):
        shutil.copy(schema, tmp_path / "py" / "verl_regress")
    return tmp_path


def edit(file, old, new):
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (
            "jobspecs/ppo.yaml",
            "workload: ppo",
            "workload: pppo",
            "workload in jobspecs/ppo.yaml is not usable, because 'pppo' is not one of ['ppo', 'grpo', 'sft']: write ppo.",
        ),
        (
            "jobspecs/ppo.yaml",
            MODELINE,
            "# PPO",
            f"jobspecs/ppo.yaml does not begin with '{MODELINE}': editors complete by that line.",
        ),
        (
            "env/ray/cpu.yaml",
            "$schema=../../py/",
            "$schema=../py/",
            "env/ray/cpu.yaml does not begin with '# yaml-language-server: "
            "$schema=../../py/verl_regress/base_config.schema.json': editors complete by that line.",
        ),
        (
            "py/verl_regress/jobspec.schema.json",
            "A name under common/models/, or a path on the shared root.",
            "A name.",
            "docs/jobspec.md is not what the schemas say: run 'scripts/dev/specs.sh --write'.",
        ),
    ],
)
def test_each_mistake_is_reported(root, file, old, new, problem):
    edit(root / file, old, new)
    assert specs.check(root) == (7, [problem])


def test_no_documents_at_all_is_a_failure(root, capsys):
    for folder in ("jobspecs", "env/ray"):
        shutil.rmtree(root / folder)
    assert specs.main("check", root) == 1
    assert "a check of nothing is a failure." in capsys.readouterr().err


def test_write_makes_the_tables_and_changes_nothing_else(root, capsys):
    before = {path: path.read_bytes() for path in root.glob("**/*.*")}
    edit(root / "docs/jobspec.md", "| `model` | string |", "| `model` | number |")
    assert specs.main("write", root) == 0
    assert {path: path.read_bytes() for path in root.glob("**/*.*")} == before
    assert capsys.readouterr().out == "checked 7 files, 0 problems\n"
