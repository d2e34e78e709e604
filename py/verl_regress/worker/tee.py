"""The launcher's two logs: Ray's, which is lost with the driver's node, and the driver's log on the shared storage."""

import contextlib
import os
from collections.abc import Mapping

from redaction import Redactor


class Tee:
    """Writes bytes as they come to our stdout (Ray's log) and to the driver's log on the shared storage.

    The job's secrets are replaced by their names. If one log cannot be written, the other still is.
    """

    def __init__(self, log: int) -> None:
        self._log = log
        self._redactor = Redactor({})

    def hide(self, secrets: Mapping[str, str]) -> None:
        """Replace these values by their names from now on; a complete line is never held back for that."""
        self._redactor = Redactor(secrets)

    def write(self, chunk: bytes) -> None:
        """Write the bytes, except for an end that may be the start of a secret."""
        self._put(self._redactor.feed(chunk))

    def end(self) -> None:
        """Write what was held back because it might have been the start of a secret."""
        self._put(self._redactor.end())

    def _put(self, chunk: bytes) -> None:
        for log in (1, self._log):
            with contextlib.suppress(OSError):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(log, view) :]

    def move(self, pipe: int) -> bool:
        """Write what is in the pipe; False if every process that could write to it has closed it."""
        chunk = os.read(pipe, 65536)
        self.write(chunk)
        return chunk != b""

    def line(self, text: str) -> None:
        """Write one line of our own."""
        self.write(text.encode("utf-8", "replace") + b"\n")
