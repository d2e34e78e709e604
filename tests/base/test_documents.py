"""Documents that must be accepted unchanged; refusals are in tests/submit/test_submit_refusals.py."""

import json
from pathlib import Path

import pytest

from verl_regress.base import documents
from verl_regress.base.errors import BadInput

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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "env_vars: {FOO: on}",
            "env_vars.FOO in a file is not usable, because True is not of type 'string': put it in quotes, as in FOO: \"…\".",
        ),
        (
            "trainer_overrides: [1]",
            "trainer_overrides[0] in a file is not usable, because 1 is not of type 'string': put it in quotes, as in - \"…\".",
        ),
        (
            "env_vars: {FOO: }",
            "env_vars.FOO in a file is not usable, because None is not of type 'string': write text, in quotes if YAML reads it as something else.",
        ),
        (
            "trainer_overrides: a=b",
            "trainer_overrides in a file is not usable, because 'a=b' is not of type 'array': write a list, each line '- …'.",
        ),
        (
            "resources: {entrypoint_num_cpus: '1'}",
            "resources.entrypoint_num_cpus in a file is not usable, because '1' is not of type 'number': write a number, without quotes.",
        ),
        (
            "env_vars: [A=b]",
            "env_vars in a file is not usable, because ['A=b'] is not of type 'object': write key: value lines below it.",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_to_write(text, sentence):
    with pytest.raises(BadInput, match="is not usable") as refused:
        documents.parse(f"workload: ppo\n{text}\n", "a file", "jobspec")
    assert str(refused.value) == sentence


def _patterns(schema):
    """Each part of a schema that has a pattern, but for those of secrets, which have one sentence for all."""
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key == "pattern":
            yield schema
        elif key != "secrets":
            yield from _patterns(value)


@pytest.mark.parametrize("file", sorted((REPO / "py/verl_regress").glob("*.schema.json")), ids=lambda file: file.name)
def test_every_pattern_says_what_to_write(file):
    found = list(_patterns(json.loads(file.read_text(encoding="utf-8"))))
    assert found
    assert all(each["$comment"] for each in found)
