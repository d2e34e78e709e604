"""The doctor's two halves: `probe` finds facts on a node, and `judge` says what the facts of all nodes mean. Neither needs Ray."""

import argparse
import json
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from verl_regress.base import processes, say
from verl_regress.base.errors import Exit, last_line
from verl_regress.base.files import as_json
from verl_regress.base.knobs import Knobs
from verl_regress.doctor import machine, network, shared_root, stack
from verl_regress.doctor.checks import ALARM, Check, Cluster, Facts, Plan, Seen, alarm, ok, skipped

# Each has `facts(Plan)`, which runs on every node at once and returns what JSON can have, and CHECKS.
GROUPS: Mapping[str, ModuleType] = {"network": network, "machine": machine, "shared root": shared_root, "stack": stack}
_LONGEST = 48.0  # seconds that a group's facts may take
_SHOWN = 300  # characters of what is no answer
_BUSY = re.compile(rb"ray::(?!IDLE|SPILL_|RESTORE_|DELETE_|DashboardAgent|RuntimeEnvAgent)")


def _judge_silence(facts: Mapping[str, Facts], _cluster: Cluster) -> Iterator[Seen]:
    for node, found in facts.items():
        if found["silent"]:
            yield alarm(node, found["silent"])


_ANSWERS = Check(
    "VR-NODE-01",
    "run Python on the node",
    _judge_silence,
    "no job can run there",
    "bring it back with 'make up', or take it out of the cluster",
    quick=True,
)


def table() -> list[Check]:
    """All checks."""
    return [_ANSWERS, *(check for group in GROUPS.values() for check in group.CHECKS)]


def codes() -> list[str]:
    """As SKIP_DOCTOR takes them (env/defaults.env; a test compares them)."""
    return [check.code for check in table()]


def main(argv: Sequence[str], lines: Sequence[str]) -> int:
    """`probe` prints this node's facts as one line of JSON. `judge` reads such lines, each after `NODE<tab>`, from `lines`."""
    parser = argparse.ArgumentParser(prog="doctor")
    parser.add_argument("half", choices=("probe", "judge"))
    parser.add_argument("--node", help="this node's name")
    parser.add_argument("--shared-root", required=True, help="the knob SHARED_ROOT")
    parser.add_argument("--knobs", type=Knobs.parse, required=True, metavar="JSON", help="all that are set")
    parser.add_argument("--run", default="run", help="this run's own name, the same on all nodes")
    parser.add_argument("--quick", action="store_true", help="only the quick checks")
    parser.add_argument("--gate", action="store_true", help="print alarms only")
    parser.add_argument(
        "--running", action="store_true", help="jobs write to the shared root, and find its faults themselves"
    )
    parser.add_argument("nodes", nargs="+", metavar="NAME=ADDRESS")
    args = parser.parse_args(argv)
    args.groups = {name: group for name, group in GROUPS.items() if not args.running or group is not shared_root}
    args.nodes = dict(node.partition("=")[::2] for node in args.nodes)
    return _probe(args) if args.half == "probe" else _judge(args, lines)


def _probe(args: argparse.Namespace) -> int:
    plan = Plan(
        node=args.node,
        nodes=args.nodes,
        cluster=args.knobs["CLUSTER_NAME"],
        profile=args.knobs["PROFILE"],
        shared_root=args.shared_root,
        gcs_port=int(args.knobs["GCS_PORT"]),
        quick=args.quick,
        trains=is_training(processes.commands().values()),
        run=args.run,
        knobs=args.knobs,
    )
    found: dict[str, Any] = {"trains": plan.trains}
    found |= {name: _unfinished(group, plan) for name, group in args.groups.items()}
    threads = [threading.Thread(target=_find, args=(found, name, plan), daemon=True) for name in args.groups]
    end = time.monotonic() + _LONGEST
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    print(json.dumps(found), flush=True)
    return 0


def _unfinished(group: ModuleType, plan: Plan) -> dict[str, Any]:
    """What counts as a group's finding that never ends: the shared root is a file system that hangs."""
    silence = f"no result in {_LONGEST:.0f} s"
    if group is shared_root:
        return {"problems": [("VR-ROOT-01", plan.node, silence)]}
    return {"error": silence}


def is_training(commands: Iterable[bytes]) -> bool:
    """Is one of these command lines that of a job's launcher (plan/plan.py, entrypoint), or of an actor or a task of Ray (2.60)?"""
    return any(b"/run.py\0launch\0" in command or _BUSY.match(command) for command in commands)


def _find(found: dict[str, Any], name: str, plan: Plan) -> None:
    try:
        found[name] = GROUPS[name].facts(plan)
    except Exception as error:  # a node in a state that we did not think of is a finding
        found[name] = {"error": f"{type(error).__name__}: {error}"}


def _judge(args: argparse.Namespace, lines: Sequence[str]) -> int:
    answers: dict[str, dict[str, Any]] = {}
    for node, _, answer in (line.partition("\t") for line in lines):
        try:
            answers[node] = {"silent": "", **json.loads(answer)}
        except (TypeError, ValueError):  # another program's words, or half of an answer
            answers[node] = {"silent": last_line(answer, "no answer")[-_SHOWN:]}
    cluster = Cluster(
        nodes=args.nodes,
        profile=args.knobs["PROFILE"],
        quick=args.quick,
        knobs=args.knobs,
        training=tuple(node for node, answer in answers.items() if answer.get("trains")),
    )
    skip = args.knobs["SKIP_DOCTOR"].replace(",", " ").split()
    if args.gate:  # a cluster without one of its workers still runs jobs
        skip.append(_ANSWERS.code)
    records = [
        {**seen._asdict(), "code": check.code, "tried": check.tries, **_help(check, seen)}
        for check, seen in judged(answers, args.groups, cluster, skip)
    ]
    if args.knobs.is_on("JSON") and not args.gate:
        print(as_json({"checks": records}), end="")
    else:
        (_say_alarms if args.gate else _print_table)(records)
    return Exit.CHECK_FAILED if any(record["status"] == ALARM for record in records) else Exit.SUCCEEDED


def judged(
    answers: Mapping[str, Facts], groups: Mapping[str, ModuleType], cluster: Cluster, skip: Collection[str]
) -> Iterator[tuple[Check, Seen]]:
    """What each check says of the nodes' answers, in the order of the table."""
    tables = [((_ANSWERS,), answers)]
    there = {node: answer for node, answer in answers.items() if not answer["silent"]}
    tables += [(group.CHECKS, {node: answer[name] for node, answer in there.items()}) for name, group in groups.items()]
    for checks, facts in tables:
        known = {node: found for node, found in facts.items() if "error" not in found}
        failed = {
            found["error"]: ", ".join(node for node in facts if facts[node].get("error") == found["error"])
            for found in facts.values()
            if "error" in found
        }
        for check in checks:
            if check.code in skip:
                yield check, skipped("all nodes", "SKIP_DOCTOR names it")
            elif check.quick or not cluster.quick:
                yield from ((check, seen) for seen in (_said(check, known, cluster) if known else ()))
                yield from ((check, skipped(nodes, error)) for error, nodes in failed.items())


def _said(check: Check, facts: Mapping[str, Facts], cluster: Cluster) -> list[Seen]:
    try:
        return list(check.judge(facts, cluster)) or [ok("all nodes", "nothing wrong")]
    except (KeyError, TypeError, ValueError) as error:  # a probe that was cut short
        return [skipped("all nodes", f"what the nodes found cannot be judged ({type(error).__name__}: {error})")]


def _help(check: Check, seen: Seen) -> dict[str, str]:
    return {"means": seen.means or check.means, "cure": seen.cure or check.cure} if seen.status == ALARM else {}


def _print_table(records: Sequence[Mapping[str, str]]) -> None:
    width = max(len(record["where"]) for record in records)
    for record in records:
        print(
            f"{record['code']:<12}{record['status']:<9}{record['where']:<{width}}  {record['tried']}: {record['seen']}"
        )
        if record["status"] == ALARM:
            print(f"{'':21}means: {record['means']}\n{'':21}cure: {record['cure']}")


def _say_alarms(records: Sequence[Mapping[str, str]]) -> None:
    for record in records:
        if record["status"] == ALARM:
            code, where, seen, means, cure = (record[key] for key in ("code", "where", "seen", "means", "cure"))
            say.error(f"{code}, {where}: {seen}, so {means}: {cure}; SKIP_DOCTOR={code} goes on without this check.")
