"""Every process's report against the snapshot, and the processes against Ray's list."""

import hashlib
import json
import os
import socket
import types

import pytest
from shared_fixtures import record, write

from verl_regress.base import trust
from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir
from verl_regress.cluster import ray_internals
from verl_regress.worker import loaded_code

DRIVER = 41
JOB_ID = "02000000"


def actor(actor_id, name="WorkerDict", pid=50):
    return {"ActorClassName": name, "ActorID": actor_id, "Pid": pid, "State": "DEAD"}


class Trained:
    """A job that has just finished: its snapshot, its reports, and the actors that Ray lists."""

    def __init__(self, shared):
        self.actors, self.code_path = [], shared.snapshots / "codeA"
        self.gcs, self.now, self.outage = "10.0.0.2:6379", 0.0, 0.0
        self.init = write(self.code_path / "verl" / "__init__.py", "here\n")
        self.job = JobDir(shared.jobs / "job")
        write(self.job.config / "code.json", record(self.code_path))
        self.plan = {"code_id": "codeA", "code_path": str(self.code_path)}

    def reports(self, pid=DRIVER, actor_id=None, hostname=None, more=None, **modules):
        hostname = hostname or socket.gethostname()
        loaded = {"verl": (self.init, self.init.read_bytes()), **modules}
        content = {
            "node": hostname, "pid": pid, "job_id": JOB_ID, "actor_id": actor_id, "command": "python3 -m it",
            "modules": {
                name: {"file": file and str(file), "sha256": hashlib.sha256(text).hexdigest()}
                for name, (file, text) in loaded.items()
            },
            **(more or {}),
        }  # fmt: skip
        write(self.job.reports / f"identity-{hostname}-{pid}.json", json.dumps(content))
        return f"process {pid} on {hostname} (python3 -m it)"

    def sleep(self, seconds):
        self.now += seconds

    def check(self):
        """The sentence with which the job fails, without the common part; None if it does not fail."""
        try:
            loaded_code.check(self.job, self.plan, DRIVER)
        except RegressError as error:
            sentence = str(error)
        else:
            return None
        assert sentence.startswith("identity: ")
        return sentence.removeprefix("identity: ").removesuffix(": see state/identity of the job.")


@pytest.fixture
def trained(shared, monkeypatch):
    one = Trained(shared)

    def actors_from_gcs(gcs, job_id, timeout):
        assert (gcs, job_id, timeout) == (one.gcs, JOB_ID, 60.0)
        if one.now < one.outage:
            raise RegressError("Ray does not answer")
        return one.actors

    monkeypatch.setenv("RAY_ADDRESS", one.gcs)
    monkeypatch.setattr(ray_internals, "actors_from_gcs", actors_from_gcs)
    monkeypatch.setattr(loaded_code, "time", types.SimpleNamespace(monotonic=lambda: one.now, sleep=one.sleep))
    loaded_code._sha256_of.cache_clear()
    return one


def test_the_comparison_is_recorded(trained):
    marker = trained.code_path / "mvp_marker.py"
    trained.reports()
    trained.reports(pid=50, actor_id="a1", hostname="worker-1", mvp_marker=(marker, marker.read_bytes()))
    trained.actors = [actor("a1"), actor("a0", name="NeverStarted", pid=0)]
    assert trained.check() is None
    state = trained.job.read_state("identity")
    assert state.pop("time")
    digests = {
        str(file.relative_to(trained.code_path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (marker, trained.init)  # in the order of their paths, whoever loaded one first
    }
    assert state == {
        "passed": True, "problems": [], "code_path": str(trained.code_path), "processes": 2, "actors": 1,
        "actors_by_class": {"WorkerDict": 1}, "modules": 3, "files": 2,
        "files_sha256": hashlib.sha256(json.dumps(digests).encode()).hexdigest(),
    }  # fmt: skip


def test_a_module_from_elsewhere_from_no_file_or_with_other_bytes(trained, tmp_path):
    other, more = write(tmp_path / "verl" / "utils.py", ""), write(trained.code_path / "verl" / "more.py", "")
    elsewhere = f"which is not under {trained.code_path}"
    for modules, said in (
        ({"verl.utils": (other, b"")}, f"loaded verl.utils from {other}, {elsewhere}"),
        ({"verl.made": (None, b"")}, f"loaded verl.made from no file, {elsewhere}"),
        ({"verl.more": (more, b"changed")}, f"loaded verl.more from other bytes than {more} holds"),
    ):
        write(trained.job.config / "code.json", record(trained.code_path))
        who = trained.reports(**modules)
        assert trained.check() == f"{who} {said}"


def test_a_snapshot_that_was_changed_or_replaced(trained):
    trained.reports()
    write(trained.job.config / "code.json", json.dumps({"tree_sha256": "of another"}))
    assert trained.check() == f"the snapshot {trained.code_path} was replaced after the job was submitted"
    write(trained.code_path / "verl" / "more.py", "")
    assert trained.check().startswith(f"The snapshot codeA was changed after it was made ({trained.code_path}: tree ")


def test_a_snapshot_that_became_another_users(trained, monkeypatch):
    """Before: its bytecode, which no hash covers, had to belong to its new owner."""
    trained.reports()
    lstat = os.lstat
    theirs = {trained.code_path, write(trained.code_path / "verl" / "__pycache__" / "planted.pyc", "")}

    def of_another_user(path, **options):
        found = lstat(path, **options)
        return os.stat_result((*found[:4], 4242, *found[5:])) if path in theirs else found

    monkeypatch.setattr(trust.os, "lstat", of_another_user)
    trained.plan["trusted_uids"] = []
    assert trained.check() == (
        f"The snapshot codeA is refused, because {trained.code_path} belongs to user 4242, and what is there decides what your job does: set "
        "TRUSTED_UIDS=4242 if you trust that user, or make a snapshot of your own under another CODE_ID."
    )
    trained.plan["trusted_uids"] = ["4242"]
    assert trained.check() is None


def test_a_process_that_stopped_looking_for_what_it_loaded(trained):
    who = trained.reports(more={"died": "RuntimeError: dictionary changed size during iteration"})
    said = "stopped looking for what it loaded (RuntimeError: dictionary changed size during iteration)"
    assert trained.check() == f"{who} {said}"


def test_an_actor_without_a_report_and_how_many_more(trained):
    trained.reports()
    trained.actors = [actor("a1"), actor("a2", name="TaskRunner")]
    assert trained.check() == "Ray's actor WorkerDict a1 (process 50) reported nothing (and 1 more)"
    assert len(trained.job.read_state("identity")["problems"]) == 2


def test_a_driver_without_a_report(trained):
    trained.reports(hostname="another node")
    assert trained.check() == (
        f"the driver (process {DRIVER} on {socket.gethostname()}) reported no verl and no Ray job, so there is no proof of which code this job ran."
    )


def test_an_actor_without_verl_must_still_report(trained):
    trained.reports()
    trained.actors = [actor("a1")]
    content = {"node": "h", "pid": 50, "job_id": JOB_ID, "actor_id": "a1", "command": "x", "modules": {}}
    write(trained.job.reports / "identity-h-50.json", json.dumps(content))
    assert trained.check() is None
    assert trained.job.read_state("identity")["processes"] == 1


UNPROVEN = "Ray does not answer, so there is no proof that all of them ran the requested code."


@pytest.mark.parametrize(("outage", "said"), [(61, None), (62, UNPROVEN)])
def test_ray_is_asked_each_second_for_a_minute_before_the_check_fails(trained, outage, said):
    """A short outage of the head must not cost the training."""
    trained.reports()
    trained.outage = outage
    assert trained.check() == said
