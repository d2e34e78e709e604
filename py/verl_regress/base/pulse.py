"""Progress messages while something takes its time: a live line on a terminal, a line now and then in a log."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verl_regress.base import say

# In a log: (until this many seconds have passed, seconds between lines). scripts/lib/log.bash has the first two.
_INTERVALS = ((300.0, 9.0), (3600.0, 60.0), (float("inf"), 600.0))


class Pulse:
    """One activity after another; call `beat` as often as you like, it decides what is printed.

    A change in the brackets after an activity, such as a count, does not make it a new activity.
    """

    def __init__(self, now: float) -> None:
        self._words = ""
        self._since = self._news = self._said = now
        self._lines = say.view.lines

    def beat(self, words: str, now: float, *, is_news: bool = False) -> None:
        """`words` is what is going on at `now` (seconds). With `is_news` a change is printed at once."""
        if say.view.lines != self._lines:  # something else was printed
            self._lines, self._said = say.view.lines, now
        has_changed = _activity(words) != _activity(self._words)
        if has_changed:
            self._since = now
        self._words = words
        if say.view.columns:
            say.live_line(self._line(now))
            return
        if has_changed and is_news:
            self._news = now
            self._say(f"… {words}", now)
        elif now - self._said >= next(gap for age, gap in _INTERVALS if now - self._news <= age):
            self._say(self._line(now), now)

    def _line(self, now: float) -> str:
        return f"… {self._words}, {now - self._since:.0f} s"

    def _say(self, text: str, now: float) -> None:
        say.info(text)
        self._lines, self._said = say.view.lines, now


def _activity(words: str) -> str:
    return words.partition(" (")[0]


@contextmanager
def during(what: str, detail: Callable[[], str] = str) -> Iterator[None]:
    """Show progress messages while the block runs, which does not watch the clock itself. `detail` returns what to add, or ''."""
    is_over = threading.Event()
    began = time.monotonic()
    pulse = Pulse(began)

    def run() -> None:
        while not is_over.wait(1.0):
            now = time.monotonic()
            if now - began >= 2:
                pulse.beat(", ".join(filter(None, (what, detail()))), now)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def size_of(directory: Path) -> str:
    """`12 MB so far`: the size of a directory that is being filled; a `detail` of `during`."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # it was renamed in the meantime
            total += path.lstat().st_size
    return f"{total // 10**6} MB so far"
