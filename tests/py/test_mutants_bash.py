"""Which mutants a Bash library has, and which of them its tests notice, with real bats."""

import json
import os
import tempfile
from pathlib import Path

import pytest

import mutants
import mutants_bash

SOURCE = r"""# it: a comment with a == b and 3.
readonly LONGEST=3

it::decide() {
  local - words=("${@:2}") empty='' kind
  set +x
  if [[ -e $1 && ! $1 =~ ^a ]] && ! it::other "$@"; then return 1; fi
  case $1 in
    b* | 'c d') kind="plain" ;;
    *) kind="$1 ${#words[@]}" ;;
  esac
  ((${#words[@]} <= LONGEST - 1)) || cli::die 2 "No more than ${LONGEST} words (3 > 2)." >&2
  cat <<TEXT
1 && 2 and $(it::other)
TEXT
  printf '%s\n' "${words[@]}" | it::other \
    --last || true
}
"""
CHANGED = {
    "readonly LONGEST=3": {":", "readonly LONGEST=4", "readonly LONGEST=2"},
    "local - words=(\"${@:2}\") empty='' kind": {
        ":", "local - words=() empty='' kind", "local - words=(\"${@:2}\") empty='XX' kind",
        "local - words=(\"${@:3}\") empty='' kind", "local - words=(\"${@:1}\") empty='' kind",
    },
    "set +x": {":"},
    'if [[ -e $1 && ! $1 =~ ^a ]] && ! it::other "$@"; then return 1; fi': {
        'if [[ ! -e $1 && ! $1 =~ ^a ]] && ! it::other "$@"; then return 1; fi',
        'if [[ -e $1 || ! $1 =~ ^a ]] && ! it::other "$@"; then return 1; fi',
        'if [[ -e $1 && $1 =~ ^a ]] && ! it::other "$@"; then return 1; fi',
        'if [[ -e $1 && ! $1 =~ ^a ]] || ! it::other "$@"; then return 1; fi',
        'if [[ -e $1 && ! $1 =~ ^a ]] && it::other "$@"; then return 1; fi',
        "if [[ -e $1 && ! $1 =~ ^a ]] && ! it::other ; then return 1; fi",
        "if [[ -e $1 && ! $1 =~ ^a ]] && ! :; then return 1; fi",
        'if [[ -e $1 && ! $1 =~ ^a ]] && ! it::other "$@"; then return 0; fi',
        'if [[ -e $1 && ! $1 =~ ^a ]] && ! it::other "$@"; then :; fi',
    },
    "b* | 'c d') kind=\"plain\" ;;": {
        "XXb* | 'c d') kind=\"plain\" ;;", "b* | 'XXc dXX') kind=\"plain\" ;;", "b* | 'c d') kind=\"XXplainXX\" ;;",
        "b* | 'c d') : ;;",
    },
    '*) kind="$1 ${#words[@]}" ;;': {'XX*) kind="$1 ${#words[@]}" ;;', "*) : ;;"},
    '((${#words[@]} <= LONGEST - 1)) || cli::die 2 "No more than ${LONGEST} words (3 > 2)." >&2': {
        f'{test} {command}'
        for test, command in (
            ("((${#words[@]} < LONGEST - 1)) ||", 'cli::die 2 "No more than ${LONGEST} words (3 > 2)." >&2'),
            ("((${#words[@]} <= LONGEST + 1)) ||", 'cli::die 2 "No more than ${LONGEST} words (3 > 2)." >&2'),
            ("((${#words[@]} <= LONGEST - 2)) ||", 'cli::die 2 "No more than ${LONGEST} words (3 > 2)." >&2'),
            ("((${#words[@]} <= LONGEST - 0)) ||", 'cli::die 2 "No more than ${LONGEST} words (3 > 2)." >&2'),
            ("((${#words[@]} <= LONGEST - 1)) &&", 'cli::die 2 "No more than ${LONGEST} words (3 > 2)." >&2'),
            ("((${#words[@]} <= LONGEST - 1)) ||", 'cli::die 1 "No more than ${LONGEST} words (3 > 2)." >&2'),
            ("((${#words[@]} <= LONGEST - 1)) ||", 'cli::die 3 "No more than ${LONGEST} words (3 > 2)." >&2'),
            ("((${#words[@]} <= LONGEST - 1)) ||", ":"),
        )
    },
    "printf '%s\\n' \"${words[@]}\" | it::other \\": {
        ": | it::other \\", "printf 'XX%s\\nXX' \"${words[@]}\" | it::other \\", "printf '%s\\n' | it::other \\",
    },
    "--last || true": {"--last || false"},
}  # fmt: skip


def test_each_change_of_a_line_and_nothing_in_comments_messages_and_here_documents(tmp_path):
    (tmp_path / "it.bash").write_text(SOURCE, encoding="utf-8")
    made = mutants_bash.mutants(tmp_path / "it.bash")
    changed = {}
    for each in made:
        changed.setdefault(each.was, []).append(each.now)
    assert {was: set(now) for was, now in changed.items()} == CHANGED
    assert sum(map(len, changed.values())) == sum(map(len, CHANGED.values()))
    assert {(each.line, each.function) for each in made if each.line < 6} == {(2, "(top level)"), (5, "it::decide")}
    for each in made:
        differ = [was != now for was, now in zip(SOURCE.splitlines(), each.text.splitlines(), strict=True)]
        assert differ.index(True) == each.line - 1
        assert sum(differ) == 1


def test_what_bash_cannot_read_is_no_mutant(tmp_path):
    (tmp_path / "it.bash").write_text('f() { "$@"; }\n[[ $1 < $2 ]]\n', encoding="utf-8")
    assert [each.now for each in mutants_bash.mutants(tmp_path / "it.bash")] == ["f() { :; }", "[[ ! $1 < $2 ]]"]


def test_a_key_is_of_its_function_only(tmp_path):
    def keys(text):
        (tmp_path / "it.bash").write_text(text, encoding="utf-8")
        return {(each.function, each.line, each.now): each.key for each in mutants_bash.mutants(tmp_path / "it.bash")}

    now = keys("a() { true; }\nb() { b; }\n")
    later = keys("# more\na() { true; }\nb() { c; }\n")
    assert now["a", 1, "a() { false; }"] == later["a", 2, "a() { false; }"]
    assert now["b", 2, "b() { :; }"] != later["b", 3, "b() { :; }"]


LIBRARY = """\
it::is_more() { ((3 < $1)); }
it::unused() { true; }
it::until_done() { until [[ -e $1 ]]; do touch "$1"; done; }
"""
TESTS = """\
source "${BATS_TEST_DIRNAME}/../../../scripts/lib/it.bash"
@test "numbers" { ! it::is_more 3 && it::is_more 4; }
@test "until" { it::until_done "${BATS_TEST_TMPDIR}/done" && [[ -e ${BATS_TEST_TMPDIR}/done ]]; }
"""


@pytest.fixture
def home(tmp_path):
    """A folder with a copy of a checkout that has one library and its tests."""
    for name, text in (("scripts/lib/it.bash", LIBRARY), ("tests/bats/unit/it.bats", TESTS)):
        file = tmp_path / "mutants" / name
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


def run(home):
    mutants_bash.run("scripts/lib/it.bash", ["tests/bats/unit/it.bats"], home)
    return mutants_bash.found("scripts/lib/it.bash", home)


def processes(word):
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            found += [directory.name] * (word in (directory / "cmdline").read_bytes())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_what_the_tests_notice_and_what_they_do_not(home, capfd, monkeypatch):
    monkeypatch.setattr(mutants_bash, "SECONDS", (2, 5))
    (home / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "tmp"))
    count, left, survivors = run(home)
    assert (count, left) == (6, 0)
    assert survivors == [
        {"in": "it::unused", "line": 2, "was": "it::unused() { true; }", "is": "it::unused() { false; }"}
    ]
    assert capfd.readouterr().out.splitlines() == [f"{done}/6" for done in range(1, 7)]
    assert (home / "mutants" / "scripts" / "lib" / "it.bash").read_text() == LIBRARY
    assert not list((home / "tmp").iterdir())


def test_only_what_is_left_runs_again(home, monkeypatch):
    ran = []
    monkeypatch.setattr(mutants_bash, "_pass", lambda *_: True)  # the tests of the checkout, and every mutant
    monkeypatch.setattr(mutants_bash, "_notice", lambda mutant, *_: ran.append(mutant.now) or "false" not in mutant.now)
    run(home)
    assert len(ran) == 6
    run(home)
    assert len(ran) == 6
    (home / "mutants" / "tests" / "bats" / "unit" / "it.bats").write_text(TESTS + "\n", encoding="utf-8")
    run(home)
    assert ran[6:] == ["it::unused() { false; }"]
    (home / "mutants" / "scripts" / "lib" / "it.bash").write_text(LIBRARY.replace("3 <", "4 <"), encoding="utf-8")
    assert mutants_bash.found("scripts/lib/it.bash", home)[:2] == (6, 3)


def test_tests_that_fail_without_a_change_are_one_sentence(home):
    (home / "mutants" / "tests" / "bats" / "unit" / "it.bats").write_text('@test "no" { false; }\n', encoding="utf-8")
    message = r"^tests/bats/unit/it\.bats already fail on the unchanged scripts/lib/it\.bash: run them with \.venv/bin/bats\.$"
    with pytest.raises(ValueError, match=message):
        run(home)
    assert not (home / "found.json").exists()


@pytest.mark.slow
def test_a_test_that_hangs_is_ended_with_all_that_it_has_started(home):
    word = f"3599.{os.getpid()}"
    text = f'@test "hangs" {{ setsid sleep {word} 3>&- & sleep {word}; }}\n'
    (home / "mutants" / "tests" / "bats" / "unit" / "it.bats").write_text(text, encoding="utf-8")
    copy = mutants_bash._copy(home / "mutants", home / "copy")
    assert not mutants_bash._pass(["tests/bats/unit/it.bats"], copy, 1)
    assert processes(word.encode()) == []


def test_a_library_is_recorded_with_its_source(home, monkeypatch):
    module = mutants.Module("it", "it.bash", ("unit/it",), root="scripts/lib")
    with pytest.raises(ValueError, match=r"^6 of 6 mutants of it have not run: "):
        mutants.found(module, home)
    monkeypatch.setattr(mutants_bash, "_pass", lambda *_: True)
    monkeypatch.setattr(os, "nice", lambda _: 19)
    mutants.run(module, home)
    row = mutants.found(module, home)
    assert (row["path"], row["mutants"], len(row["survivors"])) == ("scripts/lib/it.bash", 6, 6)
    assert row["sha256"] == mutants.sha256(home / "mutants" / "scripts" / "lib" / "it.bash")
    assert set(json.loads((home / "found.json").read_text())["noticed"].values()) == {False}
