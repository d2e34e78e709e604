"""Machine and image: what a node has, against what a job of this profile needs there, and what the other nodes have."""

import errno
import mmap
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verl_regress.base import processes
from verl_regress.base.errors import last_line
from verl_regress.cluster.packages import plain_name
from verl_regress.doctor.checks import ALARM, OK, SKIPPED, DoctorCheck, Facts, ProbePlan, Seen

_FEW = 5  # packages that are named
ROOT = Path("/")  # tests have another one
# What the nodes of a PPO job of a rehearsal used at most: 109 open files and 172 KiB of stack and 8.8 GiB of addresses in a process, 0.7 GiB of
# memory on the head and 2.7 GiB on a worker, 450 threads on a worker (docs/doctor.md). On GPUs: what Ray asks for, and MIN_MEMORY_GIB.
_OPEN_FILES, _OPEN_FILES_ON_GPUS, _STACK = 512, 4096, 1024 * 1024
_ADDRESS_SPACE, _ADDRESS_SPACE_ON_GPUS, _CPU_SECONDS = 2**34, 2**38, 86400
_HEAD_GIB, _REHEARSAL_GIB, _TMP_GIB = 1.0, 3.0, 0.5
_THREADS, _THREADS_ON_GPUS, _INODES = 500, 2000, 1000
_FULL = "RAY_local_fs_capacity_threshold"  # above this share of a disk Ray spills no object; 0.95 unless this says so (2.60)
# The first is the GPU's id; each one after the errors says "Active" if the hardware slows the GPU down.
_SMI = "uuid,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.hw_thermal_slowdown"
_TRIAL = """
import torch
assert torch.backends.cudnn.is_available(), "there is no cuDNN"
for device in range(torch.cuda.device_count() or 1):
    torch.ones(9, device=device).sum().item()
"""


def facts(plan: ProbePlan) -> dict[str, Any]:
    """What the judge compares: its versions, and the ids of its GPUs. It sees what is wrong with this node."""
    ours = processes.of_cluster(plan.knobs["CLUSTER_NAME"])
    _see_limits(plan, ours)
    _see_threads(plan)
    _see_shm(plan, is_ours=any(_is_raylet(command) for command in ours.values()))
    _see_memory(plan)
    _see_files(plan)
    _see_processes(plan, ours)
    _see_devices(plan)
    gpus = list[str]()
    if plan.knobs["PROFILE"] == "gpu" and plan.node != "head" and not plan.quick:
        gpus = _see_gpus(plan)
    if plan.knobs["PROFILE"] != "gpu" or plan.node == "head" or plan.trains or not find_spec("torch"):
        plan.see("VR-MACH-12", "it has no NVIDIA GPU or no torch, or a job trains", status=SKIPPED)
    elif not plan.quick:
        status, said = _asked(40, sys.executable, "-c", _TRIAL)
        found = (last_line(said, f"exit status {status}"), "", ALARM) if status else ("each works", "", OK)
        plan.see("VR-MACH-12", *found)
    versions = {"Python": platform.python_version(), "ray": "none"}
    # What the snapshot needs, each submission checks (store/mismatch.py).
    known = metadata.distributions(name="ray") if plan.quick or plan.node == "head" else metadata.distributions()
    versions |= {plain_name(one.metadata["Name"]): one.version for one in known if one.metadata["Name"]}
    return {"versions": versions, "gpus": gpus}


def _read(path: str) -> str:
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _see_limits(plan: ProbePlan, ours: Mapping[int, str]) -> None:
    """Check the limits of the raylet, which jobs inherit, or else of this process. Ray raises that of open files to the hard limit itself."""
    raylets = [pid for pid, command in ours.items() if _is_raylet(command)]
    text = _read(f"proc/{raylets[0] if raylets else 'self'}/limits")
    files = _OPEN_FILES if plan.knobs["PROFILE"] == "cpu" else _OPEN_FILES_ON_GPUS
    space = _ADDRESS_SPACE if plan.knobs["PROFILE"] == "cpu" else _ADDRESS_SPACE_ON_GPUS
    store = int(plan.knobs["OBJECT_STORE_BYTES"] or 0)
    needs = {r"Max open files +\S+": files, "Max stack size": _STACK, "Max file size": store}
    needs |= {"Max address space": space, "Max data size": space, "Max cpu time": _CPU_SECONDS}
    if any(ROOT.glob("dev/infiniband/uverbs*")):  # RDMA
        needs["Max locked memory"] = sys.maxsize
    for name, need in needs.items():
        if (limit := re.search(rf"^({name}) +(\d+)", text, re.M)) and int(limit[2]) < need:
            needed = "RDMA needs it unlimited" if need == sys.maxsize else f"a job needs {need}"
            plan.see("VR-MACH-01", f"{limit[1].split('  ')[0]} is {limit[2]}, {needed}")


def _is_raylet(command: str) -> bool:
    return "/raylet" in command.split(" ")[0]


def _see_threads(plan: ProbePlan) -> None:
    """As many as a job has: a limit of the user, of the kernel or of a control group ends them all alike."""
    need, end, count = _THREADS if plan.knobs["PROFILE"] == "cpu" else _THREADS_ON_GPUS, threading.Event(), 0
    if plan.trains:  # it may need the last ones
        return
    try:
        for _ in range(need):
            threading.Thread(target=end.wait, daemon=True).start()
            count += 1
    except RuntimeError:
        plan.see("VR-MACH-02", f"it starts {count} more threads, a job needs {need}")
    finally:
        end.set()


def _see_shm(plan: ProbePlan, *, is_ours: bool) -> None:
    """A file without a name, of the size of Ray's store, as Ray makes it (2.60, plasma/dlmalloc.cc). If Ray runs, its own store is in there."""
    store, shm = int(plan.knobs["OBJECT_STORE_BYTES"] or 0), ROOT / "dev/shm"
    try:
        with tempfile.TemporaryFile(dir=shm) as file:
            os.ftruncate(file.fileno(), store)
    except OSError as error:
        plan.see("VR-MACH-03", f"/dev/shm: {error.strerror}")
        return
    room = os.statvfs(shm)
    if (size := (room.f_blocks if is_ours else room.f_bavail) * room.f_frsize) < store:
        plan.see("VR-MACH-04", f"/dev/shm has {size / 1e6:.0f} MB, OBJECT_STORE_BYTES is {store / 1e6:.0f} MB")


def _see_memory(plan: ProbePlan) -> None:
    worker = _REHEARSAL_GIB if plan.knobs["PROFILE"] == "cpu" else float(plan.knobs["MIN_MEMORY_GIB"] or 0)
    need, memory = _HEAD_GIB if plan.node == "head" else worker, _memory() / 2**30
    if memory < 0.9 * need:  # some of a machine's memory is the kernel's own
        plan.see("VR-MACH-05", f"it may use {memory:.1f} GiB, a job needs {need:g}")


def _see_files(plan: ProbePlan) -> None:
    """Where Ray's files are, or will be: a file can be written there and, on GPUs, code that torch.compile or Triton puts there can run."""
    tmp = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # the order of Ray's own (2.60)
    ray = ROOT / tmp.lstrip("/") / "ray"
    here = next(path for path in (ray, *ray.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=here) as file:
            file.write(b"\0" * mmap.PAGESIZE)
            file.flush()
            _see_code(plan, tmp, file.fileno())
        _see_room(plan, tmp, os.statvfs(here))
    except OSError as error:
        code = "VR-MACH-06" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "VR-MACH-07"
        whose = f"/{here.relative_to(ROOT)} belongs to user {os.lstat(here).st_uid}"
        plan.see(code, f"{whose}, and user {os.geteuid()} cannot write there: {error.strerror}")


def _see_code(plan: ProbePlan, tmp: str, file: int) -> None:
    if plan.knobs["PROFILE"] == "cpu" or plan.node == "head":
        return
    try:
        mmap.mmap(file, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError:
        plan.see("VR-MACH-10", f"{tmp} is mounted noexec")


def _see_room(plan: ProbePlan, tmp: str, room: os.statvfs_result) -> None:
    free, inodes = room.f_bavail * room.f_frsize / 2**30, room.f_favail if room.f_files else _INODES
    used, full = 1 - room.f_bavail / (room.f_blocks or 1), float(os.environ.get(_FULL) or 0.95)
    if free < _TMP_GIB or inodes < _INODES:
        plan.see("VR-MACH-06", f"{tmp} has {free:.2f} GiB and {inodes} inodes, {_TMP_GIB} and {_INODES} are needed")
    elif used > full:
        plan.see("VR-MACH-06", f"{tmp} is {used:.1%} full, and above {full:.0%} Ray spills no object")


def _memory() -> int:
    """Bytes that the node's processes may use: the machine's, or what a control group (version 1 or 2) leaves of it."""
    limits = [1024 * int(re.findall(r"^MemTotal: +(\d+)", _read("proc/meminfo"), re.M)[0])]
    for line in _read("proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for inner in (path, *map(str, Path(path).parents)) if controllers in ("", "memory") else ():
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = _read(f"sys/fs/cgroup/{controllers}{inner}/{name}")
                limits += [int(text)] if text.isdecimal() else []
    return min(limits)


def _see_processes(plan: ProbePlan, ours: Mapping[int, str]) -> None:
    for pid, row in processes.table().items():
        is_marked = any(one.startswith(f"{processes.MARK}=".encode()) for one in row.environ)
        if not is_marked and (name := Path(row.command.split(" ")[0]).name) in ("gcs_server", "raylet"):
            plan.see("VR-MACH-08", f"the {name} of another Ray runs there (pid {pid})")
    for pid, command in ours.items():
        if _read(f"proc/{pid}/stat").rpartition(") ")[2].startswith("T"):  # proc(5); a debugger's is t
            plan.see("VR-MACH-09", f"process {pid} ({command.split(' ')[0]}) is stopped")


def _see_devices(plan: ProbePlan) -> None:
    pattern = {"rocm": "dri/renderD*", "npu": "davinci[0-9]*"}.get(plan.knobs["PROFILE"], "nvidia[0-9]*")
    names = sorted(path.name for path in (ROOT / "dev").glob(pattern))
    need = 0 if plan.node == "head" or plan.knobs["PROFILE"] == "cpu" else int(plan.knobs["GPUS_PER_WORKER"])
    is_wrong = len(names) < need or (names and not need and plan.knobs["TRANSPORT"] == "container")
    if is_wrong and not (ROOT / "dev/dxg").exists():  # WSL2 has its devices elsewhere
        plan.see("VR-MACH-11", f"it has {len(names)} ({', '.join(names)}), and {need} are its own")


def _see_gpus(plan: ProbePlan) -> list[str]:
    """What nvidia-smi says of this node's GPUs, where it is there. Returns their ids."""
    _, said = _asked(5, "nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader")
    rows = [line.split(", ") for line in said.splitlines() if line.startswith("GPU-")]
    for uuid, errors, *slowed in rows:
        if errors.isdecimal() and int(errors):
            plan.see("VR-MACH-13", f"{uuid}: {errors} uncorrected ECC errors")
        if "Active" in slowed:
            plan.see("VR-MACH-13", f"{uuid} is slowed down by its hardware (heat or power)")
    return [uuid for uuid, *_ in rows]


def _asked(seconds: int, *words: str) -> tuple[int, str]:
    """A program's exit status, and what it said. Nobody waits for one that hangs in the driver: it may not even be killed."""
    try:
        ran = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, _ = ran.communicate(timeout=seconds)
    except FileNotFoundError:
        return 127, "it is not there"
    except subprocess.TimeoutExpired:
        ran.kill()
        return 124, f"no answer in {seconds} s"
    return ran.returncode, said


def _judge_owners(facts: Mapping[str, Facts], _plan: ProbePlan) -> Iterator[Seen]:
    owners = defaultdict(list)
    for node, uuid in ((node, uuid) for node, found in facts.items() for uuid in found["gpus"]):
        owners[uuid].append(node)
    for uuid, nodes in owners.items():
        if len(nodes) > 1:
            yield Seen("VR-MACH-15", ALARM, ", ".join(nodes), f"each has {uuid}")


def _judge_versions(facts: Mapping[str, Facts], _plan: ProbePlan) -> Iterator[Seen]:
    of_all, said = ("ray", "Python"), list[str]()  # the head has no other packages to compare
    for name in [*of_all, *sorted({name for found in facts.values() for name in found["versions"]} - {*of_all})]:
        nodes = [node for node in facts if node != "head" or name in of_all]
        versions = [facts[node]["versions"].get(name, "none") for node in nodes]
        if len({*versions}) > 1 or (name == "ray" and "none" in versions):
            said.append(
                f"{name} " + ", ".join(f"{version} on {node}" for version, node in zip(versions, nodes, strict=True))
            )
    if said:
        more = f"; and {len(said) - _FEW} more" if len(said) > _FEW else ""
        yield Seen("VR-STACK-01", ALARM, ", ".join(facts), "; ".join(said[:_FEW]) + more)


CHECKS = (
    DoctorCheck(
        "VR-MACH-01",
        "limits of a process",
        "a job has too many open files, dies, or may not lock memory for RDMA",
        "raise it for the containers (the engine's default-ulimits) or in limits.conf (nofile, stack, memlock, fsize, as, data, cpu)",
    ),
    DoctorCheck(
        "VR-MACH-02",
        "start as many threads as a job",
        "Ray or a job cannot start a process or a thread",
        "raise the limit of processes (the engine's or batch job's pids limit, nproc in limits.conf, kernel.threads-max)",
    ),
    DoctorCheck(
        "VR-MACH-03",
        "make a file in /dev/shm as Ray's object store does",
        "Ray does not start",
        "mount /dev/shm there as a tmpfs that the user who runs Ray may write",
    ),
    DoctorCheck(
        "VR-MACH-04",
        "/dev/shm for Ray's object store",
        "Ray keeps objects in /tmp, which is slow, or does not start",
        "raise SHM_SIZE and run 'make down up', or lower OBJECT_STORE_BYTES",
    ),
    DoctorCheck(
        "VR-MACH-05",
        "memory for the node",
        "the kernel or Ray kills a job's processes",
        "give the node more memory (its container's or batch job's limit), or on GPUs lower MIN_MEMORY_GIB",
    ),
    DoctorCheck(
        "VR-MACH-06",
        "room for Ray's own files",
        "Ray cannot start, or writes no logs and spills no objects",
        "free some space there, or name another disk's directory by 'export RAY_TMPDIR=DIR' in env/local.env",
    ),
    DoctorCheck(
        "VR-MACH-07",
        "write to Ray's own directory",
        "Ray does not start",
        "give it to the user who runs Ray, remove it, or name another by 'export RAY_TMPDIR=DIR' in env/local.env",
    ),
    DoctorCheck(
        "VR-MACH-08", "no other Ray on the node", "a driver may attach to the wrong one, and ports collide", "end it"
    ),
    DoctorCheck(
        "VR-MACH-09",
        "no process of the cluster is stopped",
        "the job's other processes wait for it",
        "continue it ('kill -CONT' on that node), or end its job with 'make stop'",
    ),
    DoctorCheck(
        "VR-MACH-10",
        "run code from temporary files",
        "torch.compile and Triton cannot load what they compile there",
        "mount it without noexec, or put 'export TMPDIR=DIR' into env/local.env, then 'make down up'",
    ),
    DoctorCheck(
        "VR-MACH-11",
        "GPUs of the node",
        "a job finds fewer GPUs than it asks for, or one of another node",
        "correct GPUS_PER_WORKER, GPU_IDS or WORKER_DEVICES, and run 'make down up'",
    ),
    DoctorCheck(
        "VR-MACH-12",
        "use each GPU from torch, and cuDNN",
        "a job cannot train there",
        "install a newer driver on the host, or name an image for its CUDA with cuDNN in NODE_IMAGE",
        quick=False,
    ),
    DoctorCheck(
        "VR-MACH-13",
        "GPUs without errors, at full speed",
        "a job fails or is slow there",
        "leave it out with GPU_IDS, and have it cooled, reset or replaced",
        quick=False,
    ),
    DoctorCheck(
        "VR-MACH-15",
        "each GPU belongs to one worker",
        "two workers share its memory and its time",
        "correct GPU_IDS, or gpus= in HOSTS_FILE, and run 'make down up'",
        _judge_owners,
        quick=False,
    ),
    DoctorCheck(
        "VR-STACK-01",
        "compare Ray, Python and the workers' packages",
        "a node is refused, or a job fails or trains differently",
        "give all nodes one image ('make build down up', NODE_IMAGE), or one environment (path= in NODES_FILE, NODES_PATH)",
        _judge_versions,
    ),
)
