"""scripts/dev/specs.py: the check of what we ship can fail, for each thing it checks."""

import json
import shutil

import dev_scripts
import pytest
from conftest import BASE
from dev_scripts import REPO

from verl_regress.base import documents
from verl_regress.base.base_config import BaseConfig
from verl_regress.base.jobspec import JobSpec
from verl_regress.spec import plan
from verl_regress.spec.request import CommandLine, Defaults, Request


@pytest.fixture(scope="module")
def specs():
    return dev_scripts.load("specs")


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


MODELINE = "# yaml-language-server: $schema=../py/verl_regress/jobspec.schema.json"


def test_what_is_shipped_is_right(specs, root):
    looked, problems = specs.check(root)
    assert problems == []
    documents = [path for path in root.glob("**/*.*") if path.suffix in (".yaml", ".json")]
    shipped = [path for path in documents if not {"py", "docs"} & {*path.relative_to(root).parts}]
    assert looked == len(shipped) >= 8


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (
            "jobspecs/ppo.yaml",
            "workload: ppo",
            "workload: pppo",
            'workload="pppo" in jobspecs/ppo.yaml is unknown: use one of ppo, grpo, sft.',
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
            "jobspecs/ppo.yaml",
            "total_epochs=1",
            "total_epochs=2",
            "jobspecs/ppo.json is not what jobspecs/ppo.yaml says: run 'scripts/dev/specs.sh --write'.",
        ),
        (
            "jobspecs/ray/cpu.json",
            "127.0.0.1",
            "localhost",
            "jobspecs/ray/cpu.json is not what env/ray/cpu.yaml says: run 'scripts/dev/specs.sh --write'.",
        ),
        (
            "docs/jobspec.md",
            "| `model` | string |",
            "| `model` | number |",
            "docs/jobspec.md is not what the schemas say: run 'scripts/dev/specs.sh --write'.",
        ),
        (
            "py/verl_regress/jobspec.schema.json",
            "A name under common/models/, or a path on the shared root.",
            "A name.",
            "docs/jobspec.md is not what the schemas say: run 'scripts/dev/specs.sh --write'.",
        ),
    ],
)
def test_each_thing_that_can_be_wrong(specs, root, file, old, new, problem):
    edit(root / file, old, new)
    assert problem in specs.check(root)[1]


def test_a_template_without_its_yaml(specs, root):
    shutil.copy(root / "jobspecs/ppo.json", root / "jobspecs/old.json")
    assert specs.check(root)[1] == ["jobspecs/old.json has no jobspecs/old.yaml that it comes from: remove it."]


def test_nothing_to_look_at_is_a_failure(specs, root, capsys):
    for folder in ("jobspecs", "env/ray"):
        shutil.rmtree(root / folder)
    assert specs.main("check", root) == 1
    assert "a check that looks at nothing is a failure." in capsys.readouterr().err


def test_write_mends_what_is_generated(specs, root, capsys):
    before = {path: path.read_bytes() for path in root.glob("**/*.*")}
    for path in root.glob("jobspecs/**/*.json"):
        path.unlink()
    edit(root / "docs/jobspec.md", "| `model` | string |", "| `model` | number |")
    assert specs.main("write", root) == 0
    assert {path: path.read_bytes() for path in root.glob("**/*.*")} == before
    assert capsys.readouterr().out == f"checked {specs.check(root)[0]} files, 0 problems\n"


def test_a_json_template_is_planned_as_its_yaml(shared):
    base = documents.parse(BASE.replace("ADDRESS", "http://ray:1"), "cpu.yaml", "base_config")

    def planned(name):
        spec = documents.parse((REPO / "jobspecs" / name).read_text(encoding="utf-8"), name, "jobspec")
        said, defaults = CommandLine(submission_id="me"), Defaults("cpu", "tiny", "sums", "codeA", "c")
        return plan.make(shared, Request(JobSpec.of(spec), BaseConfig.of(base), said, defaults))

    from_yaml, from_json = (planned(name).resolved() for name in ("ppo.yaml", "ppo.json"))
    assert from_json == json.loads(json.dumps(from_yaml).replace("ppo.yaml", "ppo.json"))
