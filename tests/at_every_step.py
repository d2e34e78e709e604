"""Runs something in a process of its own, and does something else right before its Nth change of a file."""

import os
import signal
import sys

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink")


def is_change(event, args):
    """Does this event of Python's audit hooks change the file system?"""
    return event in _CHANGES and (event != "open" or bool((args[2] or 0) & WRITING))


def changes_below(place):
    """Only what is changed below this directory."""
    return lambda event, args: is_change(event, args) and str(args[0]).startswith(str(place))


def kill():
    """What `interrupted` can do: the process ends as with `kill -9`."""
    signal.raise_signal(signal.SIGKILL)  # to this process, whatever a test has put in the place of os.getpid


def interrupted(act, number, *, by, is_step=is_change):
    """Call `act` in a child, and `by` there right before step `number`; returns the child's exit status, and whether it got that far.

    The status is what `act` returned (None: 0), minus the signal that ended it, or 99 if it raised something.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            sys.addaudithook(_Hook(number, by, is_step, write))
            status = act() or 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        got_there = said.read() != b""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), got_there


class _Hook:
    def __init__(self, number, by, is_step, pipe):
        self.left, self.by, self.is_step, self.pipe = number, by, is_step, pipe

    def __call__(self, event, args):
        if self.left < 0 or not self.is_step(event, args):
            return
        self.left -= 1
        if self.left < 0:
            os.write(self.pipe, b"x")
            self.by()
