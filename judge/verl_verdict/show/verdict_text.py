"""A verdict as text for people, and as JSON for programs."""

import dataclasses
import enum
import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from verl_verdict.decide import verdicts
from verl_verdict.decide.diagnosis import listed, number
from verl_verdict.decide.verdicts import Verdict, Word

_SHOWN = 5
_WIDTH = 11  # of the label


def text(found: Sequence[Verdict], allow: Collection[Word]) -> str:
    """A block for each case, and the verdict on all of them in the last line."""
    lines = [line for verdict in found for line in (*_case(verdict), "")]
    worst = verdicts.worst(found)
    status = verdicts.status(found, allow)
    allowed = f", allowed: {', '.join(sorted(word.value for word in allow))}" if allow else ""
    return "\n".join([*lines, f"{'verdict':<{_WIDTH}} {worst.value} (exit status {status}{allowed})"])


def _case(verdict: Verdict) -> Iterable[str]:
    yield _line(verdict.case, f"{verdict.word.value}: {verdict.reason}")
    if verdict.first:
        yield _line("first", str(verdict.first))
        yield _line("may mean", verdict.first.means)
        if verdict.first.others:
            yield _line("also", f"in the same step: {listed(verdict.first.others, _SHOWN)}")
        for difference in verdict.first.config[:_SHOWN]:
            yield _line("explains?", f"verl's config differs in {difference}")
    yield _line("how", " ".join(filter(None, (verdict.decided, verdict.rule and f"[rule: {verdict.rule}]"))))
    for row in verdict.rows:
        values = f"A {number(row.a)}, B {number(row.b)}, margin {number(row.margin)}"
        yield _line("metric", f"{row.summary}: {values}, {row.finding.value}")
    for difference in verdict.differs:
        yield _line("differs", str(difference))
    if verdict.config:
        names = listed([each.name for each in verdict.config], _SHOWN)
        yield _line("config", f"{len(verdict.config)} keys of verl's resolved config differ: {names}")
    if verdict.files:
        yield _line("code", f"{len(verdict.files)} of the loaded files differ: {listed(verdict.files, _SHOWN)}")
    for note in verdict.notes:
        yield _line("note", note)


def _line(label: str, said: str) -> str:
    return printable(f"{label:<{_WIDTH}} {said}")


def printable(text: str) -> str:
    """`text` with Python's escapes if it has anything on which a terminal acts: a run chooses the names of its metrics."""
    return text if text.isprintable() else repr(text)[1:-1]


def as_json(found: Sequence[Verdict], allow: Collection[Word]) -> str:
    """Everything that is known, for programs. A value that is not finite is a string, because JSON has none."""
    answer = {
        "verdict": verdicts.worst(found),
        "status": verdicts.status(found, allow),
        "cases": [dataclasses.asdict(each) for each in found],
    }
    return json.dumps(_plain(answer), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
