"""A node's machine and image: the probe reads a tree of files that a healthy node has, and each fault changes it."""

import errno
import json
import os
import tempfile
from types import SimpleNamespace

import pytest

from verl_regress.base.processes import Process
from verl_regress.doctor import machine
from verl_regress.doctor.checks import ALARM, ProbePlan

NODES = {"head": "10.0.0.1", "worker-0": "10.0.0.2", "worker-1": "10.0.0.3"}
KNOBS = {
    "CLUSTER_NAME": "c",
    "OBJECT_STORE_BYTES": "500000000",
    "MIN_MEMORY_GIB": "6",
    "GPUS_PER_WORKER": "2",
    "TRANSPORT": "container",
}
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max open files            1024                 20000                files
Max locked memory         8388608              8388608              bytes
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A function that makes the tree of a node, with changed files, and returns what its probe found: alarms as (code, what was seen)."""
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "find_spec", lambda _: True)

    def make(
        name="worker-0",
        profile="cpu",
        *,
        quick=False,
        trains=False,
        shm=10**10,
        tmp=(10**12, 10**11, 10**6),
        threads=10**6,
        rays=(),
        environ=(),
        says="",
        smi="",
        **files,
    ):
        root = tmp_path / name
        tree = {
            "proc/self/limits": LIMITS,
            "proc/self/cgroup": "4:memory:/docker/0\n0::/\n",
            "proc/meminfo": f"MemTotal:       {16 * 2**20} kB\n",
            "tmp/.keep": "",
            "dev/shm/.keep": "",
            **{f"dev/nvidia{n}": "" for n in (0, 1) if profile == "gpu" and name != "head"},
            **{path.replace("__", "/"): text for path, text in files.items()},
        }
        for path, text in tree.items():
            if text is not None:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
        table = {pid: Process(1, 1, 0.0, environ, command) for pid, command, *environ in rays}
        left = iter(range(threads))

        def statvfs(path):
            blocks, free, inodes = (10**10, shm, 1) if path.name == "shm" else tmp
            return SimpleNamespace(f_blocks=blocks, f_frsize=1, f_bavail=free, f_files=10**7, f_favail=inodes)

        class Thread:
            def __init__(self, **_):
                if next(left, None) is None:
                    raise RuntimeError("can't start new thread")

            def start(self):
                pass

        def popen(words, **_):
            said = smi if words[0] == "nvidia-smi" else says
            return SimpleNamespace(communicate=lambda timeout: (said, None), returncode=1 if said else 0)

        with monkeypatch.context() as patch:
            patch.setattr(machine, "ROOT", root)
            patch.setattr(machine.os, "statvfs", statvfs)
            patch.setattr(machine.threading, "Thread", Thread)
            patch.setattr(machine.processes, "table", lambda: table)
            patch.setattr(machine.subprocess, "Popen", popen)
            for key, value in environ:
                patch.setenv(key, value)
            knobs = {**KNOBS, "PROFILE": profile}
            plan = ProbePlan(NODES, knobs, quick, node=name, trains=trains)
            make.facts = json.loads(json.dumps(machine.facts(plan)))
        assert {seen.where for seen in plan.seen} <= {name}
        return [(seen.code, seen.seen) for seen in plan.seen if seen.status == ALARM]

    return make


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_healthy_nodes_have_no_alarm(node, profile):
    assert [node(name, profile) for name in NODES] == [[], [], []]


def changed(text, before, after):
    assert before in text
    return text.replace(before, after)


# The fault: what differs on worker-0; the code and what was seen.
FAULTS = {
    "nofile": ({"proc__self__limits": changed(LIMITS, "20000", "256  ")}, "VR-MACH-01", "Max open files is 256, a job needs 512"),
    "memlock": ({"dev__infiniband__uverbs0": ""}, "VR-MACH-01", "Max locked memory is 8388608, RDMA needs it unlimited"),
    "stack": ({"proc__self__limits": changed(LIMITS, "8388608              unl", "65536                unl")}, "VR-MACH-01", "Max stack size is 65536, a job needs 1048576"),
    "file size": ({"proc__self__limits": f"{LIMITS}Max file size             1000000              unlimited            bytes\n"}, "VR-MACH-01", "Max file size is 1000000, a job needs 500000000"),
    "threads": ({"threads": 60}, "VR-MACH-02", "it starts 60 more threads, a job needs 500"),
    "no shm": ({"dev__shm__.keep": None, "dev__shm": ""}, "VR-MACH-03", "/dev/shm: Not a directory"),
    "shm": ({"shm": 64 * 10**6}, "VR-MACH-04", "/dev/shm has 64 MB, OBJECT_STORE_BYTES is 500 MB"),
    "memory": ({"proc__meminfo": f"MemTotal: {2 * 2**20} kB\n"}, "VR-MACH-05", "it may use 2.0 GiB, a job needs 3"),
    "cgroup 1": ({"sys__fs__cgroup__memory__memory.limit_in_bytes": str(2**30)}, "VR-MACH-05", "it may use 1.0 GiB, a job needs 3"),
    "cgroup 2": ({"proc__self__cgroup": "0::/user/job", "sys__fs__cgroup__user__memory.max": str(2**30)}, "VR-MACH-05", "it may use 1.0 GiB, a job needs 3"),
    "disk": ({"tmp": (10**9, 10**8, 10**6)}, "VR-MACH-06", "/tmp has 0.09 GiB and 1000000 inodes, 0.5 and 1000 are needed"),
    "inodes": ({"tmp": (10**12, 10**11, 9)}, "VR-MACH-06", "/tmp has 93.13 GiB and 9 inodes, 0.5 and 1000 are needed"),
    "its share": ({"tmp": (10**12, 10**10, 10**6)}, "VR-MACH-06", "/tmp is 99.0% full, and above 95% Ray spills no object"),
    "its share elsewhere": ({"tmp": (10**12, 10**10, 10**6), "environ": [("TMPDIR", "/scratch")]}, "VR-MACH-06", "/scratch is 99.0% full, and above 95% Ray spills no object"),
    "another Ray": ({"rays": [(77, "/opt/ray/core/src/ray/gcs/gcs_server --x"), (78, "vi raylet"), (79, "/opt/raylet", b"VERL_REGRESS_RAY=other")]}, "VR-MACH-08", "the gcs_server of another Ray runs there (pid 77)"),
    "stopped": ({"rays": [(80, "ray::WorkerDict.update_actor x", b"VERL_REGRESS_RAY=c")], "proc__80__stat": "80 (ray) ) T 1"}, "VR-MACH-09", "process 80 (ray::WorkerDict.update_actor) is stopped"),
    "a GPU is missing": ({"profile": "gpu", "dev__nvidia1": None}, "VR-MACH-11", "it has 1 (nvidia0), and 2 are its own"),
    "a GPU in the head": ({"name": "head", "dev__nvidia0": ""}, "VR-MACH-11", "it has 1 (nvidia0), and 0 are its own"),
    "driver": ({"profile": "gpu", "says": "Traceback:\nRuntimeError: the driver is too old"}, "VR-MACH-12", "RuntimeError: the driver is too old"),
    "ECC": ({"profile": "gpu", "smi": "GPU-1, [N/A], Not Active, Not Active\nGPU-2, 3, Not Active, Not Active\n"}, "VR-MACH-13", "GPU-2: 3 uncorrected ECC errors"),
    "heat": ({"profile": "gpu", "smi": "WARNING: infoROM is corrupted\nGPU-1, 0, Not Active, Active\n"}, "VR-MACH-13", "GPU-1 is slowed down by its hardware (heat or power)"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code", "seen"), FAULTS.values(), ids=FAULTS)
def test_fault_is_found_by_its_code(node, change, code, seen):
    assert node(**change) == [(code, seen)]


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [(errno.EACCES, "VR-MACH-07", "Permission denied"), (errno.ENOSPC, "VR-MACH-06", "No space left on device")],
)
def test_what_keeps_ray_from_writing_its_files_is_found(node, monkeypatch, number, code, why):
    real, user = tempfile.TemporaryFile, os.geteuid()

    def opened(dir):
        if dir.name == "ray":
            raise OSError(number, os.strerror(number))
        return real(dir=dir)

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", opened)
    seen = f"/tmp/ray belongs to user {user}, and user {user} cannot write there: {why}"
    assert node(tmp__ray__x="") == [(code, seen)]


def test_link_that_leads_nowhere_is_no_directory_for_ray(node, tmp_path):
    (tmp_path / "worker-0/tmp").mkdir(parents=True)
    (tmp_path / "worker-0/tmp/ray").symlink_to("gone")
    ((code, seen),) = node()
    assert code == "VR-MACH-07"
    assert seen.endswith("cannot write there: No such file or directory")


@pytest.mark.parametrize(("change", "is_found"), [({}, True), ({"profile": "cpu"}, False), ({"name": "head"}, False)])
def test_files_that_cannot_run_are_a_fault_where_a_job_compiles_code(node, monkeypatch, change, is_found):
    def mapped(*_, prot):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(machine.mmap, "mmap", mapped)
    assert node(**{"profile": "gpu", **change}) == [("VR-MACH-10", "/tmp is mounted noexec")] * is_found


def test_own_store_in_dev_shm_is_not_missing_there(node):
    ray = [(80, "/opt/ray/core/src/ray/raylet/raylet --x", b"VERL_REGRESS_RAY=c")]
    assert node(shm=10**6, rays=ray, proc__80__limits=LIMITS) == []


def test_threads_of_a_job_are_not_taken_from_it(node):
    assert node(threads=0, trains=True) == []


@pytest.mark.parametrize("when", ["quick", "trains"])
def test_gpu_is_not_tried_if_it_must_be_quick_or_a_job_trains(node, when):
    assert node(profile="gpu", says="CUDA out of memory", **{when: True}) == []


def test_gpu_of_two_workers_is_found(node):
    facts = {}
    for name, second in (("worker-0", 2), ("worker-1", 3)):
        node(name, "gpu", smi=f"GPU-1, 0, Not Active, Not Active\nGPU-{second}, 0, Not Active, Not Active\n")
        facts[name] = node.facts
    assert list(machine._judge_owners(facts, None)) == [("VR-MACH-15", ALARM, "worker-0, worker-1", "each has GPU-1")]


def test_program_that_hangs_or_is_not_there_is_an_answer():
    assert machine._asked(0, "sleep", "9") == (124, "no answer in 0 s")
    assert machine._asked(9, "verl-regress-nothing") == (127, "it is not there")


def test_machine_may_have_a_little_less_memory_than_it_is_sold_with(node):
    assert node(profile="gpu", proc__meminfo=f"MemTotal: {int(5.6 * 2**20)} kB\n") == []


def test_gpus_of_wsl2_are_not_where_others_are(node):
    assert node(profile="gpu", dev__dxg="", dev__nvidia0=None, dev__nvidia1=None) == []


def versions(**changes):
    """What is wrong where worker-1 differs so."""
    same = {"Python": "3.11.2", "ray": "2.60.0", "torch": "2.13.0"}
    facts = {"head": {"Python": "3.11.2", "ray": "2.60.0"}, "worker-0": same, "worker-1": {**same, **changes}}
    of_nodes = {name: {"versions": known} for name, known in facts.items()}
    return [(seen.code, seen.status, seen.seen) for seen in machine._judge_versions(of_nodes, None)]


ALL = "{0} on head, {0} on worker-0, {1} on worker-1"


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"ray": "2.59.0"}, f"ray {ALL.format('2.60.0', '2.59.0')}"),
        ({"ray": "none"}, f"ray {ALL.format('2.60.0', 'none')}"),
        ({"Python": "3.12.1"}, f"Python {ALL.format('3.11.2', '3.12.1')}"),
        ({"vllm": "0.11"}, "vllm none on worker-0, 0.11 on worker-1"),
        (
            {f"p{n}": "1" for n in range(7)},
            "; ".join(f"p{n} none on worker-0, 1 on worker-1" for n in range(5)) + "; and 2 more",
        ),
    ],
)
def test_what_differs_is_named_with_the_nodes_that_have_it(changes, seen):
    assert versions(**changes) == [("VR-STACK-01", ALARM, seen)]


def test_head_without_what_the_workers_have_is_no_fault():
    assert versions() == []


@pytest.mark.parametrize(("quick", "node"), [(True, "worker-0"), (False, "head"), (False, "worker-0")])
def test_packages_are_listed_unless_it_must_be_quick(quick, node):
    found = machine.facts(ProbePlan(NODES, {**KNOBS, "PROFILE": "cpu"}, quick=quick, node=node))["versions"]
    assert ("pytest" in found) is (not quick and node != "head")
    assert found["Python"].startswith("3.")
