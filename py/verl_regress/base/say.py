"""Messages of a step to the user at the terminal, in the words and the look of scripts/lib/log.bash.

Everything goes to stderr: stdout stays for data.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verl_regress.base.errors import printable

_WORD_WIDTH = 8


@dataclass
class View:
    """How the user sees it: the width of the terminal (0: a log), how to show a path of the nodes, and the lines printed so far."""

    columns: int = 0
    shown: Callable[[str], str] = str
    lines: int = 0


view = View()


def configure(columns: int = 0, shared_root: str = "", shown_root: str = "") -> None:
    """Tell a command that runs on a node about the user's terminal.

    `columns` is the width of the terminal that stderr goes to, 0 for a log. Paths under `shared_root` are shown under
    `shown_root`, if that is given.
    """
    view.columns, view.shown = columns, str
    if shown_root and shown_root != shared_root:
        # Only whole paths: neither the value of a setting (name=/path) nor the end of a longer path.
        path = re.compile(rf"(?<![\w.:=/-]){re.escape(shared_root)}(?=/)")
        view.shown = lambda text: path.sub(lambda _match: shown_root, text)


def shown(path: object) -> str:
    """A path on the nodes, as the user's machine names it."""
    return view.shown(str(path))


def live_line(text: str) -> None:
    """Show what is going on until the next line; on a terminal only."""
    line = " " * _WORD_WIDTH + printable(shown(text))
    print(f"\x1b[K{line[: view.columns - 1]}", end="\r", file=sys.stderr, flush=True)


def clear() -> None:
    """Remove the live line."""
    if view.columns:
        print("\x1b[K", end="", file=sys.stderr, flush=True)


def _line(word: str, colour: str, text: str) -> None:
    column = word.ljust(_WORD_WIDTH)
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        column = f"\x1b[{colour}m{column}\x1b[0m"
    clear()
    view.lines += 1
    print(f"{column}{text}", file=sys.stderr, flush=True)


def _message(word: str, colour: str, text: str) -> None:
    plain = shown(text)
    _line(word, colour, printable(plain) if word in ("warning", "error") else plain)


quote = partial(_line, "", "0")  # a line of a log, unchanged
step = partial(_message, "==", "1")  # a part of the work begins
ok = partial(_message, "ok", "32")  # it was checked and is fine
skip = partial(_message, "skip", "36")  # there was nothing to do; ends with the reason, in brackets
changed = partial(_message, "changed", "33")  # we changed something
info = partial(_message, "", "0")  # a fact worth reading
warn = partial(_message, "warning", "35")  # what may be a surprise later; ends with what was done anyway
error = partial(_message, "error", "31")  # what went wrong, in one sentence with the cure
