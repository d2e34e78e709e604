"""Why a job is over, in one sentence: from Ray's words about a job whose launcher recorded no end, and from what Ray and the
nodes show at the moment in which the trainer failed. Ray's words are those of 2.60.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_regress.cluster.ray_api import RayApi, Raylet, silent

# ray.dashboard.modules.job.common.JobErrorType: what the job runs in was taken from it, whatever it did itself.
_SUPERVISOR_GONE = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")
_NODE_DIED = re.compile(r"because its node has died.*?terminated unexpectedly: ([^\n]+)", re.DOTALL)
# "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: …, ID: …) was 3.62GB used / 4.00GB limit (0.906128)".
_KILLED_FOR_MEMORY = "killed due to the node running low on memory"
_MEMORY = re.compile(r"Memory on the node \([^)]*\) was ([^(\n]+?) \(")
_NODE_IP = re.compile(r"\tip: (\S+)")
_EXIT_DETAIL = re.compile(r"Worker exit detail: ([^.]+)\.")


def ending(code: int) -> str:
    """`ended`, `ended with exit status 1` or `was ended by SIGKILL`; a shell says 128 + the signal of what it ran."""
    if code == 0:
        return "ended"
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit status {code}"


def is_supervisor_gone(details: Mapping[str, Any]) -> bool:
    """Did the actor die in which Ray runs the launcher (or its node), so that nobody could record an end?"""
    return details.get("error_type") in _SUPERVISOR_GONE


def of_loss(details: Mapping[str, Any], node: str | None) -> str:
    """Why the launcher of a job that Ray calls over could not record its end; `node` is where it ran, if it came so far."""
    message = str(details.get("message") or "").strip()
    if node is None:
        node = ip[1] if (ip := _NODE_IP.search(message)) is not None else "a node that Ray does not name"
    code = details.get("driver_exit_code")
    if code is not None and code != 0:
        return f"the launcher on {node} {ending(code)} before it could record an end"
    if _KILLED_FOR_MEMORY in message:
        return f"Ray's memory monitor killed its supervisor of the job on {node}{_memory(message)}, and the launcher with it"
    if (died := _NODE_DIED.search(message)) is not None:
        return f"the driver's node {node} died: Ray says {died[1].strip()}"
    if is_supervisor_gone(details) and (detail := _EXIT_DETAIL.search(message)) is not None:
        return f"Ray's supervisor of the job on {node} was killed or crashed, and the launcher with it: {detail[1]}"
    return (
        f"the launcher recorded no end, Ray says {details.get('status')}: {(message.splitlines() or [''])[-1].strip()}"
    )


# By whether Ray still calls the node ALIVE.
_HOW_LOST = {True: "did not answer any more", False: "had been given up by Ray"}


@dataclass(frozen=True)
class Blow:
    """What the trainer did not do itself: the nodes that it lost, as `worker-0 (10.0.0.2)`, and the words that follow its end."""

    lost_nodes: tuple[str, ...] = ()
    words: str = ""


def of_failure(api: RayApi, ray_id: str) -> Blow:
    """What happened to the nodes and actors of a job whose trainer has just failed. Raises Unreachable.

    Ray finds out half a minute later that a node is gone, the trainer within seconds: so each node is asked. One that is only
    paused or busy still accepts a connection.
    """
    actors = api.actors(ray_id)
    used = {actor["node_id"] for actor in actors}
    raylets = {raylet.node_id: raylet for raylet in api.raylets() if raylet.node_id in used}
    if not raylets:
        return Blow()
    lost = sorted(silent(raylets.values()), key=lambda raylet: raylet.name)
    if lost:
        words = " and ".join(f"{_title(raylet)} {_HOW_LOST[raylet.alive]}" for raylet in lost)
        return Blow(tuple(map(_title, lost)), f", when {words}")
    told = sorted(filter(None, (_of_actor(actor, raylets) for actor in actors)))
    return Blow((), told[0] if told else "")


def _title(raylet: Raylet) -> str:
    return f"{raylet.name} ({raylet.address})"


def _of_actor(actor: Mapping[str, Any], raylets: Mapping[str, Raylet]) -> str:
    """How an actor died that was taken from the trainer; "" for one that ended with it, by it or by an error of its own."""
    name, cause = str(actor["class_name"]).rpartition(".")[2], actor.get("death_cause") or {}
    node = raylets[actor["node_id"]].name if actor.get("node_id") in raylets else "a node"
    if (oom := cause.get("oom_context")) is not None:
        return f", after Ray's memory monitor killed its {name} on {node}{_memory(oom.get('error_message'))}"
    died = cause.get("actor_died_error_context") or {}
    if died.get("reason") == "WORKER_DIED" and "Worker exit type: SYSTEM_ERROR" in str(died.get("error_message")):
        return f", after its {name} on {node} was killed or crashed"
    return ""


def _memory(message: object) -> str:
    used = _MEMORY.search(str(message))
    return f" ({used[1]})" if used is not None else ""
