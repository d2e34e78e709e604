"""What `make gc` removes, what it never touches, and who it says needs the rest."""

import errno
import json
import os
import re
import shutil
import threading
import time

import pytest
from shared_fixtures import write
from streams import state_of, tar

from verl_regress.base import layout, lock
from verl_regress.base.layout import JobDir
from verl_regress.store import retention, snapshot
from verl_regress.store.retention import uncollected

HOUR, DAY = 3600, 24 * 3600
DONE = {"ended": {"exit_code": 0, "reason": "the trainer ended"}, "started": {}}
OWNER = {"user": "ann", "workdir": "/home/ann/verl", "id": "0123456789abcdef"}
MINE = {"owner": OWNER, "cluster": "c"}
WEIGHTS = "model_world_size_1_rank_0.pt"
SAVED = ["global_step_10", "latest_checkpointed_iteration.txt"]


def age(directory, hours):
    """Make it look as if nothing was written there since."""
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (time.time() - hours * HOUR,) * 2, follow_symlinks=False)


def disk(directory):
    return sum(path.lstat().st_blocks * 512 for path in (directory, *directory.rglob("*")))


def plans(job, **content):
    """Add to the job's plan, and leave its times as they were."""
    file = job.config / "resolved.json"
    before = [(path, path.stat().st_mtime) for path in (file, job.config)]
    write(file, json.dumps({**json.loads(file.read_text()), **content}))
    for path, then in before:
        os.utime(path, (then, then))


@pytest.fixture
def old(make_job, shared):
    """Makes a job of ann's of that age in hours with a checkpoint of some KiB; `code` is its snapshot."""

    def old(name, hours, code="codeA", has_checkpoint=True, **state):
        job = make_job(name, **{**DONE, **state})
        if has_checkpoint:
            write(job.checkpoints / "global_step_10" / WEIGHTS, "w" * 50_000)
            write(job.checkpoints / "global_step_10" / "data_0.pt", "position")
            write(job.checkpoints / "latest_checkpointed_iteration.txt", "10")
        write(job.driver_log, "a line\n")
        write(job.config / "runtime_env.json", json.dumps({"PYTHONPATH": f"{shared.snapshots / code}:/x"}))
        plans(job, **MINE)
        age(job.path, hours)
        return job

    return old


@pytest.fixture
def snapshots(shared):
    """Real snapshots, two days old."""
    for number, code_id in enumerate(("codeA", "codeB", "codeC")):
        if (shared.snapshots / code_id).exists():
            shutil.rmtree(shared.snapshots / code_id)
        files = {"verl/__init__.py": b"", "verl/own/a.py": b"y = '%s'\n" % (b"%d" % number * 18_000)}
        snapshot.create(shared, code_id, f"pypi:{number}", str(number), tar(files))
        age(shared.snapshots / code_id, 48)
    yield shared
    for folder, _, _ in os.walk(shared.path):
        os.chmod(folder, 0o755)  # noqa: PTH101


@pytest.fixture
def gc(run, ray):
    """Runs it for ann's cluster c; returns what it printed."""

    def gc(*args):
        outcome = run("--owner=ann:0123456789abcdef", "gc", "--cluster=c", *args)
        assert (outcome.status, outcome.out) == (0, "")
        return outcome.err

    return gc


def has_all(job):
    return [path.name for path in sorted(job.checkpoints.iterdir())] == SAVED


def has_none(job):
    return list(job.checkpoints.iterdir()) == []


def test_the_newest_jobs_keep_their_checkpoints_and_older_ones_are_removed(gc, old):
    jobs = [old(f"job{number}", hours=24 * number) for number in range(2, 6)]
    before = {job.path.name: state_of(job.path) for job in jobs}
    said = gc("--keep=2")
    for job in jobs[:2]:
        assert state_of(job.path) == before[job.path.name]
    for job in jobs[2:]:
        assert has_none(job)
        left = state_of(job.path)
        collected = json.loads(left.pop("state/collected")[2])
        gone = {"state", "checkpoints", *(name for name in before[job.path.name] if name.startswith("checkpoints/"))}
        unchanged = {name: state for name, state in before[job.path.name].items() if name not in gone}
        assert {name: state for name, state in left.items() if name not in gone} == unchanged
        assert collected["checkpoints"] == SAVED
    assert "        4 jobs with checkpoints: 2 to remove, 2 to keep\n" in said
    assert "          keep 2 (the newest, KEEP=2): job2, job3\n" in said
    assert "changed removed checkpoints of job5 (global_step_10, latest_checkpointed_iteration.txt): 0.1 MB\n" in said
    assert gc("--keep=2").endswith("skip    gc (nothing to remove)\n")


def test_keep_counts_jobs_that_have_checkpoints_and_the_newest_keep_snapshots(gc, old, snapshots):
    good, older = old("good", 100), old("older", 110, code="codeC")
    old("failed", 50, code="codeB", has_checkpoint=False)
    said = gc("--keep=1")
    assert (has_all(good), has_none(older)) == (True, True)
    assert list(snapshot.list_snapshots(snapshots)) == ["codeA", "codeB"]
    assert "keep 1 (the job failed uses it): codeB" in said


@pytest.mark.parametrize(
    "lost", ["latest_checkpointed_iteration.txt", f"global_step_10/{WEIGHTS}", "global_step_10/data_0.pt"]
)
def test_keep_counts_jobs_of_which_a_checkpoint_is_complete(gc, old, lost):
    good, broken = old("good", 100), old("broken", 50)
    (broken.checkpoints / lost).unlink()
    age(broken.path, 50)
    said = gc("--keep=1")
    assert "keep 1 (the newest, KEEP=1): good" in said
    assert (has_all(good), has_none(broken)) == (True, True)


@pytest.mark.parametrize(
    "fresh", ["state/ended", f"checkpoints/global_step_10/{WEIGHTS}", "checkpoints/global_step_10"]
)
def test_a_job_that_ended_or_saved_less_than_a_day_ago_stays(gc, old, fresh):
    job = old("job", 100)
    os.utime(job.path / fresh, (time.time() - DAY + 60,) * 2)
    assert "keep 1 (younger than KEEP_HOURS=24): job" in gc("--keep=0")
    assert has_all(job)
    os.utime(job.path / fresh, (time.time() - DAY - 60,) * 2)
    assert "keep 1 (younger than KEEP_HOURS=48): job" in gc("--keep=0", "--keep-hours=48")
    gc("--keep=0")
    assert has_none(job)


def test_what_is_new_goes_when_that_is_asked_for(gc, ray, old):
    job, running = old("job", 0), old("running", 0, ended=None)
    ray.knows({"submission_id": "running", "status": "RUNNING", "message": ""})
    gc("--keep=0", "--keep-hours=0")
    assert (has_none(job), has_all(running)) == (True, True)


# promise: removes what a job, a session or another user needs in `make gc`
@pytest.mark.parametrize(
    "content",
    [
        {"owner": {**OWNER, "id": "fedcba9876543210"}},
        {"owner": {**OWNER, "user": "bob"}},
        {"owner": None},
        {"cluster": "d"},
    ],
)
def test_a_job_of_another_owner_or_cluster_stays_and_does_not_count_for_keep(gc, old, snapshots, content):
    theirs, mine = old("theirs", 50, code="codeB"), old("mine", 60)
    plans(theirs, **content)
    before = state_of(theirs.path)
    assert "keep 1 (of another checkout, cluster or user): theirs" in gc("--keep=1")
    assert (state_of(theirs.path), has_all(mine)) == (before, True)
    assert list(snapshot.list_snapshots(snapshots)) == ["codeA", "codeB"]


# promise: removes what a job, a session or another user needs in `make gc`
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_directory_of_another_user_stays_whomever_its_job_names_as_owner(gc, old):
    theirs = old("theirs", 50)
    os.chown(theirs.path, 4242, 4242)
    assert "keep 1 (of another checkout, cluster or user): theirs" in gc("--keep=0")
    assert has_all(theirs)


# promise: removes what a job, a session or another user needs in `make gc`
@pytest.mark.parametrize(
    ("state", "known", "hours", "goes"),
    [
        ({"ended": None}, "RUNNING", 50, False),
        ({"ended": None, "started": None}, "PENDING", 50, False),
        ({}, "RUNNING", 50, False),  # Ray will say in a moment how it ended
        ({"ended": None}, None, 5, False),  # lost, or about to be seen by Ray
        ({"ended": None}, None, 50, True),
        ({"ended": None, "started": None, "submitted": None}, None, 5, False),
        ({"ended": None, "started": None, "submitted": None}, None, 50, True),
        ({"ended": None}, "FAILED", 50, True),
        ({}, "SUCCEEDED", 50, True),
    ],
)
def test_a_job_that_may_still_run_is_kept(gc, ray, old, state, known, hours, goes):
    job = old("job", hours, **state)
    if known:
        ray.knows({"submission_id": "job", "status": known, "message": ""})
    before = state_of(job.path)
    said = gc("--keep=0")
    assert has_none(job) is goes
    reason = "may still run" if known else "younger than KEEP_HOURS=24"
    assert goes or (state_of(job.path) == before and f"keep 1 ({reason}): job" in said)


def test_without_ray_or_with_a_damaged_end_only_a_recorded_end_counts(gc, ray, old):
    ended, unknown, damaged = old("ended", 50), old("unknown", 50, ended=None), old("damaged", 50)
    write(damaged.state / "ended", "{")
    ray.answers["/api/jobs/"] = (503, b"not now")
    assert "A job that recorded no end counts as unfinished." in gc("--keep=0")
    assert [has_none(job) for job in (ended, unknown, damaged)] == [True, False, False]


# promise: removes what a job, a session or another user needs in `make gc`
def test_what_a_job_that_is_not_over_reads_and_runs_from_stays(gc, old, snapshots):
    """In another cluster, whose Ray is not asked, until it recorded its end."""
    parent, other, child = old("parent", 50), old("other", 50), old("child", 49, ended=None, has_checkpoint=False)
    reads = f"trainer.resume_from_path={parent.checkpoints}/global_step_10"
    plans(child, cluster="d", argv=[reads], code=f"{snapshots.snapshots}/codeB")
    said = gc("--keep=0")
    assert (has_all(parent), has_none(other)) == (True, True)
    assert "keep 1 (the job child reads them): parent" in said
    assert list(snapshot.list_snapshots(snapshots)) == ["codeA", "codeB"]
    child.write_state("ended", DONE["ended"])
    age(child.path, 49)
    gc("--keep=0")
    assert has_none(parent)


def test_old_versions_of_the_helper_go_but_not_those_in_use(gc, old, snapshots, monkeypatch):
    monkeypatch.setattr(layout, "HELPER_DIR", snapshots.helpers / "cccccccccccc")
    child = old("child", 49, ended=None, has_checkpoint=False)
    plans(child, cluster="d", entrypoint=f"python3 {snapshots.helpers}/aaaaaaaaaaaa/py/run.py launch x")
    of_group = "0123456789abcdef/dddddddddddd"
    for name in ("aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc", of_group, "packages-cpython-311-x86_64"):
        write(snapshots.helpers / name / "py/run.py", "")
    assert "removed helper" not in gc("--keep=0")  # they are young
    monkeypatch.setattr(retention.time, "time", lambda now=time.time: now() + 2 * DAY)
    directory = session(snapshots)  # its driver may run from any
    assert "removed helper" not in (said := gc("--keep=0"))
    assert "keep 2 (the session s1 is not over: " in said
    write(directory / "report.json", "{}")
    assert "keep 1 (the job child runs from it): aaaaaaaaaaaa" in gc("--keep=0")
    assert sorted(path.name[:4] for path in snapshots.helpers.iterdir()) == ["0123", "aaaa", "cccc", "pack"]
    assert not (snapshots.helpers / of_group).exists()


def test_an_unfinished_copy_goes_when_nobody_has_written_to_it_for_a_day(gc, snapshots, monkeypatch):
    homes = (snapshots.snapshots, snapshots.datasets, snapshots.models)
    copies = [home / name for home in homes for name in (".7.0a1b2c3d.tmp", ".sums.7.0a1b2c3d.tmp")]
    for copy in copies:
        age(write(copy / "model.safetensors", "w" * 50_000).parent, 48)  # as the files of a model that is being copied
    whole = write(snapshots.models / "whole.tmp" / "manifest.json", "{}")
    said = gc("--keep=0", "--keep-hours=0")
    assert "6 unfinished copies: 0 to remove, 6 to keep" in said
    assert "keep 6 (written in the last day): " in said
    monkeypatch.setattr(retention.time, "time", lambda now=time.time: now() + 2 * DAY)
    monkeypatch.setattr(retention, "is_mine", lambda path: path != copies[-1])
    said = gc("--keep=0")
    assert "keep 1 (another user's): .sums.7.0a1b2c3d.tmp" in said
    assert said.count("removed unfinished copy ") == 5
    assert ([copy for copy in copies if copy.exists()], whole.exists()) == ([copies[-1]], True)
    assert [path for home in homes for path in home.glob("*.gone")] == []


def test_checkpoints_of_every_attempt_go_with_the_job(gc, ray, old):
    job = old("again", 80)
    second = job.numbered(2)
    for directory in (second.state, second.driver_log.parent):
        directory.mkdir(parents=True)
    shutil.copytree(job.config, second.config)
    write(second.checkpoints / "global_step_20" / "model.pt", "w")
    second.write_state("submitted", {"accepted": True})
    age(job.path, 80)
    ray.knows({"submission_id": "again.a2", "status": "RUNNING"})
    assert "keep 1 (may still run): again" in gc("--keep=0")
    ray.knows({"submission_id": "again.a2", "status": "FAILED"})
    said = gc("--keep=0")
    assert "        1 jobs with checkpoints: 1 to remove, 0 to keep\n" in said
    assert "removed checkpoints of again (" in said
    assert "removed checkpoints of again.a2 (global_step_20): " in said
    assert second.read_state("collected")["checkpoints"] == ["global_step_20"]


def test_what_a_link_leads_to_stays(gc, old, snapshots, tmp_path):
    kept = old("kept", 50)
    for name in ("whole", "one"):
        old(name, 80)
    jobs = kept.root.jobs
    shutil.rmtree(jobs / "whole" / "checkpoints")
    (jobs / "whole" / "checkpoints").symlink_to(kept.checkpoints)
    (jobs / "one" / "checkpoints" / "global_step_20").symlink_to(kept.checkpoints / "global_step_10")
    (snapshots.snapshots / "codeD").symlink_to("codeA")
    mine = write(tmp_path / "mine" / "aaaaaaaaaaaa" / "notes.txt", "mine")
    snapshots.helpers.symlink_to(tmp_path / "mine")
    age(jobs / "one", 80)
    before = state_of(kept.path)
    gc("--keep=1")
    assert state_of(kept.path) == before
    assert [path.name for path in (jobs / "one" / "checkpoints").iterdir()] == ["global_step_20"]
    assert (snapshots.snapshots / "codeD").is_symlink()
    assert mine.exists()


def test_a_dry_run_names_the_same_and_changes_nothing(run, gc, old, snapshots):
    old("new", 50, code="codeA")
    old("gone", 90, code="codeB")
    words = ("--owner=ann:0123456789abcdef", "gc", "--cluster=c", "--keep=1", "--named=pypi:2")
    dry = run(*words, "--dry-run")
    assert (dry.status, dry.created) == (0, [])
    before = disk(snapshots.path)
    real = gc("--keep=1", "--named=pypi:2")
    freed = before - disk(snapshots.path) + disk(snapshots.jobs / "gone" / "state" / "collected")
    assert real.endswith(f"\nok      freed {freed / 10**6:.1f} MB in all\n")
    assert dry.err.replace("        would remove", "changed removed").splitlines()[:-1] == real.splitlines()[:-1]
    assert dry.err.endswith(f"\n        would free {freed / 10**6:.1f} MB in all (DRY_RUN=1)\n")
    assert "keep 1 (CODE_ID, CODE_A or CODE_B names it): codeC" in real
    for code_id in ("codeA", "codeC"):
        snapshot.need_whole(snapshots.snapshots / code_id, snapshot.load(snapshots, code_id), code_id)
    assert list(snapshot.list_snapshots(snapshots)) == ["codeA", "codeC"]


def test_young_snapshots_and_directories_that_are_none_stay(gc, snapshots):
    os.utime(snapshots.snapshots / "codeB" / snapshot.RECORD_FILE)
    write(snapshots.snapshots / "mine" / "notes.txt", "no snapshot of ours")
    (snapshots.snapshots / ".123.abc.tmp").mkdir()
    gc("--keep=0")
    assert sorted(path.name for path in snapshots.snapshots.iterdir()) == [".123.abc.tmp", "codeB", "mine"]


def session(root, hours=2, *, jobs=(), end=False):
    """The session s1 of A=codeA and B=codeB with those jobs."""
    directory = root.sessions / "s1"
    write(directory / "evidence" / "begin.json", json.dumps({"codes": {"A": "codeA", "B": "codeB"}}))
    for job in jobs:
        content = {"submission_id": job, "time": job}
        write(directory / "evidence" / f"job-{job}.json", json.dumps(content))
    if end:
        write(directory / "report.json", "{}")
    age(directory, hours)
    return directory


# promise: removes what a job, a session or another user needs in `make gc`
def test_a_session_that_is_not_over_keeps_its_jobs_and_both_codes(gc, old, snapshots):
    for hours, name in enumerate(("own", "other"), 80):
        old(name, hours, code="codeC")
    directory = session(snapshots, jobs=["own"])
    said = gc("--keep=0")
    reason = (
        f"the session s1 is not over: continue it with 'make verify SESSION=s1', or give it up with 'rm -r {directory}'"
    )
    assert f"        2 jobs with checkpoints: 1 to remove, 1 to keep\n          keep 1 ({reason}): own\n" in said
    assert f"          keep 2 ({reason}): codeA, codeB\n" in said
    assert "keep 1 (the job own uses it): codeC" in said
    shutil.rmtree(directory)
    gc("--keep=0")
    assert has_none(JobDir(snapshots.jobs / "own"))
    assert list(snapshot.list_snapshots(snapshots)) == []


@pytest.mark.parametrize(("hours", "end"), [(7 * 24 + 1, False), (2, True)])
def test_a_session_that_is_over_or_that_nobody_continued_for_a_week_keeps_nothing(gc, old, snapshots, hours, end):
    job = old("own", 80)
    session(snapshots, hours=hours, jobs=["own"], end=end)
    before = state_of(snapshots.sessions)
    gc("--keep=0")
    assert (has_none(job), list(snapshot.list_snapshots(snapshots))) == (True, [])
    assert state_of(snapshots.sessions) == before


def test_a_session_that_cannot_be_read_may_need_anything(gc, old, snapshots):
    old("job", 80, code="codeC")
    (session(snapshots) / "evidence" / "job-x.json").mkdir()
    said = gc("--keep=0")
    assert said.endswith("skip    gc (nothing to remove)\n")
    assert "keep 1 (the session s1 is not over: " in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_session_of_another_user_is_theirs_to_give_up(gc, old, shared):
    old("own", 80)
    directory = session(shared, jobs=["own"])
    os.chown(directory, 4242, -1)
    cure = f"ask user 4242 to continue it with 'make verify SESSION=s1', or give it up with 'rm -r {directory}'"
    assert f"keep 1 (the session s1 is not over: {cure}): own" in gc("--keep=0")


def test_a_job_that_cannot_be_read_is_named_and_keeps_every_snapshot(gc, old, snapshots):
    job = old("closed", 80, has_checkpoint=False)
    (job.config / "resolved.json").unlink()
    (job.config / "resolved.json").mkdir()
    said = gc("--keep=0")
    assert "keep 3 (closed cannot be read, and may use it): codeA, codeB, codeC" in said
    assert said.endswith("skip    gc (nothing to remove)\n")


def test_what_a_killed_gc_left_is_removed_by_the_next(run, old, snapshots, monkeypatch):
    job, words = old("job", 80), ("--owner=ann:0123456789abcdef", "gc", "--cluster=c", "--keep=0")
    with monkeypatch.context() as killed:
        killed.setattr(retention.artefact.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*words).status == 130
    assert ".global_step_10.gone" in [path.name for path in job.checkpoints.iterdir()]
    assert run(*words).status == 0
    assert has_none(job)
    assert list(snapshots.path.rglob("*.gone")) == []
    assert list(snapshot.list_snapshots(snapshots)) == []


def test_on_a_full_disk_checkpoints_are_removed_before_that_is_recorded(gc, old, monkeypatch):
    job, write_state = old("job", 80), JobDir.write_state

    def fails_while_it_is_full(self, name, content):
        if not has_none(job):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")
        write_state(self, name, content)

    monkeypatch.setattr(JobDir, "write_state", fails_while_it_is_full)
    gc("--keep=0")
    assert job.read_state("collected")["checkpoints"] == SAVED


def test_a_submission_waits_until_gc_has_ended_and_says_so(gc, old, shared, monkeypatch, capsys):
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)
    job, seen, remove = old("job", 80), [], retention.Waste.remove

    def submit():
        with uncollected(shared):
            seen.append(has_none(job))

    submission = threading.Thread(target=submit)

    def slowly(self):
        submission.start()
        time.sleep(0.4)
        assert seen == []
        remove(self)

    monkeypatch.setattr(retention.Waste, "remove", slowly)
    said = gc("--keep=0", "--named=codeA", "--named=codeB")
    submission.join()
    assert seen == [True]
    waiting = rf"waiting for make gc \(pid {os.getpid()} on \S+, since \S+\), which has locked {shared.jobs_lock}\n"
    assert re.search(waiting, said)


@pytest.mark.parametrize("args", [(), ("--dry-run",)])
def test_gc_waits_for_a_submission_and_then_gives_up(run, ray, shared, monkeypatch, args):
    monkeypatch.setattr(retention, "_LOCK_SECONDS", 0.3)
    with uncollected(shared):
        outcome = run("gc", "--cluster=c", "--keep=0", *args)
    assert outcome.status == (0 if args else 1)
    assert args or outcome.err.startswith(f"error   {shared.jobs_lock} has been locked for 0 s by a submission (pid ")


@pytest.mark.parametrize("is_dry", [True, False])
def test_secrets_of_the_clusters_lost_jobs_go_too_but_not_in_a_dry_run(run, ray, shared, monkeypatch, is_dry):
    swept = []
    monkeypatch.setattr(retention.sweep, "attempt", lambda root, cluster: swept.append((root.path, cluster)))
    run("gc", "--cluster=c", "--keep=0", *(["--dry-run"] if is_dry else []))
    assert swept == ([] if is_dry else [(shared.path, "c")])
