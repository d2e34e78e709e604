"""The hash of a checkpoint's weights: equal for equal tensors, whatever the pickle beside them says."""

import zipfile

import pytest

from verl_regress.jobs import checkpoints

RANKS = ("model_world_size_2_rank_0", "model_world_size_2_rank_1")


def save(directory, tensors=(b"weights", b"more"), pickle=b"one", ranks=RANKS, part="actor"):
    (directory / part).mkdir(parents=True, exist_ok=True)
    for name in ranks:
        with zipfile.ZipFile(directory / part / f"{name}.pt", "w") as archive:
            archive.writestr(f"{name}/data.pkl", pickle)
            for number, tensor in enumerate(tensors):
                archive.writestr(f"{name}/data/{number}", tensor)
            archive.writestr(f"{name}/.data/serialization_id", pickle)
    return checkpoints.weights_hash(directory)


def test_equal_tensors_have_one_hash_whatever_is_pickled_beside_them(tmp_path):
    assert save(tmp_path / "a") == save(tmp_path / "b", pickle=b"two")


@pytest.mark.parametrize(
    "other",
    [
        {"tensors": (b"weighty", b"more")},
        {"tensors": (b"more", b"weights")},
        {"tensors": (b"weights",)},
        {"ranks": RANKS[:1]},
        {"part": "critic"},
    ],
)
def test_other_tensors_have_another_hash(tmp_path, other):
    assert save(tmp_path / "a") != save(tmp_path / "b", **other)


def test_without_weights_that_can_be_read_there_is_none(tmp_path):
    assert checkpoints.weights_hash(tmp_path) is None
    assert save(tmp_path / "empty", tensors=()) is None
    (tmp_path / "broken" / "actor").mkdir(parents=True)
    (tmp_path / "broken" / "actor" / f"{RANKS[0]}.pt").write_bytes(b"half a zip")
    assert checkpoints.weights_hash(tmp_path / "broken") is None
