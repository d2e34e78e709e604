"""Files that are written atomically, with and without space on the disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from verl_regress.base import files
from verl_regress.base.errors import Unreadable
from verl_regress.base.files import write_atomically
from verl_regress.base.layout import JobDir


@pytest.fixture
def job(tmp_path):
    (tmp_path / "state").mkdir()
    return JobDir(tmp_path)


@pytest.fixture
def full_disk(monkeypatch):
    """New files get no bytes; existing ones can be read, and written in place."""

    def open_(path, mode, **options):
        if mode == "rb":
            return open(path, mode, **options)  # noqa: PTH123
        Path(path).touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(files, "open", open_, raising=False)


def test_a_state_with_reserved_space_is_written_on_a_full_disk(job, full_disk):
    files.reserve(job.state / "ended")
    reason = "it is so: " + "ü" * 1000
    job.write_state("ended", {"exit_code": 1, "reason": reason})
    assert [path.name for path in job.state.iterdir()] == ["ended"]
    assert {"exit_code": 1, "reason": reason}.items() <= job.read_state("ended").items()


def test_a_state_without_reserved_space_leaves_nothing_behind(job, full_disk):
    with pytest.raises(OSError, match="No space left on device"):
        job.write_state("ended", {"exit_code": 1})
    assert list(job.state.iterdir()) == []


def test_unused_reserved_space_is_freed(job):
    files.reserve(job.state / "ended")
    job.write_state("ended", {"exit_code": 0})
    assert [path.name for path in job.state.iterdir()] == ["ended"]
    assert json.loads((job.state / "ended").read_text())["exit_code"] == 0


def test_a_pipe_in_the_place_of_a_state_is_a_damaged_file(job):
    """Before: a pipe that a colleague made stopped 'make jobs' of all, which waited for its writer."""
    os.mkfifo(job.state / "ended")
    with pytest.raises(Unreadable, match="it is cut off, or no JSON object"):
        job.read_state("ended")
    with pytest.raises(OSError, match="not seekable"):
        files.end_of(job.state / "ended", 10)


def test_a_failed_write_leaves_the_old_file(tmp_path, full_disk):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(tmp_path / "file", "new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]
