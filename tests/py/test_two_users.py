"""Two real users on one shared root: each works in a process of its own uid, through the helper's own code."""

import codecs
import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path

import pytest
from conftest import write
from streams import tar

import job_secrets as hook
import verl_regress
from verl_regress import cli
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import liveness
from verl_regress.secrets import job_secrets
from verl_regress.session import history
from verl_regress.store import snapshot
from verl_regress.submit import submit
from verl_regress.worker import launcher, queue

ANN, BOB, TEAM = 41001, 41002, 42000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users"),
]

# Now, because the users may not read where this Python is installed.
for module in pkgutil.walk_packages(verl_regress.__path__, "verl_regress."):
    importlib.import_module(module.name)
for encoding in ("ascii", "idna", "unicode_escape"):
    codecs.lookup(encoding)


def submission(root, name, cluster, *, ends):
    """A submission up to Ray: the directory, its config, the queue, the secrets; then what the launcher records."""
    job = JobDir(root.jobs / name)
    submit._make_directories(types.SimpleNamespace(job=job, request=types.SimpleNamespace(attempt=None, owner=None)))
    plan = {
        "submission_id": name, "workload": "ppo", "code_id": "codeA", "cluster": cluster, "address": "http://ray:1",
        "max_running": 1, "devices": {"count": 1, "cluster_has": 1, "resource": "GPU"},
    }  # fmt: skip
    write(job.config / "resolved.json", json.dumps(plan))
    with job_secrets.written(job_secrets.file_of(root, cluster, job), {"KEY": "0123456789"}):
        queue.line_up(job, cluster, 1)
    job.write_state("submitted", {"accepted": True})
    if ends:
        write(job.checkpoints / "global_step_1" / "model.pt", "weights")
        job.write_state("started", {})
        job.write_state("ended", {"exit_code": 0, "reason": "the trainer ended"})


class Team:
    """The shared root, and what its users do there."""

    def __init__(self, path):
        self.root = SharedRoot(path)

    def calls(self, uid, function, *args, group=TEAM, **options):
        """A function in a process of that user, who is in the group (None: in none): its status, stdout and stderr."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = os.fork()
            if pid == 0:
                status = 99
                try:
                    os.dup2(out.fileno(), 1)
                    os.dup2(err.fileno(), 2)
                    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                    os.setgroups([] if group is None else [group])
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                    os.umask(0o022)
                    status = function(*args, **options) or 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            texts = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (out, err)]
        return (status, *texts)

    def acts(self, uid, *argv):
        """A program of the system as that user."""
        done = subprocess.run(
            argv,
            user=uid,
            group=uid,
            extra_groups=[TEAM],
            umask=0o022,
            text=True,
            capture_output=True,
            check=False,
            cwd="/",
        )
        return done.returncode, done.stdout, done.stderr

    def helper(self, uid, *words, group=TEAM):
        shared = () if group is None else (f"--shared-group={group}",)
        return self.calls(
            uid, cli.main, ["--shared-root", str(self.root.path), *shared, "--no-ray", *words], group=group
        )

    def submits(self, uid, name, cluster, *, ends=True):
        assert self.calls(uid, submission, self.root, name, cluster, ends=ends) == (0, "", "")
        return self.root.jobs / name

    def table(self, uid, *words):
        """The lines of `jobs`, without the times."""
        status, out, err = self.helper(uid, "jobs", *words)
        assert (status, err) == (0, "        Ray was not asked: this is what the jobs' own files say\n")
        return [" ".join(word for word in line.split() if not word.startswith("20")) for line in out.splitlines()[1:]]


@pytest.fixture
def team():
    """Both users can reach it, unlike pytest's own directories. Ann came first."""
    path = Path(tempfile.mkdtemp(prefix="verl-regress-team-", dir="/tmp"))
    path.chmod(0o755)
    (path / "shared").mkdir()
    os.chown(path / "shared", ANN, ANN)
    yield Team(path / "shared")
    shutil.rmtree(path)


@pytest.fixture
def both(team):
    """The same, when both have run `make up`."""
    for uid in (ANN, BOB):
        assert team.helper(uid, "layout", "--cluster=c") == (0, "", "")
    return team


def mode(path):
    found = path.stat()
    return f"{found.st_uid}:{found.st_gid} {found.st_mode & 0o7777:04o}"


def test_the_first_user_opens_the_shared_root_to_the_group(both):
    shared = f"{ANN}:{TEAM} 3775"
    places = "jobs queue verify bisect ray datasets hf outputs common common/models common/code/verl common/code/verl_regress user/code"
    assert {place: mode(both.root.path / place) for place in places.split()} == dict.fromkeys(places.split(), shared)
    assert mode(both.root.path) == shared
    assert mode(both.root.secrets) == f"{ANN}:{TEAM} 3770"


def test_directories_of_an_earlier_version_are_opened_by_their_owner(team):
    assert team.helper(ANN, "layout", group=None) == (0, "", "")
    assert mode(team.root.jobs) == f"{ANN}:{ANN} 0755"
    assert team.helper(ANN, "layout") == (0, "", "")
    assert (mode(team.root.jobs), mode(team.root.snapshots)) == (f"{ANN}:{TEAM} 3775",) * 2


def test_without_a_group_the_second_user_is_given_the_one_command_that_opens_it(team):
    team.helper(ANN, "layout", group=None)
    status, out, err = team.helper(BOB, "layout")
    assert (status, out) == (1, "")
    before, _, command = err.partition("ask that user to run '")
    names = ", ".join(str(team.root.path / name) for name in ("datasets", "hf", "jobs"))
    assert before == f"error   {names}, … of uid {ANN} cannot be used by the group {TEAM} (SHARED_GROUP): "
    assert team.acts(ANN, "sh", "-c", command.removesuffix("'.\n")) == (0, "", "")
    assert team.helper(BOB, "layout") == (0, "", "")
    team.submits(BOB, "bobs", "b")


def test_a_user_who_is_not_in_the_group_is_refused(team):
    words = ["--shared-root", str(team.root.path), f"--shared-group={TEAM}", "layout"]
    sentence = (
        f"{team.root.datasets} cannot be given to the group {TEAM} (SHARED_GROUP) by uid {ANN}, which is not in that group: "
        "name a group of yours."
    )
    assert team.calls(ANN, cli.main, words, group=None) == (1, "", f"error   {sentence}\n")


def test_an_unknown_group_is_bad_input(team):
    words = ["--shared-root", str(team.root.path), "--shared-group=nosuchgroup", "layout"]
    sentence = f"SHARED_GROUP=nosuchgroup is not a group of {os.uname().nodename}: give its number, or a group that every node has."
    assert team.calls(ANN, cli.main, words) == (2, "", f"error   {sentence}\n")


def test_both_submit_and_neither_touches_what_the_other_made(both):
    for uid, name, cluster in ((ANN, "anns", "a"), (BOB, "bobs", "b")):
        job = both.submits(uid, name, cluster)
        assert mode(job) == f"{uid}:{TEAM} 2755"
        assert mode(both.root.secrets / cluster) == f"{uid}:{TEAM} 2700"
        assert mode(both.root.secrets / cluster / name) == f"{uid}:{TEAM} 0600"
        assert [path.name.split("-", 2)[2] for path in both.root.queue(cluster).glob("[0-9]*")] == [name]
    for argv in (
        ("rm", "-r", both.root.jobs / "anns"),
        ("mv", both.root.jobs / "anns", both.root.jobs / "mine"),
        ("mv", both.root.queue("a"), both.root.queue("mine")),
        ("touch", both.root.jobs / "anns" / "state" / "ended"),
        ("cat", both.root.secrets / "a" / "anns"),
    ):
        assert both.acts(BOB, *argv)[0] != 0, argv
    redacts = both.calls(BOB, lambda: print(job_secrets.redactor(both.root).text("0123456789")))
    assert (redacts[0], redacts[2], "0123456789" in redacts[1]) == (0, "", False)
    assert both.table(BOB) == both.table(ANN)
    assert [row.split()[0] for row in both.table(BOB)] == ["bobs", "anns"]


def test_a_cluster_name_of_another_user_is_refused(both):
    both.submits(ANN, "anns", "c")
    assert both.helper(ANN, "layout", "--cluster=c") == (0, "", "")
    assert both.helper(BOB, "layout", "--cluster=c") == (
        2,
        "",
        f"error   The cluster name c (CLUSTER_NAME) is taken on this shared root by uid {ANN} ({both.root.queue('c')}): set "
        "another CLUSTER_NAME.\n",
    )


@pytest.fixture
def damaged(both):
    """Jobs of Bob's list: Ann's open one and a closed one, three of his that are damaged, a link, and a good one."""
    both.submits(ANN, "open", "a")
    both.submits(ANN, "closed", "a").chmod(0o700)
    both.submits(ANN, "half-closed", "a")
    (both.root.jobs / "half-closed" / "state" / "ended").chmod(0o600)
    write(both.submits(BOB, "cut", "b") / "state" / "ended", '{"time": "2026')
    write(both.submits(BOB, "no-object", "b") / "config" / "resolved.json", "[]")
    write(both.submits(BOB, "strange", "b") / "state" / "ended", '{"exit_code": 0}')
    os.mkfifo(both.submits(BOB, "pipe", "b", ends=False) / "state" / "ended")
    (both.root.jobs / "link").symlink_to("/etc")
    os.mkdir(os.fsencode(both.root.jobs) + b"/caf\xe9")  # noqa: PTH102
    both.submits(BOB, "good", "b")
    for age, name in enumerate(("good", "open", "closed", "half-closed", "cut", "no-object", "strange", "pipe")):
        os.utime(both.root.jobs / name / "config", (1e9 - age, 1e9 - age))
    os.utime(both.root.jobs / "closed", (1e9 - 2, 1e9 - 2))
    return both


def test_each_job_that_cannot_be_read_is_one_line(damaged):
    rows = damaged.table(BOB, "--cluster=b")
    assert rows[0].startswith("caf\\udce9 ? ? NOT_SUBMITTED 1 ")
    assert rows[1:] == [
        "good ppo codeA SUCCEEDED 1 0",
        "open ppo codeA SUCCEEDED 1 0",
        f"closed ? ? UNKNOWN 1 - cannot be read: owned by uid {ANN}, mode 0700",
        f"half-closed ppo codeA UNKNOWN 1 - cannot be read: owned by uid {ANN}, mode 0600",
        "cut ppo codeA UNKNOWN 1 - cannot be read: state/ended is cut off, or no JSON object",
        "no-object ? ? UNKNOWN 1 - cannot be read: config/resolved.json is cut off, or no JSON object",
        "strange ppo codeA UNKNOWN 1 - cannot be read: state/ended: it has no reason",
        "pipe ppo codeA UNKNOWN 1 - cannot be read: state/ended is not a regular file",
    ]


def test_a_job_whose_attempts_can_be_listed_and_not_entered_is_one_line(both):
    """Before: it was the end of every list."""
    attempts = both.submits(ANN, "half-closed", "a") / "attempts"
    (attempts / "2").mkdir(parents=True)
    attempts.chmod(0o744)
    assert both.table(BOB, "--cluster=b") == ["half-closed ? ? UNKNOWN 2 - cannot be read: owned by uid 0, mode 0744"]


def test_status_says_the_same_and_prints_the_rest(damaged):
    status, out, _ = damaged.helper(BOB, "status", "--profile=cpu", "--cluster=b")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0
    assert f"closed ? UNKNOWN - cannot be read: owned by uid {ANN}, mode 0700" in lines
    assert "cut codeA UNKNOWN - cannot be read: state/ended is cut off, or no JSON object" in lines
    assert "good codeA SUCCEEDED -" in lines
    status, out, _ = damaged.helper(BOB, "status", "--profile=cpu", "--cluster=b", "--json")
    assert (status, json.loads(out)["jobs_total"]) == (0, 9)


def test_a_command_on_one_of_them_is_one_sentence(damaged):
    sentence = f"error   {damaged.root.jobs}/closed cannot be read: owned by uid {ANN}, mode 0700: ask that user to let you read it.\n"
    for words in (("logs", "closed"), ("where", "closed"), ("stop", "closed", "--deadline=1")):
        assert damaged.helper(BOB, *words) == (1, "", sentence)
    assert damaged.helper(BOB, "stop", "no-object", "--deadline=1") == (
        1, "", f"error   {damaged.root.jobs}/no-object/config/resolved.json cannot be read: it is cut off, or no JSON object: restore it from a backup.\n",
    )  # fmt: skip


def test_a_job_of_another_cluster_is_not_called_lost_and_not_stopped_from_here(both):
    both.submits(ANN, "anns", "a", ends=False)
    assert both.table(BOB, "--cluster=b") == [
        "anns ppo codeA UNKNOWN 1 0 the job recorded no end, and the Ray of its cluster a was not asked"
    ]
    assert both.helper(BOB, "stop", "anns", "--cluster=b", "--deadline=1") == (
        2,
        "",
        "error   anns is on the cluster a, and CLUSTER_NAME is b: stop it from there (an owner that was not recorded).\n",
    )
    assert (both.root.secrets / "a" / "anns").exists()


def test_a_further_attempt_of_another_users_job_is_refused(both):
    job = both.submits(ANN, "anns", "a")
    words = ("--shared-root", str(both.root.path), "--shown-root=/here", "--no-ray", "retry", "anns", "--overrides=")
    assert both.calls(BOB, cli.main, list(words)) == (
        2,
        "",
        f"error   anns belongs to uid {ANN}, who alone can add an attempt to it: submit a job of your own, as in 'make submit "
        f"JOBSPEC=/here/jobs/{job.name}/config/job_spec.json'.\n",
    )


def test_what_is_live_on_a_cluster_is_known_in_spite_of_them(damaged):
    assert damaged.helper(BOB, "live", "--cluster=b")[0] == 0


def test_gc_of_one_user_leaves_what_the_other_has(damaged):
    """Before: it ended at the first directory that it could not read."""
    theirs = damaged.submits(BOB, "mixed", "b") / "checkpoints" / "global_step_1" / "hers.pt"
    write(theirs, "w")
    os.chown(theirs, ANN, TEAM)
    before = {path: path.lstat().st_mode for path in sorted(damaged.root.path.rglob("*")) if path.lstat().st_uid == ANN}
    for path in damaged.root.jobs.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    status, out, err = damaged.helper(BOB, "gc", "--cluster=b", "--keep=0")
    assert (status, out) == (0, "")
    assert "; left to other users: 4 jobs, 0 snapshots; 2 jobs cannot be read (" in err
    assert "), so every snapshot and helper stays\n" in err
    after = {path: path.lstat().st_mode for path in sorted(damaged.root.path.rglob("*")) if path.lstat().st_uid == ANN}
    assert after == before
    assert not (damaged.root.jobs / "good" / "checkpoints" / "global_step_1").exists()


def test_gc_keeps_the_snapshots_that_a_closed_job_may_use(both):
    code = both.root.snapshots / "codeB"
    files = {"verl/__init__.py": b""}
    made = both.calls(BOB, lambda: snapshot.create(both.root, "codeB", "pypi:1", "1", tar(files), dirty=False) and 0)
    assert made[0] == 0, made
    for path in (code, *code.rglob("*")):
        os.utime(path, (1e9, 1e9))
    job = both.submits(ANN, "closed", "a")
    job.chmod(0o700)
    assert "so every snapshot and helper stays" in both.helper(BOB, "gc", "--cluster=b", "--keep=0")[2]
    assert code.exists()
    assert "left to other users: 0 jobs, 1 snapshots" in both.helper(ANN, "gc", "--cluster=a", "--keep=0")[2]
    assert code.exists()
    job.chmod(0o755)
    assert "changed removed snapshot codeB: " in both.helper(BOB, "gc", "--cluster=b", "--keep=0")[2]
    assert not code.exists()


def test_the_session_of_another_user_keeps_only_the_jobs_that_it_recorded(both):
    """Before: gc removed no checkpoint of any user while one of them ran a session."""
    for name in ("used", "unused"):
        job = both.submits(BOB, name, "b")
        for path in (job, *job.rglob("*")):
            os.utime(path, (1e9, 1e9))
    evidence = both.root.sessions / "20261122T100000Z" / "evidence"
    write(evidence / "job-ppo_a.json", json.dumps({"submission_id": "used", "time": "2026"}))
    for path in (evidence.parent, evidence, evidence / "job-ppo_a.json"):
        os.chown(path, ANN, TEAM)
    both.helper(BOB, "gc", "--cluster=b", "--keep=0")
    assert [(both.root.jobs / name / "checkpoints/global_step_1").exists() for name in ("used", "unused")] == [
        True,
        False,
    ]
    evidence.parent.chmod(0o700)
    both.submits(BOB, "later", "b")
    for path in both.root.jobs.rglob("*"):
        os.utime(path, (1e9, 1e9))
    both.helper(BOB, "gc", "--cluster=b", "--keep=0")
    assert (both.root.jobs / "later/checkpoints/global_step_1").exists()


def test_a_job_in_the_queue_that_cannot_be_read_is_passed_over(both):
    job, waiting = both.submits(BOB, "bobs", "b", ends=False), both.root.queue("b")
    both.submits(ANN, "closed", "a", ends=False).chmod(0o700)
    (waiting / f"{0:020d}-1-closed").write_text("")

    def asks():
        liveness.hold(JobDir(job))
        print(queue._Queue(JobDir(job), JobDir(job).read_config("resolved.json")).ask())

    assert both.calls(BOB, asks) == (0, "None\n", "")
    assert len(list(waiting.iterdir())) == 3  # and the lock


def test_each_user_has_a_place_for_the_caches_of_hugging_face(both):
    said = [both.calls(uid, lambda: print(both.root.hf))[1].strip() for uid in (ANN, BOB)]
    assert said == [f"{both.root.path}/hf/uid-{uid}" for uid in (ANN, BOB)]
    assert [mode(Path(place)) for place in said] == [f"{uid}:{TEAM} 0755" for uid in (ANN, BOB)]


def test_what_another_user_put_into_our_cache_of_hugging_face_is_not_taken(team):
    """Before: it was copied into the model, and belonged to us."""
    team.helper(ANN, "layout", "--cluster=a")
    place = team.root.path / "hf" / f"uid-{BOB}"

    def plants():
        write(place / "hub" / "models--org--name" / "snapshots" / "abc" / "modeling.py", "evil = 1\n")

    assert team.calls(ANN, plants) == (0, "", "")
    assert team.helper(BOB, "layout", "--cluster=b") == (0, "", "")
    assert team.helper(BOB, "prepare-model", "--source=hub:org/name", "--seed=1") == (
        2,
        "",
        f"error   HF_HOME={place} (for MODEL_SOURCE=hub:org/name) is refused, because {place} belongs to user {ANN}, and what is there would run "
        f"as you: set TRUSTED_UIDS={ANN} if you trust that user, or let its owner remove it.\n",
    )
    assert not list(team.root.models.iterdir())


def test_a_report_that_is_cut_off_is_passed_over(both):
    for name, text in (("20261122T100000Z", '{"status": 0, "headline": "same"}'), ("20261122T110000Z", '{"sta')):
        write(both.root.sessions / name / "report.json", text)
        write(both.root.sessions / name / "report.html", "")
    status, out, err = both.helper(BOB, "report")
    assert (status, out) == (0, f"{both.root.sessions}/20261122T100000Z/report.html\n")
    assert err.splitlines() == [
        f"        {both.root.sessions}/20261122T110000Z/report.json cannot be read: it is cut off, or no JSON object: restore it from a backup.",
        "        20261122T100000Z: same",
    ]


def test_the_page_of_all_sessions_that_another_user_made_stays(both):
    page = both.root.sessions / "history.html"
    assert history._place(both.root) == page
    write(page, "")
    os.chown(page, BOB, TEAM)
    assert history._place(both.root) == both.root.sessions / "history-0.html"


@pytest.mark.parametrize("swap", ["a copy", "a link"])
def test_a_snapshot_that_the_first_user_swaps_while_a_job_waits_is_not_run(both, swap):
    """The first user owns the directory of all snapshots, where the sticky bit does not hold that user back."""
    files = tar({"verl/__init__.py": b"", "verl/steps.py": b"print('as submitted')\n"})
    target = both.root.snapshots / "codeA"

    def makes():
        record = snapshot.create(both.root, "codeA", "pypi:0.7.1", "0.7.1", files, dirty=False)
        print(json.dumps(record))

    record = json.loads(both.calls(BOB, makes)[1])

    def swaps():
        copy = both.root.snapshots / "copy"
        shutil.copytree(target, copy)
        target.rename(both.root.snapshots / "original")
        if swap == "a copy":
            copy.rename(target)
        else:
            target.symlink_to("original")

    def starts():
        job = types.SimpleNamespace(config="config", read_config=lambda _: record)
        launcher.check_code(job, {"code_path": str(target), "trusted_uids": []})

    assert both.calls(BOB, starts) == (0, "", "")
    assert both.calls(ANN, swaps) == (0, "", "")
    status, _, err = both.calls(BOB, starts)
    assert (status, err.splitlines()[-1]) == (
        99,
        f"verl_regress.base.errors.RegressError: The snapshot codeA was changed after the job was submitted ({target}: {target} belongs to user {ANN}): "
        f"set TRUSTED_UIDS={ANN} if you trust that user, or make a snapshot of your own under another CODE_ID, and submit the job again.",
    )


def test_secrets_are_not_written_into_a_directory_that_another_user_made(both):
    def plants():
        (both.root.secrets / "a").mkdir()
        (both.root.secrets / "a").chmod(0o777)

    assert both.calls(BOB, plants) == (0, "", "")
    status, _, err = both.calls(ANN, submission, both.root, "anns", "a", ends=False)
    assert status == 99
    assert err.endswith(
        f"BadInput: {both.root.secrets}/a belongs to user {BOB}, who could replace the job's secrets there: set another CLUSTER_NAME, or "
        "ask that user to remove it.\n"
    )
    assert not list((both.root.secrets / "a").iterdir())


@pytest.mark.parametrize("reader", ["hook", "launcher"])
def test_secrets_that_another_user_put_in_their_place_are_not_read(both, reader):
    file = both.root.secrets / "a" / "anns"

    def plants():
        write(file, '{"LD_PRELOAD": "/tmp/evil.so"}').chmod(0o644)

    def reads():
        os.environ["VERL_REGRESS_SECRETS"] = str(file)
        os.environ.pop("VERL_REGRESS_JOB_UIDS", None)
        return print(hook.read(str(file)) if reader == "hook" else job_secrets.hold())

    assert both.calls(BOB, plants)[0] == 0
    status, out, err = both.calls(ANN, reads)
    assert (status, out) == (99, "")
    assert f"user {BOB}, who did not submit " in err


def test_the_latest_job_is_none_whose_plan_only_names_us(both):
    owned = {"owner": {"user": "ann", "id": "0123456789abcdef", "workdir": "/ann"}}

    def forges():
        submission(both.root, "forged", "b", ends=True)
        plan = both.root.jobs / "forged" / "config" / "resolved.json"
        plan.write_text(json.dumps({**json.loads(plan.read_text()), **owned}), encoding="utf-8")

    assert both.calls(BOB, forges) == (0, "", "")
    status, out, err = both.helper(ANN, "--owner=ann:0123456789abcdef", "where", "latest")
    assert (status, out) == (2, "")
    assert err.startswith("error   JOB=latest but no job under ")


def test_a_bundle_of_another_users_job_would_give_them_what_its_links_lead_to(both):
    key = both.root.path / "key"

    def keeps():
        write(key, "PRIVATE KEY").chmod(0o600)

    def plants():
        job = both.root.jobs / "bobs"
        for part in ("logs", "debug"):
            (job / part).mkdir(exist_ok=True)
            (job / part).chmod(0o777)
        (job / "logs" / "driver.log").symlink_to(key)

    assert both.calls(ANN, keeps)[0] == 0
    job = both.submits(BOB, "bobs", "b")
    assert both.calls(BOB, plants) == (0, "", "")
    assert both.helper(ANN, "debug", "bobs") == (
        2,
        "",
        f"error   bobs belongs to uid {BOB}, so you cannot make a debug bundle of it: ask that user to run 'make debug JOB=bobs', or set "
        f"TRUSTED_UIDS={BOB} if you trust that user.\n",
    )
    assert not list((job / "debug").iterdir())
