"""The launcher as Ray runs it: a real process, a snapshot with its own `verl`, a trainer that does what the test says."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shared_fixtures import record, write

from verl_regress.base.errors import RegressError
from verl_regress.base.layout import JobDir
from verl_regress.cluster import nodes
from verl_regress.jobs import find
from verl_regress.jobs.status import Launcher, hold_launcher_lock, launcher_of
from verl_regress.store.hashes import Hashes
from verl_regress.worker import aftermath, launcher, queue

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")

RAY = """\
import types
is_initialized = lambda: True
get_runtime_context = lambda: types.SimpleNamespace(get_job_id=lambda: '02000000', get_actor_id=lambda: None)
util = types.SimpleNamespace(get_node_ip_address=lambda: '10.0.0.3')
class JobID: from_hex = str
"""
STATE = """\
class GlobalState:
    _initialize_global_state = lambda *_: None
    actor_table = lambda self, _, job: {} if job == '02000000' else 1 / 0
"""
HOOKS_OF_A_JOB = "identity,job_exceptions"
HELPER = Path(launcher.__file__).parents[2]
RUN = HELPER / "run.py"


class Launched:
    """A job directory with a plan, and the launcher working on it."""

    def __init__(self, shared, tmp_path):
        self.shared, self.plan = shared, {}
        self.ray = tmp_path / "ray"
        write(self.ray / "ray" / "__init__.py", RAY)
        write(self.ray / "ray" / "_raylet.py", "class GcsClientOptions: create = lambda *_, **__: None\n")
        write(self.ray / "ray" / "_private" / "state.py", STATE)
        self.code_path = shared.snapshots / "codeA"
        self.job = JobDir(shared.jobs / "job")
        for directory in (self.job.config, self.job.driver_log.parent, self.job.debug, self.job.state):
            directory.mkdir(parents=True)
        self.python_path = [str(self.code_path), str(HELPER / "hooks"), str(self.ray)]
        self.address = "http://127.0.0.1:1"  # nothing answers there
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.gcs = f"127.0.0.1:{self._listens.getsockname()[1]}"
        self.process, self.starts_by = None, [RUN]
        self.out, self.err = shared.path / "out", shared.path / "err"

    def start(self, trainer, code_id="codeA", file_bytes=resource.RLIM_INFINITY, before=lambda: None):
        write(self.code_path / "trainer.py", f"import verl, ray\n{trainer}")
        write(self.job.config / "code.json", record(self.code_path))
        argv = ["python3", "-m", "trainer", "a b=$HOME 'x'"]
        plan = {
            "code_path": str(self.code_path), "code_id": code_id, "argv": argv, "address": self.address,
            "cluster": "c", "max_running": 1, "devices": {"resource": "GPU", "count": 2, "cluster_has": 8},
            "shared_root": str(self.shared.path), "model": str(self.shared.models / "tiny"),
            "dataset": str(self.shared.datasets / "sums"), "reward_fn": None, **self.plan,
        }  # fmt: skip
        write(self.job.config / "resolved.json", json.dumps(plan))
        before()
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *self.starts_by, "launch", self.job.path],
                env={
                    **os.environ,
                    "PYTHONPATH": ":".join(self.python_path),
                    "RAY_ADDRESS": self.gcs,
                    "VERL_REGRESS_HOOKS": HOOKS_OF_A_JOB,
                    "VERL_REGRESS_JOB_DIR": str(self.job.path),
                },
                stdout=out,
                stderr=err,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes)),
            )
        return self

    def await_line(self, line):
        self.wait_until(lambda: line.encode() in self.log.splitlines())

    def wait_until(self, condition):
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, self.log
            time.sleep(0.01)

    def finish(self):
        """Its exit status, and what it wrote to its own stdout."""
        return self.process.wait(timeout=20), self.out.read_bytes()

    @property
    def log(self):
        return self.job.driver_log.read_bytes() if self.job.driver_log.exists() else b""

    @property
    def bundles(self):
        """The phases of the complete debug bundles, in order of time."""
        found = self.job.debug.glob("[!.]*")
        found = sorted(found, key=lambda path: json.loads((path / "bundle.json").read_text())["asked"])
        return [path.name.partition("-")[2] for path in found]

    @property
    def ended(self):
        state = self.job.read_state("ended")
        return state and (state["exit_code"], state["reason"])


@pytest.fixture
def launched(shared, tmp_path):
    one = Launched(shared, tmp_path)
    yield one
    if one.process and one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def proof(code_path, code_id="codeA"):
    return f"MVP_PRECHECK_VERL_FILE: {code_path}/verl/__init__.py\nMVP_PRECHECK_MARKER: {code_id}\n".encode()


@pytest.mark.quick
def test_the_code_is_proven_and_the_trainer_runs(launched):
    """stdin is empty; stderr, binary output and all arguments are passed on; in both logs."""
    trainer = (
        "import os, sys\n"
        "sys.stdout.buffer.write(b'\\xff\\x00 no text\\n')\n"
        "print(sys.argv[1:], os.getcwd(), repr(sys.stdin.read()), flush=True)\n"
        "print('to stderr', file=sys.stderr, flush=True)\n"
        "print('no newline at the end', end='')\n"
    )
    status, out = launched.start(trainer).finish()
    said = f"""["a b=$HOME 'x'"] {launched.job.path} ''\nto stderr\nno newline at the end""".encode()
    assert (status, launched.ended) == (0, (0, "the trainer ended"))
    assert out == launched.log == proof(launched.code_path) + b"\xff\x00 no text\n" + said
    started = launched.job.read_state("started")
    assert started["verl_file"] == f"{launched.code_path}/verl/__init__.py"
    assert (started["marker"], started["pid"]) == ("codeA", launched.process.pid)
    assert {"node_ip", "hostname", "time"} <= started.keys()


def test_a_lot_of_output_reaches_both_logs_complete(launched):
    trainer = "import os\nfor i in range(40):\n  os.write(1, bytes([i]) * 100_003)\n"
    status, out = launched.start(trainer).finish()
    assert status == 0
    assert out == launched.log == proof(launched.code_path) + b"".join(bytes([i]) * 100_003 for i in range(40))


@pytest.mark.parametrize(
    ("trainer", "status", "ended"),
    [
        ("raise SystemExit(7)", 7, (7, "the trainer ended with exit status 7")),
        (
            "import os; os.kill(os.getpid(), 9)",
            137,
            (-9, "the trainer was ended by SIGKILL, sent neither by verl-regress nor by the kernel for lack of memory"),
        ),
    ],
)
def test_a_trainer_that_fails(launched, trainer, status, ended):
    assert launched.start(trainer).finish()[0] == status
    assert launched.ended == ended
    assert launched.bundles[-1] == "failed"  # a job this short may end before its RUNNING bundle
    [failed] = launched.job.debug.glob("*-failed")
    assert "MVP_PRECHECK_MARKER: codeA" in (failed / "logs" / "driver.log").read_text().splitlines()


def test_a_trainer_that_raises_fails_for_that_reason(launched):
    trainer = "print('Training Progress:   0%|     | 0/2')\ntry:\n  {}['a']\nexcept KeyError as error:\n  raise OSError('x y') from error"
    assert launched.start(trainer).finish()[0] == 1
    sentence = "KeyError: 'a', which became OSError: x y (trainer.py:4, at step 1)"
    assert launched.ended == (1, f"the trainer ended with exit status 1: {sentence}")
    assert launched.job.read_state("ended")["cause"] == {
        "type": "KeyError", "message": "'a'", "where": "trainer.py:4", "also": "which became OSError: x y", "step": 1, "hint": None,
    }  # fmt: skip


def test_an_external_cause_is_the_reason_and_the_exception_is_kept(launched):
    launched.start("raise OSError(28, 'No space left on device')", file_bytes=aftermath.PROBE_BYTES // 2)
    assert launched.finish()[0] == 1
    ended = launched.job.read_state("ended")
    assert ended["reason"] == (
        f"the trainer ended with exit status 1, and nothing can be written to {launched.job.path} (File too large): free some space there"
    )
    assert not list(launched.job.state.glob(".probe*"))
    # The exception has a hint, but it is only a symptom of what the reason says.
    assert (ended["cause"]["type"], ended["cause"]["step"], ended["cause"]["hint"]) == ("OSError", None, None)


def test_a_stopped_trainer_has_no_cause(launched):
    launched.start(
        "import signal, time\nsignal.signal(15, lambda *_: 1 / 0)\nprint('ready', flush=True)\ntime.sleep(30)"
    )
    launched.await_line("ready")
    launched.process.send_signal(signal.SIGTERM)
    assert launched.finish()[0] == 1
    assert b"ZeroDivisionError" in launched.log
    assert launched.ended == (1, "the trainer ended with exit status 1")
    assert launched.job.read_state("ended")["cause"] is None


def test_sigterm_reaches_the_whole_group(launched):
    """Ray stops the job: the trainer and its children get the signal, may end in their own way, and the end is recorded."""
    child = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('child heard') or 5)); "
    child += "print('ready', flush=True); time.sleep(30)"
    trainer = (
        "import signal, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "signal.signal(15, lambda *_: sys.exit(child.wait()))\n"
        "time.sleep(30)\n"
    )
    launched.start(trainer).await_line("ready")
    launched.wait_until(lambda: launched.bundles)
    launched.process.send_signal(signal.SIGTERM)
    status, out = launched.finish()
    assert (status, launched.ended) == (5, (5, "the trainer ended with exit status 5"))
    assert launched.bundles == ["running", "ended"]
    assert out.endswith(b"child heard\n")


@pytest.mark.parametrize(("number", "name"), [(2, "SIGINT"), (1, "SIGHUP")])
def test_a_trainer_that_a_forwarded_signal_ends(launched, number, name):
    launched.start("import signal, time; signal.signal(2, signal.SIG_DFL); print('ready', flush=True); time.sleep(30)")
    launched.await_line("ready")
    launched.process.send_signal(number)
    assert launched.finish()[0] == 128 + number
    assert launched.ended == (-number, f"the trainer was ended by {name}")


def test_a_launcher_that_is_killed_takes_the_trainer_with_it_and_records_no_end(launched):
    launched.start("import os, time; print(os.getpid(), flush=True); print('ready', flush=True); time.sleep(30)")
    launched.await_line("ready")
    trainer = int(launched.log.splitlines()[-2])
    launched.process.kill()
    launched.process.wait()
    stat = Path(f"/proc/{trainer}/stat")
    launched.wait_until(lambda: not stat.exists() or ") Z " in stat.read_text())
    assert launched.ended is None


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_job(launched):
    work = "[(print('x' * 10_000, flush=True), time.sleep(0.001)) for _ in range(30_000)]"
    trainer = (
        "import os, sys, time\n"
        f"if os.fork() == 0:\n  os.setsid(); print(f'grandchild {{os.getpid()}}', flush=True); {work}; os._exit(0)\n"
        "time.sleep(0.2); print('last words')\n"
    )
    started = time.monotonic()
    launched.start(trainer)
    launched.process.wait(timeout=20)
    took = time.monotonic() - started
    pid = next(int(line.split()[1]) for line in launched.log.splitlines() if line.startswith(b"grandchild "))
    with contextlib.suppress(ProcessLookupError):  # the writer ends by itself: the pipe's other end is closed
        os.kill(pid, signal.SIGKILL)
    assert (launched.finish()[0], launched.ended) == (0, (0, "the trainer ended"))
    assert b"last words" in launched.log
    assert took < 10


def test_a_log_that_cannot_be_written_does_not_fail_the_job(launched):
    launched.job.driver_log.symlink_to("/dev/full")
    status, out = launched.start("print('trained')").finish()
    assert (status, launched.ended) == (0, (0, "the trainer ended"))
    assert out == proof(launched.code_path) + b"trained\n"
    assert launched.job.read_state("ended")["told_to_stop"] is False


def test_a_trainer_that_fails_when_rays_head_is_gone_says_so(launched):
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        launched.gcs = f"127.0.0.1:{gcs.getsockname()[1]}"
    assert launched.start("raise SystemExit(7)").finish()[0] == 7
    reason = f"the trainer ended with exit status 7, and Ray's head, whose GCS was at {launched.gcs}, is gone"
    ended = launched.job.read_state("ended")
    assert (ended["reason"], ended["head_gone"], ended["told_to_stop"]) == (reason, True, False)


def refused(launched, reason):
    status, out = launched.finish()
    assert (status, launched.ended) == (1, (1, reason))
    assert out == launched.log
    assert out.decode().splitlines()[-1] == f"verl-regress: {reason}"
    assert b"trained" not in out
    assert launched.job.read_state("started") is None
    assert launched.bundles == ["failed"]


def test_verl_from_elsewhere_is_refused_before_training(launched, tmp_path):
    write(tmp_path / "elsewhere" / "verl" / "__init__.py", "")
    launched.python_path.insert(0, str(tmp_path / "elsewhere"))
    launched.start("print('trained')")
    refused(
        launched,
        f"The job imported verl from {tmp_path}/elsewhere/verl/__init__.py with marker codeA, but "
        f"{launched.code_path}/verl/__init__.py with marker codeA was asked for: something is before the snapshot on "
        "PYTHONPATH.",
    )
    assert f"MVP_PRECHECK_VERL_FILE: {tmp_path}/elsewhere/verl/__init__.py\n".encode() in launched.log


def test_code_that_cannot_be_imported_is_refused_with_its_own_words(launched):
    write(launched.code_path / "verl" / "__init__.py", "import no_such_part")
    launched.start("print('trained')")
    refused(
        launched,
        f"verl cannot be imported from {launched.code_path} (ModuleNotFoundError: No module named 'no_such_part'): fix the "
        "snapshot, or the image that it needs.",
    )
    assert b"Traceback" in launched.log


def test_a_job_whose_hooks_are_not_loaded_never_trains(launched, tmp_path):
    """Its process would not prove anything, and the launcher would wait for the proof."""
    planted = write(tmp_path / "elsewhere" / "sitecustomize.py", "")
    launched.python_path.insert(0, str(planted.parent))
    launched.start("print('trained')")
    refused(
        launched,
        f"Nothing would prove the job's code: Python loads {planted}, but {HELPER}/hooks/sitecustomize.py was asked for: "
        "something is before it on PYTHONPATH.",
    )


def test_the_process_that_proves_is_the_one_that_trains(launched):
    """What it imported stays imported, a module beside it in the job directory included, and its children prove nothing."""
    write(launched.code_path / "verl" / "__init__.py", "import os\npid = os.getpid()")
    write(launched.job.path / "verl" / "__init__.py", "pid = 'planted'")
    trainer = (
        "import os, subprocess, sys\n"
        "child = [sys.executable, '-c', 'import os; print(os.environ.get(\"VERL_REGRESS_PROOF\"), len(os.listdir(\"/proc/self/fd\")))']\n"
        "print(verl.pid == os.getpid(), subprocess.run(child, stdout=-1, close_fds=False, text=True).stdout)\n"
    )
    assert launched.start(trainer).finish()[0] == 0
    assert b"\nTrue None 4\n" in launched.log


def test_a_job_directory_without_a_plan(shared):
    (shared.jobs / "job").mkdir()
    argv = [sys.executable, RUN, "launch", shared.jobs / "job"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"error   job was never submitted, because its submitter ended before {shared.jobs}/job/config/resolved.json was written: "
        "submit it again, with another id.\n"
    )


def test_a_process_that_loaded_something_else_fails_a_job_that_trained_well(launched, tmp_path):
    other = write(tmp_path / "other.py", "")
    launched.start(
        "import sys, time\nfrom importlib import util\n"
        f"spec = util.spec_from_file_location('verl.other', {str(other)!r})\n"
        "sys.modules['verl.other'] = util.module_from_spec(spec)\nprint('trained')\n"
    )
    status, out = launched.finish()
    reports = [json.loads(path.read_text()) for path in launched.job.reports.iterdir()]
    report = next(report for report in reports if "verl.other" in report["modules"])
    reason = (
        f"identity: process {report['pid']} on {report['node']} ({report['command']}) loaded verl.other from {other}, "
        f"which is not under {launched.code_path}: see state/identity of the job."
    )
    assert (status, launched.ended) == (1, (1, reason))
    assert out.decode().splitlines()[-2:] == ["trained", f"verl-regress: {reason}"]
    assert launched.job.read_state("identity")["passed"] is False


@pytest.fixture
def other(launched, make_job):
    """The lock of an earlier job that has a slot; closing it ends that job."""
    job = make_job("other", turn={})
    plan = {"cluster": "c", "max_running": 1, "devices": {"resource": "GPU", "count": 1, "cluster_has": 8}}
    write(job.config / "resolved.json", json.dumps(plan))
    long_ago = job.config.stat().st_mtime - 100
    os.utime(job.config, (long_ago, long_ago))
    queue.line_up(job, "c", 1)
    return hold_launcher_lock(job)


def await_position(launched):
    launched.await_line("verl-regress: waits for a slot, position 1 of 1: behind other (MAX_RUNNING=1)")
    launched.wait_until(lambda: launched.job.read_state("queued") is not None)


def test_it_trains_when_it_gets_a_slot_and_leaves_the_queue_at_the_end(launched, other):
    launched.start("print('trained')")
    await_position(launched)
    assert launched.job.read_state("queued")["reason"] == "position 1 of 1: behind other (MAX_RUNNING=1)"
    assert b"trained" not in launched.log
    os.close(other)
    assert launched.finish()[0] == 0
    assert (launched.ended, b"trained" in launched.log) == ((0, "the trainer ended"), True)
    assert launched.job.read_state("turn")["waited_seconds"] > 0
    assert [path.name for path in launched.job.root.queue("c").iterdir()] == [".lock"]
    assert launcher_of(launched.job) is Launcher.GONE


def test_a_stop_while_queued_ends_it_at_once_and_is_recorded(launched, other):
    launched.start("print('trained')")
    await_position(launched)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.finish()[0] == 143
    assert launched.ended == (-15, "stopped while it waited for a slot")
    assert (launched.bundles, b"MVP_PRECHECK" in launched.log) == ([], False)
    assert [path.name[21:] for path in launched.job.root.queue("c").glob("[0-9]*")] == ["1-other"]
    os.close(other)


def test_a_stop_while_the_code_is_proven_is_recorded_too(launched):
    write(launched.code_path / "verl" / "__init__.py", "import os, time; os.mkdir('probing'); time.sleep(30)")
    launched.start("print('trained')")
    launched.wait_until((launched.job.path / "probing").is_dir)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.finish()[0] == 143
    assert launched.ended == (-15, "stopped while it waited for the proof of its code")


def test_a_job_reported_as_not_submitted_never_trains(launched):
    """`make submit` reported that Ray did not take it; the request reached Ray late."""
    launched.job.write_state("submitted", {"accepted": False, "error": "Ray refused the job: no answer in 60 s"})
    launched.start("print('trained')")
    refused(
        launched,
        "job is marked as never submitted (Ray refused the job: no answer in 60 s), but Ray got it later: submit it again.",
    )


@as_root
def test_a_job_directory_that_another_user_put_there_is_not_run(launched, monkeypatch):
    """Whoever owns `jobs/` can do so. Nothing is written into it."""
    monkeypatch.setenv("VERL_REGRESS_JOB_UIDS", "0 1001")
    place = launched.job.config
    launched.start("print('trained')", before=lambda: os.chown(place, 4242, 4242))
    assert launched.finish() == (2, b"")
    assert (launched.log, launched.ended) == (b"", None)
    assert launched.err.read_text() == (
        f"error   {place}/resolved.json is refused, because {place} belongs to user 4242, and what is there decides what your job does: "
        "set TRUSTED_UIDS=4242 if you trust that user, and submit the job again.\n"
    )


@pytest.mark.parametrize(("part", "mode"), [(".", 0o2777), ("config/resolved.json", 0o666)])
def test_a_job_directory_or_plan_that_others_can_change_is_not_run(launched, monkeypatch, part, mode):
    monkeypatch.setenv("VERL_REGRESS_JOB_UIDS", str(os.geteuid()))
    launched.start("print('trained')", before=lambda: (launched.job.path / part).chmod(mode))
    assert launched.finish() == (2, b"")
    assert f"can be changed by every user (mode {mode:04o})" in launched.err.read_text()


def an_input(path, **more):
    """As config/resolved.json records it."""
    named = f"data.val_files={path} (from OVERRIDES)"
    one = {"key": "data.val_files", "path": str(path), "named": named, "fact": "data sha256"}
    return {**one, "needed": True, "outside": False, "sha256": None, **more}


@as_root
def test_code_that_another_user_put_there_while_the_job_waited_is_not_run(launched, other):
    """The submission checked these paths, hours ago."""
    mine = write(launched.shared.user_code / "mine.py", "")
    launched.plan = {"inputs": [an_input(mine)], "trusted_uids": []}
    launched.start("print('trained')")
    await_position(launched)
    os.chown(write(mine.with_name("theirs.py"), ""), 4242, 4242)
    mine.with_name("theirs.py").rename(mine)
    os.close(other)
    assert launched.finish()[0] == 1
    sentence = f"data.val_files={mine} (from OVERRIDES) is refused, because {mine} belongs to user 4242, and what is there decides what your job does: "
    assert launched.ended[1].startswith(sentence)

    plan = find.plan_of(launched.job)
    folder = write(launched.shared.user_code / "lib" / "module.py", "").parent
    os.chown(folder / "module.py", 4242, 4242)
    for more in ({}, {"code_dirs": [str(folder)]}, {"caches": [str(mine)]}):
        changed = {**plan, **({"inputs": []} if more else {}), **more}
        with pytest.raises(
            RegressError, match=r" belongs to user 4242, and what is there decides what your job does: "
        ):
            launcher.check_paths(changed)
        launcher.check_paths({**changed, "trusted_uids": ["4242"]})


def test_a_path_that_was_swapped_for_a_link_after_the_submission_is_not_followed(shared, tmp_path):
    planted = shared.path / "common" / "planted"
    planted.symlink_to(tmp_path)
    plan = {"shared_root": str(shared.path), "code_path": str(shared.snapshots / "codeA")}
    with pytest.raises(
        RegressError,
        match=f"^data.val_files={planted} .from OVERRIDES. was changed after the job was submitted: it is a link to {tmp_path}, ",
    ):
        launcher.check_paths({**plan, "inputs": [an_input(planted)]})
    launcher.check_paths({**plan, "inputs": [an_input(planted, outside=True)]})


def test_what_a_job_reads_is_recorded_as_its_node_has_it(launched, tmp_path):
    file, outside = write(launched.shared.user_code / "x.parquet", "rows"), write(tmp_path / "y.parquet", "others")
    sha256 = Hashes(launched.shared).content_of(file)
    gone = an_input(launched.shared.user_code / "dump", needed=False)
    launched.plan = {"inputs": [an_input(file, sha256=sha256), an_input(outside, outside=True), gone]}
    assert launched.start("print('trained')").finish()[0] == 0
    read = launched.job.read_state("inputs")["inputs"]
    assert [each["sha256"] for each in read] == [sha256, Hashes(launched.shared).content_of(outside), None]


@pytest.mark.parametrize("change", ["its content", "it is gone"])
def test_a_job_whose_input_was_changed_while_it_waited_never_trains(launched, other, change):
    file = write(launched.shared.user_code / "x.parquet", "rows")
    sha256 = Hashes(launched.shared).content_of(file) if change == "its content" else None
    launched.plan = {"inputs": [an_input(file, sha256=sha256)]}
    launched.start("print('trained')")
    await_position(launched)
    if change == "its content":
        file.write_text("other")
    else:
        file.unlink()
    os.close(other)
    why = "was changed or removed after the job was submitted: submit it again."
    refused(launched, f"data.val_files={file} (from OVERRIDES) {why}")


def test_an_input_that_is_removed_while_it_is_hashed_is_one_sentence(shared, monkeypatch):
    def gone(*_args, **_more):
        raise FileNotFoundError(2, "No such file or directory", "x.parquet")

    monkeypatch.setattr(Hashes, "content_of", gone)
    one = an_input(shared.user_code)
    with pytest.raises(RegressError, match=r"while it was hashed \(.*x.parquet'\): submit the job again\.$"):
        launcher.check_inputs(JobDir(shared.jobs / "job"), {"inputs": [one]})


def test_a_job_without_the_record_of_its_code_ends_in_one_sentence(launched):
    launched.start("print('trained')", before=lambda: (launched.job.config / "code.json").unlink())
    assert launched.finish()[0] == 1
    said = f"{launched.job.config}/code.json was removed after the job was submitted: submit it again."
    assert launched.ended == (1, said)


# promise: trains on a snapshot that was changed or removed
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda path: write(path / "verl" / "__init__.py", "x = 1\n"),
            "changed after the job was submitted ({}: tree ",
        ),
        (shutil.rmtree, "removed after the job was submitted ({} is not there): make it again with 'make snapshot "),
    ],
    ids=["changed", "removed"],
)
def test_a_snapshot_that_was_spoiled_while_the_job_waited_never_trains(launched, other, spoil, said):
    launched.start("print('trained')")
    await_position(launched)
    spoil(launched.code_path)
    os.close(other)
    assert launched.finish()[0] == 1
    assert launched.ended[1].startswith(f"The snapshot codeA was {said.format(launched.code_path)}")
    assert b"trained" not in launched.log


def test_a_trainer_that_trained_nothing_failed(make_job):
    job = make_job()
    plan = {"overrides": [], "steps": {"after": 8, "last": 16, "skipped": 8, "per_epoch": 8}}
    write(job.config / "resolved.json", json.dumps(plan))
    with pytest.raises(RegressError) as failed:
        launcher.need_trained(job, plan)
    assert str(failed.value) == (
        "the trainer ended without an error, but trained none of the 8 steps (9 to 16): its verl looked for more data in the epoch that ended "
        "with step 8: begin a job at a checkpoint from within an epoch, with 'make submit' and OVERRIDES='trainer.resume_mode=resume_path "
        "trainer.resume_from_path=…/global_step_N', or take a verl that goes on to the next epoch."
    )
    write(job.metrics, '{"step": 9, "data": {"train/loss": 0.5}}\n')
    launcher.need_trained(job, plan)  # `make wait` says that it trained 1 of 8 steps


def test_fail_on_fails_a_job_that_its_trainer_did_not(make_job):
    job = make_job()
    write(job.metrics, '{"step": 1, "data": {"train/loss": 0, "train/grad_norm": 0}}\n')
    launcher.need_trained(job, {"fail_on": ["nan"]})
    with pytest.raises(RegressError) as failed:
        launcher.need_trained(job, {"fail_on": ["nan", "zero_grad"]})
    assert str(failed.value) == (
        "the trainer ended without an error, but loss and gradient are 0 at its only step (FAIL_ON=zero_grad)."
    )


def test_an_input_that_the_launchers_node_lacks_is_not_trained_without(make_job, monkeypatch):
    """Before: a line in the log, and minutes until the trainer met it."""
    job = make_job()
    monkeypatch.setattr(nodes, "own_name", lambda: "worker-1")
    one = {
        "named": "data.train_files=/own/r.parquet (from my.yaml)",
        "path": "/own/r.parquet",
        "fact": None,
        "sha256": None,
    }
    with pytest.raises(RegressError) as failed:
        launcher.check_inputs(job, {"inputs": [{**one, "needed": True, "outside": True}]})
    assert str(failed.value) == (
        "data.train_files=/own/r.parquet (from my.yaml) is missing on worker-1: put it on the shared root, which every node has, and submit "
        "the job again."
    )
    launcher.check_inputs(job, {"inputs": [{**one, "needed": False, "outside": True}]})
