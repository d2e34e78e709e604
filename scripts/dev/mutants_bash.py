"""Mutation testing of one Bash library: its mutants, and which of them its bats files notice.

It is our own, because no kept tool knows Bash: universalmutator 1.14 changes lines of any language by regular expressions, so also
messages and here-documents, takes the globs `/*` and `*/` for a C comment, and runs one mutant at a time. Here shfmt's syntax tree
says where the operators, words and commands are. A mutant is one changed line that passes `bash -n`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Node = dict[str, Any]
Change = tuple[int, int, str]  # the bytes from here to there become that text
TOOLS = Path(sys.executable).parent  # of the virtual environment that runs this: shfmt and bats

_OPPOSITES = (
    "== !=", "&& ||", "-n -z", "-eq -ne", "-lt -le", "-gt -ge", "< <=", "> >=", "+ -", "+= -=", "++ --", "* /",
)  # fmt: skip
_SWAPPED = {a: b for pair in _OPPOSITES for a, b in (pair.split(), reversed(pair.split()))}
SECONDS = (60, 5)  # a mutant's tests may take so many, and so many times as long as without it
_BYTES = 4 << 30  # of memory, or of one file
_END_SECONDS = 10
_OPERATORS = ("BinaryCmd", "BinaryTest", "BinaryArithm", "UnaryTest", "UnaryArithm")


@dataclass(frozen=True)
class Mutant:
    """One changed line; `key` names the change as long as its function stays as it is."""

    function: str
    line: int
    was: str
    now: str
    text: str
    key: str


# --- which mutants there are


def mutants(path: Path) -> list[Mutant]:
    """The mutants of that library that Bash can read."""
    source = path.read_bytes()
    tree = json.loads(
        subprocess.run([TOOLS / "shfmt", "--to-json"], input=source, stdout=subprocess.PIPE, check=True).stdout
    )
    found: dict[bytes, Mutant] = {}
    for statement in tree["Stmts"]:
        start, end = _span(statement)
        function = statement["Cmd"]["Name"]["Value"] if statement["Cmd"]["Type"] == "FuncDecl" else ""
        for first, last, new in _changes(statement, source):
            text = source[:first] + new.encode() + source[last:]
            if b"\n" in source[first:last] or text in found:
                continue
            index = source.count(b"\n", 0, first)
            was, now = (" ".join(each.split(b"\n")[index].decode().split()) for each in (source, text))
            unit = source[start:end] + b"\0" + text[start : end + len(text) - len(source)]
            key = f"{function}:{hashlib.sha256(unit).hexdigest()[:20]}"
            found[text] = Mutant(function or "(top level)", index + 1, was, now, text.decode(), key)
    return [each for each in found.values() if _parses(each.text)]


def _parses(text: str) -> bool:
    return not subprocess.run(["bash", "-n"], input=text.encode(), stderr=subprocess.PIPE).stderr  # its status may be 0


def _span(node: Node) -> tuple[int, int]:
    return node["Pos"]["Offset"], node["End"]["Offset"]


def _changes(node: Node, source: bytes, role: str = "") -> Iterator[Change]:
    """Each change in this part of the tree; `role` is what a word is for, where that matters."""
    kind, parts = node.get("Type"), node.get("Parts", [])
    if "Cmd" in node:
        yield from _of_statement(node)
    elif kind in _OPERATORS:
        yield from _of_operator(node, source)
    elif kind == "SglQuoted" or (kind == "DblQuoted" and all(part["Type"] == "Lit" for part in parts)):
        start, end = _span(node)
        yield start, end, _marked(source[start:end].decode())
    elif kind != "DblQuoted" and parts:
        yield from _of_word(node, role)
    for key, value in node.items():
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, dict) and key not in ("Pos", "End", "Hdoc"):
                yield from _changes(child, source, _role(node, key, role))


def _role(node: Node, key: str, role: str) -> str:
    if key == "Args" and _literal(node[key][0]) in ("return", "exit"):
        return "Status"
    return key if key in ("Patterns", "Redirs") else role if key == "Word" else ""


def _marked(quoted: str) -> str:
    mark = quoted[-1]
    before, inside = quoted[:-1].split(mark, 1)
    return f"{before}{mark}XX{inside}XX{mark}" if inside else f"{before}{mark}XX{mark}"


def _of_statement(node: Node) -> Iterator[Change]:
    """Its '!'; and a simple command, an assignment, or a declaration with a value, replaced by ':'."""
    command, redirects = node["Cmd"], node.get("Redirs", [])
    start, end = _span(command)
    words = command.get("Args", [])
    first = _literal(words[0]) if words else ""
    if node.get("Negated"):
        yield _span(node)[0], start, ""
    if first in ("true", "false"):
        yield start, end, "false" if first == "true" else "true"
    elif first == ":" or any("Hdoc" in each for each in redirects):
        return
    elif command["Type"] == "CallExpr" or any("Value" in each for each in words):
        yield start, max(_span(each)[1] for each in (command, *redirects)), ":"


def _of_operator(node: Node, source: bytes) -> Iterator[Change]:
    """The opposite one; a test that has none is negated. '&& true' behaves as '|| true': neither lets `set -e` end the script."""
    operator, at, start = node["Op"], node["OpPos"]["Offset"], _span(node)[0]
    if node["Type"] == "BinaryCmd" and source[slice(*_span(node["Y"]))] == b"true":
        return
    if operator == "!":
        yield at, _span(node["X"])[0], ""
    elif operator in _SWAPPED and not (node["Type"] == "BinaryTest" and operator in "<>"):
        yield at, at + len(operator), _SWAPPED[operator]
    elif "Test" in node["Type"] and not source[:start].endswith(b"! "):
        yield start, start, "! "


def _of_word(node: Node, role: str) -> Iterator[Change]:
    start, end = _span(node)
    parts, text = node["Parts"], _literal(node)
    if role == "Patterns" and parts[0]["Type"] == "Lit":
        yield start, start, "XX"
    elif role == "Status" and text.isdigit():
        yield start, end, "1" if text == "0" else "0"
    elif role == "" and text.isdigit():
        for number in {int(text) + 1, abs(int(text) - 1)}:  # never -1, which `kill` takes for all processes
            yield start, end, str(number)
    if parts[0]["Type"] == "DblQuoted" and len(parts) == len(parts[0].get("Parts", [])) == 1:
        inside = parts[0]["Parts"][0]  # "$@" or "${array[@]}"
        if "@" in (inside.get("Param", {}).get("Value"), _literal(inside.get("Index", {}))) and not inside.get(
            "Length"
        ):
            yield start, end, ""


def _literal(word: Node) -> str:
    parts = word.get("Parts", [])
    return str(parts[0]["Value"]) if len(parts) == 1 and parts[0]["Type"] == "Lit" else ""


# --- which of them the tests notice


def run(library: str, tests: Sequence[str], home: Path) -> None:
    """Run those tests against each mutant of `library` in copies of home/mutants, and keep in home/found.json which ones they noticed.

    A mutant that they noticed before does not run again, and no other one if the tests are the same. One with which they
    take longer than SECONDS is ended, and counts as noticed. Raises ValueError if they fail without a mutant.
    """
    tree = home / "mutants"
    every = mutants(tree / library)
    seen = _seen(home, [*(tree / test for test in tests), *tree.glob("tests/bats/*.bash")])
    left = [each for each in every if each.key not in seen["noticed"]]
    if not left:
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copy(tree, Path(folder) / str(number)) for number in range(min(os.cpu_count() or 1, len(left)))]
        began = time.monotonic()
        if not _pass(tests, copies[0], 3600):
            raise ValueError(
                f"{' '.join(tests)} already fail on the unchanged {library}: run them with .venv/bin/bats."
            )
        seconds = SECONDS[0] + SECONDS[1] * (time.monotonic() - began)
        free: queue.Queue[Path] = queue.Queue()
        for copy in copies:
            free.put(copy)
        pool = ThreadPoolExecutor(len(copies))
        jobs = {pool.submit(_notice, each, library, tests, free, seconds): each for each in left}
        try:
            for done, job in enumerate(as_completed(jobs), len(every) - len(left) + 1):
                seen["noticed"][jobs[job].key] = job.result()
                (home / "found.json").write_text(json.dumps(seen), encoding="utf-8")
                print(f"{done}/{len(every)}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _seen(home: Path, tests: Iterable[Path]) -> dict[str, Any]:
    now = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(tests))).hexdigest()
    file = home / "found.json"
    before: dict[str, Any] = (
        json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"tests": now, "noticed": {}}
    )
    kept = {key: noticed for key, noticed in before["noticed"].items() if noticed or before["tests"] == now}
    return {"tests": now, "noticed": kept}


def _copy(tree: Path, copy: Path) -> Path:
    shutil.copytree(tree, copy / "checkout", symlinks=True)
    (copy / "checkout" / ".venv").symlink_to(sys.prefix)
    return copy


def _notice(mutant: Mutant, library: str, tests: Sequence[str], free: queue.Queue[Path], seconds: float) -> bool:
    copy = free.get()
    (copy / "checkout" / library).write_text(mutant.text, encoding="utf-8")
    noticed = not _pass(tests, copy, seconds)
    free.put(copy)
    return noticed


def _pass(tests: Sequence[str], copy: Path, seconds: float) -> bool:
    """They all pass in that time; the first failure ends them. Nothing of them is left."""
    with tempfile.TemporaryDirectory(dir=copy) as temporary:
        process = subprocess.Popen(
            [TOOLS / "bats", "--abort", *tests],
            cwd=copy / "checkout", env={**os.environ, "TMPDIR": temporary}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        # A loop that does not end shall not fill memory or disk.
        for limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            resource.prlimit(process.pid, limit, (_BYTES, _BYTES))
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process, temporary)


def _end(process: subprocess.Popen[bytes], temporary: str) -> None:
    """End its group, and what the tests have started outside of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + _END_SECONDS  # a process that was killed needs a moment to end
    while (left := _with(temporary)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _with(word: str) -> list[int]:
    """The processes that have it in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if os.fsencode(word) in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def found(library: str, home: Path) -> tuple[int, int, list[dict[str, Any]]]:
    """How many mutants there are, how many have not run, and those that were not noticed, as the record has them."""
    every = mutants(home / "mutants" / library)
    file = home / "found.json"
    noticed = json.loads(file.read_text(encoding="utf-8"))["noticed"] if file.exists() else {}
    survivors = [
        {"in": each.function, "line": each.line, "was": each.was, "is": each.now}
        for each in every
        if noticed.get(each.key) is False
    ]
    return len(every), sum(each.key not in noticed for each in every), survivors
