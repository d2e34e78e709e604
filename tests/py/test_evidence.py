"""What verify takes as evidence depends on every byte of what it is of."""

import hashlib
import io
import json
import os
import sys
import tracemalloc

import pytest
from conftest import write

from verl_regress.base import owner
from verl_regress.jobs import liveness
from verl_regress.session import evidence
from verl_regress.store.sessions import Session


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


def test_a_digest_takes_a_large_file_by_size_and_time(tree, monkeypatch):
    monkeypatch.setattr(evidence, "_WHOLE", 3)
    large = tree / "large"

    def digest_with(text, time):
        os.utime(write(large, text), ns=(5, time))
        return evidence.digest(tree)

    before = digest_with("1234", 5)
    assert digest_with("4321", 5) == before
    assert digest_with("4321", 6) != before
    assert digest_with("43210", 5) != before
    assert digest_with("123", 5) != digest_with("321", 5)  # a file of three bytes is read


def test_prepared_artefacts_are_listed_with_time_and_content(shared):
    directory = shared.datasets / "sums"
    write(directory / "manifest.json", "{}")
    write(shared.path / "elsewhere" / "manifest.json", "{}")
    found = evidence.artefacts(shared, [directory, shared.models / "tiny", shared.path / "elsewhere"])
    assert set(found) == {str(directory)}  # the model has no manifest
    assert set(found[str(directory)]) == {"manifest.json", "train.parquet", "test.parquet"}
    path = directory / "train.parquet"
    assert found[str(directory)]["train.parquet"] == [path.stat().st_mtime_ns, sha("rows")]


NAMES = ["--model=tiny", "--model-source=tiny", "--dataset=", "--dataset-source=synthetic"]  # without a name: sums


@pytest.fixture
def begun(run, shared, ray, monkeypatch):
    """Begins a session on a shared root with what it uses and what others prepared; returns it and the list of what is hashed."""
    for home, names in ((shared.datasets, ("sums", "sums_sft", "theirs")), (shared.models, ("tiny", "mine", "theirs"))):
        for name in names:
            write(home / name / "manifest.json", "{}")
    hashed, real = [], evidence.sha256_of

    def hashing(path):
        if path.is_relative_to(shared.datasets) or path.is_relative_to(shared.models):
            hashed.append(path.parent.name)
        return real(path)

    monkeypatch.setattr(evidence, "sha256_of", hashing)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"cases: {ppo: {workload: ppo}}")))
    where = ["--head-identity=id1", "--head-address=10.0.0.1"]
    codes = ["--code-a=codeA", "--code-b=codeB"]
    begun = run("verify", "begin", "--name=my.yaml", "--profile=cpu", "--cluster=c", *codes, *where, *NAMES)
    assert (begun.status, begun.err) == (0, "")
    return Session(evidence.Path(begun.out.strip())), hashed


def is_prepared_again(run, session, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("skip    all\n"))
    assert run("verify", "prepared", "--session", session.path, *NAMES).status == 0
    return session.read("prepare")


def test_a_session_hashes_what_it_uses_and_not_what_other_users_prepared(begun, run, shared, monkeypatch):
    """Before: every prepared model and data set of the shared root, twice."""
    session, hashed = begun
    assert set(hashed) == {"sums", "sums_sft", "tiny"}
    write(shared.models / "new" / "manifest.json", "{}")  # by another user, meanwhile
    again = is_prepared_again(run, session, monkeypatch)
    assert set(hashed) == {"sums", "sums_sft", "tiny"}
    assert (again["log"], again["artefacts"]) == ("skip    all\n", session.read("begin")["artefacts"])
    write(shared.models / "tiny-critic" / "manifest.json", "{}")
    again = is_prepared_again(run, session, monkeypatch)
    assert again["artefacts"].keys() - session.read("begin")["artefacts"].keys() == {f"{shared.models}/tiny-critic"}


def record(run, session, make_job, shared, ray, name, **plan):
    """The evidence of a job of that plan, which has ended."""
    job = make_job(name, ended={"exit_code": 0, "reason": "the trainer ended"})
    given = {**json.loads((job.config / "resolved.json").read_text()), "overrides": [], **plan}
    write(job.config / "resolved.json", json.dumps({**given, "code_path": f"{shared.snapshots}/codeA"}))
    ray.knows({"submission_id": name, "status": "SUCCEEDED"})
    recorded = run("verify", "record", "--session", session.path, f"--name={name}", f"--job={name}")
    assert (recorded.status, recorded.err) == (0, "")
    return session.read(f"job-{name}")["artefacts"]


def test_what_a_jobspec_names_itself_is_hashed_with_the_first_job_that_uses_it(begun, run, make_job, shared, ray):
    session, hashed = begun
    hashed.clear()
    usual = {"model": f"{shared.models}/tiny", "dataset": f"{shared.datasets}/sums"}
    names = {"hooks sha256", "model sha256", "data sha256"}
    assert set(record(run, session, make_job, shared, ray, "a", **usual)) == names
    assert (hashed, session.read("used")) == ([], None)
    own = {"model": f"{shared.models}/mine", "dataset": f"{shared.datasets}/theirs"}
    first = record(run, session, make_job, shared, ray, "b", **own)
    assert set(hashed) == {"mine", "theirs"}
    hashed.clear()
    assert record(run, session, make_job, shared, ray, "c", **own) == first
    assert hashed == []
    text = json.dumps([["manifest.json", sha("{}")]])
    assert (first["model sha256"], first["data sha256"]) == (sha(text)[:12], sha(text)[:12])
    # one more keeps those before it
    record(run, session, make_job, shared, ray, "d", model=f"{shared.models}/theirs", dataset=usual["dataset"])
    assert {path.rpartition("/")[2] for path in session.read("used")["artefacts"]} == {"mine", "theirs"}
    assert len(session.read("used")["artefacts"]) == 3


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


def test_the_weights_that_each_rank_saved_and_loaded_are_in_one_table(make_job, tmp_path):
    job, layer = make_job(), tmp_path / "verl_regress" / "rehearsal"
    environment = {"env_vars": {"PYTHONPATH": f"/code:{layer}"}}
    write(job.config / "runtime_env.json", json.dumps(environment))
    first = {"saved": {"/c/global_step_2 rank 0": "a"}, "loaded": {"/c/global_step_1 rank 0": "b"}}
    for name, content in (("n", first), ("m", {"saved": {"/c/global_step_2 rank 1": "c"}})):
        write(job.reports / f"checkpoint_weights-{name}-1.json", json.dumps(content))
    assert evidence.checkpoint_weights(job) is None  # whatever is there, no hook of the job's wrote it
    write(layer / "verl_rehearsal" / "checkpoint_weights.py", "")
    assert evidence.checkpoint_weights(job) == {
        "saved": {"/c/global_step_2 rank 0": "a", "/c/global_step_2 rank 1": "c"},
        "loaded": {"/c/global_step_1 rank 0": "b"},
    }
    for report in job.reports.glob("checkpoint_weights-*"):
        report.unlink()
    assert evidence.checkpoint_weights(job) == {"saved": {}, "loaded": {}}  # the hook was there, and nothing came to it


def test_what_a_job_read_is_by_content(make_job, tmp_path):
    job, reward = make_job(), write(tmp_path / "reward.py", "def score(): return 1\n")
    hooks = tmp_path / "verl_regress" / "hooks"
    write(hooks / "a.py", "a = 1\n")
    write(hooks / "sub" / "b.py", "b = 1\n")
    environment = {"env_vars": {"PYTHONPATH": f"/code:{hooks}"}}
    write(job.config / "runtime_env.json", json.dumps(environment))
    plan = {"model": "/m", "dataset": "/d", "reward_fn": str(reward)}
    write(job.config / "resolved.json", json.dumps(plan))
    seen = {"/m": {"config.json": [1, sha("m")], "weights": [1, sha("w")]}, "/d": {"train": [1, sha("d")]}}
    first = evidence.artefact_hashes(job, seen)
    assert set(first) == {"hooks sha256", "reward_fn sha256", "model sha256", "data sha256"}
    assert first["reward_fn sha256"] == sha("def score(): return 1\n")[:12]
    assert first["data sha256"] == sha(json.dumps([["train", sha("d")]]))[:12]
    assert first["model sha256"] == sha(json.dumps([["config.json", sha("m")], ["weights", sha("w")]]))[:12]
    assert first["hooks sha256"] == sha(f"a.py {sha('a = 1' + chr(10))}\nsub/b.py {sha('b = 1' + chr(10))}\n")[:12]
    # the time does not count, each byte does
    seen["/d"]["train"] = [2, sha("d")]
    assert evidence.artefact_hashes(job, seen) == first
    seen["/d"]["train"] = [2, sha("e")]
    assert evidence.artefact_hashes(job, seen) != first
    write(hooks / "a.py", "a = 2\n")
    assert evidence.artefact_hashes(job, {})["hooks sha256"] != first["hooks sha256"]
    assert set(evidence.artefact_hashes(job, {})) == {"hooks sha256", "reward_fn sha256"}
    reward.unlink()
    assert set(evidence.artefact_hashes(job, {})) == {"hooks sha256"}


@pytest.mark.parametrize(
    ("state", "is_over"),
    [
        ({"submitted": {"accepted": False}}, True),
        ({"submitted": {"accepted": True}}, False),
        ({"ended": {"exit_code": 0, "reason": "the trainer ended"}, "observed": {"status": "SUCCEEDED"}}, True),
        ({"ended": {"exit_code": 0, "reason": "the trainer ended"}, "observed": {"status": "RUNNING"}}, False),
        ({"ended": {"exit_code": 0, "reason": "the trainer ended"}}, False),
        ({"observed": {"status": "STOPPED"}}, False),
        ({"submitted": None}, False),
    ],
)
def test_only_jobs_that_nobody_writes_to_are_hashed_before_a_session(shared, make_job, state, is_over):
    job = make_job("one", **state)
    assert evidence.job_digests(shared) == ({"one": evidence.digest(job.path)} if is_over else {})
    assert evidence.job_digests(shared, ["one", "none"]) == {"one": evidence.digest(job.path)}


def test_a_job_whose_launcher_lives_is_not_hashed_before_a_session_although_its_end_is_recorded(shared, make_job):
    job = make_job("one", ended={"exit_code": 0, "reason": "the trainer ended"}, observed={"status": "SUCCEEDED"})
    lives = liveness.hold(job)
    assert evidence.job_digests(shared) == {}
    os.close(lives)
    assert set(evidence.job_digests(shared)) == {"one"}


def test_a_job_that_was_damaged_before_a_session_is_not_hashed(shared, make_job):
    write(make_job("one").state / "submitted", "{")
    assert evidence.job_digests(shared) == {}


@pytest.mark.parametrize(("among", "most", "hashed"), [(9, 2, "64"), (5, 9, "642")])
def test_before_a_session_a_few_of_this_users_newest_jobs_are_hashed(
    shared, make_job, monkeypatch, among, most, hashed
):
    """Those of other users count among the newest: to find older ones of this user could take long."""
    for number in range(7):
        os.utime(make_job(str(number), submitted={"accepted": False}).config, (number, number))
    monkeypatch.setattr(owner, "is_mine", lambda path: path.name in "0246")
    monkeypatch.setattr(evidence, "_AMONG", among)
    monkeypatch.setattr(evidence, "_EARLIER", most)
    assert list(evidence.job_digests(shared)) == list(hashed)


def test_a_search_finds_any_form_anywhere_in_a_file_and_names_it(tmp_path):
    canary = 'c/anary"1'
    there = write(tmp_path / "sub" / "there", f"x{canary}")
    write(tmp_path / "empty", "")
    write(tmp_path / "clean", canary[:-1])
    in_json = write(tmp_path / "json", json.dumps([canary]))
    written = evidence.forms(canary)
    assert sorted(evidence._found_in(evidence._files(tmp_path), written)) == sorted([str(there), str(in_json)])
    assert evidence._found_in([tmp_path / "gone"], written) == []


def test_a_search_reads_the_files_that_this_user_can_read_and_nothing_else(tmp_path, monkeypatch):
    """A named pipe would keep it waiting."""
    file, closed = write(tmp_path / "sub" / "file", ""), write(tmp_path / "closed", "")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (closed, os.R_OK))  # root can read all
    assert evidence._files(tmp_path) == [file]


def test_what_verify_hashes_is_never_in_memory_whole(shared):
    """A model of 48 MiB, and a job with as large a file, are hashed in pieces; their hashes are those of the whole."""
    content = bytes(48 << 20)
    model, job = shared.models / "big", shared.jobs / "job"
    for directory, name in ((model, "model.safetensors"), (job, "actor.pt")):
        directory.mkdir()
        (directory / name).write_bytes(content)
    (model / "manifest.json").write_text("{}")
    sha256 = hashlib.sha256(content)
    del content
    tracemalloc.start()
    try:
        [files] = evidence.artefacts(shared, [model]).values()
        found = evidence.digest(job)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert files["model.safetensors"][1] == sha256.hexdigest()
    assert found == hashlib.sha256(b"actor.pt\0" + sha256.digest()).hexdigest()
