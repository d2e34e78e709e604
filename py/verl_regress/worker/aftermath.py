"""Why a trainer may have failed, as the launcher sees it: a full disk, a lost head or node, a killed process."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import node_memory
from verl_regress.base import say
from verl_regress.base.errors import RegressError, Unreadable
from verl_regress.base.files import read_json, read_text
from verl_regress.base.layout import JobDir
from verl_regress.cluster import nodes, ray_internals
from verl_regress.cluster.ray_api import Node, RayApi, accepts, seen_from_here, silent
from verl_regress.jobs import failure, memory_records, progress

PROBE_BYTES = 2**20  # a full disk may still take less, but not a checkpoint
_ASK_SECONDS = 4.0  # for Ray's answer about its nodes
_CHECK_EVERY = 15.0
_QUIET = 30.0  # without a step, before Ray is asked at all: it costs a process that loads Ray
_PATIENCE = 30.0  # a trainer that notices the loss ends within seconds
_TASK_SECONDS = 20.0  # for a task on another node, and for a GCS that is starting
_BY_NEITHER = "neither by verl-regress nor by the kernel for lack of memory"


class Watch:
    """Ends a trainer that would wait forever for a node that died, as verl 0.9.1's V1 trainer; `lost` has the nodes then."""

    def __init__(self, job: JobDir, trainer: subprocess.Popen[bytes]) -> None:
        self._job, self._trainer = job, trainer
        self._is_over = threading.Event()
        self.lost: tuple[str, ...] = ()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """From now on the trainer is left alone."""
        self._is_over.set()

    def _run(self) -> None:
        step, moved, lost_since = progress.last_step(self._job), time.monotonic(), None
        gcs, pid = os.environ.get("RAY_ADDRESS", ""), self._trainer.pid
        while not self._is_over.wait(_CHECK_EVERY):
            last, now = progress.last_step(self._job), time.monotonic()
            if last != step:
                step, moved, lost_since = last, now, None
            if now - moved < _QUIET:
                continue
            lost: list[str] = []
            with contextlib.suppress(RegressError):
                lost = ray_internals.nodes_lost_from_gcs(gcs, nodes.own_address(), pid, _TASK_SECONDS)
            # An answer without a node, such as from a head that was just restarted, is no reason to end a trainer.
            lost_since = (lost_since or now) if lost else None
            if lost_since is not None and now - lost_since >= _PATIENCE and self._trainer.poll() is None:
                self.lost = tuple(lost)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                return


def explain_failure(job: JobDir, plan: Mapping[str, Any], reason: str, *, told_to_stop: bool) -> dict[str, Any]:
    """What `state/ended` records in addition to, or instead of, the trainer's own `reason`: reason, head_gone, lost_nodes."""
    if (problem := _disk_problem(job)) is not None:
        return {"reason": f"{reason}, and nothing can be written to {job.path} ({problem}): free some space there"}
    gcs = os.environ.get("RAY_ADDRESS", "")
    address, _, port = gcs.rpartition(":")
    if address and not accepts(address.strip("[]"), int(port)):
        return {"reason": f"{reason}, and Ray's head, whose GCS was at {gcs}, is gone", "head_gone": True}
    if told_to_stop:
        return {}
    api = RayApi(seen_from_here(plan["address"], os.environ), _ASK_SECONDS)
    try:
        # A new head's dashboard starts to answer long after its GCS has ended the old raylets, and the trainer with them.
        is_submitted = address and (job.read_state("submitted") or {}).get("accepted")
        if is_submitted and not ray_internals.is_job_in_gcs(gcs, job.ray_id, _TASK_SECONDS):
            return {"reason": f"{reason}, and {failure.FORGOTTEN}", "head_gone": True}
        lost_nodes, words = losses_of(job, (api.job(job.ray_id) or {}).get("job_id"), api)
    except RegressError as error:  # with hosts over ssh, the dashboard listens on the head alone
        say.info(f"cannot tell whether a node or a process was lost: {error}")
        return {}
    return {"reason": f"{reason}{words}", "lost_nodes": lost_nodes}


def _disk_problem(job: JobDir) -> str | None:
    """Why the job's directory cannot be written (a full disk, a spent quota), or None."""
    probe = job.state / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())  # some file systems allocate late
    except OSError as error:
        return error.strerror
    finally:
        probe.unlink(missing_ok=True)
    return None


def losses_of(job: JobDir, job_id: str | None, api: RayApi) -> tuple[tuple[str, ...], str]:
    """Why a trainer has just failed: the nodes that the job lost, as `worker-0 (10.0.0.2)`, and words to add to the reason.

    Each node is asked directly, because Ray notices after half a minute that one is gone. Raises Unreachable.
    """
    actors = api.actors_of(job_id)
    used = {actor["node_id"] for actor in actors}
    raylets = {raylet.node_id: raylet for raylet in api.raylets() if raylet.node_id in used}
    lost = {f"{raylet.name} ({raylet.address})": raylet.alive for raylet in silent(raylets.values())}
    if lost:
        how = {node: "did not answer any more" if alive else "had been given up by Ray" for node, alive in lost.items()}
        return tuple(sorted(lost)), f", when {' and '.join(f'{node} {how[node]}' for node in sorted(lost))}"
    if not raylets:
        return (), ""
    # The peers of an actor that was killed abort, so a kill by Ray's memory monitor comes first.
    return (), _explain_oom(actors, raylets) or _explain_deaths(job, actors, raylets)


def _explain_oom(actors: Sequence[Mapping[str, Any]], raylets: Mapping[str, Node]) -> str:
    """Which actor Ray's memory monitor killed; empty if none."""
    for actor in actors:
        oom = _death_of(actor).get("oom_context")
        if oom is not None:
            node = raylets[actor["node_id"]].name if actor["node_id"] in raylets else "a node"
            memory = failure.memory(oom.get("error_message"))
            return f", after Ray's memory monitor killed its {_class_of(actor)} on {node}{memory}"
    return ""


def _explain_deaths(job: JobDir, actors: Sequence[Mapping[str, Any]], raylets: Mapping[str, Node]) -> str:
    """Which actor crashed or was killed; empty if none, or if it ended with the trainer, was ended by it, or failed itself."""
    for actor in actors:
        died = _death_of(actor).get("actor_died_error_context") or {}
        if died.get("reason") == "WORKER_DIED" and "Worker exit type: SYSTEM_ERROR" in str(died.get("error_message")):
            return _explain_crash(job, actor, raylets.get(actor["node_id"]))
    return ""


def _death_of(actor: Mapping[str, Any]) -> Mapping[str, Any]:
    return actor.get("death_cause") or {}


def _class_of(actor: Mapping[str, Any]) -> str:
    return str(actor["class_name"]).rpartition(".")[2]


def _explain_crash(job: JobDir, actor: Mapping[str, Any], raylet: Node | None) -> str:
    process = f"{_class_of(actor)} (process {actor.get('pid')})"
    node = raylet.name if raylet else "a node"
    counted = None
    if raylet is not None and raylet.address == nodes.own_address():
        counted = node_memory.counters()
    elif raylet is not None:
        with contextlib.suppress(RegressError):
            counted = ray_internals.node_memory(os.environ.get("RAY_ADDRESS", ""), raylet.node_id, _TASK_SECONDS)
    has_killed = _has_killed(job, counted)
    if counted is not None and has_killed:
        return f", out of memory: the kernel of {node} killed its {process}{_sizes(job, counted, actor.get('pid'))}"
    by_whom = _BY_NEITHER if has_killed is False else "not by verl-regress"
    return f", after its {process} on {node} crashed or was killed, {by_whom}"


def explain_sigkill(job: JobDir, pid: int) -> str:
    """Who sent SIGKILL to the trainer, the process `pid` of this node, that nobody asked to stop: the end of a sentence."""
    counted = node_memory.counters()
    has_killed = _has_killed(job, counted)
    if has_killed:
        node = counted["node"]
        return f", out of memory: the kernel of {node} killed it{_sizes(job, counted, pid)}"
    return f", sent {_BY_NEITHER}" if has_killed is False else ", which verl-regress did not send"


def _has_killed(job: JobDir, counted: Mapping[str, Any] | None) -> bool | None:
    """Has the kernel of a process's node killed something there for lack of memory since the job began? None if that is not known."""
    if counted is None or counted["kills"] is None:
        return None
    before = None
    with contextlib.suppress(Unreadable):
        before = (read_json(job.state / "nodes" / f"{counted['node']}.json") or {}).get("kills")
    if before is None:
        return None if counted["kills"] else False
    return bool(counted["kills"] > before)


def _sizes(job: JobDir, counted: Mapping[str, Any], pid: int | None) -> str:
    """` (limit 1.50 GiB, …)`, as far as they are known."""
    own = None
    with contextlib.suppress(OSError):
        own = memory_records.parse(read_text(job.state / "memory" / f"{counted['node']}-{pid}.txt"))
    known = {"limit": counted["limit"], "peak": counted["peak"], "of which the process had": own and max(own.sizes)}
    shown = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in known.items() if size is not None)
    return f" ({shown})" if shown else ""
