"""What jobs read, by content: every byte counts, and a large file is read once."""

import os

import pytest
from shared_fixtures import write

from verl_regress.store import hashes
from verl_regress.store.hashes import Hashes


@pytest.fixture
def reads(monkeypatch):
    """The files whose content was read; three bytes are a large file."""
    real, found = hashes.sha256_of, []
    monkeypatch.setattr(hashes, "_WHOLE", 3)
    monkeypatch.setattr(hashes, "sha256_of", lambda path: found.append(path) or real(path))
    return found


def test_a_large_file_is_read_once_until_its_inode_size_or_time_changes(shared, reads):
    weights = write(shared.models / "own" / "weights", "12345")
    first = Hashes(shared).content_of(weights)
    assert Hashes(shared).content_of(weights) == first
    assert reads == [weights]
    assert Hashes(shared).content_of(weights.parent) == Hashes(shared).content_of(weights.parent)
    assert reads == [weights]
    time = weights.stat().st_mtime_ns
    os.utime(write(weights, "54321"), ns=(time, time + 1))
    assert Hashes(shared).content_of(weights) != first
    other = write(weights.with_name("other"), "98765")
    os.utime(other, ns=(time, time + 1))
    other.replace(weights)
    second = Hashes(shared).content_of(weights)
    assert reads == [weights] * 3
    assert second == hashes.of_file(weights, hashes.sha256_of)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_record_of_large_files_counts_for_nothing(shared, reads):
    weights = write(shared.models / "own" / "weights", "12345")
    first = Hashes(shared).content_of(weights)
    record = shared.jobs / f".hashes-{os.geteuid()}.json"
    record.write_text(record.read_text().replace(first, "0" * 64))
    assert Hashes(shared).content_of(weights) == "0" * 64
    os.chown(record, 4242, 4242)
    assert Hashes(shared).content_of(weights) == first


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_record_of_large_files_is_written_again(shared, reads, text):
    weights = write(shared.models / "own" / "weights", "12345")
    first = Hashes(shared).content_of(weights)
    (shared.jobs / f".hashes-{os.geteuid()}.json").write_text(text)
    assert [Hashes(shared).content_of(weights) for _ in range(2)] == [first] * 2
    assert reads == [weights] * 2


def test_a_checkpoint_counts_by_size_and_time(shared, reads):
    weights = write(shared.jobs / "job" / "weights", "12345")
    first = Hashes(shared).content_of(weights.parent, is_read=False)
    assert reads == []
    os.utime(weights, ns=(5, 5))
    assert Hashes(shared).content_of(weights.parent, is_read=False) != first


def test_of_the_hubs_cache_the_main_revision_counts(shared):
    model = shared.hf / "hub" / "models--org--name"
    blob = write(model / "blobs" / "1", "weights")
    for revision in ("abc", "def"):
        (model / "snapshots" / revision).mkdir(parents=True)
    write(model / "refs" / "main", "abc\n")
    (model / "snapshots" / "abc" / "model.bin").symlink_to(blob)
    first = Hashes(shared).content_of(model)
    write(model / "snapshots" / "def" / "config.json", "{}")
    assert Hashes(shared).content_of(model) == first
    blob.write_text("other")
    assert Hashes(shared).content_of(model) != first


def test_what_is_no_file_has_no_hash_and_is_not_read(shared):
    os.mkfifo(shared.user_code / "pipe")
    assert Hashes(shared).content_of(shared.user_code / "pipe") is None
    assert Hashes(shared).content_of(shared.user_code / "nothing") is None
    first = Hashes(shared).content_of(shared.user_code)
    write(shared.user_code / "file", "")
    assert Hashes(shared).content_of(shared.user_code) != first


def test_a_file_that_is_removed_while_its_folder_is_hashed_is_an_error(shared, monkeypatch):
    files = [write(shared.user_code / "data" / name, name) for name in "ab"]
    real = hashes.sha256_of
    monkeypatch.setattr(hashes, "sha256_of", lambda path: files[1].unlink() or real(path))
    with pytest.raises(FileNotFoundError):
        Hashes(shared).content_of(files[0].parent)


def test_what_links_in_a_folder_lead_to_counts_once(shared, tmp_path):
    """Before: the content of a linked folder changed, and no hash did."""
    images, own = shared.user_code / "images", tmp_path / "own"
    write(own / "1.png", "one")
    write(images / "0.png", "zero")
    (images / "own").symlink_to(own)
    (own / "back").symlink_to(images)
    first = Hashes(shared).content_of(images)
    write(own / "1.png", "other")
    assert Hashes(shared).content_of(images) != first
