"""Did this change break PPO, GRPO or SFT? Trains base and head of a verl checkout as rehearsals, and judges them.

Exit statuses: 0 identical, same or improved; 9 regressed; 10 changed; 11 inconclusive; 12 incomparable; 2 bad input; 1 our own error.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_regress.base import documents
from verl_regress.base.errors import BadInput
from verl_verdict import command
from verl_verdict.decide import judge, verdicts
from verl_verdict.decide.verdicts import Verdict, Word
from verl_verdict.errors import CannotJudge
from verl_verdict.read import records
from verl_verdict.read.records import Run
from verl_verdict.show import junit, verdict_page, verdict_text

_OLDEST = (0, 7, 1)  # what verl_rehearsal supports
_CONFIG = ".verl-regress.yaml"
_PACKAGING = ("setup.py", "pyproject.toml", "requirements*.txt")
_NOT_TOUCHED = "not touched"
_OF_RAY = re.compile(r"^(?:\x1b\[[0-9;]*m)*\([^()]* pid=\d+[^()]*\)(?:\x1b\[[0-9;]*m)*\s*|\x1b\[[0-9;]*m")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b: ")
_RAY_DIRECTORY = "/tmp"  # the path of a socket has at most 107 bytes, and TMPDIR is long in some CIs
_BASES = 10  # whose runs are kept
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_LINES = 2000  # of a diff on the page


@dataclass(frozen=True)
class RehearsedCase:
    """What is trained: a workload of verl_rehearsal, with overrides. `continues` names the case whose step-5 checkpoint it goes on from."""

    name: str
    workload: str
    overrides: tuple[str, ...] = ()
    continues: str = ""


CASES: Mapping[str, RehearsedCase] = {
    case.name: case
    for case in (
        RehearsedCase("ppo", "ppo", ("trainer.save_freq=5",)),
        RehearsedCase("grpo", "grpo"),
        RehearsedCase("sft", "sft"),
        RehearsedCase("resume", "ppo", ("trainer.resume_mode=resume_path",), continues="ppo"),
    )
}


@dataclass(frozen=True)
class Side:
    """Base or head: its commit, its files, and where its runs are."""

    name: str
    commit: str
    code: Path
    runs: Path


@dataclass(frozen=True)
class Results:
    """What was compared: `runs` has base's run of each case, and head's if it was trained; `untouched` names the cases where it was not."""

    sides: tuple[Side, Side]
    runs: Mapping[str, Sequence[Run]]
    verdicts: Sequence[Verdict]
    untouched: Sequence[str]
    notes: Sequence[str]
    changes: Sequence[str]  # the lines of the diff of verl


def main(argv: Sequence[str] | None = None) -> int:
    """Compare what the arguments ask for; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        asked = _arguments(argv)
        return _compare(asked)
    except (BadInput, CannotJudge) as error:
        print(f"error   {verdict_text.printable(str(error))}", file=sys.stderr)
        return 2


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.Parser(
        prog="ci/compare.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE",
        help=f"{', '.join(CASES)}, also as a list with commas; without one: those of base's {_CONFIG}, else all",
    )
    parser.add_argument("--base", required=True, help="the commit that trains as it should, such as origin/main")
    parser.add_argument("--head", default="HEAD", help="the commit in question")
    parser.add_argument("--verl", type=Path, default=Path(), metavar="DIR", help="the checkout of verl (here)")
    parser.add_argument(
        "--out", type=Path, default=Path(".verl-regress/report"), metavar="DIR", help="for the reports and head's runs"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path(".verl-regress/cache"), metavar="DIR", help="for packages and base's runs"
    )
    verdicts.add_allow(parser)
    parser.add_argument(
        "--changed", action="store_true", help="only the cases that load a file of verl that differs; in doubt, all"
    )
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds that a run may take (900)")
    parser.add_argument("--packages", default="", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _compare(asked: argparse.Namespace) -> int:
    out, cache = asked.out.absolute(), asked.cache.absolute()
    commits = [_commit(asked.verl, option, getattr(asked, option)) for option in ("base", "head")]
    cases, wanted, allow = _cases(asked, commits[0])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    base = Side("base", commits[0], out / "code" / "base", cache / "runs" / _key(asked, commits[0], cases))
    head = Side("head", commits[1], out / "code" / "head", out / "runs")
    for side in (base, head):
        _export(asked.verl, side)
    inputs = cache / f"inputs-{asked.packages}"
    _make_inputs(inputs)
    changed, doubt = _changed(asked.verl, *commits)
    only_touched = asked.changed and not doubt
    runs: dict[str, list[Run]] = {}
    found, untouched = [], []
    for name in wanted:
        case = cases[name]
        runs[name] = [_run(base, case, base.runs / case.continues, inputs, asked.limit)]
        if only_touched and not _touches(changed, base.runs / name):
            untouched.append(name)
            continue
        of = base if case.continues in untouched else head  # those runs are equal, and head has none
        runs[name].append(_run(head, case, of.runs / case.continues, inputs, asked.limit))
        verdict = judge.case(runs[name][:1], runs[name][1:], name=name, deterministic=True)
        _say(f"{name}: {verdict.word.value}: {verdict.reason}")
        found.append(verdict)
    _forget(base.runs)
    notes = [doubt or _those([each.case for each in found], untouched, changed)] if asked.changed else []
    if packaging := _git(asked.verl, "diff", "--name-only", *commits, "--", *_PACKAGING).split():
        notes.append(
            f"The packages of both are those of docker/requirements.lock, although {', '.join(packaging)} changed."
        )
    changes = _git(asked.verl, "diff", "--unified=0", "--no-color", "--no-ext-diff", *commits, "--", "verl")
    _report(out, Results((base, head), runs, found, untouched, notes, changes.splitlines()), allow)
    for name in untouched:
        print(f"{name:<11} {_NOT_TOUCHED}: base loads nothing that differs")
    print(verdict_text.text(found, allow) if found else f"verdict     {_NOT_TOUCHED} (exit status 0)")
    for note in notes:
        _say(note)
    _say(f"reports: {out}/report.md, report.json, junit.xml{', report.html' if found else ''}")
    return verdicts.status(found, allow)


def _say(text: str) -> None:
    print(f"        {verdict_text.printable(text)}", file=sys.stderr, flush=True)


def _git(repository: Path, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = " ".join(done.stderr.split()) or "it says nothing"
        raise BadInput(f"git {arguments[0]} failed in {repository.absolute()} ({said.removesuffix('.')}).")
    return done.stdout


def _commit(repository: Path, option: str, name: str) -> str:
    """The commit of that name, which must have a verl that a rehearsal supports."""
    _git(repository, "rev-parse", "--git-dir")  # or git says why it reads nothing there
    try:
        commit = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except BadInput:
        raise BadInput(
            f"--{option}={name} is not a commit of {repository.absolute()}: fetch it there (a CI's checkout may have one commit only), or name another."
        ) from None
    try:
        version = _git(repository, "show", f"{commit}:verl/version/version").strip()
    except BadInput:
        raise BadInput(
            f"--{option}={name} ({commit[:12]}) has no verl/version/version: name a commit of verl."
        ) from None
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers < _OLDEST:
        raise BadInput(f"--{option}={name} is verl {version}: a rehearsal supports 0.7.1 and later.")
    return commit


def _cases(asked: argparse.Namespace, base: str) -> tuple[dict[str, RehearsedCase], list[str], frozenset[Word]]:
    """Every case with the repository's own overrides, which of them are wanted, and the verdicts that are allowed.

    The file is base's: a change cannot allow itself anything. What the command line names goes before it.
    """
    own: Mapping[str, Any] = {}
    if _git(asked.verl, "ls-tree", base, "--", _CONFIG):
        text = _git(asked.verl, "show", f"{base}:{_CONFIG}")
        own = documents.parse(text, f"{_CONFIG} of --base={asked.base}", "ci").content
    extra = own.get("overrides", {})
    cases = {
        name: dataclasses.replace(case, overrides=(*case.overrides, *extra.get(name, ())))
        for name, case in CASES.items()
    }
    wanted = [name for each in asked.cases for name in each.split(",") if name] or own.get("cases", list(CASES))
    if unknown := [name for name in wanted if name not in CASES]:
        raise BadInput(f"'{unknown[0]}' is not a case: use {', '.join(CASES)}.")
    needed = {cases[name].continues for name in wanted}  # for its checkpoint
    allow = asked.allow or verdicts.allowed(",".join(own.get("allow", ())))
    return cases, [name for name in cases if name in wanted or name in needed], allow


def _key(asked: argparse.Namespace, commit: str, cases: Mapping[str, RehearsedCase]) -> str:
    """What decides a run of base: its code, the packages, ours included, and the cases."""
    tree = _git(asked.verl, "rev-parse", f"{commit}:verl").strip()
    return hashlib.sha256(f"{tree} {asked.packages} {cases}".encode()).hexdigest()[:16]


def _changed(repository: Path, base: str, head: str) -> tuple[set[str], str]:
    """The modules of verl that differ, and the sentence that says so if something does of which runs have no record."""
    fields = _git(
        repository, "diff", "--name-status", "--no-renames", "-z", base, head, "--", "verl", _CONFIG, *_PACKAGING
    ).split("\0")
    status = dict(zip(fields[1::2], fields[::2], strict=False))
    for path in status:
        if status[path] != "M" or not re.fullmatch(r"verl/.*\.py", path):
            return (
                set(),
                f"Every case ran: {path} is new, gone or no module of verl, so what it touches is not recorded.",
            )
    return set(status), ""


def _touches(changed: Collection[str], run: Path) -> bool:
    """Whether a run of base loaded a file that changed. One without a record may have."""
    loaded = _loaded_by(run)
    return not loaded or not set(loaded).isdisjoint(changed)


def _those(ran: Sequence[str], untouched: Sequence[str], changed: Collection[str]) -> str:
    files = f"one of the {len(changed)} changed files" if len(changed) > 1 else "".join(changed) or "a changed file"
    return f"Only cases that load {files} ran: {', '.join(ran) or 'none'}; {_NOT_TOUCHED}: {', '.join(untouched) or 'none'}."


def _forget(runs: Path) -> None:
    """Keep the runs of the ten bases that were needed last."""
    if runs.exists():
        os.utime(runs)
        for old in sorted(runs.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-_BASES]:
            shutil.rmtree(old, ignore_errors=True)


def _export(repository: Path, side: Side) -> None:
    """Write all files of its verl as committed: `git archive` leaves out and changes what attributes say (export-ignore, export-subst)."""
    side.code.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as ours:
        places = {"GIT_INDEX_FILE": f"{ours}/index", "GIT_WORK_TREE": str(side.code.absolute())}
        _git(repository, "read-tree", "--prefix=verl/", f"{side.commit}:verl", **places)
        _git(repository, "checkout-index", "--all", **places)


def _make_inputs(inputs: Path) -> None:
    """Make the tiny model and its data, once; again if they are not whole."""
    if _loaded_by(inputs) is not None:
        return
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    for what in ("model", "data"):
        _say(f"making the {what} of the rehearsal")
        made = subprocess.run(
            [sys.executable, "-m", "verl_rehearsal", what, str(inputs / what)], stdout=subprocess.DEVNULL, check=False
        )
        if made.returncode:
            raise BadInput(f"The {what} of the rehearsal cannot be made in {inputs} (the reason is above).")
    _complete(inputs, [])


def _complete(folder: Path, loaded: Sequence[str]) -> None:
    (folder / "complete").write_text(json.dumps({"files": _digest(folder), "loaded": loaded}), "utf-8")


def _loaded_by(folder: Path) -> list[str] | None:
    """The files of verl that the run in that folder loaded. None if it did not end well, or files are missing: a cache may be cut off."""
    try:
        complete = json.loads((folder / "complete").read_bytes())
        return list(complete["loaded"]) if complete["files"] == _digest(folder) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _digest(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / "complete"]
    of_each = [f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return hashlib.sha256("\n".join(of_each).encode()).hexdigest()


def _run(side: Side, case: RehearsedCase, continued: Path, inputs: Path, limit: float) -> Run:
    """The run of a case: trained now, or before if it is base's and ended well. `continued` has the run that it continues."""
    folder, title = side.runs / case.name, f"{case.name} of {side.name}"
    if _loaded_by(folder) is not None:
        _say(f"{title} {side.commit[:12]}: trained before")
        return _record(side, case, None)
    shutil.rmtree(folder, ignore_errors=True)
    side.runs.mkdir(parents=True, exist_ok=True)
    overrides = list(case.overrides)
    if case.continues:
        if _loaded_by(continued) is None:
            return _record(side, case, f"{case.continues}, whose checkpoint it continues, failed")
        overrides.append(f"trainer.resume_from_path={continued}/checkpoints/global_step_5")
    argv = [
        sys.executable,
        "-m",
        "verl_rehearsal",
        "train",
        f"--model={inputs}/model",
        f"--data={inputs}/data",
        case.workload,
        str(folder),
        *overrides,
    ]
    for bytecode in [*side.code.rglob("__pycache__")]:
        shutil.rmtree(bytecode)
    began, log = time.monotonic(), side.runs / f"{case.name}.log"
    _say(f"{title} {side.commit[:12]}: training, see {log}")
    with log.open("wb") as output:
        failure = _train(argv, side.code, output.fileno(), limit)
    seconds = time.monotonic() - began
    if failure is None and (problem := _unfaithful(case.workload, folder)):
        failure = f"the rehearsal is not faithful: {problem}"
    elif failure is not None:
        failure = f"{failure}: {_why(log.read_text('utf-8', 'replace'))}"
    _say(f"{title}: {failure or 'ended well'} after {seconds:.0f} s")
    if failure is None:
        _complete(folder, _modules(side.code))
    return _record(side, case, failure)


def _modules(code: Path) -> list[str]:
    """The files that were imported, in whichever process: Python leaves the bytecode of each beside it."""
    bytecode = [path.relative_to(code) for path in code.rglob("__pycache__/*.pyc")]
    return sorted(f"{path.parent.parent}/{path.name.partition('.')[0]}.py" for path in bytecode)


def _why(printed: str) -> str:
    """The last exception in a log, else its last line; without what Ray puts before a line of another process."""
    lines = [_OF_RAY.sub("", line) for line in printed.splitlines() if line.strip()] or ["it printed nothing"]
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1])[:300]


def _train(argv: Sequence[str], code: Path, output: int, limit: float) -> str | None:
    """Train in a process group of its own, of which nothing is left afterwards; why it failed, or None.

    It runs in the directory of the code, because Python imports from there first. A cluster of the user's is not used, and Python
    writes bytecode.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        argv,
        cwd=code,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**environment, "PYTHONPATH": str(code), "RAY_TMPDIR": _RAY_DIRECTORY},
        start_new_session=True,
    )
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"the trainer did not end in {limit:.0f} s (--limit)"
    finally:
        _end(process)
    return None if status == 0 else f"the trainer ended with exit status {status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of its group: Ray's processes end with their driver, a moment later."""
    for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        until = time.monotonic() + patience
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            return


def _unfaithful(workload: str, folder: Path) -> str | None:
    """The first check of a rehearsal that failed, or None."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "verl_rehearsal.fidelity",
            workload,
            str(folder / "metrics.jsonl"),
            str(folder / "reports"),
            "--one-machine",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if line.startswith(("FAIL", "error"))), "its checks did not run")


def _record(side: Side, case: RehearsedCase, failure: str | None) -> Run:
    """What the judge reads. A run that ended before its first step has an empty record."""
    try:
        run = records.read(side.runs / case.name / "metrics.jsonl")
    except CannotJudge as error:
        run = Run(name="", series={})
        failure = failure or str(error)
    return dataclasses.replace(
        run,
        name=f"{case.name} of {side.name}",
        workload=case.workload,
        seed="1",
        failure=failure,
        code=side.commit[:12],
        is_job=True,
    )


def _report(out: Path, results: Results, allow: Collection[Word]) -> None:
    """Write report.md, report.html, report.json, junit.xml and verdict.json, and in GitHub's CI the step's summary."""
    found, untouched = results.verdicts, results.untouched
    words = {each.case: each.word.value for each in found} | dict.fromkeys(untouched, _NOT_TOUCHED)
    worst = verdicts.worst(found).value if found else _NOT_TOUCHED
    cases = ", ".join(case for case, word in words.items() if word == worst)
    base, head = results.sides
    answer = f"{head.commit[:12]} against {base.commit[:12]} in {cases}"
    markdown = _markdown(f"{worst}: {answer}", results)
    document = {"verdict": worst, "status": 0, "cases": []}
    if found:
        document = json.loads(verdict_text.as_json(found, allow))
        (out / "report.html").write_text(verdict_page.html(_page(answer, worst, results)), "utf-8")
    document["not_touched"] = list(untouched)
    (out / "report.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    tests = [junit.Test("verdict", name, skipped=_NOT_TOUCHED) for name in untouched]
    tests += junit.verdict_tests(found, allow)
    (out / "junit.xml").write_text(junit.document("verl-regress", tests), "utf-8")
    (out / "report.md").write_text(markdown, "utf-8")
    (out / "verdict.json").write_text(json.dumps(words) + "\n", "utf-8")  # what ci/comment.py reads
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown)


def _page(answer: str, worst: str, results: Results) -> verdict_page.VerdictPage:
    return verdict_page.VerdictPage(
        answer=answer,
        word=worst,
        facts={side.name: side.commit for side in results.sides},
        warnings=results.notes,
        cases=[
            verdict_page.CaseCard(each.case, [each], results.runs[each.case][:1], results.runs[each.case][1:])
            for each in results.verdicts
        ],
        code=results.changes[:_LINES],
    )


def _markdown(title: str, results: Results) -> str:
    rows = [
        f"| {each.case} | **{each.word.value}** | {_cell(each.reason)} | {_cell(str(each.first or '-'))} |"
        for each in results.verdicts
    ]
    rows += [f"| {name} | {_NOT_TOUCHED} | it was not trained | - |" for name in results.untouched]
    table = ["| case | verdict | why | first difference |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([f"## {_cell(title)}", "", *table, "", *(f"{_cell(note)}\n" for note in results.notes)]) + "\n"


def _cell(text: str) -> str:
    """Text of a run or a path as plain text in a table of Markdown."""
    return verdict_text.printable(text).translate({ord(each): f"&#{ord(each)};" for each in "<>&|[]`@"})


if __name__ == "__main__":
    sys.exit(main())
