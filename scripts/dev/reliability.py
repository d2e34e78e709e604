"""docs/reliability.md: what was tried against real clusters and jobs, as tables, from the records of the test run itself.

    reliability.py check            docs/reliability.md is what docs/reliability.json makes; exits 1 where it is not
    reliability.py report           build/reports/reliability.md, from the records of the last run
    reliability.py write            docs/reliability.json and docs/reliability.md, from the same
    reliability.py add              both, with the records of a run of a few files in place of older ones of the same name

docs/reliability.json is `{"runs": [{"written", "commit", "machine", "records": […]}, …]}`, the oldest run first. Records are build/reports/reliability.jsonl (tests/bats/faults/fault_helper.bash tells the keys) and the counts that the
fuzz tests leave in build/reports/fuzz.json: `{"seed": N, "cases": {"class": tried, …}}`.
"""

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commit import commit

DOCS, REPORTS = Path("docs"), Path("build/reports")
Record = dict[str, Any]
Run = dict[str, Any]


def main(action: str) -> int:
    """One of check, report, write, add."""
    if action == "check":
        made = page(recorded())
        if made != (DOCS / "reliability.md").read_text():
            print(
                "docs/reliability.md is not what docs/reliability.json makes: 'reliability.py write' writes both, after 'scripts/dev/test.sh faults'."
            )
            return 1
        print(f"docs/reliability.md: checked {made.count(chr(10))} lines, 0 differ")
        return 0
    run = {**machine(), "records": records()}
    print(f"checked {len(run['records'])} records")
    if not run["records"]:
        return 1
    if action == "report":
        (REPORTS / "reliability.md").write_text(page([run]))
    else:
        runs = [run] if action == "write" else added(recorded(), run)
        (DOCS / "reliability.json").write_text(json.dumps({"runs": runs}, indent=1, ensure_ascii=False) + "\n")
        (DOCS / "reliability.md").write_text(page(runs))
    return 0


def recorded() -> list[Run]:
    """What docs/reliability.json has."""
    runs: list[Run] = json.loads((DOCS / "reliability.json").read_text())["runs"]
    return runs


def added(runs: Sequence[Run], run: Run) -> list[Run]:
    """All runs, without the records that `run` has under the same name, and without those that then have none."""
    replaced = {(row["kind"], row["name"]) for row in run["records"]}
    left = [
        {**old, "records": [row for row in old["records"] if (row["kind"], row["name"]) not in replaced]}
        for old in runs
    ]
    return [old for old in left if old["records"]] + [run]


def records() -> list[Record]:
    """What the last run tried, in its order, and how many cases of each class of bad input the fuzz tests had."""
    tried = REPORTS / "reliability.jsonl"
    rows = [json.loads(line) for line in tried.read_text().splitlines()] if tried.exists() else []
    fuzz = REPORTS / "fuzz.json"
    cases = json.loads(fuzz.read_text())["cases"] if fuzz.exists() else {}
    return rows + [{"kind": "input", "name": name, "tries": count} for name, count in sorted(cases.items())]


def machine() -> dict[str, str]:
    """When, of which commit and on what these records were made."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "written": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "commit": commit(),
        "machine": f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}",
    }


def page(runs: Sequence[Run]) -> str:
    """The whole document."""
    rows: list[Record] = [row for run in runs for row in run["records"]]
    parts = [
        "# Reliability",
        "What was done to real clusters with real (tiny) jobs, and what the commands answered. The tests of `tests/bats/faults/`\n"
        "leave these records; each test asserts the exit status and the whole sentence. After `scripts/dev/test.sh faults`,\n"
        "`.venv/bin/python scripts/dev/reliability.py write` makes this page; `add` takes over the records of a single file that bats ran.\n"
        "Messages have the values of the run, and the words that the source has now: when you change a message, change it in\n"
        "`docs/reliability.json`, too.",
        "\n".join(origin(run) for run in runs),
        "## Faults",
        "*answer after*: seconds from the fault until `make wait` ended. *finished jobs*: the number of files of all jobs that had\n"
        "ended before the fault, and one hash over them; *the same after* means that neither had changed. *make up*: how long it then\n"
        "took until all nodes were ALIVE.",
        table(rows, "fault", FAULT_COLUMNS),
        "## Bad input",
        "Each value is refused or accepted. Refused: exit status 2, one sentence, no traceback, nothing created, nothing run by a shell. Accepted: passed on unchanged.",
        table(rows, "input", INPUT_COLUMNS),
        "## Load",
        table(rows, "load", FAULT_COLUMNS),
    ]
    return "\n\n".join(parts) + "\n"


def origin(run: Run) -> str:
    """When, of which commit and on what the records of a run were made."""
    return f"- {len(run['records'])} records up to {run['written']}, the last at commit {run['commit']}, on {run['machine']}."


def table(rows: Sequence[Record], kind: str, columns: dict[str, Callable[[list[Record]], str]]) -> str:
    """One line a name, in the order in which they were first tried."""
    by_name: dict[str, list[Record]] = {}
    for row in rows:
        if row["kind"] == kind:
            by_name.setdefault(row["name"], []).append(row)
    if not by_name:
        return "Nothing was tried in this run."
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(tell(tries) for tell in columns.values()) + " |" for tries in by_name.values()]
    return "\n".join(lines)


def answer(tries: list[Record]) -> str:
    """Each different exit status and sentence."""
    said = {f"{row['status']}: {cell(row.get('sentence', ''))}".rstrip(": "): None for row in tries if "status" in row}
    return "<br>".join(said) or "-"


def cell(text: str) -> str:
    """A line of ours without its first word and with nothing that Markdown would read."""
    word, _, rest = text.partition(" ")
    sentence = rest.strip() if word in ("ok", "error", "changed", "skip", "warning") else text.strip()
    return f"`{sentence.replace('|', '/')}`" if sentence else ""


def seconds(key: str) -> Callable[[list[Record]], str]:
    """The median, and the longest where it was tried more than once."""

    def tell(tries: list[Record]) -> str:
        took = [row[key] for row in tries if key in row]
        if not took:
            return "-"
        return f"{statistics.median(took):.1f} s" + (f" (at most {max(took):.1f} s)" if len(took) > 1 else "")

    return tell


def finished(tries: list[Record]) -> str:
    """Files and hash of the jobs that had ended, before and after; every try counts."""
    seen = [row for row in tries if "hash_before" in row]
    if not seen:
        return "-"
    first = seen[-1]
    before, after = (f"{first[f'files_{when}']} files {first[f'hash_{when}']}" for when in ("before", "after"))
    same = all(row["hash_before"] == row["hash_after"] for row in seen)
    return f"{before}, the same after" if same else f"{before}, CHANGED: {after}"


def up(tries: list[Record]) -> str:
    """How `make up` ended afterwards."""
    bad = [row["up_status"] for row in tries if row.get("up_status", 0) != 0]
    return f"FAILED ({bad[0]})" if bad else seconds("up_seconds")(tries)


def name(tries: list[Record]) -> str:
    """What was tried."""
    return str(tries[0]["name"])


def tried(tries: list[Record]) -> str:
    """How often."""
    return str(sum(row.get("tries", 1) for row in tries))


FAULT_COLUMNS = {
    "what": name,
    "tried": tried,
    "exit status and answer": answer,
    "answer after": seconds("seconds"),
    "finished jobs": finished,
    "make up": up,
}
INPUT_COLUMNS = {"what": name, "tried": tried, "exit status and answer": answer}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
