"""Machine and image: what a node has, against what a job of this profile needs there, and what the other nodes have."""

import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verl_regress.base import processes
from verl_regress.base.errors import last_line
from verl_regress.cluster.packages import plain_name
from verl_regress.doctor.checks import ALARM, OK, SKIPPED, Check, Facts, Plan, Seen

_FEW = 5  # packages that are named
ROOT = Path("/")  # tests have another one
# What the nodes of a PPO job of a rehearsal used at most: 109 open files and 172 KiB of stack in a process, 0.7 GiB of memory on the head
# and 2.7 GiB on a worker (docs/doctor.md). On GPUs: what Ray asks for, and MIN_MEMORY_GIB.
_OPEN_FILES, _OPEN_FILES_ON_GPUS, _STACK = 512, 4096, 1024 * 1024
_HEAD_GIB, _REHEARSAL_GIB, _TMP_GIB = 1.0, 3.0, 0.5
# The first is the GPU's id; each one after the errors says "Active" if the hardware slows the GPU down.
_SMI = "uuid,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.hw_thermal_slowdown"
_TRIAL = """
import torch
assert torch.backends.cudnn.is_available(), "there is no cuDNN"
for device in range(torch.cuda.device_count() or 1):
    torch.ones(9, device=device).sum().item()
"""


def facts(plan: Plan) -> dict[str, Any]:
    """What the judge compares: its versions, and the ids of its GPUs. It sees what is wrong with this node."""
    ours = processes.of_cluster(plan.knobs["CLUSTER_NAME"])
    _see_limits(plan, ours)
    _see_space(plan)
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


def _see_limits(plan: Plan, ours: Mapping[int, str]) -> None:
    """Of Ray's raylet, from which a job inherits them, or of what we start there. Ray raises that of open files to the hard limit."""
    raylets = [pid for pid, command in ours.items() if "/raylet" in command.split(" ")[0]]
    text = _read(f"proc/{raylets[0] if raylets else 'self'}/limits")
    files = _OPEN_FILES if plan.knobs["PROFILE"] == "cpu" else _OPEN_FILES_ON_GPUS
    needs = {r"Max open files +\S+": files, "Max stack size": _STACK}
    if any(ROOT.glob("dev/infiniband/uverbs*")):  # RDMA
        needs["Max locked memory"] = sys.maxsize
    for name, need in needs.items():
        if (limit := re.search(rf"^({name}) +(\d+)", text, re.M)) and int(limit[2]) < need:
            needed = "RDMA needs it unlimited" if need == sys.maxsize else f"a job needs {need}"
            plan.see("VR-MACH-01", f"{limit[1].split('  ')[0]} is {limit[2]}, {needed}")


def _see_space(plan: Plan) -> None:
    room = os.statvfs(ROOT / "dev/shm")
    store, shm = int(plan.knobs["OBJECT_STORE_BYTES"] or 0), room.f_blocks * room.f_frsize
    if shm < store:
        plan.see("VR-MACH-04", f"/dev/shm has {shm / 1e6:.0f} MB, OBJECT_STORE_BYTES is {store / 1e6:.0f} MB")
    worker = _REHEARSAL_GIB if plan.knobs["PROFILE"] == "cpu" else float(plan.knobs["MIN_MEMORY_GIB"] or 0)
    need, memory = _HEAD_GIB if plan.node == "head" else worker, _memory() / 2**30
    if memory < 0.9 * need:  # some of a machine's memory is the kernel's own
        plan.see("VR-MACH-05", f"it may use {memory:.1f} GiB, a job needs {need:g}")
    tmp = os.environ.get("RAY_TMPDIR") or "/tmp"
    ray = ROOT / tmp.lstrip("/") / "ray"
    room = os.statvfs(next(path for path in ray.parents if path.exists()))
    if (free := room.f_bavail * room.f_frsize / 2**30) < _TMP_GIB:
        plan.see("VR-MACH-06", f"{tmp} has {free:.2f} GiB, {_TMP_GIB} are needed")
    if ray.exists() and not os.access(ray, os.W_OK | os.X_OK):
        who = f"user {ray.stat().st_uid}, and user {os.geteuid()}"
        plan.see("VR-MACH-07", f"{tmp}/ray belongs to {who} cannot write to it")


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


def _see_processes(plan: Plan, ours: Mapping[int, str]) -> None:
    for pid, row in processes.table().items():
        is_marked = any(one.startswith(f"{processes.MARK}=".encode()) for one in row.environ)
        if not is_marked and (name := Path(row.command.split(" ")[0]).name) in ("gcs_server", "raylet"):
            plan.see("VR-MACH-08", f"the {name} of another Ray runs there (pid {pid})")
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        if os.environ.get(name):
            plan.see("VR-MACH-08", f"{name}={os.environ[name]} is in the environment")
    for pid, command in ours.items():
        if _read(f"proc/{pid}/stat").rpartition(") ")[2].startswith("T"):  # proc(5); a debugger's is t
            plan.see("VR-MACH-09", f"process {pid} ({command.split(' ')[0]}) is stopped")


def _see_devices(plan: Plan) -> None:
    pattern = {"rocm": "dri/renderD*", "npu": "davinci[0-9]*"}.get(plan.knobs["PROFILE"], "nvidia[0-9]*")
    names = sorted(path.name for path in (ROOT / "dev").glob(pattern))
    need = 0 if plan.node == "head" or plan.knobs["PROFILE"] == "cpu" else int(plan.knobs["GPUS_PER_WORKER"])
    is_wrong = len(names) < need or (names and not need and plan.knobs["TRANSPORT"] == "container")
    if is_wrong and not (ROOT / "dev/dxg").exists():  # WSL2 has its devices elsewhere
        plan.see("VR-MACH-11", f"it has {len(names)} ({', '.join(names)}), and {need} are its own")


def _see_gpus(plan: Plan) -> list[str]:
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


def _judge_owners(facts: Mapping[str, Facts], _plan: Plan) -> Iterator[Seen]:
    owners = defaultdict(list)
    for node, uuid in ((node, uuid) for node, found in facts.items() for uuid in found["gpus"]):
        owners[uuid].append(node)
    for uuid, nodes in owners.items():
        if len(nodes) > 1:
            yield Seen("VR-MACH-15", ALARM, ", ".join(nodes), f"each has {uuid}")


def _judge_versions(facts: Mapping[str, Facts], _plan: Plan) -> Iterator[Seen]:
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
    Check("VR-MACH-01", "limits of a process", "a job finds too many open files, a segmentation fault, or memory that RDMA may not lock",
          "raise nofile, stack or memlock for the containers (the engine's default-ulimits) or in limits.conf"),
    Check("VR-MACH-04", "/dev/shm for Ray's object store", "Ray keeps objects in /tmp, which is slow, or does not start",
          "raise SHM_SIZE and run 'make down up', or lower OBJECT_STORE_BYTES"),
    Check("VR-MACH-05", "memory for the node", "the kernel or Ray kills a job's processes",
          "give the node more memory (its container's or batch job's limit), or on GPUs lower MIN_MEMORY_GIB"),
    Check("VR-MACH-06", "room for Ray's own files", "Ray cannot start, or writes no logs and spills no objects",
          "free some space there, or set RAY_TMPDIR for the node"),
    Check("VR-MACH-07", "Ray's own directory", "Ray does not start",
          "remove that directory, or set RAY_TMPDIR to one that the user who runs Ray may write"),
    Check("VR-MACH-08", "no other Ray on the node", "a driver may attach to the wrong one, and ports collide",
          "end it, and take its address out of the image or the profile of the node's shell"),
    Check("VR-MACH-09", "no process of the cluster is stopped", "the job's other processes wait for it",
          "continue it ('kill -CONT' on that node), or end its job with 'make stop'"),
    Check("VR-MACH-11", "GPUs of the node", "a job finds fewer GPUs than it asks for, or one of another node",
          "correct GPUS_PER_WORKER, GPU_IDS or WORKER_DEVICES, and run 'make down up'"),
    Check("VR-MACH-12", "use each GPU from torch, and cuDNN", "a job cannot train there",
          "install a newer driver on the host, or name an image for its CUDA with cuDNN in NODE_IMAGE", quick=False),
    Check("VR-MACH-13", "GPUs without errors, at full speed", "a job fails or is slow there",
          "leave it out with GPU_IDS, and have it cooled, reset or replaced", quick=False),
    Check("VR-MACH-15", "each GPU belongs to one worker", "two workers share its memory and its time",
          "correct GPU_IDS, or gpus= in HOSTS_FILE, and run 'make down up'", _judge_owners, quick=False),
    Check("VR-STACK-01", "compare Ray, Python and the workers' packages", "a node is refused, or a job fails or trains differently",
          "give all nodes one image ('make build down up', NODE_IMAGE), or one environment (path= in NODES_FILE, NODES_PATH)",
          _judge_versions),
)  # fmt: skip
