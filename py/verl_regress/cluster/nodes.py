"""The nodes as Ray sees them, waiting until they are all there, and which of them this process runs on."""

import argparse
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from verl_regress.base import say
from verl_regress.base.errors import Exit, RegressError, shown
from verl_regress.base.pulse import Pulse
from verl_regress.cluster import packages
from verl_regress.cluster.ray_api import HEAD, Node, RayApi, Unreachable, silent

_LOG_LINES = 40  # of a node's log, if Ray did not start there; `ray start` reports a missing dashboard that far above its end (2.60)
_LOOK_EVERY = 0.2  # seconds between two checks of the node table
_OWN = "Ray's own log: "  # py/ray_start.py begins a line so
_UNREACHED = "108"  # the exit status of py/ray_start.py for a head that does not answer
ADDRESS = HEAD  # these commands run in the head


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`nodes --log-dir DIR --deadline S`."""
    _add_log_dir(parser)
    parser.add_argument("--deadline", type=float, required=True, help="seconds in which Ray's API must be there")


def run(args: argparse.Namespace) -> int:
    """Print name=address of every node that is ALIVE and joined with its latest start. Raises Unreachable."""
    end = time.monotonic() + args.deadline
    while True:
        try:
            for node in joined(args.log_dir):
                print(f"{node.name}={node.address}")
            return 0
        except Unreachable:  # the dashboard starts after the GCS
            _abort_if_one_failed(["head"], args.log_dir)
            if time.monotonic() > end:
                raise
        time.sleep(_LOOK_EVERY)


def _add_log_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-dir", type=Path, required=True, help="where <node>.log, .log.exit and .start are")


def joined(log_dir: Path) -> list[Node]:
    """The ALIVE nodes with the mark of their latest start: Ray calls a killed node ALIVE for another half a minute."""
    alive = [node for node in RayApi(ADDRESS).nodes() if node.alive]
    return [node for node in alive if node.labels.get("start", "none") == packages.start_of(log_dir, node.name)]


def add_await_arguments(parser: argparse.ArgumentParser) -> None:
    """`await-nodes --deadline S --log-dir DIR --gcs-port P [--worker-gpus N] head=IP worker-0=IP …`."""
    parser.add_argument("--deadline", type=float, required=True, help="seconds; the knob CLUSTER_TIMEOUT")
    _add_log_dir(parser)
    parser.add_argument("--gcs-port", type=int, required=True, help="the knob GCS_PORT")
    parser.add_argument("--worker-gpus", type=int, help="the knob GPUS_PER_WORKER, where Ray counts a worker's GPUs")
    parser.add_argument("nodes", nargs="+", metavar="NAME=ADDRESS")


def await_all(args: argparse.Namespace) -> None:
    """Wait until every named node is ALIVE at its address, and print the names of those that have not listed their packages since their start.
    The head, where this runs, lists its own.
    """
    wanted = dict(node.partition("=")[::2] for node in args.nodes)
    end = time.monotonic() + args.deadline
    if not packages.is_listed(args.log_dir, "head"):
        packages.write_list(args.log_dir, "head")
    pulse = Pulse(time.monotonic())
    while True:
        alive, problem, waits = _alive(wanted, args.log_dir)
        missing = sorted(set(wanted) - set(alive))
        if not missing:
            break
        _abort_if_one_failed(sorted(wanted), args.log_dir, f"{wanted['head']}:{args.gcs_port}")
        if time.monotonic() > end:
            _show_log(args.log_dir, missing[0])
            raise RegressError(
                f"{problem}, after {args.deadline:.0f} s (CLUSTER_TIMEOUT); the log of {missing[0]} says: "
                f"{_reason(args.log_dir, missing[0])}: run 'make doctor', which tries what Ray does there, or raise CLUSTER_TIMEOUT.",
                Exit.UNREACHABLE,
            )
        pulse.beat(f"waiting for Ray's nodes ({waits})", time.monotonic())
        time.sleep(_LOOK_EVERY)
    _await_dropped(len(wanted), end, args.deadline, pulse)
    if any(alive["head"].resources.get(kind, 0) for kind in ("CPU", "GPU", "NPU")):
        raise RegressError(
            f"The head shows {describe(alive['head'])}, and a driver could land there: 'make down up' starts its Ray without CPUs and GPUs."
        )
    for name in wanted:
        if name != "head":
            _need_gpus(alive[name], args.worker_gpus)
        say.ok(f"{name} is ALIVE at {alive[name].address}: {describe(alive[name])}")
    for name in wanted:
        if not packages.is_listed(args.log_dir, name):
            print(name)


def _alive(wanted: Mapping[str, str], log_dir: Path) -> tuple[dict[str, Node], str, str]:
    """The wanted nodes that are ALIVE at their addresses, what is wrong if these are not all, and for what to wait."""
    try:
        alive = {node.name: node for node in joined(log_dir) if wanted.get(node.name) == node.address}
    except RegressError as error:
        return {}, str(error).rstrip("."), "Ray does not answer yet"
    missing = sorted(set(wanted) - set(alive))
    problem = f"{len(alive)} of {len(wanted)} nodes are ALIVE, missing: {', '.join(missing)}"
    return alive, problem, problem


def _need_gpus(worker: Node, required: int | None) -> None:
    """Raise RegressError if a worker does not show Ray the GPUs that GPUS_PER_WORKER requires of it."""
    if required not in (None, accelerators(worker.resources)[1]):
        raise RegressError(
            f"{worker.name} shows {describe(worker)}, and GPUS_PER_WORKER={required} is required: check which devices its "
            "container has and whether its user may open them, or set WORKER_GPUS."
        )


def _await_dropped(wanted: int, end: float, deadline: float, pulse: Pulse) -> None:
    """Wait until Ray has dropped dead nodes: for half a minute it would send jobs there, which would never start."""
    api = RayApi(ADDRESS)
    while sum(node.alive for node in api.nodes()) > wanted:
        dead = [raylet.name for raylet in api.raylets() if raylet.alive and not raylet.answers()]
        if not dead:
            return  # more nodes than ours, and they are alive
        if time.monotonic() > end:
            raise RegressError(
                f"Ray still lists {dead[0]} as ALIVE, but it cannot be reached, after {deadline:.0f} s (CLUSTER_TIMEOUT): wait for a "
                "minute, or run 'make down up'.",
                Exit.UNREACHABLE,
            )
        pulse.beat(f"waiting until Ray drops {', '.join(dead)}, which was killed", time.monotonic())
        time.sleep(_LOOK_EVERY)


def alive_nodes(api: RayApi) -> list[Node]:
    """The nodes that Ray calls ALIVE and that accept a connection, as a killed one does not. Raises Unreachable."""
    known = api.raylets()
    gone = silent(known)
    return [node for node in known if node not in gone]


def own_address() -> str:
    """The IP of this node. For nodes reached over ssh the transport provides it: a host often resolves its own name to 127.0.1.1."""
    return os.environ.get("VERL_REGRESS_NODE_IP") or socket.gethostbyname(socket.gethostname())


def own_name() -> str | None:
    """The name of this node, head or worker-N, which everything started by our `ray start` inherits; None elsewhere."""
    return os.environ.get("VERL_REGRESS_NODE")


def describe(node: Node) -> str:
    """`CPU 64, GPU 4, worker_node 100`: a node's resources, as users want to see them."""
    kinds = ["CPU", accelerators(node.resources)[0], *(["worker_node"] if "worker_node" in node.resources else [])]
    return ", ".join(f"{kind} {node.resources.get(kind, 0):g}" for kind in kinds)


def accelerators(resources: Mapping[str, float]) -> tuple[str, float]:
    """What Ray calls a node's accelerators, NPU or GPU, and how many it has."""
    name = "NPU" if "NPU" in resources else "GPU"
    return name, resources.get(name, 0)


def _abort_if_one_failed(names: list[str], log_dir: Path, gcs: str = "") -> None:
    """Raise if the last `ray start` of one of the nodes has failed. `gcs` is the head's address, for a worker that does not reach it."""
    for name in names:
        exit_file = log_dir / f"{name}.log.exit"
        status = exit_file.read_text().strip() if exit_file.exists() else ""  # empty while it runs
        if status == _UNREACHED:
            raise RegressError(
                f"{name} cannot reach Ray's head at {gcs}: a firewall drops what it sends; open all TCP ports between the hosts of the nodes "
                "(a container engine that sets iptables' policy for FORWARD to DROP is a usual cause).",
                Exit.UNREACHABLE,
            )
        if status not in ("", "0"):
            _show_log(log_dir, name)
            raise RegressError(
                f"'ray start' on {name} ended with exit status {status} ({_reason(log_dir, name)}): run 'make doctor', which tries what "
                "Ray does there; the lines above are its log."
            )


def _reason(log_dir: Path, name: str) -> str:
    """Why Ray did not start there: what Ray's own processes said of it (py/ray_start.py), else its last exception, else its last line."""
    lines = [line.strip() for line in _log(log_dir, name).splitlines() if line.strip()]
    own = [line.removeprefix(_OWN) for line in lines if line.startswith(_OWN)]
    errors = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception)\b", line)]
    return shown((own or errors or lines or ["nothing"])[-1]).rstrip(".:")


def _log(log_dir: Path, name: str) -> str:
    path = log_dir / f"{name}.log"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else "(there is no such file)"


def _show_log(log_dir: Path, name: str) -> None:
    say.info(f"the last lines of {log_dir / f'{name}.log'}:")
    for line in _log(log_dir, name).splitlines()[-_LOG_LINES:]:
        say.quote(line)
