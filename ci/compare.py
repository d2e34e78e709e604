"""Did this change break PPO, GRPO or SFT? Trains base and head of a verl checkout as rehearsals, and judges them.

Exit statuses: 0 identical, same or improved; 9 regressed; 10 changed; 11 inconclusive; 12 incomparable; 2 bad input; 1 our own error.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from verl_verdict import judge, records, verdict_page, verdict_text, verdicts
from verl_verdict.errors import CannotJudge
from verl_verdict.records import Run
from verl_verdict.verdicts import Verdict, Word

_OLDEST = (0, 7, 1)  # what verl_rehearsal supports
_PACKAGING = ("setup.py", "pyproject.toml", "requirements*.txt")
_MOST_ANNOTATIONS = 10  # GitHub shows no more of a step
_OF_RAY = re.compile(r"^(?:\x1b\[[0-9;]*m)*\([^()]* pid=\d+[^()]*\)(?:\x1b\[[0-9;]*m)*\s*|\x1b\[[0-9;]*m")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b: ")
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Case:
    """What is trained: a workload of verl_rehearsal, with overrides. `continues` names the case whose step-5 checkpoint it goes on from."""

    workload: str
    overrides: tuple[str, ...] = ()
    continues: str = ""


CASES: Mapping[str, Case] = {
    "ppo": Case("ppo", ("trainer.save_freq=5",)),
    "grpo": Case("grpo"),
    "sft": Case("sft"),
    "resume": Case("ppo", ("trainer.resume_mode=resume_path",), continues="ppo"),
}


class BadInput(Exception):
    """One sentence for the user."""


@dataclass(frozen=True)
class Side:
    """Base or head: its commit, its files, and where its runs are."""

    name: str
    commit: str
    code: Path
    runs: Path


def main(argv: Sequence[str] | None = None) -> int:
    """Compare what the arguments ask for; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        asked = _arguments(argv)
        return _compare(asked)
    except (BadInput, CannotJudge) as error:
        print(f"error   {verdict_text.printable(str(error))}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"The command line is wrong ({message}): see 'ci/compare.sh --help'.")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="ci/compare.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}, also as a list with commas; without one: all"
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
    parser.add_argument(
        "--allow",
        type=verdicts.allowed,
        default=frozenset(),
        metavar="WORD,...",
        help="verdicts that exit with 0: changed,inconclusive",
    )
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds that a run may take (900)")
    parser.add_argument("--packages", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    wanted = [name for each in asked.cases for name in each.split(",") if name] or list(CASES)
    if unknown := [name for name in wanted if name not in CASES]:
        raise BadInput(f"'{unknown[0]}' is not a case: use {', '.join(CASES)}.")
    needed = {CASES[name].continues for name in wanted}  # for its checkpoint
    asked.cases = [name for name in CASES if name in wanted or name in needed]
    return asked


def _compare(asked: argparse.Namespace) -> int:
    out, cache = asked.out.absolute(), asked.cache.absolute()
    base, head = (_commit(asked.verl, option, getattr(asked, option)) for option in ("base", "head"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sides = [
        Side("base", base, out / "code" / "base", cache / "runs" / _key(asked.verl, base, asked.packages)),
        Side("head", head, out / "code" / "head", out / "runs"),
    ]
    for side in sides:
        _export(asked.verl, side)
    model, data = cache / "model", cache / "data"
    _make("model", model, model / "config.json")
    _make("data", data, data / "test.parquet")
    found, runs = [], {}
    for name in asked.cases:
        runs[name] = [_run(side, name, model, data, asked.limit) for side in sides]
        verdict = judge.case(runs[name][:1], runs[name][1:], name=name, deterministic=True)
        _say(f"{name}: {verdict.word.value}: {verdict.reason}")
        found.append(verdict)
    changes = _git(asked.verl, "diff", "--unified=0", "--no-color", "--no-ext-diff", base, head, "--", "verl")
    packaging = _git(asked.verl, "diff", "--name-only", base, head, "--", *_PACKAGING).split()
    notes = (
        [f"The packages of both are those of docker/requirements.lock, although {', '.join(packaging)} changed."]
        if packaging
        else []
    )
    _report(out, found, runs, sides, asked.allow, notes, changes.splitlines())
    print(verdict_text.text(found, asked.allow))
    for note in notes:
        _say(note)
    _say(f"reports: {out}/report.md, report.html, report.json, junit.xml")
    return verdicts.status(found, asked.allow)


def _say(text: str) -> None:
    print(f"        {verdict_text.printable(text)}", file=sys.stderr, flush=True)


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise BadInput(
            f"git {arguments[0]} failed in {repository.absolute()} ({done.stderr.strip().splitlines()[-1:] or 'no reason'})."
        )
    return done.stdout


def _commit(repository: Path, option: str, name: str) -> str:
    """The commit of that name, which must have a verl that a rehearsal supports."""
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


def _key(repository: Path, commit: str, packages: str) -> str:
    """What decides a run of base: its code, the packages, ours included, and the cases."""
    tree = _git(repository, "rev-parse", f"{commit}:verl").strip()
    return hashlib.sha256(f"{tree} {packages} {CASES}".encode()).hexdigest()[:16]


def _export(repository: Path, side: Side) -> None:
    side.code.mkdir(parents=True)
    archive = subprocess.Popen(["git", "-C", str(repository), "archive", side.commit, "verl"], stdout=subprocess.PIPE)
    unpacked = subprocess.run(["tar", "-x", "-C", str(side.code)], stdin=archive.stdout, check=False)
    if archive.wait() or unpacked.returncode:
        raise BadInput(f"The files of {side.commit[:12]} cannot be written to {side.code} (the reason is above).")


def _make(what: str, folder: Path, last: Path) -> None:
    """Make the tiny model or its data, once. An interrupted one is made again."""
    if last.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    _say(f"making the {what} of the rehearsal")
    made = subprocess.run(
        [sys.executable, "-m", "verl_rehearsal", what, str(folder)], stdout=subprocess.DEVNULL, check=False
    )
    if made.returncode:
        raise BadInput(f"The {what} of the rehearsal cannot be made in {folder} (the reason is above).")


def _run(side: Side, name: str, model: Path, data: Path, limit: float) -> Run:
    """The run of a case: trained now, or before if it is base's and ended well."""
    folder, case = side.runs / name, CASES[name]
    if (folder / "complete").exists():
        _say(f"{name} of {side.name} {side.commit[:12]}: trained before")
        return _record(side, name, None)
    shutil.rmtree(folder, ignore_errors=True)
    side.runs.mkdir(parents=True, exist_ok=True)
    overrides = list(case.overrides)
    if case.continues:
        if not (side.runs / case.continues / "complete").exists():
            return _record(side, name, f"{case.continues}, whose checkpoint it continues, failed")
        overrides.append(f"trainer.resume_from_path={side.runs}/{case.continues}/checkpoints/global_step_5")
    argv = [
        sys.executable, "-m", "verl_rehearsal", "train", f"--model={model}", f"--data={data}", case.workload, str(folder), *overrides,
    ]  # fmt: skip
    began, log = time.monotonic(), side.runs / f"{name}.log"
    _say(f"{name} of {side.name} {side.commit[:12]}: training, see {log}")
    with log.open("wb") as output:
        failure = _train(argv, side.code, output.fileno(), limit)
    seconds = time.monotonic() - began
    if failure is None and (problem := _unfaithful(case.workload, folder)):
        failure = f"the rehearsal is not faithful: {problem}"
    elif failure is not None:
        failure = f"{failure}: {_why(log.read_text('utf-8', 'replace'))}"
    _say(f"{name} of {side.name}: {failure or 'ended well'} after {seconds:.0f} s")
    if failure is None:
        (folder / "complete").touch()
    return _record(side, name, failure)


def _why(printed: str) -> str:
    """The last exception in a log, else its last line; without what Ray puts before a line of another process."""
    lines = [_OF_RAY.sub("", line) for line in printed.splitlines() if line.strip()] or ["it printed nothing"]
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1])[:300]


def _train(argv: Sequence[str], code: Path, output: int, limit: float) -> str | None:
    """Train in a process group of its own, of which nothing is left afterwards; why it failed, or None.

    It runs in the directory of the code, because Python imports from there first. A cluster of the user's is not used.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        argv, cwd=code, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**environment, "PYTHONPATH": str(code)},
        start_new_session=True,
    )  # fmt: skip
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
        [sys.executable, "-m", "verl_rehearsal.fidelity", workload, str(folder / "metrics.jsonl"), str(folder / "reports"), "--one-machine"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return None
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if line.startswith(("FAIL", "error"))), "its checks did not run")


def _record(side: Side, name: str, failure: str | None) -> Run:
    """What the judge reads. A run that ended before its first step has an empty record."""
    try:
        run = records.read(side.runs / name / "metrics.jsonl")
    except CannotJudge as error:
        run = Run(name="", series={})
        failure = failure or str(error)
    workload = CASES[name].workload
    return dataclasses.replace(
        run, name=f"{name} of {side.name}", workload=workload, seed="1", failure=failure, code=side.commit[:12]
    )


def _report(
    out: Path, found: Sequence[Verdict], runs: Mapping[str, Sequence[Run]], sides: Sequence[Side], allow: Collection[Word],
    notes: Sequence[str], changes: Sequence[str],
) -> None:  # fmt: skip
    """Write report.md, report.html, report.json and junit.xml, and in GitHub's CI the step's summary and annotations."""
    worst = verdicts.worst(found)
    cases = ", ".join(verdict.case for verdict in found if verdict.word is worst)
    answer = f"{sides[1].commit[:12]} against {sides[0].commit[:12]} in {cases}"
    facts = {side.name: side.commit for side in sides}
    markdown = _markdown(f"{worst.value}: {answer}", found, notes)
    page = verdict_page.Page(
        answer, worst.value, facts, notes,
        [verdict_page.Case(each.case, [each], runs[each.case][:1], runs[each.case][1:]) for each in found], code=changes[:2000],
    )  # fmt: skip
    (out / "report.json").write_text(verdict_text.as_json(found, allow) + "\n", "utf-8")
    (out / "junit.xml").write_text(_junit(found, allow), "utf-8")
    (out / "report.html").write_text(verdict_page.html(page), "utf-8")
    (out / "report.md").write_text(markdown, "utf-8")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown)
    if os.environ.get("GITHUB_ACTIONS") == "true" and (
        bad := [each for each in found if verdicts.status([each], allow)]
    ):
        print(*_annotations(bad[0], changes), sep="\n")


def _markdown(title: str, found: Sequence[Verdict], notes: Sequence[str]) -> str:
    rows = [
        f"| {each.case} | **{each.word.value}** | {_cell(each.reason)} | {_cell(str(each.first or '-'))} |"
        for each in found
    ]
    table = ["| case | verdict | why | first difference |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([f"## {_cell(title)}", "", *table, "", *(f"{_cell(note)}\n" for note in notes)]) + "\n"


def _cell(text: str) -> str:
    """Text of a run or a path as plain text in a table of Markdown."""
    return verdict_text.printable(text).translate({ord(each): f"&#{ord(each)};" for each in "<>&|[]`@"})


def _junit(found: Sequence[Verdict], allow: Collection[Word]) -> str:
    bad = [each for each in found if verdicts.status([each], allow)]
    suite = ET.Element("testsuite", name="verl-regress", tests=str(len(found)), failures=str(len(bad)))
    for verdict in found:
        case = ET.SubElement(suite, "testcase", classname="verdict", name=verdict.case)
        if verdict in bad:
            message = verdict_text.printable(f"{verdict.word.value}: {verdict.reason}")
            ET.SubElement(case, "failure", message=message).text = verdict_text.text([verdict], allow)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _annotations(verdict: Verdict, changes: Sequence[str]) -> list[str]:
    """GitHub's workflow commands: the verdict at the first change of each file, as `git diff --unified=0` lists them."""
    found, path = [], ""
    for line in changes:
        if line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/")
        elif line.startswith("@@ ") and path:
            at = line.split(" +", 1)[1].split(" ", 1)[0].split(",", 1)[0]
            said = f"{verdict.case} {verdict.word.value}: {verdict.reason}"
            found.append(f"::error file={_escaped(path, ',:')},line={at or 1}::{_escaped(said)}")
            path = ""
    return found[:_MOST_ANNOTATIONS]


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(each):02X}" if each in f"%\r\n{more}" else each for each in text)


if __name__ == "__main__":
    sys.exit(main())
