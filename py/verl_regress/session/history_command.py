"""`history`: one page over all sessions, and its summary."""

import argparse
import os
from pathlib import Path

import deps
from verl_regress.base import say
from verl_regress.base.errors import BadInput, printable
from verl_regress.base.files import write_atomically
from verl_regress.base.layout import SharedRoot
from verl_regress.store.sessions import all_of


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """`history` has no arguments."""


def run(args: argparse.Namespace) -> int:
    """Write history.html, print its summary and its place. Raises BadInput if there is no run to show."""
    root = SharedRoot(args.shared_root)
    if not all_of(root):
        raise BadInput(f"There is no session in {root.sessions}: 'make verify' makes one.")
    deps.use("judge")  # only the head has them
    from verl_regress.session import recorded_points  # here, because numpy and scipy take half a second to load
    from verl_verdict.history import history, history_page

    points, left = recorded_points.collect(root)
    reports, ended = recorded_points.reports(root), recorded_points.ended(root)
    page = history_page.HistoryPage(history.groups_of(points), left, reports, ended)
    if not ended and not any(group.points for group in page.groups):
        for each in page.all_left:
            say.info(printable(f"left out: {each}"))
        raise BadInput(f"No session in {root.sessions} has a run that can be shown: run 'make verify' first.")
    path = _place(root)
    summary = [printable(line) for line in history_page.text(page)]
    print(say.shown("\n".join(summary)), flush=True)  # first: a full disk must not hide it
    write_atomically(path, history_page.html(page))
    print(say.shown(f"page        {path}"))
    return 0


def _place(root: SharedRoot) -> Path:
    """`verify/history.html`; if that is another user's, who alone can replace it, a page of this user's own."""
    path, uid = root.sessions / "history.html", os.geteuid()
    is_theirs = os.path.lexists(path) and path.lstat().st_uid != uid
    return path.with_name(f"history-{uid}.html") if is_theirs else path
