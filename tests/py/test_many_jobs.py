"""With thousands of jobs on the shared root, a command reads those that it shows, not all of them."""

import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
import tracemalloc

import pytest
from conftest import write
from counting import counted

from verl_regress import cli
from verl_regress.base import lock
from verl_regress.base.layout import JobDir
from verl_regress.base.owner import Owner
from verl_regress.jobs import find, liveness
from verl_regress.session import evidence
from verl_regress.store import retention

pytestmark = pytest.mark.slow

SIZES = [1000, 10_000]
BEGIN = 1_700_000_000


def make_jobs(shared, count):
    """Finished jobs, a minute apart, named as `make submit` names them; returns their ids, the oldest first."""
    ended = json.dumps({"time": "", "exit_code": 0, "reason": "the trainer ended"})
    ids = []
    for number in range(count):
        made = BEGIN + 60 * number
        ids.append(f"ppo-codeA-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(made))}-{number % 65536:04x}")
        job = shared.jobs / ids[-1]
        for part in ("config", "state"):
            (job / part).mkdir(parents=True)
        (job / "state" / "ended").write_text(ended)
        os.utime(job / "config", (made, made))
    return ids


@pytest.mark.parametrize("count", SIZES)
def test_a_job_is_found_by_its_id_without_reading_the_others(shared, monkeypatch, count):
    ids = make_jobs(shared, count)
    with counted(monkeypatch) as calls:
        assert find.find(shared, ids[0]).submission_id == ids[0]
    assert calls.total() <= 5, calls


# 20 jobs are shown, each with its config, its state, its attempts and its steps.
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("command", [["jobs"], ["status", "--profile=cpu", "--cluster=c"]])
def test_a_list_reads_the_jobs_that_it_shows(run, shared, monkeypatch, count, command):
    ids = make_jobs(shared, count)
    with counted(monkeypatch) as calls:
        # not by `run`, which reads the whole root before and after
        assert cli.main(["--shared-root", str(shared.path), "--no-ray", *command]) == 0
    assert calls.total() <= 700, (
        calls
    )  # about 20 for each job that is shown, and those of argparse for its translations
    lines = run("--no-ray", *command).out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("ppo-")] == ids[:-21:-1]
    assert lines[-1] == f"… {count - 20} earlier jobs are not shown (LIMIT={count} shows all)"


@pytest.mark.parametrize("count", SIZES)
def test_the_latest_job_is_found_by_reading_few(shared, monkeypatch, count):
    ids = make_jobs(shared, count)
    with counted(monkeypatch) as calls:
        assert find.find(shared, "latest").submission_id == ids[-1]
    assert calls.total() <= 10, calls


# A listing of ten thousand jobs is many calls of a remote file system.
@pytest.mark.parametrize("command", [["jobs"], ["status", "--profile=cpu", "--cluster=c"], ["where", "latest"]])
def test_a_command_lists_all_jobs_once_and_the_attempts_of_each_at_most_twice(shared, monkeypatch, command):
    ids = make_jobs(shared, 10)
    owned(shared, ids[0], ANN)
    listed = []
    for name in ("scandir", "listdir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda place=".", real=real: (listed.append(str(place)), real(place))[1])
    words = ["--shared-root", str(shared.path), "--no-ray", f"--owner={ANN.user}:{ANN.id}"]
    assert cli.main([*words, *command]) == 0
    assert listed.count(str(shared.jobs)) == 1, listed
    assert max(listed.count(f"{shared.jobs}/{submission_id}/attempts") for submission_id in ids) <= 2, listed


# Its attempts are listed, and the end that the newest recorded is opened. Before: about 10 calls for each, one job after the other.
@pytest.mark.parametrize("count", SIZES)
def test_a_job_that_is_over_costs_two_calls_when_the_live_ones_are_listed(shared, monkeypatch, capsys, count):
    ids = make_jobs(shared, count)
    launched = [JobDir(shared.jobs / submission_id) for submission_id in (ids[0], ids[count // 2])]
    for job in launched:
        (job.state / "ended").unlink()
    launched.append(resumed(shared, ids[7], BEGIN + 30))
    launched[-1].state.mkdir()
    descriptors = [liveness.hold(job) for job in launched]
    capsys.readouterr()
    with counted(monkeypatch) as calls:
        assert cli.main(["--shared-root", str(shared.path), "live", "--cluster=c"]) == 0
    for descriptor in descriptors:
        os.close(descriptor)
    assert calls.total() <= 2 * count + 200, calls
    assert capsys.readouterr().out == f"{ids[count // 2]} RUNNING\n{ids[7]}.a2 RUNNING\n{ids[0]} RUNNING\n"


def resumed(shared, submission_id, seconds, owner=None):
    """A second attempt of that job, made at that time, and its mark as a submission leaves it."""
    attempt = JobDir(shared.jobs / submission_id).numbered(2)
    attempt.config.mkdir(parents=True)
    os.utime(attempt.config, (seconds, seconds))
    find.mark(attempt, owner)
    return attempt


def train(job, address, **more):
    """What a whole job leaves."""
    plan = {
        "submission_id": job.submission_id, "workload": "ppo", "code_id": "codeA", "cluster": "c", "address": address,
        "max_running": None, "devices": {"count": 1, "cluster_has": 8, "resource": "cpu"}, "overrides": [], **more,
    }  # fmt: skip
    write(job.config / "resolved.json", json.dumps(plan))
    write(job.driver_log, "a line\n" * 1000)
    write(job.metrics, "".join(f'{{"step": {step}, "data": {{}}}}\n' for step in range(1, 101)))
    job.write_state("submitted", {"accepted": True})
    job.write_state("started", {"node": "worker-0", "node_ip": "10.0.0.2"})
    write(job.launcher, "{}")
    job.write_state("turn", {})
    job.write_state("observed", {"status": "SUCCEEDED"})


# The commands of one job and the lists, by the calls that they may make with many jobs for each that they make with 10.
COMMANDS = {
    "jobs": ["jobs", "--cluster=c", "--limit=10"],
    "status": ["status", "--profile=cpu", "--cluster=c", "--limit=10"],
    "wait": ["wait", "{}", "--deadlines=1,2,3"],
    "logs": ["logs", "{}"],
    "stop": ["stop", "{}", "--deadline=1"],
}
MOST_MORE = 1.5
CHECKOUT = "00000000000000aa"


def calls_of_commands(shared, ray, monkeypatch, count):
    """The calls of each command, with so many jobs of 20 owners: of the lists; of one job by its id, as the `latest` of the ninth
    latest's owner, and as the `latest` of the user who submitted nothing but the oldest of all.
    """
    ids = make_jobs(shared, count)
    for number, submission_id in enumerate(ids):
        job, user = JobDir(shared.jobs / submission_id), f"user{number % 20}" if number else "first"
        if number >= count - 10 or number == 0:
            train(job, ray.address, owner=Owner(user, CHECKOUT).recorded())
        else:
            plan = {"cluster": "c", "owner": Owner(user, CHECKOUT).recorded()}
            (job.config / "resolved.json").write_text(json.dumps(plan))
        os.utime(job.config, (BEGIN + 60 * number, BEGIN + 60 * number))
        find.mark(job, Owner(user, CHECKOUT))
    ninth = f"user{(count - 9) % 20}"
    made = {}
    for name, words in COMMANDS.items():
        for asked, caller in (
            ((ids[-9], ninth), ("latest", ninth), ("latest", "first")) if "{}" in words else (("", ninth),)
        ):
            whose = [f"--owner={caller}:{CHECKOUT}", "--owner-workdir=/w"]
            with counted(monkeypatch) as calls:
                status = cli.main(["--shared-root", str(shared.path), *whose, *(word.format(asked) for word in words)])
            assert status == 0, (name, asked)
            made[name, "by id" if asked == ids[-9] else asked, caller == "first"] = calls.total()
    return made


def test_commands_read_no_more_with_ten_thousand_jobs_of_20_users_than_with_ten(shared, ray, monkeypatch):
    calls_of_commands(shared, ray, monkeypatch, 10)  # what a process reads once: modules, translations
    shutil.rmtree(shared.jobs)
    few = calls_of_commands(shared, ray, monkeypatch, 10)
    shutil.rmtree(shared.jobs)
    many = calls_of_commands(shared, ray, monkeypatch, 10_000)
    assert few.keys() == many.keys()
    assert len(few) == 11
    assert {name: (few[name], calls) for name, calls in many.items() if calls > MOST_MORE * few[name]} == {}


ANN, BOB = Owner("ann", CHECKOUT), Owner("bob", CHECKOUT)


def owned(shared, submission_id, owner, *, is_marked=True):
    """Let that job be of that owner, as a submission records it."""
    job = JobDir(shared.jobs / submission_id)
    made = find.made(job)
    (job.config / "resolved.json").write_text(json.dumps({"owner": owner.recorded()}))
    os.utime(job.config, (made, made))
    if is_marked:
        find.mark(job, owner)
    return job


def test_the_latest_job_of_a_user_is_found_with_marks_that_are_lost_or_wrong(shared):
    """An earlier version made none of the owner, and whoever may write to `jobs/` can make any."""
    ids = make_jobs(shared, 6)
    mine = owned(shared, ids[1], ANN)
    later = owned(shared, ids[2], ANN, is_marked=False)  # by an earlier version
    for number in (3, 4, 5):
        owned(shared, ids[number], BOB)
    assert find.find(shared, "latest", ANN) == later
    for name in (
        f".of-{ANN.key}-{ids[4]}",
        f".of-{ANN.key}-gone",
        f".of-{ANN.key}",
        ".of--",
        f".made-9999999999-{ids[0]}",
    ):
        (shared.jobs / name).touch()
    assert find.find(shared, "latest", ANN) == later
    assert find.find(shared, "latest", BOB).submission_id == ids[5]
    for path in shared.jobs.glob(".of-*"):
        path.unlink()
    assert find.find(shared, "latest", ANN) == later
    shutil.rmtree(later.path)
    assert find.find(shared, "latest", ANN) == mine


def test_a_mark_that_another_user_made_hides_a_job_until_gc(shared, capsys):
    """Before: for ever, because gc read only jobs without any mark of an owner."""
    ids = make_jobs(shared, 2)
    mine = owned(shared, ids[0], ANN, is_marked=False)  # by an earlier version
    (shared.jobs / f".of-{BOB.key}-{ids[0]}").touch()
    owned(shared, ids[1], BOB)
    said = []
    for _ in range(2):
        assert cli.main(["--shared-root", str(shared.path), "gc", "--cluster=c", "--keep=10"]) == 0
        said.append(" lost marks of jobs again, by " in capsys.readouterr().err)
    assert said == [True, False]
    assert find.find(shared, "latest", ANN) == mine
    assert find.find(shared, "latest", BOB).submission_id == ids[1]


@pytest.mark.parametrize("count", SIZES)
def test_marks_of_owners_are_made_again_by_gc(shared, monkeypatch, capsys, count):
    """A user who submitted only the oldest job reads few afterwards; before, all."""
    ids = make_jobs(shared, count)
    for number, submission_id in enumerate(ids):
        owned(shared, submission_id, BOB if number else ANN, is_marked=False)
    assert cli.main(["--shared-root", str(shared.path), "gc", "--cluster=c", "--keep=10"]) == 0
    made = f"changed made {count} lost marks of jobs again, by which 'latest' and lists find the newest\n"
    assert capsys.readouterr().err.endswith(made)
    with counted(monkeypatch) as calls:
        assert find.find(shared, "latest", ANN).submission_id == ids[0]
    assert calls.total() <= 10, calls


@pytest.mark.parametrize("home", ["sessions", "bisections"])
def test_the_latest_job_is_none_of_a_session(shared, make_job, run, home):
    mine = make_job("my-20260101T000000Z")  # a user may choose such an id
    session = getattr(shared, home) / "20260102T000000Z"
    session.mkdir(parents=True)
    for number, name in enumerate(("ppo-b", "ppo-a", "ppo-b-again"), 1):
        make_job(f"{name}-{session.name}" + (f"-{number}" if number > 1 else ""))
    assert find.find(shared, "latest") == mine
    assert find.find(shared, f"ppo-b-{session.name}").path.is_dir()
    shutil.rmtree(mine.path)
    assert "outside a session" in run("where", "latest").err


def test_a_job_that_another_user_resumed_is_the_latest_of_that_user(shared):
    ids = make_jobs(shared, 3)
    owned(shared, ids[0], ANN)
    owned(shared, ids[1], BOB)
    attempt = resumed(shared, ids[0], BEGIN + 86400, BOB)
    (attempt.config / "resolved.json").write_text(json.dumps({"owner": BOB.recorded()}))
    os.utime(attempt.config, (BEGIN + 86400, BEGIN + 86400))
    assert find.find(shared, "latest", BOB) == attempt
    (shared.jobs / f".of-{BOB.key}-{ids[0]}").unlink()
    assert find.lost_marks(shared, find.dated(shared)) == [shared.jobs / f".of-{BOB.key}-{ids[0]}"]


def test_a_job_that_is_resumed_is_the_latest_by_its_mark(shared, monkeypatch):
    ids = make_jobs(shared, 100)
    attempt = resumed(shared, ids[5], BEGIN + 86400)
    with counted(monkeypatch) as calls:
        assert find.find(shared, "latest") == attempt
    assert calls.total() <= 10, calls


def test_a_job_with_a_name_of_its_own_is_found_with_and_without_its_mark(shared):
    make_jobs(shared, 100)
    own = JobDir(shared.jobs / "mine")
    own.config.mkdir(parents=True)
    os.utime(own.config, (BEGIN + 86400, BEGIN + 86400))
    assert find.find(shared, "latest") == own
    find.mark(own)
    assert [path.name for path in shared.jobs.glob(".made-*")] == [f".made-{BEGIN + 86400}-mine"]
    assert find.find(shared, "latest") == own


@pytest.mark.parametrize(
    "name", [".made-9999999999-{id}", ".made-9999999999-gone", ".made-x-{id}", ".made-", ".made-5", ".made-³-{id}"]
)
def test_a_mark_that_is_wrong_changes_no_order(shared, name):
    ids = make_jobs(shared, 10)
    (shared.jobs / name.format(id=ids[3])).touch()
    assert [job.submission_id for job in find.newest(shared)] == ids[::-1]


def test_an_id_with_a_time_of_its_own_making_changes_no_order(shared):
    ids = make_jobs(shared, 10)
    tomorrow = shared.jobs / "x-29990101T000000Z-abcd"
    no_day = shared.jobs / "x-20990199T000000Z-abcd"
    for age, job in enumerate((tomorrow, no_day)):
        (job / "config").mkdir(parents=True)
        os.utime(job / "config", (BEGIN - 10 - age, BEGIN - 10 - age))
    assert [job.submission_id for job in find.newest(shared)] == [*ids[::-1], tomorrow.name, no_day.name]


class Submitters(threading.Thread):
    """One submitter after another until `end`; `longest` is what one waited (s), `during` how many there were."""

    def __init__(self, root):
        super().__init__()
        self.end, self.longest, self.during, self._root = threading.Event(), 0.0, 0, root

    def run(self):
        while not self.end.is_set():
            began = time.monotonic()
            with lock.held(self._root.jobs, fcntl.LOCK_SH):
                self.longest = max(self.longest, time.monotonic() - began)
            self.during += 1
            time.sleep(0.01)


@pytest.mark.parametrize("count", SIZES)
def test_a_submitter_waits_less_than_a_second_for_gc(shared, capsys, count):
    """Before: for all of it. Every second job has a checkpoint to remove."""
    for submission_id in make_jobs(shared, count)[::2]:
        job = JobDir(shared.jobs / submission_id)
        (job.checkpoints / "global_step_1").mkdir(parents=True)
        (job.checkpoints / "global_step_1" / "model.pt").write_text("weights")
        for path in (
            job.checkpoints / "global_step_1" / "model.pt",
            job.checkpoints / "global_step_1",
            job.state / "ended",
        ):
            os.utime(path, (BEGIN, BEGIN))
    submitters = Submitters(shared)
    submitters.start()
    try:
        assert cli.main(["--shared-root", str(shared.path), "gc", "--cluster=c", "--keep=10"]) == 0
    finally:
        submitters.end.set()
        submitters.join()
    assert capsys.readouterr().err.count("changed removed checkpoints of ") == count // 2 - 10
    assert submitters.longest <= 1.0
    assert submitters.during > 10


@pytest.mark.parametrize("count", SIZES)
def test_gc_compares_no_job_with_all_others(shared, monkeypatch, count):
    make_jobs(shared, count)
    compared = 0
    real = JobDir.__eq__

    def counting(one, other):
        nonlocal compared
        compared += 1
        return real(one, other)

    monkeypatch.setattr(JobDir, "__eq__", counting)
    monkeypatch.setattr(retention.os, "geteuid", lambda: 4242)  # all are another user's
    assert retention.survey(shared, 5, set(), {}, time.time()).waste == []
    assert compared <= 10 * count


@pytest.mark.parametrize("count", SIZES)
def test_verify_compares_the_newest_finished_jobs_with_what_they_were(shared, monkeypatch, count):
    """Before: it read every file of every finished job, at the begin and at the end of a session."""
    ids = make_jobs(shared, count)
    for submission_id in ids[-30:]:
        (shared.jobs / submission_id / "state" / "observed").write_text('{"status": "SUCCEEDED"}')
    with counted(monkeypatch) as calls:
        found = evidence.job_digests(shared)
    assert list(found) == ids[:-21:-1]
    assert calls.total() <= 1000, calls  # about 30 for each of 20
    assert evidence.job_digests(shared, [ids[0]]).keys() == {ids[0]}  # a named one, however old


@pytest.mark.parametrize("where", [0, 37, 60, 61, 64, 500, 993])
def test_a_file_is_searched_for_all_forms_of_a_secret_in_one_pass(tmp_path, monkeypatch, where):
    """Before: a checkpoint of 100 GB was read once for each form."""
    monkeypatch.setattr(evidence, "_PIECE", 64, raising=False)
    forms = [b"in clear", b"in hex.", b"reversed"]
    file = tmp_path / "model.pt"
    file.write_bytes(bytes(1000))
    read = []
    real = type(file).open

    class Counting:
        def __init__(self, opened):
            self._opened = opened

        def __enter__(self):
            return self

        def __exit__(self, *_args):
            self._opened.close()

        def read(self, size):
            read.append(self._opened.read(size))
            return read[-1]

        def fileno(self):
            return self._opened.fileno()

    monkeypatch.setattr(type(file), "open", lambda self, mode: Counting(real(self, mode)))
    assert not evidence._holds(file, forms)
    assert (sum(map(len, read)), max(map(len, read))) == (1000, 64)
    with real(file, "r+b") as opened:
        opened.seek(where)
        opened.write(forms[1])
    assert evidence._holds(file, forms)
    assert evidence._holds(file, iter(forms))
    assert not evidence._holds(file, [b"another"])


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
