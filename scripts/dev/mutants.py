"""Mutation testing of the modules that decide: which ones, and docs/mutants.md from what the tool found.

mutants.py names [NAME...]    the modules to run, one a line
mutants.py run NAME DIR       DIR/mutants has a copy of the checkout: run what is left of the module's mutants there
mutants.py record NAME DIR    take what was found in DIR over into tests/recorded/mutants.json
mutants.py write              docs/mutants.md from the record and tests/mutants/equal.yaml
mutants.py check              exits 1 where that page is not what they make

mutmut 3.8 mutates only what is inside a function without a decorator (other than @staticmethod and @classmethod), calls
the mutant in a process forked from one that has imported everything, and runs only the tests that reach its function.
Bash libraries have their own tool, mutants_bash.py.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

import mutants_bash

REPO = Path(__file__).resolve().parents[2]
RECORD = REPO / "tests" / "recorded" / "mutants.json"
EQUAL = REPO / "tests" / "mutants" / "equal.yaml"
PAGE = REPO / "docs" / "mutants.md"
AIM = 90  # percent
Record = Mapping[str, Any]

# mutmut's exit codes: of pytest, or its own. No test reaches a mutant of 33. One that takes 15 times as long as the tests, and 15 s,
# is ended, and counts as noticed.
_NOT_RUN, _SURVIVED, _FAILED, _UNREACHED = None, 0, 1, 33


@dataclass(frozen=True)
class Module:
    """A module, and the test files that must notice its mutants: under tests/py, or under tests/bats for a Bash library.

    `root` is its place on sys.path, or the folder of the libraries. With `slow`, tests that are marked so run too.
    """

    name: str
    path: str
    tests: tuple[str, ...]
    root: str = "py"
    slow: bool = False

    @property
    def is_bash(self) -> bool:
        """Is it a Bash library?"""
        return self.path.endswith(".bash")

    @property
    def test_files(self) -> list[str]:
        """Their paths."""
        return [f"tests/bats/{test}.bats" if self.is_bash else f"tests/py/{test}.py" for test in self.tests]


def _library(name: str, *tests: str, folder: str = "") -> Module:
    return Module(name, f"{folder}{name}.bash", tests, root="scripts/lib")


MODULES = (
    Module("status", "verl_regress/jobs/status.py", ("test_job_status", "test_listing", "test_causes")),
    Module("queue", "verl_regress/worker/queue.py", ("test_queue_order",)),
    Module("retention", "verl_regress/store/retention.py", ("test_retention",)),
    Module("removal", "verl_regress/store/removal.py", ("test_retention",)),
    Module("uses", "verl_regress/store/uses.py", ("test_retention",)),
    Module("redaction", "redaction.py", ("hooks/test_redaction",), root="py/hooks"),
    Module("progress", "verl_regress/jobs/progress.py", ("test_progress", "test_watch", "test_phase")),
    Module("checkpoints", "verl_regress/jobs/checkpoints.py", ("test_checkpoints",)),
    Module("identity", "verl_regress/worker/identity.py", ("test_identity",)),
    Module("identity-hook", "identity.py", ("hooks/test_identity_report",), root="py/hooks"),
    Module("plan", "verl_regress/spec/plan.py", ("test_plan", "test_bad_input", "test_escape", "test_reward_fn", "test_submit", "test_resume"), slow=True),
    Module("remote-code", "verl_regress/spec/remote_code.py", ("test_plan", "test_submit", "test_launcher"), slow=True),
    Module("overrides", "verl_regress/spec/overrides.py", ("test_plan", "test_compose", "test_bad_input"), slow=True),
    Module("submit", "verl_regress/submit/submit.py", ("test_submit", "test_owner", "test_bad_input", "test_compose", "test_deterministic", "test_seed", "test_job_secrets", "test_resume", "test_export"), slow=True),
    Module("checks", "verl_regress/session/checks.py", ("test_verify_checks", "test_verify_sentences", "test_verify_canary", "test_session_verdict")),
    Module("evidence", "verl_regress/session/evidence.py", ("test_evidence", "test_evidence_of_a_job", "test_verify_canary", "test_session_faults")),
    _library("answer", "unit/answer"),
    _library("lock", "unit/lock"),
    _library("port", "unit/tunnel"),
    _library("made", "unit/made"),
    _library("artefact", "unit/artefact"),
    _library("owner", "unit/owner"),
    _library("secret", "unit/secret"),
    _library("knob", "unit/knob", "unit/env"),
    _library("env", "unit/env"),
    _library("look", "unit/look"),
    _library("allocation", "unit/slurm", "unit/slurm_hosts", folder="lifecycle/"),
    _library("hosts", "unit/hosts", "unit/slurm_hosts", folder="lifecycle/"),
    _library("snapshot", "unit/snapshot"),
)  # fmt: skip
NAMES = tuple(module.name for module in MODULES)


def of(name: str) -> Module:
    """The module of that name."""
    return next(module for module in MODULES if module.name == name)


def source(module: Module) -> Path:
    """Its file in this checkout."""
    return REPO / module.root / module.path


def sha256(path: Path) -> str:
    """What tells whether a record is of this source."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- run


def run(module: Module, home: Path) -> None:
    """Run the mutants that are left in `home`. Raises ValueError if a library's tests fail without one."""
    os.nice(19)
    if module.is_bash:
        mutants_bash.run(f"{module.root}/{module.path}", module.test_files, home)
    else:
        prepare(module, home)
        os.chdir(home)
        generate(module, home)
        mutmut = str(Path(sys.executable).with_name("mutmut"))
        # mutmut 3.8 signals a mutant by its pid when its time would be over, though it may have ended long before, and its pid be another
        # process's by then. In a PID namespace of its own, it reaches none but its own.
        alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if os.geteuid() != 0:
            alone += ["--user", "--map-current-user"]
        # Its first process inherits what tests leave behind. mutmut would take that for a worker's end (KeyError), so it is the shell.
        first = ["sh", "-c", '"$@"; exit "$?"', "first"]
        os.execvp(alone[0], [*alone, *first, mutmut, "run", "--max-children", "1"])


# --- before and after mutmut


def prepare(module: Module, home: Path) -> None:
    """Make `home`, whose folder mutants/ has a fresh copy of the checkout, what mutmut expects.

    mutmut names a mutant by its path under src/, and imports it from mutants/src/: that is a link to `root`, where the
    tests import it from. Mutants that failed no test are forgotten if the tests have changed since: they run again.
    """
    tree, (only, home_of) = home / "mutants", (home / "src" / module.path, home / "mutants" / module.root / module.path)
    for name, to in (("src", module.root), (".venv", REPO / ".venv")):  # tests call the tools in .venv
        link = tree / name
        link.unlink(missing_ok=True)
        link.symlink_to(to)
    shutil.rmtree(home / "src", ignore_errors=True)
    only.parent.mkdir(parents=True)
    shutil.copy(source(module), only)
    home_of.unlink()  # mutmut writes it from that copy
    tests = "\n    ".join(module.test_files)
    config = {
        "source_paths": "src", "pytest_add_cli_args_test_selection": f"\n    {tests}",
        "pytest_add_cli_args": "\n    -p\n    no:cacheprovider" + ("" if module.slow else "\n    -m\n    not slow"),
        "use_git_change_detection": "false",
        "track_dependencies": "false", "use_setproctitle": "false", "timeout_constant": "1.0",
    }  # fmt: skip
    lines = [f"{key} = {value}\n" for key, value in config.items()]
    (home / "setup.cfg").write_text("[mutmut]\n" + "".join(lines), encoding="utf-8")
    _forget_survivors(home, Path(f"{home_of}.meta"), _tests_sha256(tree / "tests"))


def _tests_sha256(tests: Path) -> str:
    files = sorted(path for path in tests.rglob("*.py") if path.is_file())
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def _forget_survivors(home: Path, meta: Path, tests: str) -> None:
    seen = home / "tests.sha256"
    if meta.exists() and seen.exists() and seen.read_text(encoding="utf-8") != tests:
        found = json.loads(meta.read_text(encoding="utf-8"))
        kept = {key: code if code == _FAILED else _NOT_RUN for key, code in found["exit_code_by_key"].items()}
        found["exit_code_by_key"] = kept
        meta.write_text(json.dumps(found), encoding="utf-8")
        (home / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)  # which tests reach which function
    seen.write_text(tests, encoding="utf-8")


def generate(module: Module, home: Path) -> None:
    """Write the mutants into `home`, and count those of help texts that have not run as survivors.

    No test notices them, so each would run every test that parses arguments: submit has more than a hundred.
    """
    from mutmut.__main__ import create_mutants

    create_mutants(1)  # `mutmut run` leaves them as they are
    meta = home / "mutants" / module.root / f"{module.path}.meta"
    said = json.loads(meta.read_text(encoding="utf-8"))
    codes = said["exit_code_by_key"]
    waiting = [key for key, code in codes.items() if code is _NOT_RUN]
    codes.update({key: _SURVIVED for key, change in _changes(module, home, waiting) if _is_only_help(change)})
    meta.write_text(json.dumps(said), encoding="utf-8")


def found(module: Module, home: Path) -> dict[str, Any]:
    """What was found in `home`, as the record has it. Raises ValueError if not every mutant has run."""
    if module.is_bash:
        path = home / "mutants" / module.root / module.path
        count, left, survivors = mutants_bash.found(f"{module.root}/{module.path}", home)
    else:
        path = home / "src" / module.path
        count, left, survivors = _found_by_mutmut(module, home)
    if left or not count:
        raise ValueError(
            f"{left} of {count} mutants of {module.name} have not run: run 'make mutants MUTANTS={module.name}' again."
        )
    return {
        "path": f"{module.root}/{module.path}", "sha256": sha256(path),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "tool": "mutants_bash.py" if module.is_bash else f"mutmut {metadata.version('mutmut')}",
        "mutants": count, "survivors": sorted(survivors, key=lambda each: (each["line"], each["is"])),
    }  # fmt: skip


def _found_by_mutmut(module: Module, home: Path) -> tuple[int, int, list[dict[str, Any]]]:
    mutated = home / "mutants" / module.root / module.path
    codes: dict[str, int | None] = json.loads(Path(f"{mutated}.meta").read_text(encoding="utf-8"))["exit_code_by_key"]
    survived = {key for key, code in codes.items() if code in (_SURVIVED, _UNREACHED)}
    survivors = [each for _, each in _changes(module, home, survived)]
    return len(codes), sum(code is _NOT_RUN for code in codes.values()), survivors


def _changes(module: Module, home: Path, keys: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """What each of these mutants changes, beside its key."""
    mutated = home / "mutants" / module.root / module.path
    spans = json.loads(Path(f"{mutated}.spans").read_text(encoding="utf-8"))["spans"]
    lines = mutated.read_text(encoding="utf-8").splitlines()
    starts = _starts(home / "src" / module.path)
    return [(key, _survivor(key.rpartition(".")[2], spans, lines, starts)) for key in keys]


def _starts(path: Path) -> dict[str, int]:
    """The first line of each function, decorators included, by the name that mutmut gives its copy."""
    starts = {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        inside = [(node.name, each) for each in node.body] if isinstance(node, ast.ClassDef) else [(None, node)]
        for owner, each in inside:
            if isinstance(each, ast.FunctionDef):
                first = min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)])
                starts[f"xǁ{owner}ǁ{each.name}" if owner else f"x_{each.name}"] = first
    return starts


def _survivor(
    name: str, spans: Mapping[str, Sequence[int]], lines: Sequence[str], starts: Mapping[str, int]
) -> dict[str, Any]:
    """Where the mutant differs from the original function: its first line, and the lines as they were and are."""
    function = name.partition("__mutmut_")[0]
    shown = function.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")

    def body(which: str) -> list[str]:
        first, last = spans[which]
        text = lines[first - 1 : last]  # with empty lines and comments above it
        begin = next(number for number, line in enumerate(text) if line.lstrip().startswith(("@", "def ")))
        return [line.replace(which, shown.rpartition(".")[2]) for line in text[begin:]]

    was, now = body(f"{function}__mutmut_orig"), body(name)
    changes = [
        each for each in difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes() if each[0] != "equal"
    ]
    _, first, last, first_now, _ = changes[0]
    last, last_now = changes[-1][2], changes[-1][4]
    return {
        "in": shown, "line": starts[function] + first,
        "was": _joined(was[first:last]), "is": _joined(now[first_now:last_now]),
    }  # fmt: skip


def _joined(lines: Iterable[str]) -> str:
    return " ".join(" ".join(line.split()) for line in lines)


def record(module: Module, home: Path) -> str:
    """Take over what was found; returns the line that says so."""
    records = {**read(), module.name: found(module, home)}
    ordered = {name: records[name] for name in NAMES if name in records}
    RECORD.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    row = records[module.name]
    return f"{module.name}: {row['mutants'] - len(row['survivors'])} of {row['mutants']} mutants noticed"


# --- the page


def read() -> dict[str, Any]:
    """The record: what was found, by the modules' names."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.exists() else {}


def read_equal() -> list[dict[str, str]]:
    """The survivors that are known to behave like the original (tests/mutants/equal.yaml): `module` (or `any`), `in`, `was`, `is` and the `reason`.

    With `module: any`, `was` and `is` are a part of the line.
    """
    return list(yaml.safe_load(EQUAL.read_text(encoding="utf-8")))


_HELP = re.compile(r',? (?:help|metavar)=("(\\.|[^"])*"|None)|,? (?=\))')
_ONLY_HELP = "the help text of an option that only our scripts give"


def reason(name: str, survivor: Record, equal: Iterable[Mapping[str, str]]) -> str | None:
    """Why a survivor of that module behaves as the original; None if that is not known."""
    if _is_only_help(survivor):
        return _ONLY_HELP
    return next((entry["reason"] for entry in equal if explains(entry, name, survivor)), None)


def _is_only_help(survivor: Record) -> bool:
    return _HELP.sub("", survivor["was"]) == _HELP.sub("", survivor["is"])


def explains(entry: Mapping[str, str], name: str, survivor: Record) -> bool:
    """Does this entry name that survivor?"""
    if entry["module"] == "any":
        before, part, after = survivor["was"].partition(entry["was"])
        return bool(part) and survivor["is"] == before + entry["is"] + after
    return (entry["module"], entry["in"], entry["was"], entry["is"]) == (
        name,
        survivor["in"],
        survivor["was"],
        survivor["is"],
    )


def score(name: str, row: Record, equal: Sequence[Mapping[str, str]]) -> tuple[int, int, float]:
    """How many mutants survived unexplained, how many are equal, and the percentage of the others that was noticed."""
    same = sum(reason(name, survivor, equal) is not None for survivor in row["survivors"])
    unexplained, wanted = len(row["survivors"]) - same, row["mutants"] - same
    return unexplained, same, 100 * (wanted - unexplained) / wanted


def page(records: Mapping[str, Record], equal: Sequence[Mapping[str, str]]) -> str:
    """docs/mutants.md."""
    rows = [_row(module, records.get(module.name), equal) for module in MODULES]
    parts = [_HEAD, _table(_TITLES, rows)]
    for name, record in records.items():
        if record["survivors"]:
            listed = [_survivor_row(name, each, equal) for each in record["survivors"] if not _is_only_help(each)]
            parts += [f"## {name}", _table(("line", "in", "was", "is", "why no test can notice"), listed)]
            of_help = len(record["survivors"]) - len(listed)
            parts += [f"Not listed: {of_help} changes of help texts alone."] if of_help else []
    return "\n\n".join(parts) + "\n"


_HEAD = f"""\
# Do the tests notice a wrong change?

`make mutants` changes one thing at a time in each module that decides something, and runs its unit tests. A change that fails no test
survived. It takes hours, in the background; it resumes where it stopped, in `build/mutants/`. `MUTANTS=status,owner` runs these
only. This page is written by `scripts/dev/mutants.py` from `tests/recorded/mutants.json`. A survivor that behaves as the original
has its reason in `tests/mutants/equal.yaml` and does not count; every other one counts against the score. The aim is {AIM} %. A change of
the help text of an option that only our scripts give is equal, too, and does not run. The container tests, which may notice more, do not run.

[mutmut](https://mutmut.readthedocs.io) changes Python, on one core, and runs the tests that reach the function. It changes nothing
outside functions or in functions with a decorator. `scripts/dev/mutants_bash.py` changes Bash, on all cores: operators, tests, numbers,
words of `case`, quoted words without a `$`, a whole command (then `:`), `"${{list[@]}}"` (then nothing)."""


_TITLES = ("module", "mutants", "noticed", "equal", "survived", "score", "recorded")
_CHANGED = ", **out of date**: the module has changed"


def _row(module: Module, row: Record | None, equal: Sequence[Mapping[str, str]]) -> list[str]:
    name = f"`{module.root}/{module.path}`"
    if row is None:
        return [name, "-", "-", "-", "-", "-", "not run yet"]
    unexplained, same, percent = score(module.name, row, equal)
    when = f"{row['date']}, sha256 {row['sha256'][:12]}"
    if row["sha256"] != sha256(source(module)):
        when += _CHANGED
    shown = f"{percent:.0f} %" if percent >= AIM else f"**{percent:.0f} %**"
    noticed = row["mutants"] - len(row["survivors"])
    return [name, str(row["mutants"]), str(noticed), str(same), str(unexplained), shown, when]


def _survivor_row(name: str, survivor: Record, equal: Sequence[Mapping[str, str]]) -> list[str]:
    was, now = (_code(survivor[key]) for key in ("was", "is"))
    return [str(survivor["line"]), f"`{survivor['in']}`", was, now, reason(name, survivor, equal) or "-"]


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if fence == "``" else f"`{text}`" if text else "nothing"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


# --- the commands


def is_page(
    text: str, records: Mapping[str, Record] | None = None, equal: Sequence[Mapping[str, str]] | None = None
) -> bool:
    """Is this the page of these records (those of the checkout), except for which modules have changed since?"""
    made = page(read() if records is None else records, read_equal() if equal is None else equal)
    return made.replace(_CHANGED, "") == text.replace(_CHANGED, "")


def check() -> int:
    """Say whether the page is what the record and the reasons make; 1 where it is not."""
    if not is_page(PAGE.read_text(encoding="utf-8")):
        print(
            "docs/mutants.md is not what tests/recorded/mutants.json makes: 'scripts/dev/mutants.sh --write' writes it."
        )
        return 1
    print(f"docs/mutants.md: {len(read())} of {len(MODULES)} modules are recorded, 0 differ")
    return 0


def main(arguments: Sequence[str]) -> int:
    """One of names, run, record, write, check; returns the exit status."""
    action, words = arguments[0], list(arguments[1:])
    if action == "names":
        print("\n".join(name for name in NAMES if not words or name in words))
    elif action in ("run", "record"):
        module, home = of(words[0]), Path(words[1])
        try:
            if action == "run":
                run(module, home)
            else:
                print(record(module, home))
        except ValueError as error:
            print(f"error   {error}", file=sys.stderr)
            return 1
    elif action == "write":
        PAGE.write_text(page(read(), read_equal()), encoding="utf-8")
    else:
        return check()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
