"""The page of `make mutants` shows what its record contains, and its reasons name what is there."""

import copy
import json
import sys
import types

import mutated
import pytest
import yaml
from hermetic import REPO

import mutants

ROW = {
    "path": "py/x.py", "sha256": "0" * 64, "date": "2026-01-31", "tool": "mutmut 3", "mutants": 20,
    "survivors": [
        {"in": "f", "line": 3, "was": "return a and b", "is": "return a or b"},
        {"in": "f", "line": 4, "was": 'open(x, encoding="utf-8")', "is": 'open(x, encoding="UTF-8")'},
    ],
}  # fmt: skip
EVERYWHERE = {"module": "any", "was": '"utf-8"', "is": '"UTF-8"', "reason": "the same encoding"}
HERE = {"module": "queue", "in": "f", "was": "return a and b", "is": "return a or b", "reason": "a is b"}


def test_the_page_matches_the_record_and_the_reasons():
    page = (REPO / "docs" / "mutants.md").read_text(encoding="utf-8")
    assert mutants.read()
    assert mutants.is_page(page)
    assert not mutants.is_page(page.replace("status.py", "state.py"))


def test_a_survivor_with_a_reason_does_not_count():
    assert mutants.score("queue", ROW, []) == (2, 0, 90.0)
    assert mutants.score("queue", ROW, [EVERYWHERE]) == (1, 1, 100 * 18 / 19)
    assert mutants.score("queue", ROW, [EVERYWHERE, HERE]) == (0, 2, 100.0)
    assert mutants.score("status", ROW, [EVERYWHERE, HERE]) == (1, 1, 100 * 18 / 19)


def test_a_reason_is_for_the_whole_change_in_its_function():
    survivor = ROW["survivors"][0]
    for key in ("in", "was", "is"):
        assert mutants.reason("queue", {**survivor, key: "other"}, [HERE]) is None
    assert mutants.reason("queue", survivor, [HERE]) == "a is b"
    assert mutants.reason("queue", {**survivor, "was": 'f("utf-8")', "is": 'f("utf-16")'}, [EVERYWHERE]) is None


@pytest.mark.parametrize("end", [")", " )"], ids=["of the call", "on its own line"])
@pytest.mark.parametrize("then", ["help=None", 'help="ANY"', "", 'metavar=None, help="how many"', 'help="how many"'])
def test_the_help_text_of_an_option_needs_no_test(then, end):
    was = f'"--keep", required=True, metavar="N", help="how many"{end}'
    survivor = {"in": "f", "line": 3, "was": was, "is": f'"--keep", required=True, {then}{end.strip()}'}
    assert mutants.reason("queue", survivor, []) == mutants._ONLY_HELP
    assert mutants.reason("queue", {**survivor, "is": survivor["is"].replace("True", "False")}, []) is None


def test_a_module_that_has_changed_is_out_of_date_on_the_page_and_fails_no_test():
    module = mutants.of("queue")
    fresh = {**ROW, "sha256": mutants.sha256(mutants.source(module))}
    now, stale = (mutants.page({"queue": row}, [EVERYWHERE]) for row in (fresh, ROW))
    line = "| `py/verl_regress/worker/queue.py` | 20 | 18 | 1 | 1 | 95 % | 2026-01-31, sha256 {}"
    assert f"{line.format(fresh['sha256'][:12])} |" in now
    assert f"{line.format('0' * 12)}, **out of date**: the module has changed |" in stale
    assert mutants.is_page(
        now.replace(f"{fresh['sha256'][:12]} |", f"{fresh['sha256'][:12]}{mutants._CHANGED} |"),
        {"queue": fresh},
        [EVERYWHERE],
    )
    assert "| 3 | `f` | `return a and b` | `return a or b` | - |" in now
    assert '| 4 | `f` | `open(x, encoding="utf-8")` | `open(x, encoding="UTF-8")` | the same encoding |' in now
    assert "| `py/verl_regress/jobs/status.py` | - | - | - | - | - | not run yet |" in now


def test_changes_of_help_texts_are_counted_and_not_listed():
    survivor = {"in": "f", "line": 3, "was": 'add("--a", help="how")', "is": 'add("--a", )'}
    row = {**ROW, "survivors": [*ROW["survivors"], survivor, survivor]}
    page = mutants.page({"queue": row}, [EVERYWHERE])
    assert page.endswith("| the same encoding |\n\nNot listed: 2 changes of help texts alone.\n")
    assert "| 20 | 16 | 3 | 1 | 94 % |" in page
    assert "Not listed" not in mutants.page({"queue": ROW}, [EVERYWHERE])


def test_a_score_below_the_aim_is_bold():
    row = {**ROW, "mutants": 19}
    assert "| 17 | 0 | 2 | **89 %** |" in mutants.page({"queue": row}, [])


def test_every_module_of_the_list_and_its_tests_exist():
    for module in mutants.MODULES:
        assert mutants.source(module).is_file()
        for name in module.test_files:
            assert (REPO / name).is_file()
    assert set(mutants.read()) <= set(mutants.NAMES)


def test_every_reason_names_a_survivor_of_the_record():
    for entry in mutants.read_equal():
        rows = mutants.read() if entry["module"] == "any" else {entry["module"]: mutants.read()[entry["module"]]}
        assert any(mutants.explains(entry, name, each) for name, row in rows.items() for each in row["survivors"]), (
            entry
        )


SOURCE = '''\
"""A module."""
import contextlib


def prefix(a, b):
    return a + b


class It:
    @property
    def b(self):
        return 2

    def method(self, a):
        if a:
            return a - 1
        return a
'''
GENERATED = """\
import contextlib


def x_prefix__mutmut_orig(a, b):
    return a + b


def x_prefix__mutmut_1(a, b):
    return a - b


class It:
    # What the lines above a function say.
    def xǁItǁmethod__mutmut_orig(self, a):
        if a:
            return a - 1
        return a

    def xǁItǁmethod__mutmut_1(self, a):
        if a:
            return a + 1
        return a

    def xǁItǁmethod__mutmut_2(self, a):
        if a:
            return a - 2
        return a
"""
SPANS = {
    "x_prefix__mutmut_orig": [2, 5], "x_prefix__mutmut_1": [6, 9], "xǁItǁmethod__mutmut_orig": [13, 17],
    "xǁItǁmethod__mutmut_1": [18, 22], "xǁItǁmethod__mutmut_2": [23, 27],
}  # fmt: skip


@pytest.fixture
def home(tmp_path):
    """A folder as mutmut leaves it."""
    module = mutants.Module("it", "package/it.py", ("test_it",))

    def make(**codes):
        for where, text in (("src", SOURCE), ("mutants/py", GENERATED)):
            file = tmp_path / where / module.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        meta = {"exit_code_by_key": {f"package.it.{name}": code for name, code in codes.items()}}
        file.with_name("it.py.meta").write_text(json.dumps(meta), encoding="utf-8")
        file.with_name("it.py.spans").write_text(json.dumps({"version": 1, "spans": SPANS}), encoding="utf-8")
        return module, tmp_path

    return make


def test_a_survivor_has_its_line_in_the_source_and_the_lines_that_differ(home, monkeypatch):
    monkeypatch.setattr(mutants.metadata, "version", lambda _: "3.8.1")
    found = mutants.found(*home(x_prefix__mutmut_1=0, **{"xǁItǁmethod__mutmut_1": 1, "xǁItǁmethod__mutmut_2": 33}))
    assert (found["path"], found["mutants"], found["tool"]) == ("py/package/it.py", 3, "mutmut 3.8.1")
    assert found["survivors"] == [
        {"in": "prefix", "line": 6, "was": "return a + b", "is": "return a - b"},
        {"in": "It.method", "line": 16, "was": "return a - 1", "is": "return a - 2"},
    ]


def test_a_module_of_which_mutants_are_left_is_not_recorded(home):
    with pytest.raises(ValueError, match=r"^1 of 2 mutants of it have not run: run 'make mutants MUTANTS=it' again\.$"):
        mutants.found(*home(x_prefix__mutmut_1=0, **{"xǁItǁmethod__mutmut_1": None}))


def test_what_no_test_noticed_runs_again_when_the_tests_have_changed(home):
    _, folder = home(x_prefix__mutmut_1=0, **{"xǁItǁmethod__mutmut_1": 1, "xǁItǁmethod__mutmut_2": 33})
    meta = folder / "mutants" / "py" / "package" / "it.py.meta"

    def codes(tests):
        mutants._forget_survivors(folder, meta, tests)
        return list(json.loads(meta.read_text())["exit_code_by_key"].values())

    assert codes("as they were") == [0, 1, 33]
    assert codes("as they were") == [0, 1, 33]
    assert codes("changed") == [None, 1, None]


@pytest.mark.parametrize(("uid", "of_others"), [(0, []), (1000, ["--user", "--map-current-user"])])
def test_mutmut_runs_in_the_folder_that_was_prepared_for_it_and_reaches_no_other_process(
    tmp_path, monkeypatch, uid, of_others
):
    called = []
    monkeypatch.setattr(mutants.os, "geteuid", lambda: uid)
    monkeypatch.setattr(mutants, "prepare", lambda module, home: called.append((module.name, home)))
    monkeypatch.setattr(mutants, "generate", lambda module, home: called.append((mutants.Path.cwd(), home)))
    monkeypatch.setattr(mutants.os, "nice", called.append)
    monkeypatch.setattr(mutants.os, "execvp", lambda program, words: called.append((program, words)))
    monkeypatch.setattr(mutants.sys, "executable", "/tools/bin/python")
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    mutants.run(mutants.of("queue"), home)
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *of_others]
    first = ["sh", "-c", '"$@"; exit "$?"', "first"]
    run = ("unshare", [*alone, *first, "/tools/bin/mutmut", "run", "--max-children", "1"])
    assert called == [19, ("queue", home), (home, home), run]


def test_a_mutant_of_a_help_text_is_a_survivor_without_a_run(home, monkeypatch):
    tool = types.ModuleType("mutmut.__main__")
    tool.create_mutants = lambda children: home(x_prefix__mutmut_1=None, **names)
    names = {"xǁItǁmethod__mutmut_1": 1, "xǁItǁmethod__mutmut_2": None}
    monkeypatch.setitem(sys.modules, "mutmut", types.ModuleType("mutmut"))
    monkeypatch.setitem(sys.modules, "mutmut.__main__", tool)
    monkeypatch.setattr(mutants, "_is_only_help", lambda change: change["is"] in ("return a - b", "return a + 1"))
    module, folder = home()
    mutants.generate(module, folder)
    codes = json.loads((folder / "mutants" / "py" / "package" / "it.py.meta").read_text())["exit_code_by_key"]
    assert list(codes.values()) == [0, 1, None]


def test_a_copy_has_the_tools_that_tests_call(home, tmp_path, monkeypatch):
    module, folder = home(x_prefix__mutmut_1=0)
    (tmp_path / "it.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(mutants, "source", lambda _: tmp_path / "it.py")
    for _ in range(2):
        (folder / "mutants" / "py" / module.path).write_text(GENERATED, encoding="utf-8")
        mutants.prepare(module, folder)
    assert (folder / "mutants" / ".venv").readlink() == REPO / ".venv"
    assert (folder / "mutants" / "src" / "package" / "it.py.meta").is_file()


def test_the_tests_that_noticed_the_last_mutants_run_first(tmp_path, monkeypatch):
    monkeypatch.setattr(mutated, "NOTICED", tmp_path / "noticed")
    items = [types.SimpleNamespace(nodeid=name) for name in "abcde"]

    def order():
        mutated.pytest_collection_modifyitems(items)
        return "".join(item.nodeid for item in items)

    assert order() == "abcde"
    for name in "dbdca":
        mutated.pytest_runtest_logreport(types.SimpleNamespace(nodeid=name, failed=name != "a"))
    assert order() == "cdbae"


def test_a_test_in_which_a_mutant_plans_without_end_fails():
    in_child, done = mutated.in_this_process(), []
    for _ in range(mutated.PLANS):
        assert in_child(lambda: [*done], lambda: done.append("meanwhile")) == done
    with pytest.raises(AssertionError, match=r"^this test makes more than 100 plans$"):
        in_child(done.clear, done.clear)
    assert done == ["meanwhile"] * 100


def test_the_knob_takes_the_modules_of_the_list():
    knobs = (REPO / "env" / "defaults.env").read_text(encoding="utf-8")
    assert f"#: list of {' '.join(mutants.NAMES)} or empty\nMUTANTS=\n" in knobs


def test_the_reasons_are_sentences_without_a_period():
    for entry in yaml.safe_load(mutants.EQUAL.read_text(encoding="utf-8")):
        assert set(entry) == {"module", "was", "is", "reason"} | ({"in"} if entry["module"] != "any" else set())
        assert not entry["reason"].endswith(".")


def test_a_table_keeps_its_columns_whatever_a_line_contains():
    row = copy.deepcopy(ROW)
    row["survivors"] = [{"in": "f", "line": 3, "was": "a | b", "is": "f`x`"}]
    assert "| 3 | `f` | `a \\| b` | `` f`x` `` | - |" in mutants.page({"queue": row}, [])
