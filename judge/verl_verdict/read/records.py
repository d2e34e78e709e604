"""A run's record: what verl's file logger wrote into metrics.jsonl, read strictly.

Each line is {"step": n, "data": {metric: value}}. What is wrong with a record is kept as a problem, never dropped: the judge
decides what it means. But a file of two attempts, or of two runs, is refused, because nothing tells which of them
counts. verl's logger writes NaN and infinity as null.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from verl_verdict.errors import CannotJudge
from verl_verdict.read import metrics

# Names of hashes.
TOKENS = "sampled tokens"
WEIGHTS = "final weights"
_VALIDATION = ("val-", "val/")

# A line of a record: its step and its metrics.
_Line = tuple[int, Mapping[str, Any]]


class Damage(enum.Enum):
    """What is wrong with a record."""

    TRUNCATED = "its last line is cut off"
    GAP = "a step is missing"
    DUPLICATE = "a step was recorded twice"
    NOT_FINITE = "a value is not finite"
    NOT_A_NUMBER = "a value is not a number"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a record, as a sentence without its subject."""

    kind: Damage
    text: str
    step: int
    metric: str | None = None


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of one process: unix times, ascending, and the most bytes since the time before."""

    name: str
    times: tuple[float, ...]
    sizes: tuple[float, ...]

    @property
    def every(self) -> float:
        """The time between its last two records: for as long it may have lived on after the last one."""
        return self.times[-1] - self.times[-2] if len(self.times) > 1 else 1.0


@dataclass(frozen=True)
class Memory:
    """The processes of each attempt that has records, and the processes that loaded verl and have none."""

    attempts: tuple[tuple[ProcessMemory, ...], ...] = ()
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One run: its record, and what is known about how it ran."""

    name: str
    series: Mapping[str, Mapping[int, float]]
    problems: tuple[Problem, ...] = ()
    workload: str = ""
    seed: str | None = None  # runs are paired by it; None if unknown
    failure: str | None = None  # why the job failed; None if it did not, or nobody knows
    unfinished: str | None = None  # why it did not run to its end without a failure: it was stopped, or is running
    code: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)  # must be equal for A and B; see comparable.py
    config: Mapping[str, str] = field(default_factory=dict)  # verl's resolved config, flat
    hashes: Mapping[str, str] = field(default_factory=dict)  # of sampled tokens and final weights, if known
    packages: Mapping[str, str] = field(default_factory=dict)  # versions by name; empty if not recorded
    memory: Memory = field(default_factory=Memory)  # of its processes; empty if not recorded
    fingerprint: str = ""  # of the record with all its times: two runs never have the same
    is_job: bool = False  # a job's record: how the job ended is known. The end of a plain file proves nothing

    @property
    def steps(self) -> list[int]:
        """All recorded steps, ascending."""
        return sorted({step for values in self.series.values() for step in values})

    @property
    def last_step(self) -> int:
        """The last recorded step; 0 without any."""
        return max(self.steps, default=0)

    @cached_property
    def trained(self) -> frozenset[int]:
        """The steps that it trained: verl may validate before them, at step 0 or at the checkpoint's step (0.9.1)."""
        return frozenset(step for name, values in self.series.items() if not is_of_validation(name) for step in values)

    def without(self, names: Collection[str]) -> Run:
        """The same run, as if it had never recorded these metrics."""
        return dataclasses.replace(
            self,
            series={name: values for name, values in self.series.items() if name not in names},
            problems=tuple(each for each in self.problems if each.metric not in names),
        )


def is_of_validation(name: str) -> bool:
    """Does verl's validation write it?"""
    return name.startswith(_VALIDATION)


def read(path: Path) -> Run:
    """The record of a metrics.jsonl, or of a directory that has one. A file of two attempts is refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except IsADirectoryError:
        return read(_only_record(path))
    except FileNotFoundError:
        raise CannotJudge(f"The record '{path}' does not exist: give a metrics.jsonl.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CannotJudge(
            f"The record '{path}' cannot be read ({error}): give a metrics.jsonl of verl's file logger."
        ) from None
    rows, cut_off = _rows(text, str(path))
    _refuse_two_attempts(rows, str(path))
    run = _run(rows, cut_off, str(path), str(path))
    if twice := next((each for each in run.problems if each.kind is Damage.DUPLICATE), None):
        raise CannotJudge(
            f"In the record '{path}' {twice.text}: two attempts or two runs wrote it; give the steps of the last one."
        )
    return run


def _only_record(directory: Path) -> Path:
    found = [path for path in sorted(directory.rglob("metrics.jsonl")) if path.is_file()]
    if len(found) == 1:
        return found[0]
    has = f"{len(found)} files metrics.jsonl (such as '{found[0]}')" if found else "no metrics.jsonl"
    raise CannotJudge(f"The directory '{directory}' has {has}: give the one of the run.")


def parse(texts: Sequence[str], name: str, origin: str, starts: Sequence[int] = ()) -> Run:
    """The record of a run that wrote `texts`, one per attempt; attempt i continues after step `starts[i - 1]`."""
    rows: list[_Line] = []
    problems: list[Problem] = []
    for number, text in enumerate(texts):
        if number:
            rows = [row for row in rows if row[0] <= starts[number - 1]]
            problems = [problem for problem in problems if problem.kind is not Damage.TRUNCATED]
        attempt_rows, cut_off = _rows(text, origin)
        rows += attempt_rows
        problems += cut_off
    return _run(rows, problems, name, origin)


def _run(rows: Sequence[_Line], found: Sequence[Problem], name: str, origin: str) -> Run:
    """The run of these lines, of which `found` is known to be wrong."""
    if not rows:
        raise CannotJudge(
            f"The record '{origin}' has no complete step: the run ended before its first step, or is not a run."
        )
    series: dict[str, dict[int, float]] = {}
    problems = list(found)
    for step, data in rows:
        problems += _add(series, step, data)
    series = metrics.canonical(series)
    steps = sorted({step for values in series.values() for step in values})
    problems += _gaps(steps)
    return Run(
        name=name,
        series=series,
        problems=tuple(problems),
        workload=metrics.workload_of(series),
        fingerprint=hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest(),
    )


def _refuse_two_attempts(rows: Iterable[_Line], origin: str) -> None:
    """The steps of training go up in the record of one attempt. A validation may come before or after its step."""
    last = 0
    for step, data in rows:
        if all(is_of_validation(name) or metrics.is_time(name) for name in data):
            continue
        if step < last:
            raise CannotJudge(
                f"The record '{origin}' goes back from step {last} to step {step}: it has two attempts, or two runs; give the steps of the last one."
            )
        last = step


def _rows(text: str, origin: str) -> tuple[list[_Line], list[Problem]]:
    """The lines of one attempt. Only the last one may be cut off; anything else that is not a step is not a record."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    rows: list[_Line] = []
    for position, (number, line) in enumerate(lines):
        try:
            row = json.loads(line, object_pairs_hook=partial(_unique, f"Line {number} of '{origin}'"))
        except (ValueError, RecursionError):
            if position == len(lines) - 1 and position > 0:
                step = rows[-1][0]
                said = f"the record is cut off after step {step}, in line {number}"
                return rows, [Problem(Damage.TRUNCATED, said, step)]
            raise CannotJudge(
                f"Line {number} of '{origin}' is not JSON ({line[:40]!r}): give a metrics.jsonl of verl's file logger."
            ) from None
        if not _is_step(row):
            raise CannotJudge(
                f'Line {number} of \'{origin}\' is not {{"step": n, "data": {{...}}}} ({line[:40]!r}): give a metrics.jsonl of verl\'s file logger.'
            )
        rows.append((row["step"], row["data"]))
    return rows, []


def _unique(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. JSON would keep the last value of a key that occurs twice, which may be the wrong one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise CannotJudge(
            f"{where} has the key {twice[:40]!r} twice, and which value is right is not known: give the metrics.jsonl as verl's file logger wrote it."
        )
    return found


def _is_step(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("step"), int)
        and row["step"] >= 0
        and isinstance(row.get("data"), dict)
    )


def _add(series: dict[str, dict[int, float]], step: int, data: Mapping[str, Any]) -> Iterable[Problem]:
    """Add a line to the series. verl's SFT trainer writes two lines for a step, with different metrics: that is no duplicate."""
    for name, value in data.items():
        values = series.setdefault(name, {})
        if step in values:
            yield Problem(Damage.DUPLICATE, f"{name} was recorded twice for step {step}", step, name)
            continue
        is_number = isinstance(value, int | float)
        if is_number and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            values[step] = float(value)
            continue
        values[step] = value if isinstance(value, float) else math.nan
        yield _not_a_value(value, step, name)


def _not_a_value(value: object, step: int, name: str) -> Problem:
    """What is wrong with a value that is no finite number."""
    shown = str(value)[:40]
    if value is None:
        return Problem(Damage.NOT_FINITE, f"{name} is NaN or infinite (null in the record) at step {step}", step, name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Problem(Damage.NOT_FINITE, f"{name} is {shown} at step {step}", step, name)
    return Problem(Damage.NOT_A_NUMBER, f"{name} is {shown!r} at step {step}, which is not a number", step, name)


def _gaps(steps: Sequence[int]) -> Iterable[Problem]:
    for before, after in itertools.pairwise(steps):
        if after != before + 1:
            missing = str(before + 1) if after == before + 2 else f"{before + 1} to {after - 1}"
            yield Problem(Damage.GAP, f"the record has no step {missing}, but later ones", before + 1)
