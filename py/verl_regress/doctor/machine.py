"""Machine and image: what a node has, against what a job of this profile needs there."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_regress.base import processes
from verl_regress.doctor.checks import Check, Cluster, Facts, Plan, Seen, alarm, ok, probed, skipped

ROOT = Path("/")  # tests have another one
# What the nodes of a PPO job of a rehearsal used at most: 109 open files and 172 KiB of stack in a process, 0.7 GiB of memory on the head
# and 2.7 GiB on a worker (docs/doctor.md). On GPUs: what Ray asks for, and MIN_MEMORY_GIB.
_OPEN_FILES = {"cpu": 512}
_OPEN_FILES_ON_GPUS = 4096
_STACK = 1024 * 1024
_HEAD_GIB, _REHEARSAL_GIB = 1.0, 3.0
_KEPT = 0.1  # of a machine's memory at most is the kernel's own
_TMP_GIB, _TMP_INODES = 0.5, 1000
_SOCKET = 107  # bytes that the path of a Unix socket may have
_RAYS_PATH = "/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
_ZOMBIES = 20  # PID 1 has children of others for a moment only
_MIB = 1024  # of a GPU's memory: what a driver and idle processes keep is less
_DRIVERS = {11: 450, 12: 525, 13: 580}  # the first of NVIDIA's drivers for each CUDA
_FIELDS = (
    "uuid",
    "memory.used",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_throttle_reasons.hw_slowdown",
    "clocks_throttle_reasons.hw_thermal_slowdown",
)
_RAY_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")


def facts(plan: Plan) -> dict[str, Any]:
    """What is wrong for this node, by code, and what the judge compares between nodes."""
    gpus = [] if plan.quick or plan.profile != "gpu" else _nvidia()
    uses_rdma = any(ROOT.glob("dev/infiniband/uverbs*"))
    problems = [*_limits(plan, uses_rdma), *_space(plan), *_processes(plan), *_of_gpus(plan, gpus)]
    return {
        "problems": [(code, plan.node, seen) for code, seen in problems],
        "kernel": _read("proc/sys/kernel/osrelease"),
        "kinds": list(_kinds()),
        "rdma": uses_rdma,
        "gpus": [gpu["uuid"] for gpu in gpus],
    }


def _read(path: str) -> str:
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _limits(plan: Plan, uses_rdma: bool) -> Iterator[tuple[str, str]]:
    """Of Ray's raylet, from which a job inherits them, or of what we start there."""
    raylets = [pid for pid, command in processes.ours(plan.cluster).items() if "/raylet" in command.split(" ")[0]]
    text = _read(f"proc/{raylets[0] if raylets else 'self'}/limits")
    limit = {name: (soft, hard) for name, soft, hard in re.findall(r"^(.+?)  +(\S+) +(\S+)", text, re.M)}

    def is_below(name: str, which: int, need: float) -> bool:
        value = limit.get(name, ("unlimited", "unlimited"))[which]
        return value != "unlimited" and int(value) < need

    need = _OPEN_FILES.get(plan.profile, _OPEN_FILES_ON_GPUS)
    if is_below("Max open files", 1, need):  # Ray raises its own to the hard limit
        yield "VR-MACH-01", f"the hard limit is {limit['Max open files'][1]}, a job needs {need}"
    if uses_rdma and is_below("Max locked memory", 0, float("inf")):
        yield "VR-MACH-02", f"the limit is {limit['Max locked memory'][0]} bytes, RDMA needs unlimited"
    if is_below("Max stack size", 0, _STACK):
        yield "VR-MACH-03", f"the limit is {limit['Max stack size'][0]} bytes, a job needs {_STACK}"


def _space(plan: Plan) -> Iterator[tuple[str, str]]:
    store, shm = int(plan.knobs["OBJECT_STORE_BYTES"] or 0), _size(ROOT / "dev/shm")
    if shm < store:
        yield (
            "VR-MACH-04",
            f"/dev/shm has {shm / 1e6:.0f} MB, Ray's object store is to have {store / 1e6:.0f} (OBJECT_STORE_BYTES)",
        )
    worker = _REHEARSAL_GIB if plan.profile == "cpu" else float(plan.knobs["MIN_MEMORY_GIB"] or 0)
    need, memory = _HEAD_GIB if plan.node == "head" else worker, _memory() / 2**30
    if memory < (1 - _KEPT) * need:
        yield "VR-MACH-05", f"it may use {memory:.1f} GiB, a job needs {need:g}"
    tmp = os.environ.get("RAY_TMPDIR") or "/tmp"
    folder = ROOT / tmp.lstrip("/")
    room = os.statvfs(next(path for path in (folder, *folder.parents) if path.exists()))
    gib, inodes = room.f_bavail * room.f_frsize / 2**30, room.f_favail if room.f_files else _TMP_INODES
    if gib < _TMP_GIB or inodes < _TMP_INODES:
        yield "VR-MACH-06", f"{tmp} has {gib:.2f} GiB and {inodes} inodes, {_TMP_GIB} and {_TMP_INODES} are needed"
    ray = folder / "ray"
    if ray.exists() and not os.access(ray, os.W_OK | os.X_OK):
        yield "VR-MACH-07", f"{tmp}/ray belongs to user {ray.stat().st_uid}, and user {os.geteuid()} cannot write to it"
    if len(tmp + _RAYS_PATH) > _SOCKET:
        yield (
            "VR-MACH-07",
            f"RAY_TMPDIR={tmp} is longer than {_SOCKET - len(_RAYS_PATH)} bytes, too long for Ray's sockets",
        )


def _size(path: Path) -> int:
    room = os.statvfs(path)
    return room.f_blocks * room.f_frsize


def _memory() -> int:
    """Bytes that the node's processes may use: the machine's, or what a control group (version 1 or 2) leaves of it."""
    limits = [1024 * int(re.findall(r"^MemTotal: +(\d+)", _read("proc/meminfo"), re.M)[0])]
    for line in _read("proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            base = f"sys/fs/cgroup/{controllers}"
            for inner in (Path(path), *Path(path).parents):
                texts = (_read(f"{base}{inner}/{name}") for name in ("memory.max", "memory.limit_in_bytes"))
                limits += [int(text) for text in texts if text.isdecimal()]
    return min(limits)


def _processes(plan: Plan) -> Iterator[tuple[str, str]]:
    ours = processes.ours(plan.cluster)
    for pid, row in processes.table().items():
        is_cluster = pid in ours or any(one.startswith(f"{processes.MARK}=".encode()) for one in row.environ)
        if not is_cluster and (name := Path(row.command.split(" ")[0]).name) in ("gcs_server", "raylet"):
            yield "VR-MACH-08", f"the {name} of another Ray runs there (pid {pid})"
    for name in _RAY_VARIABLES:
        if os.environ.get(name):
            yield "VR-MACH-09", f"{name}={os.environ[name]}"
    states = (
        _read(str(path.relative_to(ROOT))).rpartition(") ")[2].split()[:2] for path in ROOT.glob("proc/[0-9]*/stat")
    )
    if (count := sum(state == ["Z", "1"] for state in states)) > _ZOMBIES:
        yield "VR-MACH-10", f"PID 1 has {count} ended children that it does not reap"


def _of_gpus(plan: Plan, gpus: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    pattern = {"rocm": "dri/renderD*", "npu": "davinci[0-9]*"}.get(plan.profile, "nvidia[0-9]*")
    names = sorted(path.name for path in (ROOT / "dev").glob(pattern))
    need = 0 if plan.node == "head" or plan.profile == "cpu" else int(plan.knobs["GPUS_PER_WORKER"])
    if (ROOT / "dev/dxg").exists():  # WSL2 has neither the devices nor the driver there
        return
    if len(names) < need or (names and not need and plan.knobs["TRANSPORT"] == "container"):
        yield "VR-MACH-11", f"it has {len(names)} ({', '.join(names)}), and {need} are its own"
    if plan.profile == "gpu" and need and not plan.quick:
        yield from _of_image()
    for gpu in gpus:
        if gpu["ecc.errors.uncorrected.volatile.total"] not in ("0", "[N/A]"):
            yield "VR-MACH-13", f"{gpu['uuid']}: {gpu['ecc.errors.uncorrected.volatile.total']} uncorrected ECC errors"
        if "Active" in (gpu["clocks_throttle_reasons.hw_slowdown"], gpu["clocks_throttle_reasons.hw_thermal_slowdown"]):
            yield "VR-MACH-13", f"{gpu['uuid']} is slowed down by its hardware (heat or power)"
        if gpu["memory.used"].isdecimal() and int(gpu["memory.used"]) > _MIB and not plan.trains:
            yield "VR-MACH-14", f"{gpu['uuid']}: {gpu['memory.used']} MiB are in use, and no job trains there"


def _nvidia() -> list[dict[str, str]]:
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(_FIELDS, line.split(", "), strict=True)) for line in said.splitlines()]


def _of_image() -> Iterator[tuple[str, str]]:
    """The driver, torch and cuDNN that this Python would load."""
    spec = importlib.util.find_spec("torch")
    torch = Path(spec.origin).parent if spec and spec.origin else Path("/nowhere")
    cuda = re.findall(r"^cuda\b.*= '(\d+)", _read(f"{torch}/version.py"), re.M)
    driver = re.findall(r"Module.*? (\d+)\.\d", _read("proc/driver/nvidia/version"))
    if not driver:
        yield "VR-MACH-12", "no NVIDIA driver is seen there"
    if torch.exists() and not cuda:
        yield "VR-MACH-12", f"{torch} is a build without CUDA"
    if driver and cuda and int(driver[0]) < _DRIVERS.get(int(cuda[0]), 0):
        yield (
            "VR-MACH-12",
            f"the driver {driver[0]} is older than {_DRIVERS[int(cuda[0])]}, the first for torch's CUDA {cuda[0]}",
        )
    cudnn = (
        *map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))),
        Path(sys.prefix, "lib"),  # Conda's
        torch.parent / "nvidia/cudnn/lib",
        torch / "lib",
        *ROOT.glob("usr/lib/*-linux-gnu"),
        ROOT / "usr/local/cuda/lib64",
    )
    if cuda and not any(path for folder in cudnn for path in folder.glob("libcudnn.so*")):
        kind = "devel" if shutil.which("nvcc") or (ROOT / "usr/local/cuda/bin/nvcc").exists() else "base or runtime"
        yield "VR-MACH-12", f"the image ({kind}) has no cuDNN"


def _kinds() -> Iterator[str]:
    release = _read("proc/sys/kernel/osrelease").lower()
    if "linuxkit" in release:
        yield "Docker Desktop"
    if "microsoft" in release:
        yield "WSL2"
    if _read("sys/fs/selinux/enforce") == "1":
        yield "SELinux enforcing"
    if _read("proc/self/uid_map").split() not in ([], ["0", "0", "4294967295"]):
        yield "rootless (a user namespace)"


def _kernels(nodes: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    alike: dict[str, list[str]] = defaultdict(list)
    for node, found in nodes.items():
        alike[", ".join([found["kernel"], *found["kinds"]])].append(node)
    for kernel, having in alike.items():
        yield ok(", ".join(having), kernel)


def _rdma(nodes: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    has = {node for node in cluster.workers if nodes.get(node, {}).get("rdma")}
    lacks = {node for node in cluster.workers if node in nodes} - has
    if has and lacks:
        yield alarm(", ".join(sorted(lacks)), f"no /dev/infiniband, which {', '.join(sorted(has))} has")


def _own_gpus(nodes: Mapping[str, Facts], cluster: Cluster) -> Iterator[Seen]:
    owner: dict[str, str] = {}
    if cluster.profile != "gpu":
        yield skipped("all nodes", "it is for the profile gpu")
    for node, found in nodes.items():
        for uuid in found["gpus"] if node != "head" else []:
            if uuid in owner:
                yield alarm(f"{owner[uuid]}, {node}", f"both have {uuid}")
            owner[uuid] = node


CHECKS = (
    probed(
        "VR-MACH-01",
        "open files that a job may have",
        "a process of a job fails with 'Too many open files'",
        "raise nofile for the containers (the engine's default-ulimits) or for the user who runs Ray (limits.conf)",
    ),
    probed(
        "VR-MACH-02",
        "memory that RDMA may lock",
        "NCCL cannot register its buffers, and ends or falls back to TCP",
        "set memlock to unlimited for the containers or for the user who runs Ray",
    ),
    probed(
        "VR-MACH-03",
        "the stack of a process",
        "torch's threads end with a segmentation fault",
        "raise the limit of the stack for the containers or for the user who runs Ray",
    ),
    probed(
        "VR-MACH-04",
        "/dev/shm for Ray's object store",
        "Ray keeps objects in /tmp, which is slow, or does not start",
        "raise SHM_SIZE and run 'make down up', or lower OBJECT_STORE_BYTES",
    ),
    probed(
        "VR-MACH-05",
        "memory for the node",
        "the kernel or Ray kills a job's processes when it is used up",
        "give the node more memory (its container's or batch job's limit), or on GPUs lower MIN_MEMORY_GIB",
    ),
    probed(
        "VR-MACH-06",
        "room for Ray's own files",
        "Ray cannot start, or writes no logs and spills no objects",
        "free some space there, or set RAY_TMPDIR for the node",
    ),
    probed(
        "VR-MACH-07",
        "Ray's own directory",
        "Ray does not start",
        "remove that directory, or set RAY_TMPDIR to a short path that the user who runs Ray may write",
    ),
    probed(
        "VR-MACH-08",
        "no other Ray on the node",
        "a driver may attach to the wrong one, and ports collide",
        "end it, or choose another node",
    ),
    probed(
        "VR-MACH-09",
        "no address of another Ray in the environment",
        "Ray's commands and a job's actors go to that address",
        "remove the variable from the image or from the profile of the node's shell",
    ),
    probed(
        "VR-MACH-10",
        "ended processes are reaped",
        "Ray takes ended processes for running ones, and the node runs out of process ids",
        "run the container with an init (docker run --init)",
        quick=False,
    ),
    probed(
        "VR-MACH-11",
        "GPUs of the node",
        "a job finds fewer GPUs than it asks for, or one that another node uses",
        "correct GPUS_PER_WORKER, GPU_IDS or WORKER_DEVICES, and run 'make down up'",
    ),
    probed(
        "VR-MACH-12",
        "driver, CUDA and cuDNN for this torch",
        "torch does not find the GPUs, or fails in its first convolution or attention",
        "install a newer driver on the host, or name an image for its CUDA with cuDNN in NODE_IMAGE",
        quick=False,
        only="gpu",
    ),
    probed(
        "VR-MACH-13",
        "GPUs without errors",
        "a job fails or is slow on this GPU",
        "leave it out with GPU_IDS, and have it reset or replaced",
        quick=False,
        only="gpu",
    ),
    probed(
        "VR-MACH-14",
        "GPUs that nobody uses",
        "a job runs out of the GPU's memory",
        "end the process that has it ('nvidia-smi' on the host), or leave the GPU out with GPU_IDS",
        quick=False,
        only="gpu",
    ),
    Check(
        "VR-MACH-15",
        "each GPU belongs to one worker",
        _own_gpus,
        "two workers share its memory",
        "correct GPU_IDS, or gpus= in HOSTS_FILE",
    ),
    Check(
        "VR-MACH-16",
        "RDMA on all workers or on none",
        _rdma,
        "NCCL uses RDMA on some nodes and TCP on others: it hangs or is slow",
        "add /dev/infiniband to WORKER_DEVICES, or set NCCL_IB_DISABLE=1 in env_vars of the job",
    ),
    Check(
        "VR-MACH-17",
        "name the kernel and the kind of each machine",
        _kernels,
        "(it raises none)",
        "use nodes of one kind to compare two codes",
    ),
)
