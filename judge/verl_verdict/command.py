"""Did B break it? Compares runs of A with runs of B, and exits with the verdict.

RUN is a metrics.jsonl of verl's file logger, or a directory that has one. Runs of several workloads are several cases.
Give A at least twice with one seed (then it shows whether A repeats itself), or at least three seeds of A and of B.
A metrics.jsonl does not tell its seed: name it with --seeds, or the runs are paired in the given order.
`verl-verdict history RUN...` shows where a metric changed in the course of many runs.

Exit statuses: 0 identical, same or improved; 9 regressed; 10 changed; 11 inconclusive; 12 incomparable; 2 bad input.
"""

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from verl_verdict.decide import judge, preconditions, verdicts
from verl_verdict.decide.diagnosis import counted
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


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raise CannotJudge, which names the help of the whole command, not of a subcommand."""
        raise CannotJudge(f"The command line is wrong ({message}): see '{self.prog.split()[0]} --help'.")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="verl-verdict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("a", nargs="+", type=_run, metavar="RUN_A", help="runs of A, the baseline")
    parser.add_argument(
        "--against", nargs="+", action="extend", type=_run, required=True, metavar="RUN_B", help="runs of B"
    )
    parser.add_argument(
        "--perturbed",
        nargs="+",
        type=_run,
        default=[],
        metavar="RUN",
        help="runs of A with a perturbed last bit: what they do is noise",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=(),
        metavar="SEED,...",
        help="the seeds of the runs of A, in their order: 42,42,43. The runs of B, and the perturbed ones, then have the seeds 42,43, in that order",
    )
    parser.add_argument(
        "--seeds-b", type=_seeds, default=(), metavar="SEED,...", help="the seeds of the runs of B, in their order"
    )
    parser.add_argument(
        "--steps",
        choices=("all", "common"),
        default="all",
        help="all: records of other steps are refused, because they may be unfinished; common: the steps that all have are compared",
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


def _seeds(text: str) -> tuple[str, ...]:
    found = text.split(",")
    if wrong := [seed for seed in found if not re.fullmatch("-?[0-9]{1,20}", seed)]:
        raise CannotJudge(
            f"'{wrong[0]}' in the seeds '{text}' is no whole number: give one for each run, such as 42,43."
        )
    return tuple(str(int(seed)) for seed in found)


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


def _judge(options: argparse.Namespace, known: Sequence[Reader]) -> list[verdicts.Verdict]:
    a, b, perturbed = _runs(options, known)
    for mine, other, side in ((a, b, "A"), (b, a, "B")):
        if lacking := [workload for workload in mine if workload not in other]:
            raise CannotJudge(
                f"{side} has runs of {', '.join(lacking)}, and {'B' if side == 'A' else 'A'} has none: compare runs of the same workloads."
            )
    found = []
    for workload in a:
        case = judge.case(
            a[workload],
            b[workload],
            ignore=options.ignore,
            accept=options.accept,
            deterministic=options.deterministic,
            perturbed=perturbed.get(workload, []),
            relative_limit=options.relative,
            common_steps=options.steps == "common",
        )
        found.append(case)
        if options.speed:
            found.append(judge.speed(a[workload], b[workload], name=f"{workload} speed"))
        if options.memory:
            found.append(judge.memory(a[workload], b[workload], name=f"{workload} memory"))
    return found


_Runs = dict[str, list[Run]]  # by workload, in the given order


def _runs(options: argparse.Namespace, known: Sequence[Reader]) -> tuple[_Runs, _Runs, _Runs]:
    """The runs of A and B, and the perturbed ones; with the seeds that the command line tells."""
    a, b, perturbed = (
        [readers.read(path, known) for path in paths] for paths in (options.a, options.against, options.perturbed)
    )
    if options.seeds_b and not options.seeds:
        raise CannotJudge("--seeds-b tells the seeds of B alone: tell those of A with --seeds.")
    if not options.seeds:
        return _by_workload(a), _by_workload(b), _by_workload(perturbed)
    of_a = _by_workload(_with_seeds(a, options.seeds, "--seeds", "A"))
    seeds = {workload: list(dict.fromkeys(str(run.seed) for run in runs)) for workload, runs in of_a.items()}
    if options.seeds_b:
        of_b = _by_workload(_with_seeds(b, options.seeds_b, "--seeds-b", "B"))
    else:
        of_b = _with_those_of_a(b, seeds, "B has", "tell those of B with --seeds-b")
    # Of one seed there may be many.
    enough = {workload: mine * len(perturbed) if len(mine) == 1 else mine for workload, mine in seeds.items()}
    return of_a, of_b, _with_those_of_a(perturbed, enough, "--perturbed has", "give one for each seed")


def _by_workload(runs: Sequence[Run]) -> _Runs:
    found: _Runs = {}
    for run in runs:
        found.setdefault(run.workload, []).append(run)
    return found


def _with_seeds(runs: Sequence[Run], seeds: Sequence[str], option: str, side: str) -> list[Run]:
    if len(runs) != len(seeds):
        raise CannotJudge(
            f"{option} has {counted(len(seeds), 'seed')} for {counted(len(runs), 'run')} of {side}: give one for each run."
        )
    return [_with_seed(run, seed, option) for run, seed in zip(runs, seeds, strict=True)]


def _with_those_of_a(runs: Sequence[Run], seeds: Mapping[str, Sequence[str]], has: str, cure: str) -> _Runs:
    """The runs of each workload with the seeds of A's, in their order."""
    found = _by_workload(runs)
    for workload in [each for each in found if each in seeds]:
        mine, of_a = found[workload], seeds[workload]
        if len(mine) > len(of_a):
            raise CannotJudge(
                f"{has} {len(mine)} runs of {workload}, and A {counted(len(of_a), 'seed')} ({', '.join(of_a)}): {cure}."
            )
        found[workload] = [_with_seed(run, seed, "--seeds") for run, seed in zip(mine, of_a, strict=False)]
    return found


def _with_seed(run: Run, seed: str, option: str) -> Run:
    if run.seed is not None:
        raise CannotJudge(f"'{run.name}' already tells its seed ({run.seed}): leave {option} out.")
    return dataclasses.replace(run, seed=seed)


def _history_parser() -> argparse.ArgumentParser:
    parser = Parser(
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
    page = history_page.HistoryPage(history.groups_of(points))
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
