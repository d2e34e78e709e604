"""Synthetic questions for rehearsals: sums of two digits, in the format of verl's RL data."""

import random

TRAIN_ROWS = 512
TEST_ROWS = 64


def question(a: int, b: int) -> str:
    """Return the prompt for the sum of two digits."""
    return f"{a}+{b}="


def answer(a: int, b: int) -> str:
    """Return the solution in GSM8K's notation, the number behind ``####``."""
    return f"#### {a + b}"


def rows(seed: int, count: int, split: str) -> list[dict[str, object]]:
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
