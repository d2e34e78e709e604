"""The doctor's two halves: `probe` finds facts on a node, `judge` says what the facts of all nodes mean. Neither needs Ray."""

import argparse
import json
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from verl_regress.base import processes, say
from verl_regress.base.errors import Exit, last_line
from verl_regress.base.files import as_json
from verl_regress.base.knobs import Knobs
from verl_regress.doctor import network, stack
from verl_regress.doctor.checks import ALARM, OK, SKIPPED, Check, Cluster, Facts, Plan, Seen, alarm, ok, skipped

# Each has `facts(Plan)`, which runs on every node at once and returns what JSON can have, and CHECKS.
GROUPS: Mapping[str, ModuleType] = {"network": network, "stack": stack}
_NO_ANSWER = Check("VR-NODE-01", "run a command on the node", lambda _facts, _cluster: ())
_LONGEST = 50  # seconds that a probe may take


def codes() -> list[str]:
    """All of them, as SKIP_DOCTOR takes them (env/defaults.env; a test compares them)."""
    return [_NO_ANSWER.code, *(check.code for group in GROUPS.values() for check in group.CHECKS)]


def main(argv: Sequence[str], lines: Sequence[str]) -> int:
    """`probe` prints this node's facts as one line of JSON. `judge` reads such lines, each after `NODE<tab>`, from `lines`."""
    parser = argparse.ArgumentParser(prog="doctor")
    parser.add_argument("half", choices=("probe", "judge"))
    parser.add_argument("--node", help="this node's name")
    parser.add_argument("--shared-root", required=True, help="the knob SHARED_ROOT")
    parser.add_argument("--knobs", type=Knobs.parse, required=True, metavar="JSON", help="all that are set")
    parser.add_argument("--quick", action="store_true", help="only what takes less than a second")
    parser.add_argument("--gate", action="store_true", help="print alarms only")
    parser.add_argument("nodes", nargs="+", metavar="NAME=ADDRESS")
    args = parser.parse_args(argv)
    nodes = dict(node.partition("=")[::2] for node in args.nodes)
    return _probe(args, nodes) if args.half == "probe" else _judge(args, nodes, lines)


def _probe(args: argparse.Namespace, nodes: Mapping[str, str]) -> int:
    signal.alarm(_LONGEST)  # in case something hangs, such as a file system
    plan = Plan(
        node=args.node,
        nodes=nodes,
        cluster=args.knobs["CLUSTER_NAME"],
        profile=args.knobs["PROFILE"],
        shared_root=args.shared_root,
        gcs_port=int(args.knobs["GCS_PORT"]),
        quick=args.quick,
        trains=is_training(processes.commands().values()),
    )
    with ThreadPoolExecutor(len(GROUPS)) as pool:
        found = dict(zip(GROUPS, pool.map(lambda group: _facts(group, plan), GROUPS.values()), strict=True))
    print(json.dumps({"trains": plan.trains, **found}))
    return 0


def is_training(commands: Iterable[bytes]) -> bool:
    """Does one of these command lines belong to the launcher of a job (plan/plan.py, entrypoint)?"""
    return any(b"/run.py\0launch\0" in command for command in commands)


def _facts(group: ModuleType, plan: Plan) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = group.facts(plan)
        return facts
    except Exception as error:  # a node in a state that we did not think of is a finding
        return {"error": f"{type(error).__name__}: {error}"}


def _judge(args: argparse.Namespace, nodes: Mapping[str, str], lines: Sequence[str]) -> int:
    answers: dict[str, dict[str, Any]] = {}
    silent: dict[str, str] = {}
    for node, _, answer in (line.rstrip("\n").partition("\t") for line in lines):
        if answer.startswith("{"):
            answers[node] = json.loads(answer)
        else:
            silent[node] = last_line(answer, "no answer")
    cluster = Cluster(
        nodes={node: address for node, address in nodes.items() if node in answers},
        profile=args.knobs["PROFILE"],
        gcs_port=int(args.knobs["GCS_PORT"]),
        quick=args.quick,
        knobs=args.knobs,
        training=tuple(node for node, answer in answers.items() if answer["trains"]),
    )
    skip = set(args.knobs["SKIP_DOCTOR"].replace(",", " ").split())
    records = [_record(check, seen) for check, seen in findings(answers, silent, cluster, skip)]
    (_print_gate if args.gate else _print_json if args.knobs.is_on("JSON") else _print_table)(records)
    return Exit.CHECK_FAILED if any(record["status"] == ALARM for record in records) else Exit.SUCCEEDED


def findings(
    answers: Mapping[str, Mapping[str, Any]], silent: Mapping[str, str], cluster: Cluster, skip: Collection[str]
) -> Iterator[tuple[Check, Seen]]:
    """What each check says of the nodes' answers, in the order of the table; `silent` are the nodes without one, and why."""
    if _NO_ANSWER.code in skip:
        yield _NO_ANSWER, skipped("all nodes", "SKIP_DOCTOR names it")
    else:
        for node, why in silent.items():
            yield (
                _NO_ANSWER,
                alarm(
                    node,
                    why,
                    f"{node} cannot be checked, and no job can run there",
                    "bring it back with 'make up', or take it out of the cluster",
                ),
            )
    for name, group in GROUPS.items():
        facts = {node: answer[name] for node, answer in answers.items()}
        known = {node: found for node, found in facts.items() if "error" not in found}
        for check in group.CHECKS:
            if check.code in skip:
                yield check, skipped("all nodes", "SKIP_DOCTOR names it")
            elif check.quick or not cluster.quick:
                yield from ((check, seen) for seen in _said(check, known, cluster))
                yield from ((check, skipped(node, facts[node]["error"])) for node in facts.keys() - known.keys())


def _said(check: Check, facts: Mapping[str, Facts], cluster: Cluster) -> list[Seen]:
    try:
        return list(check.judge(facts, cluster)) or [ok("all nodes", "nothing wrong")]
    except (KeyError, TypeError, ValueError) as error:  # a probe that was cut short
        return [skipped("all nodes", f"what the nodes found cannot be judged ({type(error).__name__}: {error})")]


def _record(check: Check, seen: Seen) -> dict[str, str]:
    return {"code": check.code, "status": seen.status, "tried": check.tries, **seen._asdict()}


def _print_json(records: Sequence[Mapping[str, str]]) -> None:
    print(
        as_json({"checks": records, "alarms": [record["code"] for record in records if record["status"] == ALARM]}),
        end="",
    )


def _print_table(records: Sequence[Mapping[str, str]]) -> None:
    widths = [max((len(record[key]) for record in records), default=0) for key in ("code", "status", "where")]
    for record in records:
        start = "  ".join(
            record[key].ljust(width) for key, width in zip(("code", "status", "where"), widths, strict=True)
        )
        print(f"{start}  {record['tried']}: {record['seen']}")
        for key in ("means", "cure"):
            if record[key]:
                print(f"{' ' * len(start)}  {key}: {record[key]}")
    count = {status: sum(record["status"] == status for record in records) for status in (OK, ALARM, SKIPPED)}
    print(", ".join(f"{number} {status}" for status, number in count.items()))


def _print_gate(records: Sequence[Mapping[str, str]]) -> None:
    """Alarms only, as errors: one sentence each."""
    for record in records:
        if record["status"] == ALARM:
            say.error(
                f"{record['code']}: {record['where']}: {record['seen']}, so {record['means']}: {record['cure']}; SKIP_DOCTOR={record['code']} goes on without this check."
            )
    if not any(record["status"] == ALARM for record in records):
        say.ok(f"the nodes can work together: {len({record['code'] for record in records})} checks of 'make doctor'")
