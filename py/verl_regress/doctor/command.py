"""The doctor's two halves: `probe` finds facts on a node, and `judge` says what the facts of all nodes mean. Neither needs Ray."""

import argparse
import json
import os
import platform
import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from verl_regress.base import processes, say
from verl_regress.base.errors import Exit, last_line
from verl_regress.base.files import as_json
from verl_regress.base.knobs import Knobs
from verl_regress.doctor import machine, network, shared_root
from verl_regress.doctor.checks import ALARM, LATE, OK, SKIPPED, DoctorCheck, Facts, ProbePlan, Seen

# Each has `facts(ProbePlan)`, which runs on every node at once and returns what JSON can have, and CHECKS.
GROUPS: Mapping[str, ModuleType] = {"network": network, "machine": machine, "shared root": shared_root}
_LONGEST = 48.0  # seconds that a group's facts may take
_LOADED = 2.0  # processes that want to run, for each CPU: above, what is late may be healthy
_GATE_SAYS = "{code}, {where}: {seen}, so {means}: {cure}; SKIP_DOCTOR={code} goes on without this check."
_BUSY = re.compile(rb"ray::(?!IDLE|SPILL_|RESTORE_|DELETE_|DashboardAgent|RuntimeEnvAgent)")


_ANSWERS = DoctorCheck("VR-NODE-01", "run Python", "no job runs there", "run 'make up', or leave it out")
_FINISHES = DoctorCheck(
    "VR-NODE-02",
    "finish each group of checks",
    "what they would have found there is unknown",
    "run 'make doctor' again; if it says the same, send that line to the maintainers",
)
# SKIP_DOCTOR takes their codes (env/defaults.env; a test compares them).
CHECKS = (_ANSWERS, _FINISHES, *(check for group in GROUPS.values() for check in group.CHECKS))


def main(argv: Sequence[str], lines: Sequence[str]) -> int:
    """`probe` prints this node's facts as one line of JSON. `judge` reads such lines, each after `NODE<tab>`, from `lines`."""
    parser = argparse.ArgumentParser(prog="doctor")
    parser.add_argument("half", choices=("probe", "judge"))
    parser.add_argument("--node", default="", help="this node's name")
    parser.add_argument("--knobs", type=Knobs.parse, required=True, metavar="JSON", help="all that are set")
    parser.add_argument("--run", default="run", help="this run's own name, the same on all nodes")
    parser.add_argument("--quick", action="store_true", help="only the quick checks")
    parser.add_argument("--gate", action="store_true", help="print alarms only")
    parser.add_argument("--running", action="store_true", help="jobs write to the shared root: leave it out")
    parser.add_argument("nodes", nargs="+", metavar="NAME=ADDRESS")
    args = parser.parse_args(argv)
    groups = {name: group for name, group in GROUPS.items() if not (args.running and group is shared_root)}
    nodes, trains = dict(node.partition("=")[::2] for node in args.nodes), is_training(processes.commands().values())
    plan = ProbePlan(nodes, args.knobs, args.quick, args.run, args.node, trains)
    if args.half == "judge":
        return _judge(plan, groups, lines, is_gate=args.gate)
    signal.alarm(60)  # what nothing reads any more ends by itself
    print(json.dumps(_probe(plan, groups)), flush=True)
    return 0


def _probe(plan: ProbePlan, groups: Mapping[str, ModuleType]) -> dict[str, Any]:
    silence = {"error": f"no result in {_LONGEST:.0f} s"}
    found: dict[str, Any] = dict.fromkeys(groups, silence)

    def find(name: str) -> None:
        try:
            found[name] = groups[name].facts(plan)
        except Exception as error:  # a node in a state that we did not think of is a finding
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            plan.see(_FINISHES.code, f"{name}: {found[name]['error']}")

    threads = [threading.Thread(target=find, args=[name], daemon=True) for name in groups]
    end = time.monotonic() + _LONGEST
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    for name in [name for name in groups if found[name] is silence]:
        if name == "shared root":  # a file system that hangs
            plan.see("VR-ROOT-01", silence["error"])
        else:
            plan.see(_FINISHES.code, f"{name}: {silence['error']}", status=LATE)
    return {"kind": platform.release(), "load": _load(), "seen": [*plan.seen], **found}


def _load() -> str:
    """How busy this node's machine is, if it is so busy that healthy programs are late; else empty."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return f"load {load:.0f} on {cpus} CPUs" if load > _LOADED * cpus else ""


def is_training(commands: Iterable[bytes]) -> bool:
    """Is one of these command lines that of a job's launcher (plan/plan.py, entrypoint), or of an actor or a task of Ray (2.60)?"""
    return any(b"/run.py\0launch\0" in command or _BUSY.match(command) for command in commands)


def _judge(plan: ProbePlan, groups: Mapping[str, ModuleType], lines: Sequence[str], *, is_gate: bool) -> int:
    heard = _hear(lines)
    records = [
        _record(check, seen)
        for check, facts in _checks_to_judge(heard, plan, groups, is_gate=is_gate)
        for seen in _said(check, facts, heard, plan)
    ]
    alarms = [one for one in records if one["status"] == ALARM]
    if is_gate:
        for one in alarms:
            say.error(_GATE_SAYS.format(**one))
    elif plan.knobs.is_on("JSON"):
        print(as_json({"checks": records}), end="")
    else:
        _print_table(records)
    return Exit.CHECK_FAILED if alarms else Exit.SUCCEEDED


@dataclass(frozen=True)
class _Heard:
    """What the probes answered: what they saw, and of each node with a whole answer the facts of its groups and its load."""

    seen: list[Seen] = field(default_factory=list)
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    loads: dict[str, str] = field(default_factory=dict)

    def under(self, code: str) -> list[Seen]:
        """What was seen under the code of a check."""
        return [row for row in self.seen if row.code == code]


def _hear(lines: Iterable[str]) -> _Heard:
    """Read the probes' lines. A node without a whole answer has an alarm instead."""
    heard = _Heard()
    for node, _, said in (line.partition("\t") for line in lines):
        try:
            answer = json.loads(said)
            heard.loads[node] = answer["load"]
            heard.seen.extend([Seen(_ANSWERS.code, OK, node, answer["kind"]), *(Seen(*row) for row in answer["seen"])])
            heard.answers[node] = answer
        except (KeyError, TypeError, ValueError):  # another program's words, or half of an answer
            heard.seen.append(Seen(_ANSWERS.code, ALARM, node, last_line(said, "no answer")))
    return heard


def _checks_to_judge(
    heard: _Heard, plan: ProbePlan, groups: Mapping[str, ModuleType], *, is_gate: bool
) -> Iterator[tuple[DoctorCheck, Mapping[str, Facts]]]:
    """Each check to judge, with the facts of the nodes that it is about."""
    if not is_gate:  # a cluster without one of its workers still runs jobs
        yield _ANSWERS, {row.where: {} for row in heard.under(_ANSWERS.code)}
    yield _FINISHES, {node: {} for node in heard.answers}
    for name, group in groups.items():
        found = {node: answer[name] for node, answer in heard.answers.items()}
        yield from ((check, found) for check in group.CHECKS if check.quick or not plan.quick)


def _record(check: DoctorCheck, seen: Seen) -> dict[str, str]:
    """A line of the doctor's table. An alarm also says what it means, and the cure."""
    known = {"means": check.means, "cure": check.cure} if seen.status == ALARM else {}
    return {**seen._asdict(), "tried": check.tries, **known}


def _said(check: DoctorCheck, facts: Mapping[str, Facts], heard: _Heard, plan: ProbePlan) -> Iterator[Seen]:
    """What a check says of the nodes' facts, and of what their probes saw; of a node that is gone the others know nothing."""
    if check.code in plan.knobs["SKIP_DOCTOR"].replace(",", " ").split():
        yield Seen(check.code, SKIPPED, "all nodes", "SKIP_DOCTOR names it")
        return
    known = {node: found for node, found in facts.items() if "error" not in found}
    rows = heard.under(check.code)
    where = defaultdict(list)
    for row in (*rows, *(check.judge(known, plan) if check.judge else ())):
        if facts.keys() >= (nodes := {*re.split(" -> |, ", row.where)}):
            said = _explained(row, [heard.loads[node] for node in sorted(nodes) if heard.loads.get(node)])
            where[said.status, said.seen].append(said.where)
    for (status, what), pairs in where.items():
        yield Seen(check.code, status, ", ".join(pairs), what)
    if known and not where:
        yield Seen(check.code, OK, "all nodes", "nothing wrong")
    for node in facts.keys() - known.keys() - {row.where for row in rows if row.status == ALARM}:
        yield Seen(check.code, SKIPPED, node, facts[node]["error"])


def _explained(row: Seen, loads: Sequence[str]) -> Seen:
    """What is late is an alarm, and on a busy machine only a check that was not made."""
    if row.status != LATE:
        return row
    return row._replace(status=SKIPPED, seen=f"{row.seen} ({loads[0]})") if loads else row._replace(status=ALARM)


def _print_table(records: Sequence[Mapping[str, str]]) -> None:
    width = max(len(one["where"]) for one in records)
    for one in records:
        print(f"{one['code']:<12}{one['status']:<9}{one['where']:<{width}}  {one['tried']}: {one['seen']}")
        if one["status"] == ALARM:
            print(f"{'':21}means: {one['means']}\n{'':21}cure: {one['cure']}")
