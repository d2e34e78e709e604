"""The synthetic questions are in verl's RL format, and the same for the same seed."""

from verl_rehearsal import sums


def test_rows_are_in_verls_rl_format():
    row = sums.rows(seed=0, count=sums.TRAIN_ROWS, split="train")[7]
    a, b = row["prompt"][0]["content"].rstrip("=").split("+")
    assert row == {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": sums.question(int(a), int(b))}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(int(a) + int(b))},
        "extra_info": {"split": "train", "index": 7, "source": "synthetic"},
    }


def test_rows_depend_on_seed_and_split_only():
    train = sums.rows(0, 64, "train")
    assert train == sums.rows(0, 512, "train")[:64]
    prompts = [[row["prompt"] for row in rows] for rows in (train, sums.rows(1, 64, "train"), sums.rows(0, 64, "test"))]
    assert prompts[0] != prompts[1]
    assert prompts[0] != prompts[2]
