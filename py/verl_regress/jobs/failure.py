"""The root exception of a trainer that failed, out of the driver's log: through Ray's, Hydra's and Python's own wrapping.

Standard library only, for it runs on the nodes. No log makes it raise: what cannot be read as a failure gives None.
Formats as Ray 2.60, Hydra 1.3 and Python 3.11 write them; real ones are under tests/recorded/failures/.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_regress.base import say
from verl_regress.base.errors import printable
from verl_regress.base.layout import JobDir, SharedRoot
from verl_regress.jobs import hints, progress

TAIL_BYTES = 1 << 20  # the end of a log that is read: many times what all actors say when they fail
SHOWN_LINES = 40
_LONGEST_LINE = 4000  # characters of a line that are read
_LONGEST_MESSAGE = 300
_LONGEST_ALSO = 120
_SHORT_MESSAGE = 90  # in a table
_LAST_WORDS = 20  # lines at the end of a log in which a driver without a traceback may have said why it ends
_NEAR = 500  # lines before the driver's own error in which another process may have said what went wrong

_KILLED = (signal.SIGKILL, signal.SIGTERM)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# "(WorkerDict pid=12, ip=10.0.0.2) " and "(WorkerDict(0) pid=12) ": what Ray puts before the lines of other processes.
_PREFIX = re.compile(r"\((\S+ pid=\d+(?:, ip=[^)]+)?)\) ?")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
_BEGIN = "Traceback (most recent call last):"
# "ray::WorkerDict.update_actor() (pid=12, ip=10.0.0.2, …)": whose frames follow.
_RAY_BEGIN = re.compile(r"\bray::[^\s(]+\(\) \(pid=\d+")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)')
_RAISED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(\w+\))?(?::(?: (.*))?)?$")
_SURE = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Warning|Timeout|gaierror)$")
_GOES_ON = re.compile(r"(?:^|:|validation errors? for \S+)$")  # a message of which the next line is part
# Of all that ActorDiedError lists, the class is what a reader knows.
_ACTOR = re.compile(r"\.? class_name: (?:\S*\.)?(\w+)\b.*")
_LINKS = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
# A traceback behind one of these ended no process.
_ASIDE = re.compile(
    r"^(?:Exception ignored in|Error in atexit|--- Logging error ---|Exception in thread|(?:Task|Future) exception was never)"
)
# Exceptions that only carry another one. A RayTaskError has no text of its own.
_CARRIERS = re.compile(
    r"(?:^|\.)(?:RayTaskError|RemoteTraceback|SystemExit|InstantiationException|DatasetGenerationError)$"
)
# What a process says when another one went away or failed: the root is what that one said. The last is the V1 trainer's of
# verl 0.9.1, whose agent loops only log what went wrong with an answer.
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
    """One exception of a chain; `link` is how the one before led to it: cause, context, ray (it came through Ray), or ""."""

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
        """Its last line has come. An exception without a message gets the code that raised it as its message."""
        self.type, self.message, self.end = name, _one_line(self.code if message is None else message), line

    def goes_on(self, text: str, line: int) -> None:
        """One more line of its message."""
        if len(self.message) < _LONGEST_MESSAGE:
            self.message = f"{self.message} {_one_line(text)}".strip()
        self.end = line


@dataclass
class _Chain:
    """What one process said at once: exceptions that led to one another, the last one raised last."""

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
    """The exception (`type` is "" where the trainer just said something), where it was raised, and what it became or came after.

    `where` is the deepest frame in verl or the user's code, `excerpt` its lines of the log.
    """

    type: str
    message: str
    where: str | None
    also: str | None
    excerpt: tuple[str, ...]


def of_job(job: JobDir, plan: Mapping[str, Any], code: int) -> dict[str, Any] | None:
    """Why a trainer with that exit status failed, for `state/ended`: type, message, where, also, step, hint.

    None where the log does not say; it cannot where the trainer was killed. Whatever goes wrong here keeps no end from being recorded.
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
    return _sentence(cause, _LONGEST_MESSAGE, str(cause["also"] or ""))


def short(cause: Mapping[str, Any]) -> str:
    """The same for a cell of a table."""
    return _sentence(cause, _SHORT_MESSAGE, "")


def _sentence(cause: Mapping[str, Any], most: int, also: str) -> str:
    when = f"at step {cause['step']}" if cause["step"] is not None else "before the first step"
    said = _join(_short_type(cause["type"]), _cut(cause["message"], most)) + (f", {also}" if also else "")
    return f"{said} ({', '.join(part for part in (cause['where'], when) if part)})"


def step(job: JobDir, log: bytes) -> int | None:
    """The training step that was running: the one after the last that was written; None where none had begun."""
    text = _COLOUR.sub("", log.decode("utf-8", "replace"))
    first = int(progress.parent_of(job)["step"])
    last = progress.last_step(job) or first
    if last == first and _BAR.search(text) is None:
        return None
    total = progress.total_steps(job)
    return last + 1 if total is None else min(last + 1, total)


def shown(job: JobDir) -> list[str]:
    """The lines of the driver's log to show: the root traceback, or else the last ones."""
    log = _tail(job.driver_log)
    found = in_log(log, {})
    lines = found.excerpt if found else ()
    if not lines:
        lines = tuple(_COLOUR.sub("", line) for line in _lines(log)[-SHOWN_LINES:])
    return [printable(line.expandtabs().rstrip()) for line in lines]


def in_log(log: bytes, roots: Mapping[str, str]) -> Failure | None:
    """The root exception in (the end of) a log; `roots` are the beginnings of paths that count, and how they are shown."""
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
    """The end of a log, from a whole line on; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            log = file.read(TAIL_BYTES)
    except OSError:
        return b""
    return log.partition(b"\n")[2] if size > TAIL_BYTES else log


def _lines(log: bytes) -> list[str]:
    """A progress bar overwrites its line: each of its states is one."""
    return [line[:_LONGEST_LINE] for line in re.split(r"[\r\n]+", log.decode("utf-8", "replace")) if line.strip()]


def _cleaned(line: str) -> tuple[str, str]:
    """Whose line it is ("" is the driver), and what it says."""
    text = _COLOUR.sub("", line)
    prefix = _PREFIX.match(text)
    if prefix is None:
        return "", text
    return prefix[1], _REPEATED.sub("", text[prefix.end() :])


def _chains(process: str, stream: list[tuple[int, str]]) -> Iterator[_Chain]:
    """The chains of exceptions in what one process said."""
    chain = _Chain(process, False, [])
    is_open = is_aside = is_message = False  # in a traceback; the next one ends no process; the last line may go on
    link = before = ""
    for number, text in stream:
        begins = text.lstrip() == _BEGIN or _RAY_BEGIN.search(text) is not None
        frame = _FRAME.match(text)
        if begins and is_open and (carrier := _RAISED.match(text.partition(" ")[0])):  # RayTaskError(X): ray::…
            chain.raised[-1].type, chain.raised[-1].end = carrier[1], number
            chain.raised.append(_Raised(number, "ray"))
        elif begins or (frame and not is_open):  # frames without a beginning: the log's own was cut off
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
    """The driver's last words; another process's where the driver has none, or only saw that process go."""
    chains = [chain for chain in chains if not chain.is_aside and chain.raised[-1].type]
    own = [chain for chain in chains if chain.process == ""]
    others = sorted((chain for chain in chains if chain.process), key=lambda chain: chain.line)
    if not own:
        return others[-1] if others else None
    near = [chain for chain in others if chain.line > own[-1].line - _NEAR and not chain.is_symptom]
    return near[0] if own[-1].is_symptom and near else own[-1]


def _root(raised: list[_Raised]) -> tuple[int, str | None]:
    """Which of a chain is the root, and what else a reader should know: what it became, or what came before it."""
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
    """What a driver without a traceback said, of its lines at the end of the log."""
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
    """At most SHOWN_LINES: where it began, and the end."""
    if len(lines) <= SHOWN_LINES:
        return lines
    return [lines[0], f"… {len(lines) - SHOWN_LINES + 2} lines", *lines[-(SHOWN_LINES - 2) :]]
