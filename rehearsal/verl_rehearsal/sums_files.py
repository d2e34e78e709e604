"""The sums as files that verl's trainers read: RL rows, and for SFT the same questions with their answers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl_rehearsal import sums

Row = dict[str, Any]


def splits(seed: int) -> dict[str, list[Row]]:
    """Return the RL rows of ``train`` and ``test``."""
    return {"train": sums.rows(seed, sums.TRAIN_ROWS, "train"), "test": sums.rows(seed, sums.TEST_ROWS, "test")}


def write(directory: Path, seed: int) -> None:
    """Write ``{train,test}.parquet`` and ``sft_{train,test}.parquet``. Raises OSError if the directory cannot be written."""
    directory.mkdir(parents=True, exist_ok=True)
    import pyarrow
    import pyarrow.parquet

    for split, rows in splits(seed).items():
        for name, table in ((split, rows), (f"sft_{split}", list(_conversations(rows)))):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), directory / f"{name}.parquet")


def _conversations(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        answer = {"role": "assistant", "content": f"#### {row['reward_model']['ground_truth']}"}
        yield {"messages": [*row["prompt"], answer]}
