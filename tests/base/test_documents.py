"""Documents that must be accepted unchanged; refusals are in tests/submit/test_submit_refusals.py."""

from pathlib import Path

import pytest

from verl_regress.base import documents

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "env_vars"),
    [
        ('workload: ppo\nenv_vars: {A: "on"}\n', {"A": "on"}),
        ("\ufeffworkload: ppo\r\nenv_vars:\r\n  A: b\r\n", {"A": "b"}),
        ('{"workload": "ppo", "env_vars": {"A": "b"}}', {"A": "b"}),
        ('{\n\t"workload":\t"ppo",\n\t"env_vars": {"A": "\\ud83d\\ude00"}\n}', {"A": "😀"}),  # not so in YAML 1.1
        ("workload: ppo\nenv_vars: &usual {A: b}\n", {"A": "b"}),
    ],
)
def test_yaml_and_json(text, env_vars):
    document = documents.parse(text, "a file", "jobspec")
    assert document.content == {"workload": "ppo", "env_vars": env_vars}
    assert (document.text, document.origin) == (text, "a file")


def test_a_merged_mapping_may_be_overridden():
    text = "workload: ppo\nenv_vars:\n  <<: {A: a, B: b}\n  B: mine\n"
    assert documents.parse(text, "a file", "jobspec").content["env_vars"] == {"A": "a", "B": "mine"}


@pytest.mark.parametrize(
    ("kind", "file"),
    [("jobspec", file) for file in sorted((REPO / "jobspecs").glob("*.yaml"))],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_we_ship(kind, file):
    documents.parse(file.read_text(encoding="utf-8"), file.name, kind)
