"""The bench's numbers: runs become medians and ratios, and its page shows what its results contain."""

import json

import pytest
from hermetic import REPO

import bench

FACTS = "cores\t2\nkernel\tLinux 6\n"


def runs(**rows):
    return "".join(
        f"{row}\t{side}\t{number}\n" for row, sides in rows.items() for side, all_ in sides.items() for number in all_
    )


def test_a_row_has_the_ratio_of_the_medians_the_minimum_and_the_maximum():
    found = bench.results(runs(submit={"ours": [3.0, 1.0, 2.0], "ray job submit": [4.0, 40.0, 2.0]}), FACTS)
    assert found["machine"] == {"cores": "2", "kernel": "Linux 6"}
    row = found["rows"]["submit"]
    assert (row["ours"], row["other"]["median"]) == ({"median": 2.0, "min": 1.0, "max": 3.0, "runs": 3}, 4.0)
    assert (row["ratio"], row["aim"], row["is_met"]) == (0.5, 0.6, True)
    line = next(line for line in bench.table(found).splitlines() if "make submit" in line)
    assert line.endswith("| 2.00 s (1.00 - 3.00) | 4.00 s (2.00 - 40.00) | 0.50 | ≤ 0.6 | met |")


def test_a_limit_of_ours_alone_does_not_compare():
    """The other side may take no time at all."""
    found = bench.results(runs(up_again={"ours": [0.2, 3.1, 0.3], "docker compose up": [0.0]}), FACTS)
    assert (found["rows"]["up_again"]["ours alone"], found["rows"]["up_again"]["is_met"]) == (0.3, True)
    assert "| 0.30 s (0.20 - 3.10) | 0.00 s (0.00 - 0.00) | 0.30 s | ≤ 2.5 s | met |" in bench.table(found)


def test_rows_of_another_run_are_added_with_their_machine():
    found = bench.results(
        runs(submit={"ours": [3.0], "ray job submit": [4.0]}, up_again={"ours": [9.0], "docker compose up": [1.0]}),
        FACTS,
    )
    found["rows"]["no_row_by_now"] = found["rows"]["submit"]
    part = bench.results(runs(up_again={"ours": [2.0], "docker compose up": [1.0]}), FACTS.replace("6", "7"))
    both = bench.added(found, part)
    assert (both["machine"], list(both["rows"])) == (found["machine"], ["up_again", "submit"])
    assert bench.table(both).splitlines()[-2:] == [
        "Medians of 1 to 1 runs of each side, alternating. cores 2, kernel Linux 6.",
        "In another run: `make up` when up. cores 2, kernel Linux 7.",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "there is no run of any row"), (runs(submit={"ours": [1]}), "the row submit has no run of 'ray job submit'")],
)
def test_a_row_with_only_one_side_is_an_error(text, said):
    with pytest.raises(ValueError, match=said):
        bench.results(text, FACTS)


def test_the_page_matches_the_results():
    found = json.loads((REPO / "maintain" / "bench.json").read_text(encoding="utf-8"))
    page = (REPO / "maintain" / "bench.md").read_text(encoding="utf-8")
    assert found["rows"]
    assert bench.with_table(page, found) == page


def test_the_table_has_every_row_that_the_script_runs():
    script = (REPO / "maintain" / "bench.bash").read_text(encoding="utf-8")
    assert {row.runs.partition(":")[0] for row in bench.ROWS} == {
        line[len("row::") : -len("() {")] for line in script.splitlines() if line.startswith("row::")
    }
    assert all(f"'{row.side}'" in script for row in bench.ROWS)
