"""A node's machine and image: the probe reads a tree of files that a healthy node has, and each fault changes it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_regress.base.processes import Process
from verl_regress.doctor import machine
from verl_regress.doctor.checks import ALARM, OK, SKIPPED, Cluster, Plan

NODES = {"head": "10.0.0.1", "worker-0": "10.0.0.2", "worker-1": "10.0.0.3"}
KNOBS = {"OBJECT_STORE_BYTES": "500000000", "MIN_MEMORY_GIB": "6", "GPUS_PER_WORKER": "2", "TRANSPORT": "container"}
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max open files            1024                 20000                files
Max locked memory         8388608              8388608              bytes
"""
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}.82.07  Release Build\n"
SMI = "GPU-{node}-{n}, 4, {ecc}, {slow}, Not Active"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A function that makes the tree of a node, with changed files, and returns what its probe found."""
    torch = tmp_path / "site/torch"
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _: SimpleNamespace(origin=f"{torch}/__init__.py"))
    for name in ("RAY_TMPDIR", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)

    def make(
        name="worker-0",
        profile="cpu",
        quick=False,
        room=(10**10, 10**11, 10**6),
        rays=(),
        smi=(),
        environ=(),
        trains=False,
        **files,
    ):
        root = tmp_path / name
        tree = {
            "proc/self/limits": LIMITS,
            "proc/self/cgroup": "4:memory:/docker/0\n0::/\n",
            "proc/meminfo": f"MemTotal:       {16 * 2**20} kB\n",
            "proc/sys/kernel/osrelease": "6.1.0-9\n",
            "proc/self/uid_map": "0 0 4294967295\n",
            "tmp/.keep": "",
            **{path.replace("__", "/"): text for path, text in files.items()},
        }
        if profile == "gpu":
            tree = {
                "proc/driver/nvidia/version": DRIVER.format(580),
                **{f"dev/nvidia{n}": "" for n in (0, 1) if name != "head"},
            } | tree
            (torch.parent / "nvidia/cudnn/lib").mkdir(parents=True, exist_ok=True)
            (torch.parent / "nvidia/cudnn/lib/libcudnn.so.9").touch()
            torch.mkdir(exist_ok=True)
            (torch / "version.py").exists() or (torch / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
        for path, text in tree.items():
            if text is not None:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
        table = {pid: Process(1, 1, 0.0, environ, command) for pid, command, *environ in rays}
        statvfs = SimpleNamespace(f_blocks=room[0], f_frsize=1, f_bavail=room[1], f_favail=room[2], f_files=10**7)
        with monkeypatch.context() as patch:
            patch.setattr(machine, "ROOT", root)
            patch.setattr(machine.os, "statvfs", lambda _path: statvfs)
            patch.setattr(machine.processes, "table", lambda: table)
            patch.setattr(
                machine, "_nvidia", lambda: [dict(zip(machine._FIELDS, line.split(", "), strict=True)) for line in smi]
            )
            for key, value in environ:
                patch.setenv(key, value)
            return machine.facts(Plan(name, NODES, "c", profile, "/private", 6379, quick, trains, "now", KNOBS))

    return make


def said(facts, profile="cpu"):
    cluster = Cluster({name: NODES[name] for name in facts}, profile, False, KNOBS, ())
    return [(check.code, *seen[:3]) for check in machine.CHECKS for seen in check.judge(facts, cluster)]


def alarms(facts, profile="cpu"):
    return [(code, seen) for code, status, _, seen in said(facts, profile) if status == ALARM]


def healthy(node, name, profile):
    smi = [SMI.format(node=name, n=n, ecc=0, slow="Not Active") for n in (0, 1)] if name != "head" else []
    return node(name, profile, smi=smi)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_healthy_nodes_have_no_alarm(node, profile):
    assert alarms({name: healthy(node, name, profile) for name in NODES}, profile) == []


def test_checks_of_gpus_say_that_a_rehearsal_skips_them(node):
    found = said({name: healthy(node, name, "cpu") for name in NODES})
    assert {code for code, status, *_ in found if status == SKIPPED} == {f"VR-MACH-{n}" for n in (12, 13, 14, 15)}


def changed(text, before, after):
    assert before in text
    return text.replace(before, after)


ZOMBIES = {f"proc__{pid}__stat": f"{pid} (a) b) Z 1 1 1" for pid in range(100, 121)}
UVERBS = {"dev__infiniband__uverbs0": ""}
# The fault: what differs on worker-0; the code and what was seen.
FAULTS = {
    "nofile": ({"proc__self__limits": changed(LIMITS, "20000", "256  ")}, "VR-MACH-01", "the hard limit is 256, a job needs 512"),
    "memlock": (UVERBS, "VR-MACH-02", "the limit is 8388608 bytes, RDMA needs unlimited"),
    "stack": ({"proc__self__limits": changed(LIMITS, "8388608              unl", "65536                unl")}, "VR-MACH-03", "the limit is 65536 bytes, a job needs 1048576"),
    "shm": ({"room": (64 * 10**6, 10**11, 10**6)}, "VR-MACH-04", "/dev/shm has 64 MB, Ray's object store is to have 500 (OBJECT_STORE_BYTES)"),
    "memory": ({"proc__meminfo": f"MemTotal: {2 * 2**20} kB\n"}, "VR-MACH-05", "it may use 2.0 GiB, a job needs 3"),
    "cgroup 1": ({"sys__fs__cgroup__memory__memory.limit_in_bytes": str(2**30)}, "VR-MACH-05", "it may use 1.0 GiB, a job needs 3"),
    "cgroup 2": ({"proc__self__cgroup": "0::/user/job", "sys__fs__cgroup__user__memory.max": str(2**30)}, "VR-MACH-05", "it may use 1.0 GiB, a job needs 3"),
    "disk": ({"room": (10**10, 10**8, 10**6)}, "VR-MACH-06", "/tmp has 0.09 GiB and 1000000 inodes, 0.5 and 1000 are needed"),
    "inodes": ({"room": (10**10, 10**11, 3)}, "VR-MACH-06", "/tmp has 93.13 GiB and 3 inodes, 0.5 and 1000 are needed"),
    "long path": ({"environ": [("RAY_TMPDIR", "/tmp/" + "x" * 40)]}, "VR-MACH-07", f"RAY_TMPDIR=/tmp/{'x' * 40} is longer than 39 bytes, too long for Ray's sockets"),
    "another Ray": ({"rays": [(77, "/opt/ray/core/src/ray/gcs/gcs_server --x"), (78, "vi raylet"), (79, "/opt/raylet", b"VERL_REGRESS_RAY=other")]}, "VR-MACH-08", "the gcs_server of another Ray runs there (pid 77)"),
    "an address": ({"environ": [("RAY_ADDRESS", "10.9.9.9:6379")]}, "VR-MACH-09", "RAY_ADDRESS=10.9.9.9:6379"),
    "zombies": (ZOMBIES, "VR-MACH-10", "PID 1 has 21 ended children that it does not reap"),
}  # fmt: skip
GPU_FAULTS = {
    "a GPU is missing": ({"dev__nvidia1": None}, "VR-MACH-11", "it has 1 (nvidia0), and 2 are its own"),
    "driver": ({"proc__driver__nvidia__version": DRIVER.format(570)}, "VR-MACH-12", "the driver 570 is older than 580, the first for torch's CUDA 13"),
    "no driver": ({"proc__driver__nvidia__version": ""}, "VR-MACH-12", "no NVIDIA driver is seen there"),
    "ECC": ({"smi": [SMI.format(node="w", n=0, ecc=3, slow="Not Active")]}, "VR-MACH-13", "GPU-w-0: 3 uncorrected ECC errors"),
    "slow": ({"smi": [SMI.format(node="w", n=0, ecc="[N/A]", slow="Active")]}, "VR-MACH-13", "GPU-w-0 is slowed down by its hardware (heat or power)"),
    "in use": ({"smi": ["GPU-w-0, 20000, 0, Not Active, Not Active"]}, "VR-MACH-14", "GPU-w-0: 20000 MiB are in use, and no job trains there"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code", "seen"), FAULTS.values(), ids=FAULTS)
def test_fault_is_found_by_its_code(node, change, code, seen):
    assert alarms({"head": node("head"), "worker-0": node(**change)}) == [(code, seen)]


@pytest.mark.parametrize(("change", "code", "seen"), GPU_FAULTS.values(), ids=GPU_FAULTS)
def test_fault_of_a_gpu_is_found_by_its_code(node, change, code, seen):
    assert alarms({"worker-0": node(profile="gpu", **change)}, "gpu") == [(code, seen)]


@pytest.mark.parametrize(
    ("lost", "seen"),
    [("torch/version.py", "{site}/torch is a build without CUDA"), ("nvidia/cudnn/lib/libcudnn.so.9", "the image (base or runtime) has no cuDNN")],
)  # fmt: skip
def test_image_without_cuda_or_cudnn_is_found(node, tmp_path, monkeypatch, lost, seen):
    site = tmp_path / "site"
    monkeypatch.setattr(machine.shutil, "which", lambda _: None)
    node(profile="gpu")  # makes the tree
    (site / lost).write_text("cuda = None\n") if lost.endswith(".py") else (site / lost).rename(site / "gone")
    monkeypatch.setattr(Path, "touch", lambda _: None)
    assert alarms({"worker-0": node(profile="gpu")}, "gpu") == [("VR-MACH-12", seen.format(site=site))]
    assert alarms({"worker-0": node(profile="gpu", quick=True)}, "gpu") == []


def test_cudnn_may_be_where_the_loader_is_sent(node, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/none::{tmp_path}")
    node(profile="gpu")  # makes the tree
    (tmp_path / "site/nvidia/cudnn/lib/libcudnn.so.9").rename(tmp_path / "libcudnn.so.9")
    monkeypatch.setattr(Path, "touch", lambda _: None)
    assert alarms({"worker-0": node(profile="gpu")}, "gpu") == []


def test_head_in_a_container_with_a_gpu_is_found(node):
    assert alarms({"head": node("head", dev__nvidia0="")}) == [("VR-MACH-11", "it has 1 (nvidia0), and 0 are its own")]


def test_directory_of_another_user_is_found(node, monkeypatch):
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert alarms({"worker-0": node(tmp__ray__x="")}) == [
        ("VR-MACH-07", f"/tmp/ray belongs to user {os.geteuid()}, and user {os.geteuid()} cannot write to it")
    ]


def test_memory_of_a_gpu_is_a_jobs_own_while_it_trains(node):
    smi = ["GPU-w-0, 20000, 0, Not Active, Not Active"]
    assert alarms({"worker-0": node(profile="gpu", smi=smi, trains=True)}, "gpu") == []


def test_memory_of_a_gpu_that_is_not_said_is_no_alarm(node):
    smi = ["GPU-w-0, [N/A], 0, Not Active, Not Active"]
    assert alarms({"worker-0": node(profile="gpu", smi=smi)}, "gpu") == []


def test_machine_may_have_a_little_less_memory_than_it_is_sold_with(node):
    little_less = {"proc__meminfo": f"MemTotal: {int(5.6 * 2**20)} kB\n"}
    assert alarms({"worker-0": node(profile="gpu", **little_less)}, "gpu") == []


def test_gpus_of_wsl2_are_not_where_others_are(node):
    lost = {"dev__nvidia0": None, "dev__nvidia1": None, "proc__driver__nvidia__version": None}
    assert alarms({"worker-0": node(profile="gpu", dev__dxg="", **lost)}, "gpu") == []


def test_two_workers_with_one_gpu_are_found(node):
    both = {
        name: node(name, "gpu", smi=[SMI.format(node="x", n=0, ecc=0, slow="Not Active")]) for name in list(NODES)[1:]
    }
    assert alarms(both, "gpu") == [("VR-MACH-15", "both have GPU-x-0")]


def test_rdma_on_one_worker_alone_is_found(node):
    limits = LIMITS.replace("8388608              8388608", "unlimited            unlimited")
    has = node("worker-0", proc__self__limits=limits, **UVERBS)
    assert alarms({"head": node("head"), "worker-0": has, "worker-1": node("worker-1")}) == [
        ("VR-MACH-16", "no /dev/infiniband, which worker-0 has")
    ]


def test_kernels_and_kinds_are_said(node):
    wsl = node("worker-0", proc__sys__kernel__osrelease="5.15-microsoft-standard-WSL2", sys__fs__selinux__enforce="1")
    desktop = node("head", proc__sys__kernel__osrelease="6.10-linuxkit", proc__self__uid_map="0 1000 1\n")
    found = [row for row in said({"head": desktop, "worker-0": wsl}) if row[0] == "VR-MACH-17"]
    assert [row[1:] for row in found] == [
        (OK, "head", "6.10-linuxkit, Docker Desktop, rootless (a user namespace)"),
        (OK, "worker-0", "5.15-microsoft-standard-WSL2, WSL2, SELinux enforcing"),
    ]


def test_quick_probe_does_not_ask_nvidia_smi(node):
    found = node(profile="gpu", quick=True, smi=["GPU-w-0, 20000, 9, Active, Active"])
    assert (found["gpus"], found["problems"]) == ([], [])


def test_facts_are_json(node):
    assert json.loads(json.dumps(healthy(node, "worker-0", "gpu")))["kernel"] == "6.1.0-9"
