"""Finds the root exception of a failed trainer in the driver's log, through Ray's, Hydra's and Python's own wrapping.

Standard library only, because it runs on the nodes. No log makes it raise: if it finds no failure, it returns None.
Formats as Ray 2.60, Hydra 1.3 and Python 3.11 write them; real ones are under tests/recorded/failures/.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import Unreadable, printable
from verl_regress.base.files import end_of
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import hints, progress

TAIL_BYTES = 1 << 20  # bytes read from the end of a log: many times what all actors print when they fail
SHOWN_LINES = 40
_LONGEST_LINE = 4000  # characters of a line that are read
_LONGEST_MESSAGE = 300
_LONGEST_ALSO = 120
_SHORT_MESSAGE = 90  # in a table
_LAST_WORDS = 20  # lines at the end of a log where a driver without a traceback may have said why it ends
_NEAR = 500  # lines before the driver's own error where another process may have said what went wrong

_KILLED = (signal.SIGKILL, signal.SIGTERM)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# "(WorkerDict pid=12, ip=10.0.0.2) " and "(WorkerDict(0) pid=12) ": Ray's prefix for the lines of other processes.
_PREFIX = re.compile(r"\((\S+ pid=\d+(?:, ip=[^)]+)?)\) ?")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
_BEGIN = "Traceback (most recent call last):"
# "ray::WorkerDict.update_actor() (pid=12, ip=10.0.0.2, …)": its frames follow.
_RAY_BEGIN = re.compile(r"\bray::[^\s(]+\(\) \(pid=\d+")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_RAISED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(\w+\))?(?::(?: (.*))?)?$")
_SURE = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Warning|Timeout|gaierror)$")
_GOES_ON = re.compile(r"(?:^|:|validation errors? for \S+)$")  # a message that continues in the next line
# Of all that ActorDiedError lists, the class is the part that readers know.
_ACTOR = re.compile(r"\.? class_name: (?:\S*\.)?(\w+)\b.*")
_LINKS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
# A traceback after one of these ended no process.
_ASIDE = re.compile(
    r"^(?:Exception ignored in|Error in atexit|--- Logging error ---|Exception in thread|(?:Task|Future) exception was never)"
)
# Exceptions that only wrap another one. A RayTaskError has no text of its own.
_CARRIERS = re.compile(
    r"(?:^|\.)(?:RayTaskError|RemoteTraceback|SystemExit|InstantiationException|DatasetGenerationError)$"
)
# What a process says when another one went away or failed: the root cause is in that other process's words. The last
# one is from verl 0.9.1's V1 trainer, whose agent loops only log what went wrong with an answer.
_SYMPTOM = re.compile(
    r"ActorDiedError|ActorUnavailableError|RayActorError|WorkerCrashedError|NodeDiedError|[Cc]onnection closed by peer"
    r"|[Cc]onnection reset by peer|Broken pipe|no materializable trajectories"
)
_NOISE = re.compile(
    r"verl-regress: |MVP_PRECHECK_|\d{4}-\d\d-\d\d [\d:,]+\s+(?:INFO|WARNING) |Set the environment variable HYDRA_FULL_ERROR"
)
_PLAIN = re.compile(r"error|could not|cannot|can't|no module|not found|killed|fatal|aborted|fault", re.IGNORECASE)
# verl's progress bar.
_BAR = re.compile(r"Training Progress: +\d+%\||Epoch \d+/\d+: +\d+%\|")


@dataclass
class _Raised:
    """One exception of a chain; `link` is how the previous one led to it: cause, context, ray (it came through Ray), or ""."""

    line: int  # where its text begins in the log
    link: str
    end: int = 0
    type: str = ""
    message: str = ""
    code: str = ""  # of the deepest frame
    frames: list[tuple[str, int]] = field(default_factory=list)

    def __str__(self) -> str:
        return _join(_short_type(self.type), self.message)

    def ends_as(self, name: str, message: str | None, line: int) -> None:
        """Take its last line. An exception without a message gets the code that raised it as its message."""
        self.type, self.message, self.end = name, _one_line(self.code if message is None else message), line

    def goes_on(self, text: str, line: int) -> None:
        """Take one more line of its message."""
        if len(self.message) < _LONGEST_MESSAGE:
            self.message = f"{self.message} {_one_line(text)}".strip()
        self.end = line


@dataclass
class _Chain:
    """One traceback of a process: exceptions that led to one another, the last raised last."""

    process: str  # "" is the driver
    is_aside: bool
    raised: list[_Raised]

    @property
    def line(self) -> int:
        """Where it begins in the log."""
        return self.raised[0].line

    @property
    def is_symptom(self) -> bool:
        """Does it only say that another process went away?"""
        last = self.raised[-1]
        return _SYMPTOM.search(_join(last.type, last.message)) is not None


@dataclass(frozen=True)
class Failure:
    """The exception (`type` is "" if the trainer only printed a text), where it was raised, and what it became or followed.

    `where` is the deepest frame in verl or the user's code, `excerpt` its lines of the log.
    """

    type: str
    message: str
    where: str | None
    also: str | None
    excerpt: tuple[str, ...]


def of_job(job: JobDir, plan: Mapping[str, Any], code: int) -> dict[str, Any] | None:
    """Why a trainer with that exit status failed, for `state/ended`: type, message, where, also, step, hint.

    None if the log does not say, as for a trainer that was killed. Never raises, so that the end is always recorded.
    """
    if -code in _KILLED:
        return None
    try:
        return _of_job(job, plan)
    except Exception as error:
        say.info(f"the root exception was not found: {type(error).__name__}: {error}")
        return None


def _of_job(job: JobDir, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    log = _tail(job.driver_log)
    roots = {f"{plan['code_path']}/": "", f"{SharedRoot(Path(plan['shared_root'])).user_code}/": "user/code/"}
    found = in_log(log, roots)
    if found is None:
        return None
    return {
        "type": found.type,
        "message": found.message,
        "where": found.where,
        "also": found.also,
        "step": step(job, log),
        "hint": hints.of(_join(found.type, found.message), found.where or "", found.also or ""),
    }


def sentence(cause: Mapping[str, Any]) -> str:
    """`ValueError: it is so (verl/trainer/ppo/ray_trainer.py:412, at step 1)`."""
    return _sentence(cause, _LONGEST_MESSAGE, str(cause.get("also") or ""))


def short(cause: Mapping[str, Any]) -> str:
    """The same, shortened for a cell of a table."""
    return _sentence(cause, _SHORT_MESSAGE, "")


def _sentence(cause: Mapping[str, Any], most: int, also: str) -> str:
    when = f"at step {cause['step']}" if cause.get("step") is not None else "before the first step"
    said = _join(_short_type(cause["type"]), _cut(cause["message"], most)) + (f", {also}" if also else "")
    return f"{said} ({', '.join(part for part in (cause.get('where'), when) if part)})"


def step(job: JobDir, log: bytes) -> int | None:
    """The training step that was running: the one after the last recorded one; None if none had begun."""
    text = _COLOUR.sub("", log.decode("utf-8", "replace"))
    first = int(progress.parent_of(job)["step"])
    last = progress.last_step(job) or first
    if last == first and _BAR.search(text) is None:
        return None
    total = progress.total_steps(job)
    return last + 1 if total is None else min(last + 1, total)


def shown(job: JobDir) -> list[str]:
    """The lines of the driver's log to show: the root traceback, or else the last lines."""
    log = _tail(job.driver_log)
    found = in_log(log, {})
    lines = found.excerpt if found else ()
    if not lines:
        lines = tuple(_COLOUR.sub("", line) for line in _lines(log)[-SHOWN_LINES:])
    return [printable(line.expandtabs().rstrip()) for line in lines]


def in_log(log: bytes, roots: Mapping[str, str]) -> Failure | None:
    """The root exception in (the end of) a log; `roots` maps prefixes of relevant paths to how messages show them."""
    lines = _lines(log)
    streams: dict[str, list[tuple[int, str]]] = {"": []}
    for number, line in enumerate(lines):
        process, text = _cleaned(line)
        streams.setdefault(process, []).append((number, text))
    chain = _chosen([chain for process, stream in streams.items() for chain in _chains(process, stream)])
    if chain is None:
        return _plain([text for number, text in streams[""] if number >= len(lines) - _LAST_WORDS])
    at, also = _root(chain.raised)
    root = chain.raised[at]
    nearest = [root, *chain.raised[at + 1 :], *reversed(chain.raised[:at])]
    where = next(filter(None, (_where(one.frames, roots) for one in nearest)), None)
    excerpt = [text for number, text in streams[chain.process] if root.line <= number <= chain.raised[-1].end]
    message = _ACTOR.sub(r" (\1)", root.message)
    return Failure(root.type, _cut(message, _LONGEST_MESSAGE), where, also, tuple(_middle_cut(excerpt)))


def _tail(path: Path) -> bytes:
    """The end of a log, from the start of a line; empty if it cannot be read."""
    try:
        log = end_of(path, TAIL_BYTES + 1)
    except (OSError, Unreadable):
        return b""
    return log.partition(b"\n")[2] if len(log) > TAIL_BYTES else log


def _lines(log: bytes) -> list[str]:
    """Split into lines. A progress bar overwrites its line: each of its states counts as one."""
    return [line[:_LONGEST_LINE] for line in re.split(r"[\r\n]+", log.decode("utf-8", "replace")) if line.strip()]


def _cleaned(line: str) -> tuple[str, str]:
    """Whose line it is ("" is the driver), and its text."""
    text = _COLOUR.sub("", line)
    prefix = _PREFIX.match(text)
    if prefix is None:
        return "", text
    return prefix[1], _REPEATED.sub("", text[prefix.end() :])


def _chains(process: str, stream: list[tuple[int, str]]) -> Iterator[_Chain]:
    """The chains of exceptions in the output of one process."""
    chain = _Chain(process, False, [])
    is_open = is_aside = is_message = False  # in a traceback; the next one ends no process; the last line may continue
    link = before = ""
    for number, text in stream:
        begins = text.lstrip() == _BEGIN or _RAY_BEGIN.search(text) is not None
        frame = _FRAME.match(text)
        if begins and is_open and (carrier := _RAISED.match(text.partition(" ")[0])):  # RayTaskError(X): ray::…
            chain.raised[-1].type, chain.raised[-1].end = carrier[1], number
            chain.raised.append(_Raised(number, "ray"))
        elif begins or (frame and not is_open):  # frames without a beginning: the log was cut off
            if not link:
                if chain.raised:
                    yield chain
                chain, is_aside = _Chain(process, is_aside, []), False
            chain.raised.append(_Raised(number, link))
            is_open, link = True, ""
        elif text in _LINKS and chain.raised:
            link, is_message = _LINKS[text], False
        elif (
            is_open and not frame and (raised := _RAISED.match(text)) and (before[:1] == " " or _SURE.search(raised[1]))
        ):
            chain.raised[-1].ends_as(raised[1], raised[2], number)
            is_open, is_message = False, raised[2] is not None
        elif is_message and (text[:1].isspace() or _GOES_ON.search(chain.raised[-1].message)):
            chain.raised[-1].goes_on(text, number)
        else:
            is_message = False
            is_aside = is_aside or _ASIDE.match(text) is not None
        if frame:
            chain.raised[-1].frames.append((frame[1], int(frame[2])))
        elif is_open and before.startswith("  File "):
            chain.raised[-1].code = text.strip()
        before = text
    if chain.raised:
        yield chain


def _chosen(chains: list[_Chain]) -> _Chain | None:
    """The driver's last chain; another process's if the driver has none, or only saw that process go."""
    chains = [chain for chain in chains if not chain.is_aside and chain.raised[-1].type]
    own = [chain for chain in chains if chain.process == ""]
    others = sorted((chain for chain in chains if chain.process), key=lambda chain: chain.line)
    if not own:
        return others[-1] if others else None
    near = [chain for chain in others if chain.line > own[-1].line - _NEAR and not chain.is_symptom]
    return near[0] if own[-1].is_symptom and near else own[-1]


def _root(raised: list[_Raised]) -> tuple[int, str | None]:
    """The index of a chain's root, and what else a reader should know: what it became, or what came before it."""
    at, also = len(raised) - 1, None
    while raised[at].link in ("cause", "context") and raised[at - 1].type:
        last, earlier = raised[at], raised[at - 1]
        is_carrier = _CARRIERS.search(last.type) is not None
        if last.link == "context" and not is_carrier:
            return at, also or _cut(f"while it handled {earlier}", _LONGEST_ALSO)
        if not is_carrier and str(last) != str(earlier):
            also = also or _cut(f"which became {last}", _LONGEST_ALSO)
        at -= 1
    return at, also


def _where(frames: list[tuple[str, int]], roots: Mapping[str, str]) -> str | None:
    """The deepest frame in a file that counts."""
    for file, line in reversed(frames):
        for root, shown_as in roots.items():
            if file.startswith(root):
                return printable(f"{shown_as}{file.removeprefix(root)}:{line}")
    return None


def _plain(said: list[str]) -> Failure | None:
    """The last words of a driver without a traceback, from its lines at the end of the log."""
    said = [text.strip() for text in said if not _NOISE.match(text)]
    likely = [text for text in said if _PLAIN.search(text)] or said
    if not likely:
        return None
    raised = _RAISED.match(likely[-1])
    if raised and raised[2] and _SURE.search(raised[1]):
        return Failure(raised[1], _cut(_one_line(raised[2]), _LONGEST_MESSAGE), None, None, ())
    return Failure("", _cut(_one_line(likely[-1]), _LONGEST_MESSAGE), None, None, ())


def _join(name: str, message: str) -> str:
    return ": ".join(part for part in (name, message) if part)


def _short_type(name: str) -> str:
    return name.rpartition(".")[2]


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _middle_cut(lines: list[str]) -> list[str]:
    """At most SHOWN_LINES: the first lines and the last."""
    if len(lines) <= SHOWN_LINES:
        return lines
    return [lines[0], f"… {len(lines) - SHOWN_LINES + 2} lines", *lines[-(SHOWN_LINES - 2) :]]
