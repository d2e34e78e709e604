"""Counts what the file system is asked for: on a slow NFS each of these costs some milliseconds, so tests count and do not time."""

import io
import os
from collections import Counter
from contextlib import contextmanager

_CALLS = ("scandir", "listdir", "stat", "lstat", "open", "readlink", "mkdir", "rename", "unlink")


@contextmanager
def counted(monkeypatch):
    """Yields a Counter of the calls, by name; a file that is opened by any way counts as `open`."""
    calls = Counter()

    def counting(name, call):
        def counted_call(*args, **kwargs):
            calls[name] += 1
            return call(*args, **kwargs)

        return counted_call

    with monkeypatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, counting(name, getattr(os, name)))
        patch.setattr(io, "open", counting("open", io.open))
        yield calls
