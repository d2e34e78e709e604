"""`python -m verl_rehearsal`: `model DIR` and `data DIR` make the tiny model with its critic, and the sums that it learns; `train`
trains on them; `critic MODEL DIR` makes the critic of another model.

`model` prints what `tiny_model.build` returns, as JSON. `data -` writes no files and prints the rows of both splits, as JSON. If
a command fails, the last line on stderr says why.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from verl_rehearsal import sums, train
from verl_rehearsal.errors import RehearsalError


def main(argv: list[str] | None = None) -> None:
    """Make what the arguments ask for; raises SystemExit with one sentence if it cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m verl_rehearsal", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser(
        "model", allow_abbrev=False, help="Hugging Face folders of the tiny model and its critic"
    )
    model.add_argument("directory", type=Path, metavar="DIR")
    model.add_argument("--critic", type=Path, metavar="DIR", help="default: the model's, with -critic at its end")
    model.add_argument("--for-gpu", action="store_true", help="with heads of 64, which vLLM's attention needs")
    critic = commands.add_parser(
        "critic", allow_abbrev=False, help="the critic of a model, which PPO in a rehearsal needs"
    )
    critic.add_argument("model", type=Path, metavar="MODEL")
    critic.add_argument("directory", type=Path, metavar="DIR")
    data = commands.add_parser("data", allow_abbrev=False, help="the sums: train, test, sft_train and sft_test.parquet")
    data.add_argument("directory", metavar="DIR", help="or -, to print the rows as JSON")
    for command in (model, data):
        command.add_argument("--seed", type=int, default=1)
    training = commands.add_parser(
        "train",
        allow_abbrev=False,
        usage="%(prog)s --model DIR --data DIR {ppo,grpo,sft} RUN [OVERRIDE...]",
        help="one of verl's trainers, 10 steps: RUN gets metrics.jsonl, reports and checkpoints",
    )
    training.add_argument("--model", type=Path, metavar="DIR", required=True)
    training.add_argument("--data", type=Path, metavar="DIR", required=True)
    training.add_argument("--print", action="store_true", help="print verl's command instead, and start nothing")
    training.add_argument("workload", choices=train.TRAINERS)
    training.add_argument("run", type=Path, metavar="RUN", help="a new directory")
    asked, overrides = parser.parse_known_args(argv)  # argparse cannot take options between these
    if unknown := [each for each in overrides if asked.command != "train" or not _is_override(each)]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers 5 shows one even for a tiny model
    try:
        if asked.command == "train":
            start = _print if asked.print else train.start
            start(train.command(asked.workload, asked.run, asked.model, asked.data, overrides), asked.run)
        elif asked.command == "model":
            from verl_rehearsal import tiny_model

            of_critic = asked.critic or asked.directory.with_name(f"{asked.directory.name}-critic")
            print(json.dumps(tiny_model.build(asked.directory, of_critic, seed=asked.seed, for_gpu=asked.for_gpu)))
        elif asked.command == "critic":
            from verl_rehearsal import critic as of_any_model

            of_any_model.build(asked.model, asked.directory)
        elif asked.directory == "-":
            print(json.dumps(sums.splits(asked.seed)))
        else:
            sums.write(Path(asked.directory), asked.seed)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"This Python ({sys.executable}) has no {error.name}: install verl, which brings it."
        ) from None
    except (RehearsalError, OSError) as error:
        raise SystemExit(str(error)) from None


def _is_override(text: str) -> bool:
    return text.startswith("~") or ("=" in text and not text.startswith("-"))


def _print(argv: list[str], run: Path) -> None:
    print(shlex.join(["env", *(f"{name}={value}" for name, value in train.environment(run).items()), *argv]))


if __name__ == "__main__":
    main()
