"""Which releases of verl train here: the rows of releases.sh, their records, and the tables of maintain/verl-releases.md.

    releases.py rows [WORD...]              the rows that these words name (a row or a release), all where there is none
    releases.py recorded ROW CODE_ID IMAGE  what the record says of a row that worked with the same code and image; else exits 1
    releases.py write [ROW...]              the records of these rows into maintain/verl-releases.jsonl, and its page
    releases.py check                       maintain/verl-releases.md is what maintain/verl-releases.jsonl makes; exits 1 where it is not

A record is one JSON object per line; maintain/release_row.py makes it and documents its keys. The last one of a row counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import put

REPO = Path(__file__).resolve().parents[1]
RECORDS = REPO / "build" / "releases" / "records.jsonl"
SHIPPED, PAGE = REPO / "maintain" / "verl-releases.jsonl", REPO / "maintain" / "verl-releases.md"
STEPS = 4  # of every job: two saves and two validations with a frequency of 2
FURTHER = 2  # steps of a job that is resumed

RELEASES = ("0.7.1", "0.8.0", "0.9.1", "main")
_WITH_V1 = ("0.9.1", "main")  # their trainer of PPO and GRPO is V1, unless trainer.use_v1=False asks for V0
Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """Two equal jobs of one release and workload; or a job that is resumed, with validation (`workload` resume)."""

    release: str
    workload: str
    trainer: str = "-"

    @property
    def name(self) -> str:
        """`0.9.1-ppo`, `0.9.1-ppo-v0`."""
        return f"{self.release}-{self.workload}" + ("-v0" if self.is_v0_asked else "")

    @property
    def is_v0_asked(self) -> bool:
        """The release has V1, and this row is about its other trainer."""
        return self.trainer == "V0" and self.release in _WITH_V1

    @property
    def is_resume(self) -> bool:
        """The row of a job that is resumed."""
        return self.workload == "resume"


def _rows_of(release: str) -> list[Row]:
    trainers = ("V1", "V0") if release in _WITH_V1 else ("V0",)
    reinforcement = [Row(release, workload, trainer) for workload in ("ppo", "grpo") for trainer in trainers]
    return [*reinforcement, Row(release, "sft"), Row(release, "resume", trainers[0])]


ROWS = tuple(row for release in RELEASES for row in _rows_of(release))
BY_NAME = {row.name: row for row in ROWS}
WORDS = (*RELEASES, *BY_NAME)


def named(words: Sequence[str]) -> list[Row]:
    """The rows that the words name, each once, in the order of the table."""
    return [row for row in ROWS if not words or row.name in words or row.release in words]


# --- records


def read(path: Path) -> dict[str, Record]:
    """The last record of each row; none if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {record["row"]: record for record in map(json.loads, lines)}


def inputs() -> str:
    """One value for all of this checkout that decides how a job runs: the helper, its hooks, and the profile's settings."""
    found = hashlib.sha256()
    paths = [*REPO.glob("py/**/*.*"), *REPO.glob("jobspecs/*.yaml"), REPO / "env/cpu.env", REPO / "env/ray/cpu.yaml"]
    for path in sorted(path for path in paths if path.is_file()):
        if not any(part.startswith((".", "__pycache__")) for part in path.relative_to(REPO).parts):
            found.update(f"{path.relative_to(REPO)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def recorded(row: str, code_id: str, image: str) -> Record | None:
    """The record of a row that worked with the same code, image and checkout; None if the row must run."""
    record = read(RECORDS).get(row)
    if record is None or not record["works"]:
        return None
    same = record["verl"]["code_id"] == code_id and record["image"] == image
    return record if same and record["inputs"] == inputs() and record["steps"] == STEPS else None


# --- what a row says


def line(record: Mapping[str, Any]) -> str:
    """What is printed when a row has ended."""
    jobs = f"{_seconds(record)} s"
    if not record["works"]:
        return f"{record['row']} does not work: {record['why']}"
    if record["resumed"]:
        resumed = record["resumed"]
        return (
            f"{record['row']}: {jobs}, validated at steps {_listed(resumed['validated'])}, "
            f"resumed from step {resumed['from']} to {resumed['steps'][-1]}"
        )
    return f"{record['row']}: {jobs}, fidelity {_fidelity(record)}, {_equal(record)} metrics equal in both jobs"


def _seconds(record: Mapping[str, Any]) -> str:
    return ", ".join("-" if job["seconds"] is None else str(job["seconds"]) for job in record["jobs"]) or "-"


def _fidelity(record: Mapping[str, Any]) -> str:
    """`5 of 5`, or what either job says where that differs."""
    found = [f"{job['fidelity']['passed']} of {job['fidelity']['of']}" for job in record["jobs"] if job.get("fidelity")]
    return ", ".join(dict.fromkeys(found)) or "-"


def _equal(record: Mapping[str, Any]) -> str:
    equal = record["equal"]
    return "-" if equal is None else f"{equal['metrics'] - len(equal['differ'])} of {equal['metrics']}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "-"


# --- the page


def tables(records: Mapping[str, Record]) -> str:
    """All tables of the page, from the records alone."""
    shown = {row.name: records[row.name] for row in ROWS if row.name in records}
    runs = _runs(shown)
    works = sum(record["works"] for record in shown.values())
    return "\n\n".join(
        [
            f"**{works} of {len(shown)} rows work**"
            + (f"; {len(ROWS) - len(shown)} have not been run." if len(shown) < len(ROWS) else "."),
            "## Release, workload, trainer",
            _table(
                ("release", "workload", "trainer", "works", "seconds", "fidelity", "equal metrics", "run"),
                [_cells(row, shown.get(row.name), runs) for row in ROWS if not row.is_resume],
            ),
            "## Validation and resume",
            _table(
                ("release", "works", "seconds", "saved at", "validated at", "resumed from", "steps after it", "run"),
                [_resume_cells(row, shown.get(row.name), runs) for row in ROWS if row.is_resume],
            ),
            "## Runs",
            _table(("run", "rows", "recorded", "commit", "image", "packages", "machine"), _run_cells(shown, runs))
            if shown
            else "None yet: `make -C maintain releases`.",
        ]
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells) + " |" for cells in lines
    )


def _release(row: Row, record: Mapping[str, Any] | None) -> str:
    if record is None or record["verl"]["version"] == row.release:
        return row.release
    verl = record["verl"]
    revision = f" at {verl['revision'][:12]}" if verl["revision"] else ""
    return f"{row.release} ({verl['version']}{revision}{', changed' if verl['dirty'] else ''})"


def _works(record: Mapping[str, Any]) -> str:
    return "yes" if record["works"] else f"**no**: {record['why']}"


def _cells(row: Row, record: Record | None, runs: Sequence[Any]) -> list[str]:
    head = [_release(row, record), row.workload, row.trainer]
    if record is None:
        return [*head, "not run", "-", "-", "-", "-"]
    return [*head, _works(record), _seconds(record), _fidelity(record), _equal(record), _run(record, runs)]


def _resume_cells(row: Row, record: Record | None, runs: Sequence[Any]) -> list[str]:
    head = _release(row, record)
    if record is None:
        return [head, "not run", "-", "-", "-", "-", "-", "-"]
    resumed = record["resumed"] or {"saved": [], "validated": [], "from": "-", "steps": []}
    saved, validated, steps = (_listed(resumed[key]) for key in ("saved", "validated", "steps"))
    return [head, _works(record), _seconds(record), saved, validated, str(resumed["from"]), steps, _run(record, runs)]


def _runs(records: Mapping[str, Record]) -> list[tuple[str, ...]]:
    """What the rows ran on, each combination once; a row names it by its number."""
    return list(dict.fromkeys(map(_ran_on, records.values())))


def _ran_on(record: Mapping[str, Any]) -> tuple[str, ...]:
    return record["commit"], record["image"], record["packages"] or "not recorded", record["machine"]


def _run(record: Mapping[str, Any], runs: Sequence[tuple[str, ...]]) -> str:
    return str(runs.index(_ran_on(record)) + 1)


def _run_cells(records: Mapping[str, Record], runs: Sequence[tuple[str, ...]]) -> Iterable[list[str]]:
    for number, run in enumerate(runs, start=1):
        found = [record for record in records.values() if _ran_on(record) == run]
        dates = sorted({record["written"][:10] for record in found})
        yield [str(number), str(len(found)), " to ".join(dict.fromkeys((dates[0], dates[-1]))), *run]


def with_tables(page: str, records: Mapping[str, Record]) -> str:
    """The page with its tables made again. Raises ValueError where it lacks the markers."""
    return put(page, "releases", f"\n{tables(records)}\n\n")


# --- the commands


def write(rows: Sequence[str]) -> None:
    """Take over the records of these rows; rows that were not run this time keep the record that they had."""
    found = read(RECORDS)
    kept = {**read(SHIPPED), **{name: found[name] for name in rows}}
    lines = [json.dumps(kept[row.name], ensure_ascii=False) + "\n" for row in ROWS if row.name in kept]
    SHIPPED.write_text("".join(lines), encoding="utf-8")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), read(SHIPPED)), encoding="utf-8")


def check() -> int:
    """Say whether page and records agree; 1 where they do not."""
    page = PAGE.read_text(encoding="utf-8")
    if with_tables(page, read(SHIPPED)) != page:
        print(
            f"maintain/{PAGE.name} is not what maintain/{SHIPPED.name} makes: 'make -C maintain releases' writes both."
        )
        return 1
    print(f"maintain/{PAGE.name}: {len(read(SHIPPED))} of {len(ROWS)} rows are recorded, 0 differ")
    return 0


def main(arguments: Sequence[str]) -> int:
    """One of rows, recorded, write, check; returns the exit status."""
    action, words = arguments[0], list(arguments[1:])
    if action == "rows":
        unknown = [word for word in words if word not in WORDS]
        if unknown:
            print(
                f"error   '{unknown[0]}' is neither a release nor a row: use some of {', '.join(WORDS)}.",
                file=sys.stderr,
            )
            return 2
        print("\n".join(row.name for row in named(words)))
    elif action == "recorded":
        record = recorded(*words)
        if record is None:
            return 1
        print(line(record))
    elif action == "write":
        write(words)
    else:
        return check()
    return 0


if __name__ == "__main__":
    os.chdir(REPO)
    raise SystemExit(main(sys.argv[1:]))
