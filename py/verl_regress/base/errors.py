"""Exit statuses, and the one kind of error that is meant for users."""

import enum
import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Exit(enum.IntEnum):
    """Exit statuses of every command; scripts/lib/cli.bash says in words what each means (a test compares them)."""

    SUCCEEDED = 0
    OWN_ERROR = 1
    BAD_INPUT = 2
    JOB_FAILED = 3
    STOPPED = 4
    NOT_SCHEDULABLE = 5
    STALLED = 6
    LOST = 7
    UNREACHABLE = 8
    CHECK_FAILED = 9
    CHANGED = 10
    INCONCLUSIVE = 11
    INCOMPARABLE = 12


def shown(text: str, most: int = 200) -> str:
    """A user's `text` as messages show it: one line of at most `most` characters, with nothing that a terminal acts on."""
    plain = printable(text)
    return plain if len(plain) <= most else f"{plain[:most]}… ({len(text)} characters)"


def first(names: Sequence[str]) -> str:
    """The first three of `names`, separated by commas, with an ellipsis where there are more."""
    few = names[:3]
    return ", ".join(few) + (", …" if len(names) > len(few) else "")


def last_line(text: str, otherwise: str = "nothing on stderr") -> str:
    """The last line of what a program wrote, which usually says why it failed; `otherwise` if it wrote nothing."""
    return (text.strip().splitlines() or [otherwise])[-1]


def printable(text: str) -> str:
    """`text` with Python's escapes for what is not printable: newlines, control characters, halves of surrogate pairs."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_NO_SPACE = "free some space and some inodes there ('make gc' removes old checkpoints)"
_CURES = {errno.EROFS: "mount it read-write", errno.ENOSPC: _NO_SPACE, errno.EDQUOT: _NO_SPACE}


def cure_of(error: OSError, otherwise: str = "fix that") -> str:
    """What to do about a file system that takes no change; `otherwise` for any other error."""
    return _CURES.get(error.errno or 0, otherwise)


class RegressError(Exception):
    """One sentence for the user (the value, where it came from, the cure) and the exit status."""

    def __init__(self, message: str, status: Exit = Exit.OWN_ERROR) -> None:
        super().__init__(message)
        self.status = status
        self.sentences: tuple[str, ...] = (message,)


class BadInput(RegressError):
    """The input cannot be used; nothing was created. It may have several faults, each with a sentence of its own."""

    def __init__(self, *sentences: str) -> None:
        super().__init__(" ".join(sentences), Exit.BAD_INPUT)
        self.sentences = sentences


class Refusals:
    """Collects the faults of one request, so that the user sees all of them at once: at the end of its `with` one BadInput has them all.

    A BadInput that nobody notes ends the work, as ever; those noted before come first.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a BadInput that is raised inside, and go on after it."""
        try:
            yield
        except BadInput as error:
            self.found += error.sentences

    def __enter__(self) -> "Refusals":
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if error is None or isinstance(error, BadInput):
            self.found += error.sentences if error else ()
            if self.found:
                raise BadInput(*dict.fromkeys(self.found)) from None


class Unreadable(RegressError):
    """A file or directory of the shared root that this user cannot read, or that does not hold what it should.

    `why` is the same in a few words, for a line of a list.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why
