"""Did B break it? Compares runs of A with runs of B, and exits with the verdict.

RUN is a metrics.jsonl of verl's file logger, or a job directory of verl-regress. Runs of several workloads are several cases.
Give A at least twice with one seed (then it shows whether A repeats itself), or at least three seeds of A and of B.

Exit statuses: 0 identical, same or improved; 9 regressed; 10 changed; 11 inconclusive; 12 incomparable; 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from verl_verdict import jobdir, judge, memory, report, speed, verdicts
from verl_verdict.errors import BadInput
from verl_verdict.records import Run
from verl_verdict.verdicts import Word

_BAD_INPUT = 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"The command line is wrong ({message}): see 'python -m verl_verdict --help'.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m verl_verdict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", nargs="+", type=_run, metavar="RUN_A", help="runs of A, the baseline")
    parser.add_argument("--against", nargs="+", type=_run, required=True, metavar="RUN_B", help="runs of B")
    parser.add_argument(
        "--perturbed",
        nargs="+",
        type=_run,
        default=[],
        metavar="RUN",
        help="runs of A with a perturbed last bit: what they do is noise",
    )
    parser.add_argument(
        "--deterministic", action="store_true", default=None, help="A is known to repeat itself: one run of A is enough"
    )
    parser.add_argument("--speed", action="store_true", help="judge the speed too, as a case of its own")
    parser.add_argument(
        "--memory", action="store_true", help="judge the memory of job directories too, as a case of its own"
    )
    parser.add_argument(
        "--allow",
        type=_words,
        default=frozenset(),
        metavar="WORD,...",
        help="verdicts that exit with 0: changed,inconclusive",
    )
    parser.add_argument(
        "--accept",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="what may differ, by the name in the verdict: packages,nodes",
    )
    parser.add_argument("--ignore", type=_names, default=(), metavar="METRIC,...", help="metrics that are not compared")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(text: str) -> Path:
    if not text:
        raise BadInput("A RUN is '', which names nothing: give a metrics.jsonl or a job directory.")
    return Path(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _words(text: str) -> frozenset[Word]:
    words = {word.value: word for word in verdicts.ALLOWABLE}
    if unknown := [name for name in _names(text) if name not in words]:
        raise BadInput(f"--allow={text} has '{unknown[0]}': only {' and '.join(words)} can be allowed.")
    return frozenset(words[name] for name in _names(text))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdict; its exit status."""
    try:
        options = _parser().parse_args(arguments)
        found = _judge(options)
        _write((report.as_json if options.json else report.text)(found, options.allow))
        return verdicts.status(found, options.allow)
    except BadInput as error:
        print(report.printable(f"error   {error}"), file=sys.stderr)
        return _BAD_INPUT


def _write(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains again when it flushes
        raise BadInput(
            f"The verdict cannot be written to standard output ({error.strerror}): write it to another place."
        ) from None


def _judge(options: argparse.Namespace) -> list[verdicts.Verdict]:
    a, b, perturbed = (_by_workload(paths) for paths in (options.a, options.against, options.perturbed))
    for mine, other, side in ((a, b, "A"), (b, a, "B")):
        if lacking := [workload for workload in mine if workload not in other]:
            raise BadInput(
                f"{side} has runs of {', '.join(lacking)}, and {'B' if side == 'A' else 'A'} has none: compare runs of the same workloads."
            )
    found = []
    for workload in a:
        found.append(
            judge.case(
                a[workload], b[workload], ignore=options.ignore, accept=options.accept,
                deterministic=options.deterministic, perturbed=perturbed.get(workload, []),
            )
        )  # fmt: skip
        if options.speed:
            found.append(speed.case(a[workload], b[workload], name=f"{workload} speed"))
        if options.memory:
            found.append(memory.case(a[workload], b[workload], name=f"{workload} memory"))
    return found


def _by_workload(paths: Sequence[Path]) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    for path in paths:
        run = jobdir.load(path)
        runs.setdefault(run.workload, []).append(run)
    return runs


if __name__ == "__main__":
    sys.exit(main())
