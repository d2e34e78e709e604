"""`report`: where a session's report is, and its verdict in one line."""

import argparse
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import BadInput, Unreadable, printable
from verl_regress.base.files import read_json
from verl_regress.base.layout import SharedRoot
from verl_regress.store.sessions import LATEST, Session, all_of, named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`report [--name NAME]`."""
    parser.add_argument("--name", default="", help="the session; empty or latest: the newest one that has a report")


def run(args: argparse.Namespace) -> int:
    """Print the report's path; its verdict is a message. Reads files only."""
    session, report = _find(SharedRoot(args.shared_root), args.name)
    say.info(printable(f"{session.path.name}: {report.get('headline')}"))
    print(say.shown(session.path / "report.html"))
    return 0


def _find(root: SharedRoot, name: str) -> tuple[Session, dict[str, Any]]:
    """The session and its report.json. Raises BadInput."""
    every, is_named = all_of(root), name not in ("", LATEST)
    if is_named:
        every = [Session(named([each.path for each in every], "SESSION", name, "a session", "the newest"))]
    for session in every:
        try:
            if report := read_json(session.path / "report.json"):
                return session, report
            why = f"{session.path.name} is not over, so it has no report: 'make verify SESSION={session.path.name}' continues it"
        except Unreadable as error:
            why = str(error)
        if is_named:
            raise BadInput(f"{why}.")
        say.info(why)
    raise BadInput(f"No session in {root.sessions} has a report: 'make verify' makes one.")
