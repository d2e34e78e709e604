"""What a process records about its memory: real processes with a small torch and verl. They look 50 times as often as in a job."""

import re
import sys
import tempfile
import types
from pathlib import Path

import pytest
from shared_fixtures import HOOKS, environment, python, write

import process_memory
from verl_regress.jobs import memory_records

pytestmark = pytest.mark.slow

MIB = 2**20
# The test sets the deadline of these waits.
PROGRAM = """
import glob, os, sys, time
import process_memory
process_memory._LOOK_EVERY = 0.02
process_memory._FORK_LIVES = 0.2
def lines(pid=None):
    name = os.environ['VERL_REGRESS_JOB_DIR'] + f'/state/memory/*-{pid or os.getpid()}.txt'
    return sum(open(path).read().count(chr(10)) for path in glob.glob(name))
def further(number, pid=None):
    wanted = lines(pid) + number
    while lines(pid) < wanted:
        time.sleep(0.01)
"""


@pytest.fixture
def process(tmp_path):
    """Runs a program with the hook; returns its exit status and what its processes recorded, by file."""
    for name in ("verl", "torch"):
        write(tmp_path / "code" / f"{name}.py", "")

    def run(program, job_dir=tmp_path):
        env = environment(tmp_path / "code", HOOKS, hooks="process_memory", job_dir=job_dir)
        ended = python("-c", PROGRAM + program, env=env)
        assert ended.stderr == ""
        return ended.returncode, [path.read_text() for path in sorted(tmp_path.glob("state/memory/*"))]

    return run


@pytest.mark.parametrize("module", ["torch", "verl"])
def test_memory_that_grows_by_a_known_amount_is_seen_and_so_is_its_end(process, module):
    program = f"import {module}; further(2); held = b'x' * (64 * 2**20); further(2); del held; further(2)"
    status, (text,) = process(program)
    sizes = memory_records.parse(text).sizes
    assert status == 0
    assert max(sizes) - sizes[0] == pytest.approx(64 * MIB, abs=8 * MIB)
    assert max(sizes) - sizes[-1] == pytest.approx(64 * MIB, abs=8 * MIB)


def test_a_process_that_ends_by_itself_records_its_last_memory(process):
    program = "process_memory._LINES = 1; import verl; further(2); held = b'x' * (64 * 2**20); sys.exit(3)"
    status, (text,) = process(program)
    sizes = memory_records.parse(text).sizes
    assert (status, sizes[-1] - sizes[0]) == (3, pytest.approx(64 * MIB, abs=8 * MIB))


def test_a_process_without_the_thread_does_not_wait_for_it_at_its_end(monkeypatch, tmp_path):
    def start(_thread):
        raise RuntimeError("can't start new thread")

    registered = []
    monkeypatch.setattr(process_memory.threading.Thread, "start", start)
    monkeypatch.setattr(process_memory.atexit, "register", registered.append)
    process_memory._begin(tmp_path, 0.0)
    assert registered == []


def test_shared_memory_counts_and_pages_of_files_do_not(process):
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as on_disk:  # those of a file in memory count as shared memory
        on_disk.write(b"x" * 32 * MIB)
        on_disk.flush()
        program = f"""
import mmap, torch
further(2)
shared = mmap.mmap(-1, 64 * 2**20); shared.write(b'x' * len(shared))
file = open({on_disk.name!r}, 'rb'); mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); sum(mapped[::4096])
further(2)
"""
        sizes = memory_records.parse(process(program)[1][0]).sizes
    assert sizes[-1] - sizes[0] == pytest.approx(64 * MIB, abs=8 * MIB)


def test_a_process_that_is_killed_leaves_whole_lines(process):
    status, (text,) = process("import verl; further(3); os.kill(os.getpid(), 9)")
    assert status == -9
    assert re.fullmatch(r"(\d+\.\d{3} \d+( python\S*)?\n){3,}", text)


def test_a_fork_that_lives_has_its_own_record_and_one_that_does_not_has_none(process):
    program = """
import verl
further(1)
long, short = os.fork(), None
if long == 0:
    held = b'x' * (64 * 2**20); time.sleep(30)
short = os.fork()
if short == 0:
    os._exit(0)
os.waitpid(short, 0)
further(2, long); os.kill(long, 9); os.waitpid(long, 0)
"""
    status, texts = process(program)
    most = sorted(max(memory_records.parse(text).sizes) for text in texts)
    assert (status, len(texts)) == (0, 2)
    assert most[1] - most[0] == pytest.approx(64 * MIB, abs=16 * MIB)


def test_after_the_end_of_the_job_nothing_is_written(process):
    program = """
import verl
further(2)
open(os.environ['VERL_REGRESS_JOB_DIR'] + '/state/ended', 'w').close()
time.sleep(0.1); before = lines(); time.sleep(0.2)
sys.exit(lines() - before)
"""
    assert process(program)[0] == 0


def test_a_process_without_torch_and_verl_has_no_thread_and_no_record(process):
    assert process("import threading; assert threading.active_count() == 1") == (0, [])


def test_outside_a_job_nothing_is_recorded(process):
    assert process("import verl; time.sleep(0.1)", job_dir="") == (0, [])


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ray::WorkerDict.update_actor", "WorkerDict"),
        ("ray::main_task()", "main_task"),
        ("ray::IDLE", ""),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        (sys.executable, Path(sys.executable).name),
    ],
)
def test_the_name_is_that_of_rays_actor_or_task(monkeypatch, tmp_path, title, name):
    cmdline = tmp_path / "cmdline"
    cmdline.write_text(f"{title}\0-c\0x\0")
    monkeypatch.setattr(process_memory, "Path", lambda _file: cmdline)
    monkeypatch.setattr(sys, "orig_argv", [title, "-c", "x"])
    assert process_memory._name() == name


def test_a_driver_is_named_by_its_module(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "verl.trainer.main_ppo", "trainer.nnodes=2"])
    assert process_memory._name() == "verl.trainer.main_ppo"


def test_a_day_takes_a_few_hundred_lines_and_every_peak_is_among_them(monkeypatch, tmp_path):
    clock = types.SimpleNamespace(now=0.0)
    spikes = {3: 11 * MIB, 5_000: 12 * MIB, 80_001: 13 * MIB}

    def wait(seconds):
        clock.now += seconds

    ends = types.SimpleNamespace(is_set=lambda: clock.now > 86_400, wait=wait)
    fake = types.SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 1e9 + clock.now)
    monkeypatch.setattr(process_memory, "time", fake)
    monkeypatch.setattr(process_memory, "resident", lambda: spikes.get(round(clock.now), 10 * MIB))
    process_memory.record(tmp_path, ends)
    (file,) = tmp_path.glob("memory/*")
    recorded = memory_records.parse(file.read_text())
    assert 300 < len(recorded.times) < 500
    assert file.stat().st_size < 20_000
    assert {size for size in recorded.sizes if size > 10 * MIB} == set(spikes.values())
