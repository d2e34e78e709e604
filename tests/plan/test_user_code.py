"""Code that a job imports by name is an input: what is on PYTHONPATH, and what files of tools and agent loops name."""

import pytest
from shared_fixtures import write

from verl_regress.base.errors import BadInput, Refusals
from verl_regress.plan import user_code
from verl_regress.plan.inputs import Input
from verl_regress.store.hashes import Hashes

TOOLS = """\
tools:
  - class_name: {}
    config: {{type: native, file: {}}}
"""


def test_each_module_that_can_be_imported_is_an_input(shared):
    """Before: a module there changed, an earlier run was reused, and a code differed from itself."""
    lib = shared.path / "user" / "lib"
    for name in (
        "mylib/__init__.py",
        "mylib/scoring.py",
        "one.py",
        ".git/hook.py",
        "no-module/a.py",
        "mylib/data.json",
    ):
        write(lib / name, "x = 1\n")
    found = [*user_code.on_path({lib: "PYTHONPATH=lib (from my.yaml)"})]
    assert [str(one.path.relative_to(lib)) for one in found] == ["one.py", "mylib/__init__.py", "mylib/scoring.py"]
    assert {one.fact for one in found} == {"PYTHONPATH sha256"}


def test_a_folder_with_very_many_modules_counts_as_a_whole(shared, monkeypatch):
    monkeypatch.setattr(user_code, "_MOST", 1)
    lib = shared.path / "user" / "lib"
    for name in ("a.py", "b.py", "data.bin"):
        write(lib / name, "x = 1\n")
    [one] = user_code.on_path({lib: "PYTHONPATH=lib"})
    before = Hashes(shared).content_of(one.path, is_code=one.is_code)
    write(lib / "data.bin", "other")
    assert Hashes(shared).content_of(one.path, is_code=one.is_code) == before
    write(lib / "b.py", "x = 22\n")
    assert Hashes(shared).content_of(one.path, is_code=one.is_code) != before


@pytest.fixture
def named(shared):
    """The files that a file of tools names, or why a class of it is refused."""
    lib = shared.path / "user" / "lib"
    write(lib / "mylib" / "tool.py", "class AddTool: ...\n")
    words = write(shared.path / "user" / "words.txt", "x")

    def named(class_name):
        tools = write(shared.path / "user" / "tools.yaml", TOOLS.format(class_name, words))
        key = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
        one = Input(key, tools, "tool_config_path=tools.yaml (from OVERRIDES)", f"input {key} sha256")
        try:
            with Refusals() as wrong:
                places = [shared.snapshots / "codeA", lib]
                return [each.path for each in user_code.named_in(shared, [one], places, wrong, is_whole=True)]
        except BadInput as error:
            return str(error).replace(str(shared.path), "/private")

    named.words = words
    return named


def test_what_a_file_of_tools_names_is_an_input(named):
    assert named("mylib.tool.AddTool") == [named.words]
    assert named("json.JSONDecoder") == [named.words]  # of a package of the nodes


@pytest.mark.parametrize(
    ("class_name", "why"),
    [
        (
            "mylib.gone.AddTool",
            "is not there, because /private/user/lib has no module mylib.gone: name one that it has.",
        ),
        (
            "mylib.tool.SubTool",
            "is not there, because /private/user/lib/mylib/tool.py does not define SubTool: define it there, or name another.",
        ),
        (
            "nolib.tool.AddTool",
            "is in no folder of PYTHONPATH and in no package of the nodes: write the folder that has nolib as PYTHONPATH under env_vars of the "
            "JobSpec.",
        ),
    ],
)
def test_a_class_that_is_nowhere_is_refused(named, class_name, why):
    assert named(class_name) == f"tools.class_name={class_name} in tool_config_path=tools.yaml (from OVERRIDES) {why}"
