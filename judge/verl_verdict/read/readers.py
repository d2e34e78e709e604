"""How a run is read: verl's metrics.jsonl by the judge itself, anything else by a reader that the caller brings."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from verl_verdict.read import records
from verl_verdict.read.records import Run


class Reader(Protocol):
    """Reads what a tool that runs verl keeps of a run. It may know more than a record: seeds, how the run ended, what must be equal."""

    def can_read(self, path: Path) -> bool:
        """Is what is at `path` of its kind? Raises nothing but OSError."""

    def read(self, path: Path) -> Run:
        """The run at `path`. Raises CannotJudge."""


def read(path: Path, readers: Iterable[Reader] = ()) -> Run:
    """The run at `path`, by the first reader that can read it; else from its metrics.jsonl. Raises CannotJudge."""
    for reader in readers:
        try:
            is_its_kind = reader.can_read(path)
        except OSError:  # a closed folder, a name that is too long: records.read reports it
            is_its_kind = False
        if is_its_kind:
            return reader.read(path)
    return records.read(path)
