"""maintain/reliability.md: what was done to real clusters and jobs, and what was answered, from the records of the fault tests.

    reliability.py check    the page is what maintain/reliability.json makes; exits 1 where it is not
    reliability.py add      both, with the records of the last run of fault tests in place of older ones of the same name

maintain/reliability.json is `{"runs": [{"written", "commit", "machine", "records": […]}, …]}`, the oldest run first; the fault tests
leave the records in build/reports/reliability.jsonl (tests/bats/faults/fault_helper.bash documents the keys).
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

PAGE, RECORDS = Path("maintain/reliability.md"), Path("maintain/reliability.json")
TRIED = Path("build/reports/reliability.jsonl")
Record = dict[str, Any]
Run = dict[str, Any]


def main(action: str) -> int:
    """One of check, add; returns the exit status."""
    runs: list[Run] = json.loads(RECORDS.read_text())["runs"]
    if action == "check":
        if page(runs) == PAGE.read_text():
            return 0
        print(f"{PAGE} is not what {RECORDS} makes: 'make -C maintain faults' writes both.")
        return 1
    records = [json.loads(line) for line in TRIED.read_text().splitlines()] if TRIED.exists() else []
    print(f"checked {len(records)} records")
    if not records:
        return 1
    runs = added(runs, {**machine(), "records": records})
    RECORDS.write_text(json.dumps({"runs": runs}, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(runs))
    return 0


def added(runs: Sequence[Run], run: Run) -> list[Run]:
    """All runs and `run`. Its records replace older ones of the same name; a run without records is dropped."""
    replaced = {row["name"] for row in run["records"]}
    left = [{**old, "records": [row for row in old["records"] if row["name"] not in replaced]} for old in runs]
    return [old for old in left if old["records"]] + [run]


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
    by_name: dict[str, list[Record]] = {}
    for row in (row for run in runs for row in run["records"]):
        by_name.setdefault(row["name"], []).append(row)
    rows = [[name, *(tell(tries) for tell in COLUMNS.values())] for name, tries in by_name.items()]
    return "\n".join(
        [
            "# Reliability",
            "",
            "What was done to real clusters with real (tiny) jobs, and what the commands answered, in the words of that day.",
            "`make -C maintain faults` runs the fault tests and adds their records.",
            "*answer after*: seconds from the fault until `make wait` ended. *make up*: how long it then took until all nodes were ALIVE.",
            "",
            *(
                f"- {len(run['records'])} records up to {run['written']}, commit {run['commit']}, {run['machine']}."
                for run in runs
            ),
            "",
            f"| what | {' | '.join(COLUMNS)} |",
            "|" + " --- |" * (len(COLUMNS) + 1),
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
        ]
    )


def answer(tries: list[Record]) -> str:
    """Each different exit status and sentence."""
    said = {f"{row['status']}: {cell(row.get('sentence', ''))}".rstrip(": "): None for row in tries}
    return "<br>".join(said)


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


COLUMNS = {
    "tried": lambda tries: str(sum(row.get("tries", 1) for row in tries)),
    "exit status and answer": answer,
    "answer after": seconds("seconds"),
    "make up": seconds("up_seconds"),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
