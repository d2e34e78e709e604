"""Why a job is over, in one sentence: how a process ended, and what Ray says of a job if its launcher recorded no end.

It does not query Ray: callers pass Ray's answer in. It matches the phrases of Ray 2.60.
"""

import re
import signal
from collections.abc import Mapping
from typing import Any

FORGOTTEN = "Ray has forgotten it: its head was restarted, or it was deleted there"
# ray.dashboard.modules.job.common.JobErrorType: the job lost what it runs in, whatever it did itself.
_SUPERVISOR_GONE = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")
_NODE_DIED = re.compile(r"because its node has died.*?terminated unexpectedly: ([^\n]+)", re.DOTALL)
# "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: …, ID: …) was 3.62GB used / 4.00GB limit
# (0.906128)".
_KILLED_FOR_MEMORY = "killed due to the node running low on memory"
_MEMORY = re.compile(r"Memory on the node \([^)]*\) was ([^(\n]+?) \(")
_NODE_IP = re.compile(r"\tip: (\S+)")
_EXIT_DETAIL = re.compile(r"Worker exit detail: ([^.]+)\.")


def ending(code: int) -> str:
    """`ended`, `ended with exit status 1` or `was ended by SIGKILL`; a shell's exit status 128+N means signal N."""
    if code == 0:
        return "ended"
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit status {code}"


def is_supervisor_gone(details: Mapping[str, Any]) -> bool:
    """Did the actor that runs the launcher (or its node) die, so that no end could be recorded?"""
    return details.get("error_type") in _SUPERVISOR_GONE


def of_loss(details: Mapping[str, Any], node: str | None) -> str:
    """Why the launcher of a job that Ray calls over could not record its end; `node` is where it ran, if it got that far."""
    message = str(details.get("message") or "").strip()
    if node is None:
        node = ip[1] if (ip := _NODE_IP.search(message)) is not None else "a node that Ray does not name"
    code = details.get("driver_exit_code")
    if code is not None and code != 0:
        return f"the launcher on {node} {ending(code)} before it could record an end"
    if _KILLED_FOR_MEMORY in message:
        return f"Ray's memory monitor killed its supervisor of the job on {node}{memory(message)}, and the launcher with it"
    if (died := _NODE_DIED.search(message)) is not None:
        return f"the driver's node {node} died: Ray says {died[1].strip()}"
    if is_supervisor_gone(details) and (detail := _EXIT_DETAIL.search(message)) is not None:
        return f"Ray's supervisor of the job on {node} was killed or crashed, and the launcher with it: {detail[1]}"
    return (
        f"the launcher recorded no end, Ray says {details.get('status')}: {(message.splitlines() or [''])[-1].strip()}"
    )


def memory(message: object) -> str:
    """` (3.62GB used / 4.00GB limit)` if Ray's message says how full the memory was; else nothing."""
    used = _MEMORY.search(str(message))
    return f" ({used[1]})" if used is not None else ""
