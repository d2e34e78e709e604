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
from pathlib import Path

import pytest
from shared_fixtures import knobs, write, write_checkpoint
from streams import state_of, tar

import verl_regress
from verl_regress import cli
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.secrets import secret_files
from verl_regress.session import history_command
from verl_regress.store import snapshot
from verl_regress.submit import submit
from verl_regress.worker import queue

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
    submit._make_directories(job)
    plan = {
        "submission_id": name, "workload": "ppo", "code_id": "codeA", "cluster": cluster, "address": "http://ray:1",
        "max_running": 1, "devices": {"count": 1, "cluster_has": 1, "resource": "GPU"},
        "owner": {"user": f"uid {os.geteuid()}", "workdir": "/w", "id": "0123456789abcdef"},
    }  # fmt: skip
    write(job.config / "resolved.json", json.dumps(plan))
    with secret_files.written(secret_files.file_of(root, cluster, job), {"KEY": "0123456789"}):
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

    def collects(self, uid, cluster):
        return self.helper(uid, f"--owner=uid {uid}:0123456789abcdef", "gc", f"--cluster={cluster}", "--keep=0")

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
        assert team.helper(uid, "layout", "--cluster=c") == (0, "examples\n", "")
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


def test_a_shared_root_that_has_no_group_is_opened_by_its_user(team):
    team.helper(ANN, "layout", group=None)
    status, _, err = team.helper(BOB, "layout")
    assert (status, "Permission denied" in err) == (1, True)
    for uid in (ANN, BOB):
        assert team.helper(uid, "layout") == (0, "examples\n", "")
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
    redacts = both.calls(BOB, lambda: print(secret_files.redactor(both.root).text("0123456789")))
    assert (redacts[0], redacts[2], "0123456789" in redacts[1]) == (0, "", False)
    assert both.table(BOB) == both.table(ANN)
    assert [row.split()[0] for row in both.table(BOB)] == ["bobs", "anns"]


def test_a_cluster_name_of_another_user_is_refused(both):
    both.submits(ANN, "anns", "c")
    assert both.helper(ANN, "layout", "--cluster=c") == (0, "examples\n", "")
    assert both.helper(BOB, "layout", "--cluster=c") == (
        2,
        "",
        f"error   The cluster name c (CLUSTER_NAME) is taken on this shared root by uid {ANN} ({both.root.queue('c')}): set "
        "another CLUSTER_NAME.\n",
    )


@pytest.fixture
def damaged(both):
    """Jobs of Bob's list: Ann's open one and two closed ones, one of his that is damaged, a link, and a good one."""
    both.submits(ANN, "open", "a")
    both.submits(ANN, "closed", "a").chmod(0o700)
    both.submits(ANN, "half-closed", "a")
    (both.root.jobs / "half-closed" / "state" / "ended").chmod(0o600)
    write(both.submits(BOB, "no-object", "b") / "config" / "resolved.json", "[]")
    (both.root.jobs / "link").symlink_to("/etc")
    both.submits(BOB, "good", "b")
    for age, name in enumerate(("good", "open", "closed", "half-closed", "no-object")):
        os.utime(both.root.jobs / name / "config", (1e9 - age, 1e9 - age))
    os.utime(both.root.jobs / "closed", (1e9 - 2, 1e9 - 2))
    return both


def test_each_job_that_cannot_be_read_is_one_line(damaged):
    assert damaged.table(BOB, knobs("CLUSTER_NAME=b")) == [
        "good ppo codeA SUCCEEDED 1 0",
        "open ppo codeA SUCCEEDED 1 0",
        f"closed ? ? UNKNOWN 1 - cannot be read: owned by uid {ANN}, mode 0700",
        f"half-closed ppo codeA UNKNOWN 1 - cannot be read: owned by uid {ANN}, mode 0600",
        "no-object ? ? UNKNOWN 1 - cannot be read: config/resolved.json: it is cut off, or no JSON object",
    ]


def test_a_command_on_one_of_them_is_one_sentence(damaged):
    sentence = f"error   {damaged.root.jobs}/closed cannot be read: owned by uid {ANN}, mode 0700: ask that user to let you read it.\n"
    for words in (("logs", "closed"), ("where", "closed"), ("stop", "closed", "--deadline=1")):
        assert damaged.helper(BOB, *words) == (1, "", sentence)
    assert damaged.helper(BOB, "stop", "no-object", "--deadline=1") == (
        1, "", f"error   {damaged.root.jobs}/no-object/config/resolved.json cannot be read: it is cut off, or no JSON object: restore it from a backup.\n",
    )  # fmt: skip


def test_a_job_of_another_cluster_is_not_called_lost_and_not_stopped_from_here(both):
    both.submits(ANN, "anns", "a", ends=False)
    assert both.table(BOB, knobs("CLUSTER_NAME=b")) == [
        "anns ppo codeA UNKNOWN 1 0 the job recorded no end, and the Ray of its cluster a was not asked"
    ]
    assert both.helper(BOB, "stop", "anns", "--cluster=b", "--deadline=1") == (
        2,
        "",
        "error   anns is on the cluster a, and CLUSTER_NAME is b: stop it from there (user uid 41001, /w).\n",
    )
    assert (both.root.secrets / "a" / "anns").exists()


ADDS = (
    f"anns belongs to uid {ANN}, who alone can add an attempt to it: submit a job of your own, as in 'make submit "
    "JOBSPEC={root}/jobs/anns/config/job_spec.json'."
)
BUNDLES = (
    f"JOB=anns is refused, because {{root}}/jobs/anns belongs to user {ANN}, and what is there decides what your job does: set "
    f"TRUSTED_UIDS={ANN} if you trust that user, or TRUSTED_UIDS=group if you trust all of SHARED_GROUP, or ask that user to run "
    "'make debug JOB=anns'."
)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("resume", "anns", "--knobs={}"), ADDS),
        (("retry", "anns", "--knobs={}"), ADDS),
        (("debug", "anns"), BUNDLES),
        (("debug", "anns", "--tar"), BUNDLES),
        (
            ("stop", "anns", "--cluster=b", "--deadline=1"),
            "anns is on the cluster a, and CLUSTER_NAME is b: stop it from there ({owner}).",
        ),
    ],
)
def test_what_writes_into_another_users_job_is_refused(both, words, sentence):
    """Its directory may lead anywhere: what is written or read there would be with the rights of who types the command."""
    job = JobDir(both.submits(ANN, "anns", "a"))
    assert both.calls(ANN, lambda: write_checkpoint(job, 2, latest=2) and 0)[0] == 0
    job.driver_log.parent.mkdir(exist_ok=True)
    job.driver_log.symlink_to("/etc/passwd")
    before = state_of(job.path)
    said = sentence.format(root=both.root.path, owner=f"user uid {ANN}, /w")
    assert both.helper(BOB, *words) == (2, "", f"error   {said}\n")
    assert state_of(job.path) == before


def test_the_latest_job_is_none_of_another_user(both):
    both.submits(BOB, "bobs", "b")
    both.submits(ANN, "anns", "a")
    for asked, found in (("latest", "bobs"), ("anns", "anns")):
        done = both.helper(BOB, f"--owner=uid {BOB}:0123456789abcdef", "where", asked)
        assert done == (0, f"ppo {both.root.jobs}/{found}\n", "")


def test_the_page_of_another_users_sessions_is_not_replaced(both):
    hers, mine = both.root.sessions / "history.html", both.root.sessions / f"history-{BOB}.html"
    assert both.acts(ANN, "touch", hers)[0] == 0
    for uid, path in ((ANN, hers), (BOB, mine)):
        assert both.calls(uid, lambda: print(history_command._place(both.root))) == (0, f"{path}\n", "")


@pytest.mark.parametrize("planted", ["mkdir", "ln -s /tmp", "touch"])
def test_secrets_are_not_written_where_another_user_was_first(both, planted):
    """In a group's shared root everyone may make a name in `secrets/`."""
    place = both.root.secrets / "a"
    assert both.acts(BOB, *planted.split(), place)[0] == 0
    status, _, err = both.calls(ANN, submission, both.root, "anns", "a", ends=False)
    assert (status, str(place) in err) == (99, True)
    assert both.acts(BOB, "ls", "-A", place)[1] in ("", f"{place}\n") or planted.startswith("ln")
    assert not Path("/tmp/anns").exists()


# promise: removes what a job, a session or another user needs in `make gc`
def test_gc_of_one_user_leaves_what_the_other_has(damaged):
    theirs = damaged.submits(BOB, "mixed", "b") / "checkpoints" / "global_step_1" / "hers.pt"
    write(theirs, "w")
    os.chown(theirs, ANN, TEAM)
    before = {path: path.lstat().st_mode for path in sorted(damaged.root.path.rglob("*")) if path.lstat().st_uid == ANN}
    for path in damaged.root.jobs.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)
    status, out, err = damaged.collects(BOB, "b")
    assert (status, out) == (0, "")
    assert "keep 1 (cannot be read): no-object\n" in err
    after = {path: path.lstat().st_mode for path in sorted(damaged.root.path.rglob("*")) if path.lstat().st_uid == ANN}
    assert after == before
    assert not (damaged.root.jobs / "good" / "checkpoints" / "global_step_1").exists()


def test_gc_keeps_the_snapshots_that_a_closed_job_may_use(both):
    code = both.root.snapshots / "codeB"
    files = {"verl/__init__.py": b""}
    made = both.calls(BOB, lambda: snapshot.create(both.root, "codeB", "pypi:1", "1", tar(files)) and 0)
    assert made[0] == 0, made
    for path in (code, *code.rglob("*")):
        os.utime(path, (1e9, 1e9))
    job = both.submits(ANN, "closed", "a")
    job.chmod(0o700)
    assert "keep 1 (closed cannot be read, and may use it): codeB" in both.collects(BOB, "b")[2]
    assert "keep 1 (another user's): codeB" in both.collects(ANN, "a")[2]
    job.chmod(0o755)
    assert "changed removed snapshot codeB: " in both.collects(BOB, "b")[2]
    assert not code.exists()
