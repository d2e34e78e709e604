"""The numbers of maintain/bench.sh: medians and ratios of its runs, the table, and the parts of a row that want Python.

report RUNS FACTS RESULTS     the runs (row, side, number, by tab) and the machine's facts become RESULTS; prints the table
write RESULTS PAGE            the table of RESULTS into PAGE, between its two markers
add PART RESULTS PAGE         the rows of PART, the results of some rows only, into RESULTS with the machine of their run; then write
alive PORT TOKEN NODES        wait until so many nodes are ALIVE, asked by HTTP
over PORT TOKEN JOB           wait until Ray calls that job SUCCEEDED; any other end is an error
bare SESSION SHARED NAME      the training jobs of a session as scripts and argv of `ray job submit` under SHARED/bare/NAME
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from page import put

_WAIT = 300.0  # seconds for the cluster or a job
_LOOK_EVERY = 0.1
# Hooks without which verl trains all the same.
_OURS = ("identity", "process_memory", "job_exceptions", "job_secrets", "env_vars")


@dataclass(frozen=True)
class Row:
    """What is compared, as the page names it; `side` is the other one.

    `runs` is a function of the bench; of one that times several commands, also the command. The aim is one of the ratio, or
    of ours alone (s).
    """

    name: str
    what: str
    runs: str
    side: str
    against: str
    aim: float
    compared: Literal["ratio", "ours alone"] = "ratio"


ROWS = (
    Row(
        "up",
        "`make up`, image there, nothing running → all ALIVE",
        "up",
        "one after the other",
        "head then workers, each command waited for",
        0.65,
    ),
    Row(
        "up_at_once",
        "the same",
        "up",
        "all at once",
        "a bare `docker compose up` + all `ray start` at once, waited for by HTTP",
        1.05,
    ),
    Row(
        "up_workers",
        "`make up WORKERS=4`, nothing running → all ALIVE",
        "up_workers",
        "2 workers",
        "`make up` with 2 workers",
        1.5,
    ),
    Row(
        "up_again",
        "`make up` when up",
        "up_again",
        "docker compose up",
        "`docker compose up -d` when up",
        2.5,
        "ours alone",
    ),
    Row(
        "submit",
        "`make submit` returns, override check included",
        "submit",
        "ray job submit",
        "`ray job submit --no-wait` in the head",
        0.6,
    ),
    Row(
        "status",
        "`make status`",
        "status",
        "four commands",
        "`ray status` + `ray list nodes` + `ray job list` + `ray list actors`",
        0.1,
    ),
    Row("debug", "debug bundle", "debug", "four commands", "the same four commands", 0.15),
    Row("snapshot", "snapshot of a changed tree", "snapshot", "cp -a", "`cp -a`", 1.0),
    Row("verify", "`make verify`", "verify", "its training jobs, bare", "the sum of its bare training jobs", 1.1),
    Row(
        "verify_known",
        "`make verify`, A's runs known",
        "verify:known",
        "A and B",
        "the session before, which ran A and B",
        0.55,
    ),
)


def results(runs: str, facts: str) -> dict[str, Any]:
    """What maintain/bench.json holds. Raises ValueError where a row has one side only, or no row has any."""
    numbers: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in runs.splitlines():
        row, side, number = line.split("\t")
        numbers[row][side].append(float(number))
    rows = {row.name: _compared(row, numbers[row.runs]) for row in ROWS if "ours" in numbers[row.runs]}
    if not rows:
        raise ValueError("there is no run of any row")
    return {"machine": dict(line.split("\t") for line in facts.splitlines()), "rows": rows}


def _compared(row: Row, sides: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    if not sides.get(row.side):
        raise ValueError(f"the row {row.name} has no run of '{row.side}'")
    ours, other = _side(sides["ours"]), _side(sides[row.side])
    value = ours["median"]
    if row.compared == "ratio":
        value /= other["median"]
    return {
        "what": row.what,
        "against": row.against,
        "ours": ours,
        "other": other,
        row.compared: round(value, 3),
        "aim": row.aim,
        "is_met": round(value, 3) <= row.aim,
    }


def _side(numbers: Sequence[float]) -> dict[str, Any]:
    return {
        "median": round(statistics.median(numbers), 3),
        "min": round(min(numbers), 3),
        "max": round(max(numbers), 3),
        "runs": len(numbers),
    }


def table(found: Mapping[str, Any]) -> str:
    """The table of maintain/bench.md, with the machine it is from."""
    lines = [
        "| what | against | ours (min - max) | theirs (min - max) | ratio | aim | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        if row.name in found["rows"]:
            lines.append(_line(row, found["rows"][row.name]))
    runs = {row["ours"]["runs"] for row in found["rows"].values()}
    lines += [
        "",
        f"Medians of {min(runs)} to {max(runs)} runs of each side, alternating. {_facts(found['machine'])}.",
    ]
    later = defaultdict(list)
    for row in ROWS:
        if "machine" in found["rows"].get(row.name, {}):
            later[_facts(found["rows"][row.name]["machine"])].append(row.what)
    return "\n".join([*lines, *(f"In another run: {'; '.join(rows)}. {facts}." for facts, rows in later.items())])


def _facts(machine: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in machine.items())


def added(found: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """These results with the rows of another run, each of which has its machine; without rows that are no longer measured."""
    rows = found["rows"] | {name: row | {"machine": part["machine"]} for name, row in part["rows"].items()}
    return {"machine": found["machine"], "rows": {row.name: rows[row.name] for row in ROWS if row.name in rows}}


def _line(row: Row, found: Mapping[str, Any]) -> str:
    def cell(side: Mapping[str, Any]) -> str:
        median, low, high = (f"{side[key]:.2f}" for key in ("median", "min", "max"))
        return f"{median} s ({low} - {high})"

    number = found[row.compared]
    value, aim = {
        "ratio": (f"{number:.2f}", f"≤ {row.aim}"),
        "ours alone": (f"{number:.2f} s", f"≤ {row.aim} s"),
    }[row.compared]
    met = "met" if found["is_met"] else "**missed**"
    return f"| {row.what} | {row.against} | {cell(found['ours'])} | {cell(found['other'])} | {value} | {aim} | {met} |"


def with_table(page: str, found: Mapping[str, Any]) -> str:
    """The page with this table between its markers. Raises ValueError where it has none."""
    return put(page, "bench", f"{table(found)}\n")


def _report(runs: Path, facts: Path, out: Path) -> None:
    found = results(runs.read_text(encoding="utf-8"), facts.read_text(encoding="utf-8"))
    _keep(out, found)
    print(table(found))


def _keep(out: Path, found: Mapping[str, Any]) -> None:
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _add(part: Path, out: Path) -> None:
    _keep(out, added(*(json.loads(file.read_text(encoding="utf-8")) for file in (out, part))))


def _write(found: Path, page: Path) -> None:
    text = with_table(page.read_text(encoding="utf-8"), json.loads(found.read_text(encoding="utf-8")))
    page.write_text(text, encoding="utf-8")


def _ask(port: str, token: Path, path: str) -> Any:
    headers = {"Authorization": f"Bearer {token.read_text(encoding='utf-8').strip()}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return json.load(answer)


def _await_alive(port: str, token: Path, count: int) -> None:
    end = time.monotonic() + _WAIT
    while time.monotonic() < end:
        try:
            rows = _ask(port, token, "/api/v0/nodes?limit=1000")["data"]["result"]["result"]
            if sum(row["state"] == "ALIVE" for row in rows) == count:
                return
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the dashboard comes after the GCS
        time.sleep(_LOOK_EVERY)
    raise SystemExit(f"error   {count} nodes were not ALIVE within {_WAIT:.0f} s")


def _await_over(port: str, token: Path, job: str) -> None:
    end = time.monotonic() + _WAIT
    while (status := _ask(port, token, f"/api/jobs/{job}")["status"]) in ("PENDING", "RUNNING"):
        if time.monotonic() > end:
            break
        time.sleep(_LOOK_EVERY)
    if status != "SUCCEEDED":
        raise SystemExit(f"error   {job} is {status}")


def _bare(session: Path, shared: Path, name: str) -> None:
    """verl's command line and environment of each job, as its record has them, but for where they write and our own hooks."""
    jobs = _own_jobs(session)
    root = next(path.parents[1] for path in jobs.values())
    homes = {str(path): str(root / "bare" / name / key) for key, path in jobs.items()}
    bare = shared / "bare" / name
    bare.mkdir(parents=True)
    (bare / "order").write_text("".join(f"{key}\n" for key in jobs), encoding="utf-8")
    for key, path in jobs.items():
        config = shared / path.relative_to(root) / "config"
        plan = _read_elsewhere(config / "resolved.json", homes)
        runtime_env = _read_elsewhere(config / "runtime_env.json", homes)
        _remove_ours(runtime_env["env_vars"])
        for part in ("logs", "checkpoints", "state/reports"):
            (bare / key / part).mkdir(parents=True)
        (bare / key / "run.sh").write_text(f"exec {shlex.join(plan['argv'])}\n", encoding="utf-8")
        argv = [
            *("ray", "job", "submit", "--address", plan["address"], "--submission-id", f"bare-{name}-{key}"),
            *("--entrypoint-num-cpus", f"{plan['entrypoint_num_cpus']:g}"),
            *("--entrypoint-resources", json.dumps(plan["entrypoint_resources"])),
            *("--runtime-env-json", json.dumps(runtime_env)),
            *("--", "sh", f"{homes[str(path)]}/run.sh"),
        ]
        (bare / key / "argv").write_text("".join(f"{word}\0" for word in argv), encoding="utf-8")


def _own_jobs(session: Path) -> dict[str, Path]:
    """The directories of the jobs that the session ran itself, in the order of time: one that continues another comes behind it."""
    evidence = {
        path.stem[4:]: json.loads(path.read_text(encoding="utf-8")) for path in session.glob("evidence/job-*.json")
    }
    in_time = sorted(evidence.items(), key=lambda each: str(each[1]["time"]))
    return {key: Path(job["job_dir"]) for key, job in in_time if "reused_from" not in job}


def _read_elsewhere(file: Path, homes: Mapping[str, str]) -> Any:
    """The JSON of a job, with its new home wherever it names the directory of the old one."""
    text = file.read_text(encoding="utf-8")
    for old, new in homes.items():
        text = text.replace(old, new)
    return json.loads(text)


def _remove_ours(variables: dict[str, str]) -> None:
    """Remove from a job's environment what verl does not need to train."""
    variables.pop("VERL_REGRESS_SECRETS", None)
    hooks = variables["VERL_REGRESS_HOOKS"].split(",")
    variables["VERL_REGRESS_HOOKS"] = ",".join(hook for hook in hooks if hook not in _OURS)


def main(argv: Sequence[str]) -> int:
    """Run a subcommand."""
    match argv:
        case ["report", runs, facts, out]:
            _report(Path(runs), Path(facts), Path(out))
        case ["write", found, page]:
            _write(Path(found), Path(page))
        case ["add", part, found, page]:
            _add(Path(part), Path(found))
            _write(Path(found), Path(page))
        case ["alive", port, token, count]:
            _await_alive(port, Path(token), int(count))
        case ["over", port, token, job]:
            _await_over(port, Path(token), job)
        case ["bare", session, shared, name]:
            _bare(Path(session), Path(shared), name)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
