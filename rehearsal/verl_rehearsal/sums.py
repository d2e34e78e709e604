"""What a rehearsal learns: sums of two digits, as rows in the format of verl's RL data, and as files for verl's trainers."""

import random
from pathlib import Path
from typing import Any

TRAIN_ROWS = 512
TEST_ROWS = 64


def question(a: int, b: int) -> str:
    """Return the prompt for the sum of two digits."""
    return f"{a}+{b}="


def answer(a: int, b: int) -> str:
    """Return the solution in GSM8K's notation, the number behind ``####``."""
    return f"#### {a + b}"


def rows(seed: int, count: int, split: str) -> list[dict[str, Any]]:
    """Return ``count`` rows with operands 0 to 9, the same for the same ``seed`` and ``split``.

    There are only 100 different sums: the splits differ in which they draw, not in kind.
    """
    draw = random.Random(f"{seed}/{split}")
    pairs = [(draw.randrange(10), draw.randrange(10)) for _ in range(count)]
    return [
        {
            # verl chooses its scorer by this key; GSM8K's is the one that reads the number behind "####".
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question(a, b)}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"split": split, "index": index, "source": "synthetic"},
        }
        for index, (a, b) in enumerate(pairs)
    ]


def splits(seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of ``train`` and ``test``."""
    return {"train": rows(seed, TRAIN_ROWS, "train"), "test": rows(seed, TEST_ROWS, "test")}


def write(directory: Path, seed: int) -> None:
    """Write ``{train,test}.parquet``, and the same questions with their answers as ``sft_{train,test}.parquet``.

    Raises OSError if the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    import pyarrow
    import pyarrow.parquet

    for split, asked in splits(seed).items():
        replies = [f"#### {row['reward_model']['ground_truth']}" for row in asked]
        dialogues = [
            {"messages": [*row["prompt"], {"role": "assistant", "content": reply}]}
            for row, reply in zip(asked, replies, strict=True)
        ]
        for name, table in ((split, asked), (f"sft_{split}", dialogues)):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), directory / f"{name}.parquet")
