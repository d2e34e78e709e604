"""The subcommands of `run.py`, and how an error becomes one sentence and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from verl_regress import (
    dataset,
    debug,
    jobs,
    launcher,
    layout,
    model,
    nodes,
    resume,
    retention,
    say,
    snapshot,
    status,
    stop,
    submit,
    watch,
)
from verl_regress.errors import BadInput, Exit, RegressError
from verl_regress.verify import command

_Add = Callable[[argparse.ArgumentParser], None]
_Run = Callable[[argparse.Namespace], int]

SUBCOMMANDS: dict[str, tuple[str, _Add, _Run]] = {
    "layout": ("create the directories of the shared root", layout.add_arguments, layout.run),
    "nodes": ("the nodes that Ray calls ALIVE", nodes.add_arguments, nodes.run),
    "await-nodes": ("wait until all nodes are ALIVE", nodes.add_await_arguments, nodes.run_await),
    "prepare-data": ("make a data set once", dataset.add_arguments, dataset.run),
    "prepare-model": ("make a model once", model.add_arguments, model.run),
    "snapshot": ("make or check a snapshot of verl", snapshot.add_arguments, snapshot.run),
    "submit": ("submit a JobSpec", submit.add_arguments, submit.run),
    "resume": ("go on with a job as a new attempt", resume.add_arguments, resume.run_resume),
    "retry": ("begin a job anew as a new attempt", resume.add_arguments, resume.run_retry),
    "launch": ("the Ray entrypoint of a job", launcher.add_arguments, launcher.run),
    "wait": ("follow a job to its end", watch.add_arguments, watch.run),
    "status": ("what the cluster and its jobs are", status.add_arguments, status.run),
    "where": ("a job's directory", jobs.add_where_arguments, jobs.run_where),
    "stop": ("stop a job and wait until it is over", stop.add_arguments, stop.run),
    "debug": ("take a debug bundle of a job", debug.add_arguments, debug.run),
    "verify": ("the steps of a regression session", command.add_arguments, command.run),
    "gc": ("remove old checkpoints and snapshots that nobody needs", retention.add_arguments, retention.run),
    "logs": ("a job's driver log", status.add_logs_arguments, status.run_logs),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{self.prog}: {message} (see --help).")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit status (verl_regress.errors.Exit)."""
    parser = _Parser(prog="run.py", description=__doc__)
    parser.add_argument("--shared-root", type=Path, help="the knob SHARED_ROOT")
    subparsers = parser.add_subparsers(dest="subcommand", required=True)
    for name, (help_text, add, _) in SUBCOMMANDS.items():
        add(subparsers.add_parser(name, help=help_text))
    try:
        args = parser.parse_args(argv)
        exit_status = SUBCOMMANDS[args.subcommand][2](args)
        sys.stdout.flush()  # here, where a reader that went away is met
        return exit_status
    except RegressError as error:
        say.error(str(error))
        return int(error.status)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains once more when it flushes
        return int(Exit.OWN_ERROR)
    except OSError as error:
        say.error(f"{args.subcommand}: {error}: mend what stands in the way, then run it again.")
        return int(Exit.OWN_ERROR)
    except KeyboardInterrupt:
        return 130
