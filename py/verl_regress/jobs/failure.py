"""Why a job is over: how a process ended, what Ray 2.60 says if the launcher recorded no end, and the root exception of a failed trainer.

That is in what its processes recorded (py/hooks/job_exceptions.py), or else in the driver's log. Real ones: tests/recorded/failures/.
"""

import contextlib
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import Unreadable, last_line, printable
from verl_regress.base.files import end_of, read_json
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import hints, progress

FORGOTTEN = "Ray has forgotten it: its head was restarted, or it was deleted there"
# ray.dashboard.modules.job.common.JobErrorType: the job lost what it runs in, whatever it did itself.
SUPERVISOR_GONE = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")
_NODE_DIED = re.compile(r"because its node has died.*?terminated unexpectedly: ([^\n]+)", re.DOTALL)
# "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: …, ID: …) was 3.62GB used / 4.00GB limit
# (0.906128)".
_KILLED_FOR_MEMORY = "killed due to the node running low on memory"
_MEMORY = re.compile(r"Memory on the node \([^)]*\) was ([^(\n]+?) \(")
_NODE_IP = re.compile(r"\tip: (\S+)")
_EXIT_DETAIL = re.compile(r"Worker exit detail: ([^.]+)\.")

TAIL_BYTES = 1 << 20  # read from the end of a log: many times what all actors print when they fail
SHOWN_LINES = 40
_LONGEST, _LONGEST_ALSO = 300, 120  # characters
_MORE_LINES = 3  # of a message: NCCL's last one names the cause
_BEFORE = 60.0  # seconds before the driver's end in which another process may have failed first

_KILLED = (signal.SIGKILL, signal.SIGTERM)
_NOISE = re.compile(r"verl-regress: |MVP_PRECHECK_|\d{4}-\d\d-\d\d [\d:,]+\s+(?:INFO|WARNING) ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"\(\S+ pid=\d+(?:, ip=[^)]+)?\) ?")  # Ray's, of the lines of other processes
_BEGIN = re.compile(r"Traceback \(most recent call last\):$|.*\bray::[^\s(]+\(\) \(pid=\d+")
_RAISED = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (.*))?$")
_FRAME = re.compile(r'  File "([^"]+)", line (\d+)')
# The class is the one part of what ActorDiedError lists that readers know.
_ACTOR = re.compile(r"\.? class_name: (?:\S*\.)?(\w+)\b.*")
# Exceptions that only wrap another one.
_CARRIERS = ("SystemExit", "InstantiationException", "DatasetGenerationError", "RemoteTraceback")
# What verl 0.9.1's V1 trainer says if its agent loops, which only log what went wrong with an answer, gave it none.
_ONLY_LOGGED = r"no materializable trajectories"
# What a process says when another one went away or failed: the root cause is in that other process.
_SYMPTOM = re.compile(
    r"ActorDiedError|ActorUnavailableError|RayActorError|WorkerCrashedError|NodeDiedError|[Cc]onnection closed by peer"
    rf"|[Cc]onnection reset by peer|Broken pipe|{_ONLY_LOGGED}"
)
_BAR = re.compile(r"Training Progress: +\d+%\||Epoch \d+/\d+: +\d+%\|")  # verl's progress bar


def ending(code: int) -> str:
    """`ended`, `ended with exit status 1` or `was ended by SIGKILL`; a shell's exit status 128+N means signal N."""
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit status {code}" if code else "ended"


def loss_of(details: Mapping[str, Any], node: str | None) -> str:
    """Why the launcher of a job that Ray calls over could not record its end; `node` is where it ran, if it got that far."""
    message = str(details.get("message") or "").strip()
    if node is None:
        node = ip[1] if (ip := _NODE_IP.search(message)) else "a node that Ray does not name"
    if code := details.get("driver_exit_code"):
        return f"the launcher on {node} {ending(code)} before it could record an end"
    if _KILLED_FOR_MEMORY in message:
        return f"Ray's memory monitor killed its supervisor of the job on {node}{memory(message)}, and the launcher with it"
    if (died := _NODE_DIED.search(message)) is not None:
        return f"the driver's node {node} died: Ray says {died[1].strip()}"
    if details.get("error_type") in SUPERVISOR_GONE and (detail := _EXIT_DETAIL.search(message)) is not None:
        return f"Ray's supervisor of the job on {node} was killed or crashed, and the launcher with it: {detail[1]}"
    return f"the launcher recorded no end, Ray says {details.get('status')}: {last_line(message, '').strip()}"


def memory(message: object) -> str:
    """` (3.62GB used / 4.00GB limit)` if Ray's message says how full the memory was; else nothing."""
    used = _MEMORY.search(str(message))
    return f" ({used[1]})" if used is not None else ""


def root_cause(job: JobDir, plan: Mapping[str, Any], code: int) -> dict[str, Any] | None:
    """Why a trainer with that exit status failed, for `state/ended`: type, message, where, also, step, hint.

    None if neither record nor log says, as for a trainer that was killed. Never raises, so that the end is always recorded.
    """
    if -code in _KILLED:
        return None
    try:
        users = SharedRoot(Path(plan["shared_root"])).user_code
        roots = {f"{plan['code_path']}/": "", f"{users}/": "user/code/"}
        found = recorded(job, roots)[0] or in_log(_tail(job))
        if found is not None and re.search(_ONLY_LOGGED, found["message"]):
            found = _in_log_of_others(_tail(job), roots) or found
        return found and {**found, "hint": found["hint"] or _hint_of_reward(plan, found), "step": step(job)}
    except Exception as error:
        say.info(f"the root exception was not found: {type(error).__name__}: {error}")
        return None


def _hint_of_reward(plan: Mapping[str, Any], cause: Mapping[str, Any]) -> str | None:
    """What the job's own reward function, if it has one, should have returned, if the cause is that."""
    function = plan.get("reward_function")
    return function and hints.of_reward(cause["type"], cause["message"], cause["where"], function)


def sentence(cause: Mapping[str, Any], most: int = _LONGEST) -> str:
    """`ValueError: it is so (verl/trainer/ppo/ray_trainer.py:412, at step 1)`, with at most so many characters of the message."""
    when = f"at step {cause['step']}" if cause.get("step") is not None else "before the first step"
    named = ": ".join(filter(None, (cause["type"].rpartition(".")[2], _cut(cause["message"], most))))
    said = [named, cause.get("also")]
    return f"{', '.join(filter(None, said))} ({', '.join(filter(None, (cause.get('where'), when)))})"


def step(job: JobDir) -> int | None:
    """The training step that was running: the one after the last recorded one; None if none had begun."""
    first = int(progress.parent_of(job)["step"])
    last = progress.last_step(job) or first
    if last == first and _BAR.search(_COLOUR.sub("", _tail(job))) is None:
        return None
    total = progress.total_steps(job)
    return last + 1 if total is None else min(last + 1, total)


def shown(job: JobDir) -> list[str]:
    """The lines to show of a failed job: the root traceback, or else the last lines of the driver's log."""
    lines = recorded(job, {})[1] or _lines(_tail(job))
    return [printable(line.expandtabs().rstrip()) for line in lines[-SHOWN_LINES:]]


def recorded(job: JobDir, roots: Mapping[str, str]) -> tuple[dict[str, Any] | None, list[str]]:
    """The root exception that the job's processes recorded, with a hint, and the lines of its traceback; None if its driver recorded none.

    `type` is "" if the trainer only printed a text, `where` the deepest frame in verl or the user's code, `also` what it became or
    followed. `roots` maps prefixes of relevant paths to how messages show them. A damaged file counts as none.
    """
    try:
        return _recorded(job, roots)
    except Exception as error:
        say.info(f"the recorded exceptions of {job.ray_id} cannot be read: {type(error).__name__}: {error}")
        return None, []


def _recorded(job: JobDir, roots: Mapping[str, str]) -> tuple[dict[str, Any] | None, list[str]]:
    records = _records(job)
    driver = next((one for one in reversed(records) if one["is_driver"]), None)
    if driver is None:
        return None, []
    chosen = _first_to_fail(driver, records)
    chain = chosen["chain"]
    at, also = _root(chain)
    nearest = [*chain[at:], *reversed(chain[:at]), *driver["chain"]]
    where = next(filter(None, (_where(one["frames"], roots) for one in nearest)), None)
    inner = in_log(chain[at]["message"])
    if inner is not None and "Traceback (most recent call last):" in chain[at]["message"]:  # of a child process
        return {**inner, "where": where}, chosen["lines"]
    message = _ACTOR.sub(r" (\1)", _one_line(chain[at]["message"]))
    return _cause(chain[at]["type"], message, where, also), chosen["lines"]


def _records(job: JobDir) -> list[dict[str, Any]]:
    """The exceptions that the processes of a job recorded, the earliest first; none of a file that cannot be read."""
    records: list[dict[str, Any]] = []
    for file in sorted(job.reports.glob("exceptions-*.json")):
        with contextlib.suppress(KeyError, Unreadable):
            records += (read_json(file) or {})["exceptions"]
    return sorted(records, key=lambda one: float(one["time"]))


def _first_to_fail(driver: dict[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of the process whose failure made the others fail; the driver's own if none tells more."""
    others = [one for one in records if one["time"] > driver["time"] - _BEFORE and one is not driver]
    chosen = _sent_through_ray(driver, others) or driver
    return next((one for one in (chosen, *others) if not _SYMPTOM.search(_raised_last(one))), chosen)


def _sent_through_ray(driver: Mapping[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The first of the processes through which the driver's exception came: it knows where it was raised. None if none is recorded."""
    received = next((_in_one_line(one) for one in driver["chain"] if one["came_from_ray"]), None)
    if received is None:
        return None
    # An exception without a message has the code that raised it there.
    return next((one for one in others if _raised_last(one).startswith(received)), None)


def _raised_last(record: Mapping[str, Any]) -> str:
    """The exception with which a process failed, in one line."""
    return _in_one_line(record["chain"][-1])


def _cause(
    kind: str, message: str, where: str | None = None, also: str | None = None, after: Sequence[str] = ()
) -> dict[str, Any]:
    """The hint is for the whole message, and for the lines `after` it, with which a log may go on."""
    hint = hints.find(kind, _one_line(" ".join([message, *after])))
    return {"type": kind, "message": _cut(_one_line(message), _LONGEST), "where": where, "also": also, "hint": hint}


def _in_one_line(one: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (one["type"].rpartition(".")[2], _one_line(one["message"]))))


def _root(chain: Sequence[Mapping[str, Any]]) -> tuple[int, str | None]:
    """The index of a chain's root, and what else a reader should know: what it became, or what came before it."""
    also = None
    for at in range(len(chain) - 1, 0, -1):
        last, earlier = chain[at], chain[at - 1]
        is_carrier = last["came_from_ray"] or last["type"].rpartition(".")[2] in _CARRIERS
        if last["link"] == "context" and not is_carrier:
            return at, also or _cut(f"while it handled {_in_one_line(earlier)}", _LONGEST_ALSO)
        if not is_carrier and _in_one_line(last) != _in_one_line(earlier):
            also = also or _cut(f"which became {_in_one_line(last)}", _LONGEST_ALSO)
    return 0, also


def in_log(log: str) -> dict[str, Any] | None:
    """The last exception that the driver wrote into its log, or its last words if it wrote none. None if it wrote nothing."""
    own = [line for line in _lines(log) if not _PREFIX.match(line) and not _NOISE.match(line)]
    begins = [number for number, line in enumerate(own, start=1) if _BEGIN.match(line)]
    first = begins[-1] if begins else len(own) - 1
    for number, line in enumerate(own[first:], start=first + 1):
        if (raised := _RAISED.match(line)) is not None:
            return _cause(raised[1], raised[2] or "", after=own[number : number + _MORE_LINES])
    return _cause("", own[-1]) if own else None


def _in_log_of_others(log: str, roots: Mapping[str, str]) -> dict[str, Any] | None:
    """The last exception that another process of the job wrote into the driver's log, with its place."""
    lines = [(match[0], line[match.end() :]) for line in _lines(log) if (match := _PREFIX.match(line))]
    begins = [number for number, (_, line) in enumerate(lines) if _BEGIN.match(line)]
    if not begins:
        return None
    process, frames = lines[begins[-1]][0], []
    for line in (line for other, line in lines[begins[-1] :] if other == process):
        if (frame := _FRAME.match(line)) is not None:
            frames.append((frame[1], int(frame[2])))
        elif (raised := _RAISED.match(line)) is not None:
            return _cause(raised[1], raised[2] or "", _where(frames, roots))
    return None


def _tail(job: JobDir) -> str:
    """The end of the driver's log; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return end_of(job.driver_log, TAIL_BYTES).decode("utf-8", "replace")
    return ""


def _lines(log: str) -> list[str]:
    """Split into lines. A progress bar overwrites its line: each of its states counts as one."""
    return [line for line in re.split(r"[\r\n]+", _COLOUR.sub("", log)) if line.strip()]


def _where(frames: Sequence[Sequence[Any]], roots: Mapping[str, str]) -> str | None:
    """The deepest frame in a file that counts."""
    for file, line in reversed(frames):
        for root, shown_as in roots.items():
            if file.startswith(root):
                return printable(f"{shown_as}{file.removeprefix(root)}:{line}")
    return None


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
