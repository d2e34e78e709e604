"""Did B break it? Compares runs of A with runs of B, and exits with the verdict.

RUN is a metrics.jsonl of verl's file logger, or a directory that has one. Runs of several workloads are several cases.
Give A at least twice with one seed (then it shows whether A repeats itself), or at least three seeds of A and of B.
`verl-verdict history RUN...` shows where a metric changed in the course of many runs.

Exit statuses: 0 identical, same or improved; 9 regressed; 10 changed; 11 inconclusive; 12 incomparable; 2 bad input.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from verl_verdict.decide import judge, memory, preconditions, speed, verdicts
from verl_verdict.errors import CannotJudge
from verl_verdict.history import history
from verl_verdict.read import readers
from verl_verdict.read.readers import Reader
from verl_verdict.read.records import Run
from verl_verdict.show import verdict_text

_BAD_INPUT = 2
_HISTORY = """The metrics of many runs in the order of time, which is the order of RUN..., and where one of them changes.

Exit statuses: 0, also if a metric changed; 2 bad input.
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise CannotJudge(f"The command line is wrong ({message}): see 'verl-verdict --help'.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="verl-verdict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        "--memory",
        action="store_true",
        help="judge the memory too, as a case of its own, if the runs have records of it",
    )
    verdicts.add_allow(parser)
    parser.add_argument(
        "--accept",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="what may differ, by the name in the verdict: packages,nodes; devices: all that other devices bring with them",
    )
    parser.add_argument(
        "--relative",
        type=_share,
        metavar="SHARE",
        help="only reward and losses decide: their mean relative error over the steps is at most this, such as 0.02",
    )
    parser.add_argument("--ignore", type=_names, default=(), metavar="METRIC,...", help="metrics that are not compared")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(text: str) -> Path:
    if not text:
        raise CannotJudge("A RUN is '', which names nothing: give a metrics.jsonl.")
    return Path(text)


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 < (share := float(text)) < 1:
            return share
    raise CannotJudge(f"--relative={text} is no share between 0 and 1: give the largest error, such as 0.02 for 2 %.")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def main(arguments: Sequence[str] | None = None, readers: Sequence[Reader] = ()) -> int:
    """Print the verdict, or the history; its exit status. `readers` read what is no metrics.jsonl."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["history"]:
            _history(_history_parser().parse_args(arguments[1:]), readers)
            return 0
        options = _parser().parse_args(arguments)
        found = _judge(options, readers)
        _write((verdict_text.as_json if options.json else verdict_text.text)(found, options.allow))
        return verdicts.status(found, options.allow)
    except CannotJudge as error:
        print(verdict_text.printable(f"error   {error}"), file=sys.stderr)
        return _BAD_INPUT


def _write(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains again when it flushes
        raise CannotJudge(
            f"The answer cannot be written to standard output ({error.strerror}): write it to another place."
        ) from None


def _judge(options: argparse.Namespace, readers: Sequence[Reader]) -> list[verdicts.Verdict]:
    a, b, perturbed = (_by_workload(paths, readers) for paths in (options.a, options.against, options.perturbed))
    for mine, other, side in ((a, b, "A"), (b, a, "B")):
        if lacking := [workload for workload in mine if workload not in other]:
            raise CannotJudge(
                f"{side} has runs of {', '.join(lacking)}, and {'B' if side == 'A' else 'A'} has none: compare runs of the same workloads."
            )
    found = []
    for workload in a:
        found.append(
            judge.case(
                a[workload], b[workload], ignore=options.ignore, accept=options.accept,
                deterministic=options.deterministic, perturbed=perturbed.get(workload, []), relative_limit=options.relative,
            )
        )  # fmt: skip
        if options.speed:
            found.append(speed.case(a[workload], b[workload], name=f"{workload} speed"))
        if options.memory:
            found.append(memory.case(a[workload], b[workload], name=f"{workload} memory"))
    return found


def _by_workload(paths: Sequence[Path], known: Sequence[Reader]) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    for path in paths:
        run = readers.read(path, known)
        runs.setdefault(run.workload, []).append(run)
    return runs


def _history_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="verl-verdict history", description=_HISTORY, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=_run, metavar="RUN", help="the runs, the earliest first")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the curves into this file, as HTML")
    return parser


def _history(options: argparse.Namespace, known: Sequence[Reader]) -> None:
    """Print where the runs change, and write the page."""
    from verl_verdict.history import history_page

    runs = [readers.read(path, known) for path in options.runs]
    preconditions.no_copies(runs)
    points = [_point(path, run, at) for at, (path, run) in enumerate(zip(options.runs, runs, strict=True), start=1)]
    page = history_page.Page(history.groups_of(points))
    if not any(group.points for group in page.groups):
        raise CannotJudge(f"No run can be used ({page.all_left[0]}): give runs that trained to their end.")
    _write("\n".join(map(verdict_text.printable, history_page.text(page))))
    if options.page:
        try:
            options.page.write_text(history_page.html(page), encoding="utf-8")
        except OSError as error:
            raise CannotJudge(
                f"--page={options.page} cannot be written ({error.strerror}): name another file."
            ) from None


def _point(path: Path, run: Run, number: int) -> history.Point:
    """A record tells neither when it was made nor of which code: the file's time is shown, and each run counts as another code."""
    if not run.workload:
        raise preconditions.no_workload(str(path))
    return history.Point(
        run=run,
        case=run.workload,
        side="A",
        name=f"run {number}",
        session=str(path),
        time=datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(timespec="seconds"),
        code=run.code or "unknown code",
        tree=run.code or str(path),
        source="the runs",  # one series: a run's code is a change of it
    )
