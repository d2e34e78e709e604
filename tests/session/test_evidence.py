"""What verify takes as evidence depends on every byte of what it is of."""

import hashlib
import json
import os
import tracemalloc

import pytest
from shared_fixtures import write

from verl_regress.session import evidence
from verl_regress.store import hashes


def sha(content):
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.fixture
def tree(tmp_path):
    home = tmp_path / "home"
    write(home / "a.txt", "one")
    write(home / "sub" / "b.txt", "two")
    return home


@pytest.mark.parametrize(
    "change",
    [
        lambda home: write(home / "a.txt", "uno"),
        lambda home: write(home / "a.txt", ""),
        lambda home: (home / "a.txt").rename(home / "c.txt"),
        lambda home: (home / "sub" / "b.txt").rename(home / "b.txt"),
        lambda home: write(home / "new.txt", ""),
        lambda home: (home / "a.txt").unlink(),
    ],
)
def test_a_digest_is_of_every_path_and_every_byte(tree, change):
    before = evidence.digest(tree)
    assert evidence.digest(tree) == before
    change(tree)
    assert evidence.digest(tree) != before


def test_a_digest_is_of_what_is_in_a_file_and_not_of_its_time(tree):
    file = tree / "a.txt"
    os.utime(file, ns=(5, 5))
    before = evidence.digest(tree)
    os.utime(file, ns=(5, 6))
    assert evidence.digest(tree) == before
    write(file, "uno")
    os.utime(file, ns=(5, 5))
    assert evidence.digest(tree) != before


def read(job, *inputs, **more):
    """Record what a job read: key, path and fact of each."""
    known = hashes.Hashes(job.root)
    found = [
        {"key": key, "path": str(path), "fact": fact, "sha256": known.content_of(path), **more}
        for key, path, fact in inputs
    ]
    job.write_state("inputs", {"inputs": found})


def test_what_a_job_loaded_is_by_content(make_job):
    job = make_job()
    modules = {
        "verl": {"file": "/code/verl/__init__.py", "sha256": sha("a")},
        "verl.x": {"file": "/code/verl/x.py", "sha256": sha("b")},
        "other": {"file": "/elsewhere/other.py", "sha256": sha("c")},
        "builtin": {"file": None, "sha256": None},
    }
    write(job.reports / "identity-n-1.json", json.dumps({"modules": modules}))
    more = {"verl.y": {"file": "/code/y.py", "sha256": sha("d")}}
    write(job.reports / "identity-n-2.json", json.dumps({"modules": more}))
    write(job.reports / "identity-n-3.json", json.dumps({}))
    write(job.reports / "secrets-n-1.json", json.dumps({"modules": {"z": {"file": "/code/z.py", "sha256": sha("e")}}}))
    assert evidence.loaded(job, evidence.Path("/code")) == {
        "verl/__init__.py": sha("a")[:16], "verl/x.py": sha("b")[:16], "y.py": sha("d")[:16],
    }  # fmt: skip


def test_what_a_job_read_is_by_content(make_job, tmp_path, shared):
    job, reward = make_job(), write(shared.user_code / "reward.py", "def score(): return 1\n")
    hooks = tmp_path / "verl_regress" / "hooks"
    write(hooks / "a.py", "a = 1\n")
    write(hooks / "sub" / "b.py", "b = 1\n")
    environment = {"env_vars": {"PYTHONPATH": f"/code:{hooks}"}}
    write(job.config / "runtime_env.json", json.dumps(environment))
    assert set(evidence.artefact_hashes(job)) == {"hooks sha256"}  # its launcher came to nothing
    files = [write(shared.user_code / name, name) for name in ("train", "test")]
    given = [("r", reward, "reward_fn sha256"), *(("d", file, "data sha256") for file in files), ("c", files[0], None)]
    read(job, *given)
    first = evidence.artefact_hashes(job)
    assert set(first) == {"hooks sha256", "reward_fn sha256", "data sha256"}
    assert first["data sha256"] == sha(json.dumps(sorted([sha("train"), sha("test")])))[:12]
    assert first["hooks sha256"] == sha(f"a.py {sha('a = 1' + chr(10))}\nsub/b.py {sha('b = 1' + chr(10))}\n")[:12]
    read(job, *reversed(given))
    assert evidence.artefact_hashes(job) == first  # which keys name them, and in which order, may depend on the release
    files[1].write_text("other")
    read(job, *given)
    assert [name for name, fact in evidence.artefact_hashes(job).items() if fact != first[name]] == ["data sha256"]
    write(hooks / "a.py", "a = 2\n")
    files[1].unlink()
    read(job, *given)  # not all is known
    second = evidence.artefact_hashes(job)
    assert set(second) == {"hooks sha256", "reward_fn sha256"}
    assert second["hooks sha256"] != first["hooks sha256"]


def test_what_verify_hashes_is_never_in_memory_whole(shared):
    """A model of 48 MiB, and a job with as large a file, are hashed in pieces; their hashes are those of the whole."""
    content = bytes(48 << 20)
    model, job = shared.models / "big", shared.jobs / "job"
    for directory, name in ((model, "model.safetensors"), (job, "actor.pt")):
        directory.mkdir()
        (directory / name).write_bytes(content)
    sha256 = hashlib.sha256(content)
    del content
    tracemalloc.start()
    try:
        content = hashes.Hashes(shared).content_of(model)
        found = evidence.digest(job)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert content == hashlib.sha256(b"model.safetensors\0" + sha256.digest()).hexdigest()
    assert found == hashlib.sha256(b"actor.pt\0" + sha256.digest()).hexdigest()
