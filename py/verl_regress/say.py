"""What a step says to the person at the terminal, in the words and the look of scripts/lib/log.bash.

Everything goes to stderr: stdout stays for data.
"""

from __future__ import annotations

import os
import sys

from verl_regress.errors import printable

_WORD_WIDTH = 8


def ok(text: str) -> None:
    """Say that we looked at `text` and it is as it should be."""
    _line("ok", "32", text)


def skip(text: str) -> None:
    """Say that there was nothing to do; `text` ends in the reason, in brackets."""
    _line("skip", "36", text)


def changed(text: str) -> None:
    """Say what was changed."""
    _line("changed", "33", text)


def info(text: str) -> None:
    """Say a fact worth reading."""
    _line("", "0", text)


def error(text: str) -> None:
    """Say what went wrong, in one sentence with the cure."""
    _line("error", "31", printable(text))


def _line(word: str, colour: str, text: str) -> None:
    column = word.ljust(_WORD_WIDTH)
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        column = f"\x1b[{colour}m{column}\x1b[0m"
    print(f"{column}{text}", file=sys.stderr, flush=True)
