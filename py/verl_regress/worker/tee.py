"""The launcher's two logs: Ray's, which goes with the driver's node, and the driver's log on the shared storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from verl_regress.secrets.redaction import Redactor


class Tee:
    """Writes bytes as they come to our stdout (Ray's log) and to the driver's log on the shared storage.

    The job's secrets are written by their names. What one of the two logs cannot take the other still gets; where the shared
    storage has room again, its log says what is missing.
    """

    def __init__(self, log: int) -> None:
        self._log = log
        self._missing = 0
        self._problem = ""
        self._redactor = Redactor({})

    def hide(self, secrets: Mapping[str, str]) -> None:
        """From now on these values are written by their names; a whole line is never held back for it."""
        self._redactor = Redactor(secrets)

    def write(self, chunk: bytes) -> None:
        """Write what came, but for the beginning of what may be a secret."""
        self._put(self._redactor.feed(chunk))

    def end(self) -> None:
        """Write what was held back because it might have been the beginning of a secret."""
        self._put(self._redactor.end())

    def _put(self, chunk: bytes) -> None:
        with contextlib.suppress(OSError):
            _write_whole(1, chunk)
        try:
            if self._missing:
                _write_whole(
                    self._log, f"\nverl-regress: {self._missing} bytes are missing here ({self._problem})\n".encode()
                )
                self._missing = 0
            _write_whole(self._log, chunk)
        except OSError as error:
            self._missing += len(chunk)
            self._problem = error.strerror or str(error)

    def move(self, pipe: int) -> bool:
        """Write what is in the pipe; False where all that could write to it have closed it."""
        chunk = os.read(pipe, 65536)
        self.write(chunk)
        return chunk != b""

    def line(self, text: str) -> None:
        """Write one line of our own."""
        self.write(text.encode("utf-8", "replace") + b"\n")


def _write_whole(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
