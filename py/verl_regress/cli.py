"""The subcommands of `run.py`, and how an error becomes one sentence and an exit status."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

from verl_regress.base import owner, say
from verl_regress.base.errors import BadInput, Exit, RegressError, cure_of, shown


class _Subcommand(NamedTuple):
    """What it does, and the module with the functions that add its arguments and run it.

    The module is imported only when needed, so each subcommand runs with just its own dependencies.
    """

    help: str
    module: str
    add: str = "add_arguments"
    run: str = "run"

    def function(self, name: str) -> Callable[..., int]:
        function: Callable[..., int] = getattr(import_module(f"verl_regress.{self.module}"), name)
        return function


SUBCOMMANDS = {
    "layout": _Subcommand("create the directories of the shared root", "base.layout"),
    "nodes": _Subcommand("the nodes that Ray calls ALIVE", "cluster.nodes"),
    "list-packages": _Subcommand("list the packages of this node", "cluster.packages"),
    "await-nodes": _Subcommand("wait until all nodes are ALIVE", "jobs.sweep", "add_await_arguments", "run_await"),
    "prepare-data": _Subcommand("make a data set once", "store.datasets"),
    "prepare-model": _Subcommand("make a model once", "store.models"),
    "snapshot": _Subcommand("make or check a snapshot of verl", "store.snapshot"),
    "secrets": _Subcommand("which secrets a JobSpec names", "submit.needed_secrets"),
    "submit": _Subcommand("submit a JobSpec", "submit.submit"),
    "reward-check": _Subcommand("try the reward function of a JobSpec", "submit.reward_check"),
    "precheck": _Subcommand("check a JobSpec where no cluster is", "submit.precheck"),
    "export": _Subcommand("print a file that runs a JobSpec elsewhere", "submit.export_command"),
    "submit-exported": _Subcommand(
        "submit the request of such a file", "submit.export_command", "add_exported_arguments", "run_exported"
    ),
    "resume": _Subcommand("continue a job as a new attempt", "submit.resume", run="run_resume"),
    "retry": _Subcommand("run a job again from its first step, as a new attempt", "submit.resume", run="run_retry"),
    "launch": _Subcommand("the Ray entrypoint of a job", "worker.launcher"),
    "wait": _Subcommand("follow a job to its end", "jobs.watch"),
    "status": _Subcommand("what the cluster and its jobs are", "jobs.listing", "add_status_arguments", "run_status"),
    "where": _Subcommand("a job's workload and directory", "jobs.find", "add_job", "run_where"),
    "jobs": _Subcommand("all jobs, latest first", "jobs.listing"),
    "leftovers": _Subcommand("end what is left of a job on this node", "jobs.leftovers"),
    "stop": _Subcommand("stop a job and wait until it is over", "jobs.stop"),
    "breakpoints": _Subcommand("where a job waits for a debugger", "jobs.attach"),
    "debug": _Subcommand("take a debug bundle of a job", "jobs.debug"),
    "verify": _Subcommand("the steps of a regression session", "session.verify"),
    "bisect": _Subcommand("find the commit that changed training", "session.bisect"),
    "acceptance": _Subcommand("does this installation keep its promises?", "session.acceptance"),
    "report": _Subcommand("where a session's report is", "session.latest_report"),
    "history": _Subcommand("one page over all sessions", "session.history_command"),
    "live": _Subcommand(
        "the jobs that run, wait or are being submitted", "jobs.listing", "add_live_arguments", "run_live"
    ),
    "gc": _Subcommand("remove old checkpoints and unused snapshots", "store.retention"),
    "logs": _Subcommand("a job's driver log", "jobs.logs"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{self.prog}: {shown(message)} (see --help).")


def _check_words(argv: Sequence[str]) -> None:
    """Refuse words that argparse would lose, and words that are not text.

    Bytes that are not UTF-8 arrive as halves of surrogate pairs, which can be neither printed nor written.
    """
    for word in argv:
        if word.startswith("--knobs="):  # it says itself which one is not text
            continue
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise BadInput(f"{shown(word)} on the command line is not UTF-8: write it in UTF-8.") from None
        option, _, value = word.partition("=")
        if value == "--":  # argparse turns it into an empty list (seen in Python 3.11)
            raise BadInput(f"{shown(word)} on the command line is not usable: '--' is not a value of {shown(option)}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit status (verl_regress.base.errors.Exit)."""
    parser = _Parser(prog="run.py", description=__doc__)
    parser.add_argument("--shared-root", type=Path, help="the knob SHARED_ROOT")
    parser.add_argument(
        "--shown-root", default="", metavar="PATH", help="the shared root as the person sees it, for messages"
    )
    parser.add_argument(
        "--terminal", type=int, default=0, metavar="COLUMNS", help="stderr is shown on a terminal this wide"
    )
    parser.add_argument("--shared-group", default="", metavar="GROUP", help="the knob SHARED_GROUP, a name or a number")
    parser.add_argument("--no-ray", action="store_true", help="there is no Ray to be asked from here")
    owner.add_arguments(parser)
    subparsers = parser.add_subparsers(dest="subcommand", required=True)
    given = sys.argv[1:] if argv is None else argv
    asked = next((word for word in given if word in SUBCOMMANDS), None)
    if asked is not None:  # only its parser: making all parsers takes longer than many a subcommand
        subcommand = SUBCOMMANDS[asked]
        subcommand.function(subcommand.add)(subparsers.add_parser(asked, help=subcommand.help))
    else:
        for name, subcommand in SUBCOMMANDS.items():
            subparsers.add_parser(name, help=subcommand.help)
    try:
        _check_words(given)
        args = parser.parse_args(given)
        say.configure(args.terminal, str(args.shared_root), args.shown_root)
        if args.owner is not None:
            args.owner = replace(args.owner, workdir=args.owner_workdir)
        subcommand = SUBCOMMANDS[args.subcommand]
        exit_status = subcommand.function(subcommand.run)(args)
        sys.stdout.flush()  # here, to notice a reader that went away
        return exit_status
    except RegressError as error:
        for sentence in error.sentences:
            say.error(sentence)
        return int(error.status)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains again when it flushes
        return int(Exit.OWN_ERROR)
    except OSError as error:
        say.error(f"{args.subcommand}: {error}: {cure_of(error)}, then run it again.")
        return int(Exit.OWN_ERROR)
    except KeyboardInterrupt:
        return 130
    finally:
        say.clear()
