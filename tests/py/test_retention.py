"""What `make gc` removes, what it never touches, and that the bytes it reports are those that become free."""

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import time
from types import SimpleNamespace

import pytest
from conftest import as_in_version_1_1, write
from streams import state_of, tar

from verl_regress.base import layout, lock, processes
from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir
from verl_regress.base.owner import Owner
from verl_regress.jobs import find, liveness
from verl_regress.jobs.status import Status, judge_among, submission_of
from verl_regress.store import removal, retention, snapshot, uses

HOUR = 3600
ANN = Owner.parse("ann:0123456789abcdef")
DONE = {"ended": {"exit_code": 0, "reason": "the trainer ended"}, "started": {}}


def age(directory, hours):
    """Make it look as if nothing was written there since."""
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (time.time() - hours * HOUR,) * 2, follow_symlinks=False)


def disk(directory):
    """Bytes on disk, each inode once."""
    found = {path.lstat().st_ino: path.lstat().st_blocks * 512 for path in (directory, *directory.rglob("*"))}
    return sum(found.values())


@pytest.fixture
def old(make_job, shared):
    """Makes a job of that age in hours with a checkpoint of some KiB; `code` is its snapshot."""

    def old(name, hours, code="codeA", **state):
        job = make_job(name, **{**DONE, **state})
        write(job.checkpoints / "global_step_10" / "model.pt", "w" * 50_000)
        write(job.checkpoints / "latest_checkpointed_iteration.txt", "10")
        write(job.driver_log, "a line\n")
        write(
            job.config / "runtime_env.json", json.dumps({"env_vars": {"PYTHONPATH": f"{shared.snapshots / code}:/x"}})
        )
        age(job.path, hours)
        return job

    return old


@pytest.fixture
def snapshots(shared):
    """Real snapshots, a day old."""
    for number, code_id in enumerate(("codeA", "codeB", "codeC")):
        if (shared.snapshots / code_id).exists():
            snapshot._remove(shared.snapshots / code_id)
        files = {
            "verl/__init__.py": b"",
            # Large, and compiled in no time: three of them in each of a hundred tests.
            "verl/same.py": b"x = '%s'\n" % (b"x" * 18_000),
            "verl/own/a.py": b"y = '%s'\n" % (b"%d" % number * 18_000),
        }
        snapshot.create(shared, code_id, f"pypi:{number}", str(number), tar(files), dirty=False)
        age(shared.snapshots / code_id, 24)
    yield shared
    for folder, _, _ in os.walk(shared.path):
        os.chmod(folder, 0o755)  # noqa: PTH101


def gc(run, *args):
    outcome = run("gc", "--cluster=c", *args)
    assert (outcome.status, outcome.out) == (0, "")
    return outcome.err


@pytest.mark.parametrize("half", ["no critic", "cut off"])
def test_a_job_that_saved_only_a_part_does_not_cost_an_older_one_its_checkpoints(run, ray, old, half):
    """Before: KEEP=1 kept a PPO checkpoint without its critic, and removed the newest one from which a job can continue."""
    jobs = [old(f"job{number}", hours=number) for number in range(2, 5)]
    for job in jobs:
        write(job.config / "verl_config.yaml", "algorithm: {adv_estimator: gae}\n")
        for part in ("actor", "critic"):
            write(job.checkpoints / "global_step_10" / part / "model_world_size_1_rank_0.pt", "w")
        age(job.path, 24)
    if half == "no critic":
        shutil.rmtree(jobs[0].checkpoints / "global_step_10" / "critic")
    else:
        (jobs[0].config / "verl_config.yaml").write_text("algorithm: [")
    for job, hours in zip(jobs, (2, 3, 4), strict=True):
        age(job.path, hours)
    said = gc(run, "--keep=1")
    assert "3 with checkpoints, of which 2 keep them" in said
    assert [bool(list(job.checkpoints.iterdir())) for job in jobs] == [True, True, False]
    gc(run, "--keep=0")
    assert [bool(list(job.checkpoints.iterdir())) for job in jobs] == [False, False, False]


def test_the_newest_jobs_keep_their_checkpoints_and_older_ones_are_removed(run, ray, old):
    jobs = [old(f"job{number}", hours=number) for number in range(2, 6)]
    before = {job.path.name: state_of(job.path) for job in jobs}
    said = gc(run, "--keep=2")
    assert [bool(list(job.checkpoints.iterdir())) for job in jobs] == [True, True, False, False]
    for job in jobs[:2]:
        assert state_of(job.path) == before[job.path.name]
    for job in jobs[2:]:
        left = {name: state for name, state in state_of(job.path).items() if name not in ("state", "checkpoints")}
        gone = {name for name in before[job.path.name] if name.startswith("checkpoints/")}
        collected = json.loads(left.pop("state/collected")[2])
        assert left == {
            name: state for name, state in before[job.path.name].items() if name not in gone | {"state", "checkpoints"}
        }
        assert collected["checkpoints"] == ["global_step_10", "latest_checkpointed_iteration.txt"]
        assert f" checkpoints of {job.path.name} (" in said
        assert f"): {removal.human(collected['bytes'])}\n" in said
    assert (
        "checked 4 jobs (4 with checkpoints, of which 2 keep them, 0 younger than an hour, 0 that may still run, 0 "
        "that those or sessions use, 0 of another checkout or cluster), 0 sessions (0 running or interrupted in the last week), "
        in said
    )
    assert "changed removed checkpoints of job4 (global_step_10, latest_checkpointed_iteration.txt): " in said
    assert gc(run, "--keep=2").endswith("skip    gc (nothing to remove)\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_checkpoints_are_removed_before_that_is_recorded(run, ray, old, monkeypatch, number):
    job, write_state = old("job", 2), JobDir.write_state

    def fails_while_it_is_full(self, name, content):
        if any(path.suffix == ".gone" or path.name == "global_step_10" for path in job.checkpoints.iterdir()):
            raise OSError(number, os.strerror(number), "a file")
        write_state(self, name, content)

    monkeypatch.setattr(JobDir, "write_state", fails_while_it_is_full)
    assert "changed removed checkpoints of job (global_step_10, latest_checkpointed_iteration.txt): " in gc(
        run, "--keep=0"
    )
    assert list(job.checkpoints.iterdir()) == []
    assert job.read_state("collected")["checkpoints"] == ["global_step_10", "latest_checkpointed_iteration.txt"]


def test_keep_counts_jobs_that_have_checkpoints_and_no_others(run, ray, old):
    """Before: five failed jobs after a good one caused the good one's checkpoints to be removed."""
    good, older = old("good", 5), old("older", 6)
    for number in range(3):
        failed = old(f"failed{number}", 2 + number / 10)
        for path in sorted(failed.checkpoints.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    said = gc(run, "--keep=1")
    assert "checked 5 jobs (2 with checkpoints, of which 1 keep them, " in said
    assert (len(list(good.checkpoints.iterdir())), list(older.checkpoints.iterdir())) == (2, [])


def test_the_newest_jobs_keep_their_snapshot_though_they_have_no_checkpoint(run, ray, old, snapshots):
    old("good", 9, code="codeA")
    retriable = old("failed", 5, code="codeB")
    for name in ("global_step_10/model.pt", "latest_checkpointed_iteration.txt"):
        (retriable.checkpoints / name).unlink()
    (retriable.checkpoints / "global_step_10").rmdir()
    gc(run, "--keep=1")
    assert snapshot.list_snapshots(snapshots) == ["codeA", "codeB"]


@pytest.mark.parametrize("fresh", ["state/ended", "checkpoints/global_step_10/model.pt", "checkpoints/global_step_10"])
def test_a_job_that_ended_or_saved_ten_minutes_ago_stays(run, ray, old, fresh):
    """Before: the checkpoints of a job that had just ended were removed, contrary to the header."""
    job = old("job", 5)
    before = state_of(job.checkpoints)
    os.utime(job.path / fresh, (time.time() - 600,) * 2)
    assert "1 younger than an hour" in gc(run, "--keep=0")
    assert set(state_of(job.checkpoints)) == set(before)
    os.utime(job.path / fresh, (time.time() - 3700,) * 2)
    gc(run, "--keep=0")
    assert list(job.checkpoints.iterdir()) == []


def owned(job, user="ann", workdir="/home/ann/verl", id="0123456789abcdef"):
    """Record the owner as a submission does."""
    resolved = json.loads((job.config / "resolved.json").read_text())
    write(job.config / "resolved.json", json.dumps({**resolved, "owner": {"user": user, "workdir": workdir, "id": id}}))


@pytest.mark.parametrize(
    ("owner", "goes"),
    [("ann:0123456789abcdef", True), ("ann:fedcba9876543210", False), ("bob:0123456789abcdef", False), (None, False)],
)
def test_jobs_of_another_checkout_stay_and_are_counted(ray, old, shared, owner, goes):
    """Before: `make gc` of one checkout removed the checkpoints of another's jobs."""
    job = old("theirs", 5)
    owned(job)
    age(job.path, 5)
    caller = None if owner is None else Owner.parse(owner)
    found = retention.survey(shared, 0, {"codeA", "codeB"}, {}, time.time(), owner=caller)
    assert [waste.job.path.name for waste in found.waste] == (["theirs"] if goes else [])
    assert f"{0 if goes else 1} of another checkout or cluster), " in found.checked


def test_jobs_of_another_checkout_do_not_count_for_keep_and_keep_their_snapshot(ray, old, snapshots):
    theirs, mine, older = old("theirs", 2, code="codeB"), old("mine", 3), old("older", 4)
    for job, name in ((theirs, "bob"), (mine, "ann"), (older, "ann")):
        owned(job, user=name)
        age(job.path, 4)
    os.utime(mine.config, (time.time() - 3 * HOUR,) * 2)
    found = retention.survey(snapshots, 1, {"codeA"}, {}, time.time(), owner=ANN)
    assert [waste.what.split(" (")[0] for waste in found.waste][:2] == ["checkpoints of older", "snapshot codeC"]


def test_a_job_without_a_recorded_owner_belongs_to_the_user_of_its_files(ray, old, shared, monkeypatch):
    old("job", 5)
    named = {"codeA", "codeB"}
    assert len(retention.survey(shared, 0, named, {}, time.time(), owner=ANN).waste) == 1
    monkeypatch.setattr(retention.os, "geteuid", lambda: 4242)
    assert retention.survey(shared, 0, named, {}, time.time(), owner=ANN).waste == []


def test_jobs_of_another_user_stay_even_if_they_name_the_caller_as_owner(ray, old, shared, monkeypatch):
    job = old("theirs", 5)
    owned(job)
    age(job.path, 5)
    named = {"codeA", "codeB"}
    assert len(retention.survey(shared, 0, named, {}, time.time(), owner=ANN).waste) == 1
    monkeypatch.setattr(retention.os, "geteuid", lambda: 4242)
    assert retention.survey(shared, 0, named, {}, time.time(), owner=ANN).waste == []


def of_cluster(job, cluster):
    resolved = json.loads((job.config / "resolved.json").read_text())
    write(job.config / "resolved.json", json.dumps({**resolved, "cluster": cluster}))
    age(job.path, 5)


@pytest.mark.parametrize(("cluster", "goes"), [("c", True), ("d", False)])
def test_jobs_of_another_cluster_stay_and_are_counted(run, ray, old, cluster, goes):
    """Before: a job of another cluster counted as over if it had written nothing for an hour."""
    for name, ended in (("over", DONE["ended"]), ("quiet", None)):
        of_cluster(old(name, 5, ended=ended), cluster)
    said = gc(run, "--keep=0")
    assert ("removed checkpoints of over " in said, "removed checkpoints of quiet " in said) == (goes, goes)
    assert f", {0 if goes else 2} of another checkout or cluster), " in said


def test_a_quiet_job_of_another_cluster_keeps_what_it_reads_and_runs_from(ray, old, shared):
    parent, child = old("parent", 5), old("child", 5, ended=None)
    plan = {
        "cluster": "d",
        "argv": [f"trainer.resume_from_path={parent.checkpoints}/global_step_10"],
        "entrypoint": f"python3 {shared.helpers}/aaaaaaaaaaaa/run.py launch x",
    }
    write(child.config / "resolved.json", json.dumps(plan))
    age(child.path, 5)
    write(shared.helpers / "aaaaaaaaaaaa" / "run.py", "")
    later = time.time() + 2 * HOUR
    assert retention.survey(shared, 0, {"codeA", "codeB"}, {}, later, cluster="c").waste == []
    child.write_state("ended", DONE["ended"])
    found = retention.survey(shared, 0, {"codeA", "codeB"}, {}, later, cluster="c").waste
    assert [waste.what.split(" (")[0] for waste in found] == ["checkpoints of parent", "helper aaaaaaaaaaaa"]


@pytest.mark.parametrize("known", [None, "FAILED"])
def test_a_job_whose_launcher_holds_its_lock_stays(run, ray, old, known):
    """Before: the checkpoints of a job that trained, and had written nothing for an hour, were removed."""
    job = old("job", 5, ended=None)
    if known:
        ray.knows({"submission_id": "job", "status": known, "message": ""})
    held = liveness.hold(job)
    age(job.path, 5)
    before = state_of(job.path)
    assert "1 that may still run" in gc(run, "--keep=0")
    assert state_of(job.path) == before
    os.close(held)
    gc(run, "--keep=0")
    assert list(job.checkpoints.iterdir()) == []


@pytest.mark.parametrize("known", [None, "FAILED"])
def test_a_job_that_is_being_submitted_stays(run, ray, old, known):
    """Even if Ray has an end of it already: its submitter is about to record that Ray had it."""
    job = old("job", 5, ended=None, submitted=None)
    if known:
        ray.knows({"submission_id": "job", "status": known, "message": ""})
    with submission_of(job):
        age(job.path, 5)
        assert "1 that may still run" in gc(run, "--keep=0")
    assert len(list(job.checkpoints.iterdir())) == 2
    gc(run, "--keep=0")
    assert list(job.checkpoints.iterdir()) == []


def test_a_lock_that_cannot_be_asked_for_counts_as_held(run, ray, old):
    job = old("job", 5)
    job.launcher.symlink_to("launcher")  # opening it is an error, as for a file that another user keeps for himself
    age(job.path, 5)
    assert "1 that may still run" in gc(run, "--keep=0")
    assert len(list(job.checkpoints.iterdir())) == 2


def test_what_a_link_in_a_job_leads_to_stays(run, ray, old):
    """Before: `checkpoints` as a link to a kept job's, and attempts that were links, cost that job its checkpoints; with `state` as a
    link, it was recorded that they were removed.
    """
    kept = old("kept", 2)
    second = kept.numbered(2)
    write(second.checkpoints / "global_step_30" / "model.pt", "w")
    second.state.mkdir()
    second.write_state("ended", DONE["ended"])
    age(kept.path, 2)
    for name in ("whole", "one", "state", "attempts", "attempt"):
        old(name, 5)
    jobs = kept.root.jobs
    (jobs / "whole" / "checkpoints").rename(jobs / "whole" / "moved")
    (jobs / "whole" / "checkpoints").symlink_to(kept.checkpoints)
    (jobs / "one" / "checkpoints" / "global_step_20").symlink_to(kept.checkpoints / "global_step_10")
    shutil.rmtree(jobs / "state" / "state")
    (jobs / "state" / "state").symlink_to(kept.state)
    (jobs / "attempts" / "attempts").symlink_to(kept.path / "attempts")
    (jobs / "attempt" / "attempts").mkdir()
    (jobs / "attempt" / "attempts" / "2").symlink_to(second.path)
    for name in ("whole", "one", "state", "attempts", "attempt"):
        age(jobs / name, 5)
    before = state_of(kept.path)
    said = gc(run, "--keep=1")
    assert state_of(kept.path) == before
    assert sorted(line.split(": ")[0] for line in said.splitlines() if "changed" in line) == [
        f"changed removed checkpoints of {name} (global_step_10, latest_checkpointed_iteration.txt)"
        for name in ("attempt", "attempts", "one")
    ]
    assert [path.name for path in (jobs / "one" / "checkpoints").iterdir()] == ["global_step_20"]
    assert (jobs / "whole" / "checkpoints").is_symlink()
    assert len(list((jobs / "state" / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("home", ["objects", "helpers", "snapshots"])
def test_what_a_link_in_the_shared_code_leads_to_stays(ray, snapshots, tmp_path, home):
    """Before: `common/code/objects` as a link to a directory of the caller's: everything in it was removed."""
    place = getattr(snapshots, home)
    mine = tmp_path / "mine"
    if place.exists():
        place.rename(mine)
    write(mine / "aaaaaaaaaaaa" / "notes.txt", "mine")
    age(mine, 24)
    place.symlink_to(mine)
    named = set() if home == "snapshots" else {"codeA", "codeB", "codeC"}
    assert retention.survey(snapshots, 0, named, {}, time.time() + 2 * HOUR).waste == []


def test_a_snapshot_that_is_a_link_and_another_users_helper_stay(ray, old, snapshots, monkeypatch):
    (snapshots.snapshots / "codeD").symlink_to("codeA")
    write(snapshots.helpers / "aaaaaaaaaaaa" / "run.py", "")
    later = time.time() + 2 * HOUR
    found = [waste.what for waste in retention.survey(snapshots, 0, set(), {}, later).waste]
    assert found == ["snapshot codeA", "snapshot codeB", "snapshot codeC", "helper aaaaaaaaaaaa"]
    monkeypatch.setattr(retention.os, "geteuid", lambda: 4242)
    assert retention.survey(snapshots, 0, set(), {}, later).waste == []


def test_everything_is_listed_with_its_size_before_it_is_removed(run, ray, old, monkeypatch):
    """Before: each was named after its removal, and the sum at the end."""
    for name in ("one", "two"):
        old(name, 5)
    removed = []
    monkeypatch.setattr(
        removal.Removal, "remove", lambda _, waste: ((removed.append(each) or each, True) for each in waste)
    )
    lines = gc(run, "--keep=0").splitlines()
    total = retention.human(sum(waste.bytes for waste in removed))
    before = [line.strip().removeprefix("will remove ") for line in lines if "will remove" in line]
    after = [line.removeprefix("changed removed ") for line in lines if line.startswith("changed")]
    assert (len(before), before) == (len(removed), after)
    listed = lines.index(f"        will free {total} in all")
    assert listed < min(number for number, line in enumerate(lines) if line.startswith("changed"))
    assert lines[-1] == f"ok      freed {total} in all"


def test_checkpoints_of_every_attempt_go_with_the_job(run, ray, old):
    job = old("again", 3)
    second = JobDir(job.path / "attempts" / "2")
    for directory in (second.config, second.state, second.driver_log.parent):
        directory.mkdir(parents=True)
    write(second.checkpoints / "global_step_20" / "model.pt", "w")
    second.write_state("submitted", {"accepted": True})
    age(job.path, 3)
    assert "removed" not in gc(run, "--keep=0", "--dry-run")
    ray.knows({"submission_id": "again.a2", "status": "RUNNING"})
    assert "1 that may still run" in gc(run, "--keep=0")
    second.write_state("ended", {"exit_code": 1, "reason": "it failed"})
    age(job.path, 2)
    ray.knows({"submission_id": "again.a2", "status": "FAILED"})
    said = gc(run, "--keep=0")
    assert "removed checkpoints of again (" in said
    assert "removed checkpoints of again.a2 (global_step_20): " in said
    assert second.read_state("collected")["checkpoints"] == ["global_step_20"]


@pytest.mark.parametrize(
    ("state", "known", "hours", "goes"),
    [
        ({"ended": None}, "RUNNING", 5, False),
        ({"ended": None, "started": None}, "PENDING", 5, False),
        ({}, "RUNNING", 5, False),  # Ray will say in a moment how it ended
        ({"ended": None}, None, 0.5, False),  # lost, or running in a cluster that shares this directory
        ({"ended": None}, None, 5, True),
        ({"ended": None, "started": None, "submitted": None}, None, 0.5, False),  # being submitted
        ({"ended": None, "started": None, "submitted": None}, None, 5, True),
        ({"ended": None}, "FAILED", 5, True),
        ({"ended": None}, "STOPPED", 5, True),
        ({}, "SUCCEEDED", 5, True),
        ({}, "SUCCEEDED", 0.5, False),  # younger than an hour
    ],
)
def test_a_job_that_may_still_run_is_kept(run, ray, old, state, known, hours, goes):
    job = old("job", hours, **state)
    if known:
        ray.knows({"submission_id": "job", "status": known, "message": ""})
    before = state_of(job.path)
    gc(run, "--keep=0")
    assert (list(job.checkpoints.iterdir()) == []) is goes
    assert goes or state_of(job.path) == before


def test_without_ray_only_a_recorded_end_counts(run, ray, old):
    ended, unknown = old("ended", 5), old("unknown", 5, ended=None)
    ray.answers["/api/jobs/"] = (503, b"not now")
    said = gc(run, "--keep=0")
    assert "A job that recorded no end counts as unfinished." in said
    assert (list(ended.checkpoints.iterdir()), len(list(unknown.checkpoints.iterdir()))) == ([], 2)


def test_a_job_keeps_the_checkpoint_that_an_unfinished_job_reads(run, ray, old):
    parent, other = old("parent", 5), old("other", 5)
    child = old("child", 5, ended=None)
    path = parent.checkpoints / "global_step_10"
    write(
        child.config / "resolved.json", json.dumps({"argv": [f"trainer.resume_from_path={path}"], "code_id": "codeA"})
    )
    ray.knows({"submission_id": "child", "status": "PENDING"})
    assert "1 that those or sessions use" in gc(run, "--keep=0")
    assert (path.is_dir(), list(other.checkpoints.iterdir())) == (True, [])


def test_a_dry_run_prints_the_same_and_changes_nothing(run, ray, old, snapshots):
    old("new", 2, code="codeA")
    old("gone", 9, code="codeB")
    dry = run("gc", "--cluster=c", "--keep=1", "--named=pypi:2", "--dry-run")
    assert (dry.status, dry.created) == (0, [])
    before = disk(snapshots.path)
    real = gc(run, "--keep=1", "--named=pypi:2")
    freed = before - disk(snapshots.path) + disk(snapshots.jobs / "gone" / "state" / "collected")
    assert f"\nok      freed {retention.human(freed)} in all\n" in real
    assert (
        dry.err.replace("would", "will").splitlines()[:-1]
        == [line for line in real.splitlines() if line.startswith(" ")][:-1]
    )
    assert dry.err.endswith(f"        would free {retention.human(freed)} in all (DRY_RUN=1)\n")
    # codeA is the kept job's; a knob names codeC by its source.
    assert snapshot.list_snapshots(snapshots) == ["codeA", "codeC"]
    for code_id in ("codeA", "codeC"):
        snapshot.verify(snapshots, code_id)


def test_shared_bytecode_of_version_1_1_stays_while_a_snapshot_links_to_it(run, ray, snapshots):
    """And the bytes that are reported as free are those that become free."""
    shared = {code_id: as_in_version_1_1(snapshots, code_id) for code_id in ("codeA", "codeB")}
    (snapshots.objects / "unused").mkdir()
    before, kept = disk(snapshots.path), state_of(snapshots.snapshots / "codeA")
    said = gc(run, "--keep=0", "--named=codeA", "--named=codeC")
    assert {path.name for path in snapshots.objects.iterdir()} == {path.name for path in shared["codeA"]}
    assert state_of(snapshots.snapshots / "codeA") == kept
    assert all(link.is_dir() for link in (snapshots.snapshots / "codeA").rglob("__pycache__"))
    assert " objects that no snapshot uses: " in said
    assert f"\nok      freed {retention.human(before - disk(snapshots.path))} in all\n" in said
    assert " objects " not in gc(run, "--keep=0", "--named=codeA", "--named=codeC")
    gc(run, "--keep=0")
    assert list(snapshots.objects.iterdir()) == []


def test_objects_of_another_user_or_in_use_by_version_1_1_stay(run, ray, snapshots, monkeypatch):
    as_in_version_1_1(snapshots, "codeA")
    before = state_of(snapshots.objects)
    with lock.held_itself(snapshots.objects, fcntl.LOCK_SH):
        gc(run, "--keep=0")
    monkeypatch.setattr(retention.os, "geteuid", lambda: 4242)
    gc(run, "--keep=0")
    assert (state_of(snapshots.objects), snapshot.list_snapshots(snapshots)) == (before, [])


def test_young_snapshots_and_foreign_directories_stay(run, ray, snapshots):
    age(snapshots.snapshots / "codeB", 0.5)
    write(snapshots.snapshots / "mine" / "notes.txt", "no snapshot of ours")
    (snapshots.snapshots / ".123.abc.tmp").mkdir()
    gc(run, "--keep=0")
    assert sorted(path.name for path in snapshots.snapshots.iterdir()) == [".123.abc.tmp", "codeB", "mine"]


def test_while_a_submission_is_planned_gc_waits_and_then_gives_up(run, ray, shared, monkeypatch):
    monkeypatch.setattr(removal, "_LOCK_SECONDS", 0.3)
    monkeypatch.setattr(processes, "with_lock", lambda _: {41: "the one that plans"})
    with lock.held(shared.jobs, fcntl.LOCK_SH):
        assert run("gc", "--cluster=c", "--keep=0").is_refusal(
            f"{shared.jobs} has been locked for 0 s by the one that plans (pid 41 on {os.uname().nodename}): wait until that process ends, or "
            "stop it on that machine, then run this again.",
            status=1,
        )


def session(root, name, hours, *, jobs=(), end=True):
    directory = root.sessions / name
    begin = {"codes": {"A": "codeA", "B": "codeB"}, "digests": {}}
    write(directory / "evidence" / "begin.json", json.dumps(begin))
    for job_name, job in zip(("ppo_a", "ppo_b"), jobs, strict=False):
        write(directory / "evidence" / f"job-{job_name}.json", json.dumps({"submission_id": job, "time": job_name}))
    if end:
        write(directory / "report.json", "{}")
    age(directory, hours)


def test_a_running_session_keeps_its_jobs_and_both_codes(run, ray, old, snapshots):
    job = old("compared", 20, code="codeC")
    session(snapshots, "s1", 2, end=False)
    assert "1 sessions (1 running or interrupted in the last week)" in gc(run, "--keep=0")
    assert list(job.checkpoints.iterdir())
    assert snapshot.list_snapshots(snapshots) == ["codeA", "codeB", "codeC"]
    age(snapshots.sessions / "s1", 7 * 24 + 1)  # nobody has continued it for a week
    gc(run, "--keep=0")
    assert (list(job.checkpoints.iterdir()), snapshot.list_snapshots(snapshots)) == ([], [])


def test_a_session_with_a_kept_job_keeps_both_codes(run, ray, old, snapshots):
    old("of_a", 20, code="codeA"), old("kept", 10, code="codeA")
    session(snapshots, "s1", 10, jobs=["of_a", "kept"])
    session(snapshots, "s0", 30, jobs=["of_a"])
    before = state_of(snapshots.sessions)
    gc(run, "--keep=1")
    assert snapshot.list_snapshots(snapshots) == ["codeA", "codeB"]
    assert state_of(snapshots.sessions) == before


def test_old_helper_versions_go_unless_an_unfinished_job_runs_from_them(ray, old, shared, monkeypatch):
    monkeypatch.setattr(layout, "HELPER_DIR", shared.helpers / "cccccccccccc")
    packages = ("packages-cpython-311-x86_64", "packages-judge-cpython-311-x86_64")
    for name in ("aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc", *packages):
        write(shared.helpers / name / "run.py", "")
    job = old("runs", 5, ended=None)
    write(
        job.config / "resolved.json",
        json.dumps({"entrypoint": f"python3 {shared.helpers}/aaaaaaaaaaaa/run.py launch x"}),
    )
    known = {"runs": {"status": "RUNNING"}}
    assert [w.what for w in retention.survey(shared, 0, set(), known, time.time()).waste] == []
    later = time.time() + 2 * HOUR
    named = {"codeA", "codeB"}
    assert [w.what for w in retention.survey(shared, 0, named, known, later).waste] == ["helper bbbbbbbbbbbb"]


@pytest.mark.parametrize("keep", ["", "-1", "five", "1.5", "9999999"])
def test_keep_is_a_number(run, keep):
    assert run("gc", "--cluster=c", f"--keep={keep}").is_refusal(
        f"KEEP={keep!r} is not usable: give the number of jobs that keep their checkpoints, 0 or more."
    )


def test_a_run_that_was_killed_in_the_middle_is_finished_by_the_next(run, ray, old, monkeypatch):
    job = old("job", 5)
    with monkeypatch.context() as killed:
        killed.setattr(removal.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run("gc", "--cluster=c", "--keep=0").status == 130
    assert job.read_state("collected") is not None
    assert [path.name.startswith(".global_step_10.") for path in job.checkpoints.glob("*step*")] == [True]
    gc(run, "--keep=0")
    assert list(job.checkpoints.iterdir()) == []


@pytest.mark.parametrize("kept", ["old", "young", "another checkout's"])
def test_what_a_killed_run_left_is_finished_by_the_next_wherever_it_is(run, ray, old, snapshots, kept):
    """Before: a half-removed snapshot or helper stayed for ever."""
    job = old("job", 0.5 if kept == "young" else 5)
    if kept == "another checkout's":
        owned(job)
    for place in (job.checkpoints, snapshots.snapshots, snapshots.helpers):
        write(place / ".name.0a1b2c3d.gone" / "verl" / "__init__.py", "half")
    write(snapshots.objects / ".file.0a1b2c3d.gone", "half")
    (snapshots.snapshots / ".name.0a1b2c3d.gone" / "verl").chmod(0o555)
    said = gc(run, "--keep=1", "--named=codeA", "--named=codeB", "--named=codeC")
    left = [
        path
        for path in snapshots.path.rglob("*.gone")
        if path.is_relative_to(job.path) < (kept == "another checkout's")
    ]
    assert left == []
    assert f"changed removed {3 if kept.startswith('another') else 4} leftovers of killed commands: " in said
    assert len(_entries_of(job.checkpoints)) == 2


def _entries_of(directory):
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


def attempt_of(job, number, hours):
    """A further attempt that is over."""
    attempt = job.numbered(number)
    for directory in (attempt.config, attempt.state):
        directory.mkdir(parents=True)
    attempt.write_state("submitted", {"accepted": True})
    attempt.write_state("ended", DONE["ended"])
    age(attempt.path, hours)
    return attempt


def id_of(hours):
    """The id of a job that was submitted so many hours ago."""
    return f"ppo-codeA-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(time.time() - hours * HOUR))}-0a1b"


def test_a_job_that_was_resumed_is_among_the_newest(run, ray, old, shared):
    resumed, later = old(id_of(30), 30), old(id_of(20), 20)
    attempt_of(resumed, 2, 2)
    gc(run, "--keep=1")
    assert (len(list(resumed.checkpoints.iterdir())), list(later.checkpoints.iterdir())) == (2, [])
    assert find.find(shared, "latest") == resumed.numbered(2)


def is_free(root):
    """Could a submitter begin now?"""
    with lock.held(root.jobs, fcntl.LOCK_SH | fcntl.LOCK_NB) as has_lock:
        return has_lock


def test_a_submission_can_begin_while_gc_reads_asks_ray_and_deletes(run, ray, old, snapshots, monkeypatch):
    """Before: it waited for all of it, for minutes."""
    for number in range(3):
        old(f"job{number}", 5)
    free = {}

    def asked(module, name):
        real = getattr(module, name)

        def call(*args, **options):
            free.setdefault(name, []).append(is_free(snapshots))
            return real(*args, **options)

        monkeypatch.setattr(module, name, call)

    asked(retention, "survey")
    asked(retention, "_ask_ray")
    asked(removal.shutil, "rmtree")
    asked(removal, "_rename")  # with the lock
    gc(run, "--keep=0")
    assert free == {
        "survey": [True],
        "_ask_ray": [True],
        "rmtree": [True] * 6,  # three checkpoints and three snapshots
        "_rename": [False] * 9,
    }


def meanwhile(monkeypatch, then):
    """Does that between the survey and the removal."""
    real = removal.Removal.remove

    def remove(self, wastes):
        then()
        return real(self, wastes)

    monkeypatch.setattr(removal.Removal, "remove", remove)


def test_what_is_submitted_meanwhile_keeps_what_it_uses(run, ray, old, make_job, snapshots, monkeypatch):
    read, other = old("read", 5), old("other", 5)
    for name in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"):
        write(snapshots.helpers / name / "run.py", "")
    monkeypatch.setattr(retention, "_changed", lambda _: 0.0)

    def submit():
        job = make_job("new")
        plan = {
            "argv": [f"trainer.resume_from_path={read.checkpoints}/global_step_10", f"{snapshots.snapshots}/codeB/x"],
            "entrypoint": f"python3 {snapshots.helpers}/aaaaaaaaaaaa/run.py launch x",
        }
        write(job.config / "resolved.json", json.dumps(plan))

    meanwhile(monkeypatch, submit)
    said = gc(run, "--keep=0", "--named=codeA")
    assert (len(list(read.checkpoints.iterdir())), list(other.checkpoints.iterdir())) == (2, [])
    assert snapshot.list_snapshots(snapshots) == ["codeA", "codeB"]
    assert sorted(path.name for path in snapshots.helpers.iterdir()) == ["aaaaaaaaaaaa"]
    assert read.read_state("collected") is None
    what = "checkpoints of read (global_step_10, latest_checkpointed_iteration.txt)"
    for name in (what, "snapshot codeB", "helper aaaaaaaaaaaa"):
        assert f"skip    {name} (in use by now, or removed by another gc)\n" in said
    removed = [line for line in said.splitlines() if line.startswith("changed removed")]
    assert [line.split()[2] for line in removed] == ["checkpoints", "snapshot", "helper"]


def test_a_job_that_is_resumed_or_launched_meanwhile_keeps_its_checkpoints(run, ray, old, shared, monkeypatch):
    jobs = [old(name, 5) for name in ("resumed", "launched", "over")]
    held = []

    def go_on():
        attempt = jobs[0].numbered(2)
        attempt.config.mkdir(parents=True)
        held.append(liveness.hold(jobs[1]))

    meanwhile(monkeypatch, go_on)
    gc(run, "--keep=0", "--named=codeA", "--named=codeB")
    os.close(held[0])
    assert [len(list(job.checkpoints.iterdir())) for job in jobs] == [2, 2, 0]


@pytest.mark.parametrize("record", [None, {"codes": {"A": "codeA", "B": "codeC"}}])
def test_a_session_that_begins_meanwhile_keeps_all_jobs_and_its_codes(run, ray, old, snapshots, monkeypatch, record):
    job = old("compared", 5)

    def begin():
        write(snapshots.sessions / "s1" / "evidence" / "x.json", "{}")
        if record is not None:
            write(snapshots.sessions / "s1" / "evidence" / "begin.json", json.dumps(record))

    meanwhile(monkeypatch, begin)
    gc(run, "--keep=0")
    assert len(list(job.checkpoints.iterdir())) == 2
    assert snapshot.list_snapshots(snapshots) == (
        ["codeA", "codeC"] if record is not None else ["codeA", "codeB", "codeC"]
    )


def test_a_plan_that_cannot_be_read_keeps_snapshots_though_it_was_submitted_meanwhile(
    run, ray, make_job, snapshots, monkeypatch
):
    meanwhile(monkeypatch, lambda: write(make_job("new").config / "resolved.json", "{"))
    gc(run, "--keep=0")
    assert snapshot.list_snapshots(snapshots) == ["codeA", "codeB", "codeC"]


@pytest.fixture
def removes(snapshots, monkeypatch):
    """Removes what a survey found, one thing each time that the lock is held: what, and whether it is gone."""
    monkeypatch.setattr(removal, "_HOLD", 0)
    monkeypatch.setattr(removal, "_PAUSE", 0)
    removing = removal.Removal(snapshots)
    waste = retention.survey(snapshots, 0, set(), {}, time.time()).waste
    return ((each.what, is_gone) for each, is_gone in removing.remove(waste))


def test_a_snapshot_that_is_named_after_the_first_removals_stays(removes, make_job, snapshots):
    assert next(removes) == ("snapshot codeA", True)
    write(make_job("new").config / "resolved.json", json.dumps({"argv": [f"{snapshots.snapshots}/codeC/x"]}))
    assert {what: is_gone for what, is_gone in removes if what.startswith("snapshot")} == {
        "snapshot codeB": True, "snapshot codeC": False,
    }  # fmt: skip


def test_a_job_that_goes_on_after_the_first_removals_keeps_its_checkpoints(old, shared, request):
    for hours in (3, 4, 5):
        old(f"job{hours}", hours)
    removes = request.getfixturevalue("removes")
    assert next(removes)[0].startswith("checkpoints of job3 ")
    attempt_of(JobDir(shared.jobs / "job5"), 2, 5)
    assert [is_gone for what, is_gone in removes if what.startswith("checkpoints")] == [True, False]


def test_a_thing_of_many_paths_is_removed_in_parts_and_recorded_once(old, shared, monkeypatch, request):
    job, parts, recorded = old("job", 5), [], []
    for step in (20, 30):
        write(job.checkpoints / f"global_step_{step}" / "model.pt", "w")
    age(job.path, 5)
    removes = request.getfixturevalue("removes")
    monkeypatch.setattr(removal, "_RENAMES", 2)
    monkeypatch.setattr(removal.Removal, "_read_new", lambda _: parts.append(len(list(job.checkpoints.iterdir()))))
    monkeypatch.setattr(removal.Waste, "record", lambda _: recorded.append(len(parts)))
    assert next(removes)[1]
    assert (parts, recorded) == ([4, 2], [1])


def test_a_thing_is_gone_even_if_another_gc_was_quicker_with_its_last_part(old, monkeypatch, request):
    job = old("job", 5)
    removes, rename = request.getfixturevalue("removes"), removal._rename
    monkeypatch.setattr(removal, "_RENAMES", 1)
    monkeypatch.setattr(removal, "_rename", lambda path: rename(path) if path.is_dir() else None)
    assert next(removes)[1]
    assert [path.name for path in job.checkpoints.iterdir()] == ["latest_checkpointed_iteration.txt"]


def test_gc_begins_nothing_more_when_its_time_with_the_lock_is_over_and_then_leaves_it_to_others(
    shared, tmp_path, monkeypatch
):
    """On a clock that only renames, deletions and pauses let go on."""
    now, lasts, slept = 0.0, iter((0.0625, 0.0625, 1, 1, 1)), []
    left = tuple(tmp_path / str(number) for number in range(5))

    def goes_on(seconds):
        nonlocal now
        now += seconds

    def sleep(seconds):
        slept.append((sum(path.exists() for path in left), seconds))
        goes_on(seconds)

    monkeypatch.setattr(removal, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep, time=time.time))
    monkeypatch.setattr(removal, "_HOLD", 0.25)
    monkeypatch.setattr(removal, "_PAUSE", 0.5)
    monkeypatch.setattr(removal, "_rename", lambda path: goes_on(0.125) or path)
    monkeypatch.setattr(removal, "_delete", lambda path: goes_on(next(lasts)) or path.unlink())
    for path in left:
        path.touch()
    assert all(
        is_gone for _, is_gone in removal.Removal(shared).remove([removal.Waste("", (each,), 0) for each in left])
    )
    assert slept == [(3, 0.375), (1, 0)]


def test_who_waits_for_gc_can_read_that_it_has_the_lock(shared):
    with removal.Removal(shared)._lock():
        assert lock.file_of(shared.jobs).read_text().startswith("gc (pid ")


def test_gc_names_who_is_submitting_one_of_the_newest_jobs(old, shared, monkeypatch):
    newest, older = old("newest", 2), old("older", 3)
    monkeypatch.setattr(removal, "_LOCK_SECONDS", 0)
    monkeypatch.setattr(removal, "_NEWEST", 1)
    monkeypatch.setattr(processes, "with_lock", lambda _: {41: "a program"})
    for job, who in ((newest, "submit"), (older, "a program")):
        with (
            lock.held(shared.jobs, fcntl.LOCK_SH),
            lock.owning(job.submitting, "submit", 0),
            pytest.raises(RegressError, match=rf" locked for 0 s by {who} \(pid "),
        ):
            removal.Removal(shared)


@pytest.mark.parametrize(("seconds", "is_remade"), [(HOUR - 1, True), (HOUR, False), (HOUR + 0.5, False)])
def test_a_snapshot_is_made_again_for_less_than_an_hour(shared, monkeypatch, seconds, is_remade):
    now, directory = 2_000_000_000.0, shared.snapshots / "codeA"
    os.utime(directory / snapshot.RECORD_FILE, (now - seconds,) * 2)
    monkeypatch.setattr(removal, "time", SimpleNamespace(time=lambda: now))
    assert removal._is_remade(directory) == is_remade


def test_what_is_renamed_has_a_name_that_nothing_looks_for_and_keeps_it(tmp_path):
    aside = removal._rename(write(tmp_path / "global_step_10", ""))
    assert re.fullmatch(r"\.global_step_10\.[0-9a-f]{8}\.gone", aside.name)
    assert removal._rename(aside) == aside


def test_what_was_renamed_can_be_deleted_by_two_at_once_and_is_opened_to_nobody_else(tmp_path, monkeypatch):
    modes, real = [], shutil.rmtree

    def rmtree(path):
        modes.extend(stat.S_IMODE(each.stat().st_mode) for each in (path, path / "verl"))
        real(path)
        raise FileNotFoundError

    write(tmp_path / "x.gone" / "verl" / "__init__.py", "").parent.chmod(0o555)
    monkeypatch.setattr(removal.shutil, "rmtree", rmtree)
    removal._delete(tmp_path / "x.gone")
    assert (modes, list(tmp_path.iterdir())) == ([0o755, 0o755], [])


def test_a_new_plan_that_cannot_be_read_keeps_snapshots_until_the_end(removes, make_job, snapshots):
    write(make_job("new").config / "resolved.json", "{")
    assert not any(is_gone for _, is_gone in removes)
    assert snapshot.list_snapshots(snapshots) == ["codeA", "codeB", "codeC"]


def test_a_closed_session_of_another_user_that_begins_meanwhile_keeps_all_jobs(run, ray, old, shared, monkeypatch):
    job = old("compared", 5)

    def begin():
        write(shared.sessions / "s1" / "evidence" / "x.json", "{}")
        others(monkeypatch, shared.sessions / "s1")
        monkeypatch.setattr(uses, "is_readable_session", lambda _: False)

    meanwhile(monkeypatch, begin)
    gc(run, "--keep=0")
    assert len(list(job.checkpoints.iterdir())) == 2


@pytest.mark.parametrize("jobs", [[], ["compared"]])
def test_a_session_of_another_user_that_begins_meanwhile_keeps_jobs_once_it_has_recorded_one(
    run, ray, old, shared, monkeypatch, jobs
):
    job = old("other", 5)

    def begin():
        session(shared, "s1", 0, jobs=jobs, end=False)
        others(monkeypatch, shared.sessions / "s1")

    meanwhile(monkeypatch, begin)
    gc(run, "--keep=0")
    assert len(list(job.checkpoints.iterdir())) == (2 if jobs else 0)


@pytest.mark.parametrize("then", ["made", "named"])
def test_a_snapshot_of_version_1_1_that_is_used_or_made_meanwhile_keeps_its_bytecode(
    run, ray, make_job, snapshots, tmp_path, monkeypatch, then
):
    """Before: gc left the snapshot that a new job names, and removed the bytecode to which it links."""
    as_in_version_1_1(snapshots, "codeC")
    directory, elsewhere = snapshots.snapshots / "codeC", tmp_path / "codeC"
    if then == "made":
        directory.chmod(0o755)  # a folder that cannot be written cannot be moved
        directory.rename(elsewhere)
        meanwhile(monkeypatch, lambda: elsewhere.rename(directory))
    else:
        plan = json.dumps({"argv": [f"{directory}/x"]})
        meanwhile(monkeypatch, lambda: write(make_job("new").config / "resolved.json", plan))
    gc(run, "--keep=0")
    links = [path for path in directory.rglob("*") if path.name == "__pycache__"]
    assert (len(links) > 0, [link for link in links if not link.is_dir()]) == (True, [])


def test_a_snapshot_that_is_made_again_meanwhile_stays(run, ray, snapshots, monkeypatch):
    meanwhile(monkeypatch, lambda: os.utime(snapshots.snapshots / "codeB" / snapshot.RECORD_FILE))
    gc(run, "--keep=0")
    assert snapshot.list_snapshots(snapshots) == ["codeB"]


def test_two_runs_at_once_remove_all_once_and_both_end_well(run, ray, old, snapshots, monkeypatch):
    job = old("job", 5)
    inner = []

    def other():
        monkeypatch.undo()
        inner.append(retention.survey(snapshots, 0, set(), {}, time.time()).waste)
        assert all(is_removed for _, is_removed in removal.Removal(snapshots).remove(inner[0]))

    meanwhile(monkeypatch, other)
    monkeypatch.setattr(removal, "_PAUSE", 0)
    said = gc(run, "--keep=0")
    assert list(job.checkpoints.iterdir()) == []
    assert said.count("(in use by now, or removed by another gc)") == len(inner[0]) == 4


def test_sizes_are_printed_for_people():
    assert [retention.human(size) for size in (0, 1023, 1024, 1536, 5 << 20, 3 << 30, 1 << 50)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 GiB", "1024.0 TiB",
    ]  # fmt: skip


@pytest.mark.parametrize("is_dry", [True, False])
def test_secrets_of_the_clusters_lost_jobs_go_too_but_not_in_a_dry_run(run, ray, shared, monkeypatch, is_dry):
    swept = []
    monkeypatch.setattr(retention.sweep, "attempt", lambda root, cluster: swept.append((root.path, cluster)))
    run("gc", "--cluster=c", "--keep=0", *(["--dry-run"] if is_dry else []))
    assert swept == ([] if is_dry else [(shared.path, "c")])


def test_the_caller_is_the_owner_that_the_command_line_names(run, ray, old):
    job = old("mine", 5)
    owned(job)
    age(job.path, 5)
    assert "1 of another checkout or cluster" in gc(run, "--keep=0", "--named=codeA", "--named=codeB")
    mine = run("--owner=ann:0123456789abcdef", "gc", "--cluster=c", "--keep=0", "--named=codeA", "--named=codeB")
    assert "changed removed checkpoints of mine " in mine.err


def test_objects_that_version_1_1_may_use_stay(run, ray, snapshots, monkeypatch):
    as_in_version_1_1(snapshots, "codeA")
    assert any("objects" in waste.what for waste in retention.survey(snapshots, 0, set(), {}, time.time()).waste)
    monkeypatch.setattr(removal, "are_objects_free", lambda root: False)
    assert " objects " not in gc(run, "--keep=0")


def test_nothing_is_freed_if_another_gc_was_quicker(run, ray, old, monkeypatch):
    old("job", 5)
    monkeypatch.setattr(removal.Removal, "remove", lambda _, wastes: ((each, False) for each in wastes))
    assert gc(run, "--keep=0").endswith("ok      freed 0 bytes in all\n")


def others(monkeypatch, *paths):
    """These belong to another user."""
    real = uses.is_mine
    monkeypatch.setattr(uses, "is_mine", lambda path: path not in paths and real(path))


def test_what_other_users_own_is_counted_and_stays(run, ray, old, snapshots, monkeypatch):
    old("mine", 5)
    assert " unused), 0 helpers\n" in gc(run, "--keep=0", "--dry-run")
    theirs = old("theirs", 5)
    others(monkeypatch, theirs.path)
    before = state_of(theirs.path)
    said = gc(run, "--keep=0", "--dry-run")
    assert "1 of another checkout or cluster" in said
    assert "; left to other users: 1 jobs, 0 snapshots\n" in said
    others(monkeypatch, theirs.path, snapshots.snapshots / "codeB", snapshots.snapshots / "codeC")
    assert "; left to other users: 1 jobs, 2 snapshots\n" in gc(run, "--keep=0")
    assert (state_of(theirs.path), snapshot.list_snapshots(snapshots)) == (before, ["codeA", "codeB", "codeC"])


def test_only_snapshots_of_other_users_are_counted_too(run, ray, snapshots, monkeypatch):
    others(monkeypatch, snapshots.snapshots / "codeB")
    assert "; left to other users: 0 jobs, 1 snapshots\n" in gc(run, "--keep=0")


def test_a_job_that_cannot_be_read_is_named_and_keeps_every_snapshot_and_helper(run, ray, old, snapshots, monkeypatch):
    others(monkeypatch, old("closed", 5).path)
    monkeypatch.setattr(uses, "is_readable", lambda job: job.submission_id != "closed")
    monkeypatch.setattr(retention, "_changed", lambda _: 0.0)
    write(snapshots.helpers / "aaaaaaaaaaaa" / "run.py", "")
    as_in_version_1_1(snapshots, "codeA")
    said = gc(run, "--keep=0")
    assert (
        "; left to other users: 1 jobs, 0 snapshots; 1 jobs cannot be read (closed), so every snapshot and helper stays\n"
        in said
    )
    assert "(nothing to remove)" in said


def closed(monkeypatch, *paths):
    """Another user lets nobody list these."""
    real = os.scandir

    def scandir(path):
        if path in paths:
            raise PermissionError
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.parametrize("part", ["", "attempts"])
def test_a_job_with_a_folder_that_another_user_closed_cannot_be_read(old, monkeypatch, part):
    job = attempt_of(old("job", 5), 2, 5).first
    assert uses.is_readable(job)
    closed(monkeypatch, job.path / part)
    assert not uses.is_readable(job)


@pytest.mark.parametrize("may_read", [True, False])
def test_the_system_is_asked_about_files_of_other_users_plans_only_as_who_would_open_them(old, monkeypatch, may_read):
    job, asked = old("job", 5), set()
    monkeypatch.setattr(os, "access", lambda _, mode, **options: asked.add((mode, *options.items())) or may_read)
    assert (uses.is_readable(job), asked) == (True, set())
    others(monkeypatch, job.path)
    assert (uses.is_readable(job), asked) == (may_read, {(os.R_OK, ("effective_ids", True))})


@pytest.mark.parametrize(("more", "is_readable"), [(0, True), (-1, False)])
def test_a_plan_is_read_up_to_the_longest_file(old, monkeypatch, more, is_readable):
    job = old("job", 5)
    monkeypatch.setattr(uses, "LONGEST", max(path.stat().st_size for path in job.config.iterdir()) + more)
    assert uses.is_readable(job) == is_readable


def test_a_session_without_evidence_can_be_read_and_one_that_another_user_closed_cannot(shared, monkeypatch):
    directory = shared.sessions / "s1"
    assert uses.is_readable_session(retention.Session(directory))
    session(shared, "s1", 2)
    assert uses.is_readable_session(retention.Session(directory))
    closed(monkeypatch, directory / "evidence")
    assert not uses.is_readable_session(retention.Session(directory))


def test_what_is_gone_is_nobodys(shared):
    assert not uses.is_mine(shared.jobs / "gone")


@pytest.mark.parametrize("readable", ["theirs", "mine", "none"])
def test_a_session_that_cannot_be_read_may_compare_any_job(ray, old, snapshots, monkeypatch, readable):
    """One that can be read compares its own jobs only, if it is another user's; the caller's may begin others."""
    for name in ("compared", "other"):
        old(name, 20, code="codeC")
    as_in_version_1_1(snapshots, "codeA")
    session(snapshots, "s1", 2, jobs=["compared"], end=False)
    if readable != "mine":
        others(monkeypatch, snapshots.sessions / "s1")
    monkeypatch.setattr(uses, "is_readable_session", lambda session: readable != "none")
    waste = [each.what.split(" (")[0] for each in retention.survey(snapshots, 0, set(), {}, time.time()).waste]
    if readable == "none":
        assert waste == []
    else:
        # The snapshot codeC is that of the job which stays.
        assert ("checkpoints of other" in waste, "checkpoints of compared" in waste) == (readable == "theirs", False)
        assert any("objects" in each for each in waste)


def large(path):
    with path.open("wb") as file:
        file.truncate(2 << 30)


HOSTILE = {
    "large": large,
    "cut off": lambda path: path.write_text("{"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "list": lambda path: path.write_text("[]"),
    "no id": lambda path: path.write_text("{}"),
    "id": lambda path: path.write_text('{"submission_id": [1]}'),
    "link": lambda path: path.symlink_to("/nowhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_session_that_was_made_by_hand_may_compare_any_job(old, snapshots, kind):
    """Before: a traceback, or gc read the pipe for ever."""
    old("compared", 20, code="codeC")
    session(snapshots, "s1", 2, end=False)
    HOSTILE[kind](snapshots.sessions / "s1" / "evidence" / "job-x.json")
    assert retention.survey(snapshots, 0, set(), {}, time.time()).waste == []
    age(snapshots.sessions / "s1", 8 * 24)
    found = retention.survey(snapshots, 0, set(), {}, time.time()).waste
    assert [waste.what.split(" (")[0] for waste in found][:1] == ["checkpoints of compared"]


def test_a_session_with_codes_that_are_none_keeps_none(ray, old, snapshots):
    session(snapshots, "s1", 2, end=False)
    write(snapshots.sessions / "s1" / "evidence" / "begin.json", '{"codes": ["codeB"]}')
    found = retention.survey(snapshots, 0, {"codeA"}, {}, time.time())
    assert [waste.what for waste in found.waste] == ["snapshot codeB", "snapshot codeC"]


@pytest.mark.parametrize("name", ["resolved.json", "more.json"])
def test_a_job_with_a_file_of_2_gib_cannot_be_read(old, snapshots, name):
    """Before: a MemoryError."""
    large(old("job", 5).config / name)
    found = retention.survey(snapshots, 9, set(), {}, time.time())
    assert found.checked.endswith("; 1 jobs cannot be read (job), so every snapshot and helper stays")
    assert found.waste == []


def test_a_session_without_a_record_of_its_codes_keeps_none(ray, old, snapshots):
    session(snapshots, "s1", 2, end=False)
    write(snapshots.sessions / "s1" / "evidence" / "begin.json", "{}")
    found = retention.survey(snapshots, 0, {"codeA"}, {}, time.time())
    assert [waste.what for waste in found.waste] == ["snapshot codeB", "snapshot codeC"]


def test_a_session_that_is_over_keeps_no_code_for_the_jobs_of_others(run, ray, old, snapshots):
    old("compared", 20, code="codeC"), old("kept", 2, code="codeC")
    session(snapshots, "s1", 10, jobs=["compared"])
    gc(run, "--keep=1")
    assert snapshot.list_snapshots(snapshots) == ["codeC"]


def test_a_session_is_at_work_as_long_as_it_records_evidence(run, ray, old, snapshots):
    session(snapshots, "s1", 8 * 24, jobs=["x"], end=False)
    assert "1 sessions (0 running or interrupted in the last week)" in gc(run, "--keep=0", "--dry-run")
    os.utime(snapshots.sessions / "s1" / "evidence" / "job-ppo_a.json")
    assert "1 sessions (1 running or interrupted in the last week)" in gc(run, "--keep=0", "--dry-run")


def test_a_job_whose_end_is_damaged_may_still_run(run, ray, old):
    job = old("job", 5)
    write(job.state / "ended", "{")
    age(job.path, 5)
    assert "1 that may still run" in gc(run, "--keep=0")
    assert len(list(job.checkpoints.iterdir())) == 2


def test_a_job_that_logged_ten_minutes_ago_may_still_run_though_it_saved_nothing(run, ray, old):
    job = old("job", 5, ended=None)
    os.utime(job.driver_log, (time.time() - 600,) * 2)
    assert "1 that may still run" in gc(run, "--keep=0")
    os.utime(job.driver_log, (time.time() - 3700,) * 2)
    assert "0 that may still run" in gc(run, "--keep=0")


def test_a_lost_job_of_another_cluster_with_a_recorded_end_needs_nothing_more(ray, old, shared):
    parent, child = old("parent", 5), old("child", 5, ended={**DONE["ended"], "exit_code": 1, "lost_nodes": ["w"]})
    plan = {"cluster": "d", "argv": [f"trainer.resume_from_path={parent.checkpoints}/global_step_10"]}
    write(child.config / "resolved.json", json.dumps(plan))
    age(child.path, 5)
    assert judge_among(child, {}).status is Status.LOST
    found = retention.survey(shared, 0, {"codeA", "codeB"}, {}, time.time(), cluster="c").waste
    assert [waste.what.split(" (")[0] for waste in found] == ["checkpoints of parent"]


def test_a_snapshot_that_another_gc_has_removed_is_not_settled(shared):
    assert not retention._is_settled(shared.snapshots / "gone", time.time())


def test_a_directory_counts_once_and_a_file_with_its_last_link():
    count = retention._Disk()._last_link_of
    directory = SimpleNamespace(st_mode=stat.S_IFDIR, st_dev=1, st_ino=1, st_nlink=5, st_blocks=8)
    file = SimpleNamespace(st_mode=stat.S_IFREG, st_dev=1, st_ino=2, st_nlink=2, st_blocks=16)
    assert [count(directory), count(file), count(file)] == [4096, 0, 8192]


@pytest.mark.parametrize("given", ["--keep=0", "--cluster=c"])
def test_gc_needs_both_the_cluster_and_how_many_jobs_keep_theirs(run, ray, given):
    assert run("gc", given).status == 2


@pytest.mark.parametrize(("seconds", "is_old"), [(HOUR, False), (HOUR + 1, True)])
def test_what_was_written_an_hour_ago_to_the_second_may_be_about_to_be_used(
    old, snapshots, monkeypatch, seconds, is_old
):
    now, job, code = 2_000_000_000.0, old("job", 0, ended=None), snapshots.snapshots / "codeA"
    for directory in (job.path, code):
        for path in (directory, *directory.rglob("*")):
            os.utime(path, (now - seconds,) * 2)
    monkeypatch.setattr(retention, "_changed", lambda path: now - seconds)
    write(snapshots.helpers / "aaaaaaaaaaaa" / "run.py", "")
    assert retention._are_settled(job, now) == is_old
    assert retention._attempt_is_over(job, {}, now, None) == is_old
    assert retention._is_settled(code, now) == is_old
    found = retention.survey(snapshots, 0, {"codeA", "codeB", "codeC"}, {}, now).waste
    assert ("helper aaaaaaaaaaaa" in [waste.what for waste in found]) == is_old


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(("seconds", "is_at_work"), [(7 * 24 * HOUR, False), (7 * 24 * HOUR - 1, True)])
def test_a_session_may_be_continued_for_less_than_a_week(shared, monkeypatch, seconds, is_at_work, is_closed):
    def is_over(_):
        if is_closed:
            raise PermissionError
        return False

    now = 2_000_000_000.0
    session(shared, "s1", 0, end=False)
    for path in (shared.sessions / "s1", *(shared.sessions / "s1").rglob("*")):
        os.utime(path, (now - seconds,) * 2)
    monkeypatch.setattr(retention.Session, "is_over", property(is_over))
    assert retention._is_at_work(retention.Session(shared.sessions / "s1"), now) == is_at_work


def test_an_attempt_that_wrote_nothing_is_settled(run, ray, old):
    job = old("job", 5)
    (job.path / "attempts" / "2" / "state").mkdir(parents=True)
    age(job.path, 5)
    assert "0 younger than an hour" in gc(run, "--keep=0")
    assert list(job.checkpoints.iterdir()) == []
