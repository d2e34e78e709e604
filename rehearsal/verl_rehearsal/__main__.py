"""`python -m verl_rehearsal model DIR` and `data DIR`: the tiny model with its critic, and the sums that it learns.

`model` prints what `tiny_model.build` returns, as JSON. `data -` writes no files and prints the rows of both splits, as JSON. If
a command fails, the last line on stderr says why.
"""

import argparse
import json
import os
from pathlib import Path

from verl_rehearsal import sums_files
from verl_rehearsal.errors import RehearsalError


def main(argv: list[str] | None = None) -> None:
    """Make what the arguments ask for; raises SystemExit with one sentence if it cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m verl_rehearsal", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    model = commands.add_parser(
        "model", allow_abbrev=False, help="the tiny model, and its critic, as Hugging Face folders"
    )
    model.add_argument("directory", type=Path, metavar="DIR")
    model.add_argument("--critic", type=Path, metavar="DIR", help="default: the model's, with -critic at its end")
    data = commands.add_parser("data", allow_abbrev=False, help="the sums: train, test, sft_train and sft_test.parquet")
    data.add_argument("directory", metavar="DIR", help="or -, to print the rows as JSON")
    for command in (model, data):
        command.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(argv)
    try:
        _make_model(asked) if asked.command == "model" else _make_data(asked)
    except (RehearsalError, OSError) as error:
        raise SystemExit(str(error)) from None


def _make_model(asked: argparse.Namespace) -> None:
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers 5 shows one even for a tiny model
    from verl_rehearsal import tiny_model

    actor: Path = asked.directory
    facts = tiny_model.build(actor, asked.critic or actor.with_name(f"{actor.name}-critic"), seed=asked.seed)
    print(json.dumps(facts))


def _make_data(asked: argparse.Namespace) -> None:
    if asked.directory == "-":
        print(json.dumps(sums_files.splits(asked.seed)))
    else:
        sums_files.write(Path(asked.directory), asked.seed)


if __name__ == "__main__":
    main()
