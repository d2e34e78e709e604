"""Training data as verl's trainers read it: `datasets/<name>/{train,test}.parquet` for RL, and for SFT the same questions
with their answers, `datasets/<name>_sft/{train,val}.parquet`.

The RL columns are what verl's own preparation of GSM8K writes: data_source, prompt, ability, reward_model
{style, ground_truth} and extra_info. SFT has one column, messages: [{role, content}].
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from verl_regress.base import ids
from verl_regress.base.errors import BadInput
from verl_regress.base.layout import SharedRoot
from verl_regress.store import artefact, rehearsal, tarball
from verl_regress.store.artefact import Source
from verl_regress.store.hub import Hub

Row = dict[str, Any]

SPLITS = ("train", "test")
SYNTHETIC_NAME = "sums"
GSM8K_NAME = "gsm8k"
KNOB = "DATASET"

_GSM8K_REPO = "openai/gsm8k"
_GSM8K_PROMPT = '{question} Let\'s think step by step and output the final answer after "####".'
_FINAL_ANSWER = re.compile(r"####\s*(-?[0-9][0-9.,]*)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `prepare-data`."""
    parser.add_argument(
        "--source", required=True, help="synthetic, hub, or path:DIR with the tar of DIR's files on stdin"
    )
    parser.add_argument("--name", default="", help="the dataset's name; empty: the source's own (sums, gsm8k)")
    parser.add_argument("--seed", type=int, required=True, help="decides the rows of synthetic data")


def run(args: argparse.Namespace) -> int:
    """Make the data set that `args` asks for, or skip it; returns 0. Raises as `prepare` does."""
    prepare(SharedRoot(Path(args.shared_root)), args.source, args.name, args.seed, sys.stdin.buffer)
    return 0


def default_name(source: str) -> str:
    """Return the default name for data from `source`."""
    return SYNTHETIC_NAME if source == "synthetic" else GSM8K_NAME


def prepare(root: SharedRoot, source: str, name: str, seed: int, stream: BinaryIO) -> artefact.Manifest:
    """Make `datasets/<name>` and `datasets/<name>_sft` from `source` unless they exist; returns the first's manifest.

    `stream` is only read for `path:DIR`: a tar of DIR's train.jsonl and test.jsonl. Raises BadInput for a source or a
    name that cannot be used, for data that is not GSM8K's, and as `rehearsal.run` and `artefact.ensure` do.
    """
    if source not in ("synthetic", "hub") and not source.startswith("path:"):
        raise BadInput(f"DATASET_SOURCE={source!r} is not a source of data: use synthetic, path:DIR or hub.")
    target = root.datasets / _checked_name(name or default_name(source), source)
    if source == "hub":
        return _prepare_from_hub(root, target)
    if source == "synthetic":
        rows = json.loads(rehearsal.run(f"DATASET_SOURCE=synthetic with SEED={seed}", "data", "-", f"--seed={seed}"))
        made_from = Source(source, _sha256(json.dumps(rows, sort_keys=True).encode()), seed)
    else:
        directory = source.removeprefix("path:")
        with TemporaryDirectory() as temporary:
            tarball.unpack(stream, Path(temporary), directory)
            files = {split: (Path(temporary) / f"{split}.jsonl").read_bytes() for split in SPLITS}
        made_from = Source(source, _sha256("".join(map(_sha256, files.values())).encode()))
        rows = {split: gsm8k_rows(read_jsonl(files[split], f"{directory}/{split}.jsonl"), split) for split in SPLITS}
    return _ensure(target, made_from, lambda: rows)


def gsm8k_rows(examples: Iterable[tuple[str, Mapping[str, Any]]], split: str) -> list[Row]:
    """Return the RL rows for GSM8K's `examples`: pairs of a location and the question and answer there.

    Raises BadInput, naming the location, if an answer does not end in `#### number`.
    """
    rows = []
    for index, (location, example) in enumerate(examples):
        final = _FINAL_ANSWER.search(example["answer"])
        if final is None:
            raise BadInput(
                f"{location}: the answer has no '#### number' at its end: GSM8K's answers do; fix or drop that line."
            )
        rows.append(
            {
                # verl chooses the reward function by this key.
                "data_source": _GSM8K_REPO,
                "prompt": [{"role": "user", "content": _GSM8K_PROMPT.format(question=example["question"])}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": final[1].replace(",", "")},
                "extra_info": {
                    "split": split,
                    "index": index,
                    "answer": example["answer"],
                    "question": example["question"],
                },
            }
        )
    return rows


def read_jsonl(content: bytes, file: str) -> list[tuple[str, dict[str, str]]]:
    """Return the objects in a GSM8K file's `content`, each with its location (`FILE line N`).

    Raises BadInput with the location of the first line that is not a JSON object with the texts `question` and `answer`.
    """
    examples = []
    for number, line in enumerate(content.splitlines() or [b""], start=1):
        location = f"{file} line {number}"
        try:
            example = json.loads(line)
            if not all(isinstance(example[key], str) for key in ("question", "answer")):
                raise TypeError("question or answer is not a text")
            examples.append((location, example))
        except (ValueError, LookupError, TypeError) as error:
            raise BadInput(
                f'{location} is not usable ({error}): write one {{"question": …, "answer": …}} per line.'
            ) from error
    return examples


def write_parquet(rows: list[Row], path: Path) -> None:
    """Write `rows` to `path`, the same bytes for the same rows and the same pyarrow."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def conversations(rows: Iterable[Row]) -> list[Row]:
    """Return the SFT rows for RL `rows`: each question with GSM8K's worked answer, or with the number alone for a sum."""
    return [
        {
            "messages": [
                *row["prompt"],
                {
                    "role": "assistant",
                    "content": row["extra_info"].get("answer", f"#### {row['reward_model']['ground_truth']}"),
                },
            ]
        }
        for row in rows
    ]


def _ensure(target: Path, source: Source, make_rows: Callable[[], Mapping[str, list[Row]]]) -> artefact.Manifest:
    def build(directories: Sequence[Path]) -> dict[str, int]:
        rows = make_rows()
        for split, sft_split in zip(SPLITS, ("train", "val"), strict=True):
            write_parquet(rows[split], directories[0] / f"{split}.parquet")
            write_parquet(conversations(rows[split]), directories[1] / f"{sft_split}.parquet")
        return {f"{split}_rows": len(rows[split]) for split in SPLITS}

    sft_target = target.with_name(target.name + ids.SFT_SUFFIX)
    return artefact.ensure_all([target, sft_target], source, build, knob=KNOB)[0]


def _checked_name(name: str, source: str) -> str:
    ids.check_name(name, KNOB)
    # A run on generated data must never be mistaken for one on GSM8K, nor the other way round.
    if name == GSM8K_NAME and source == "synthetic":
        raise BadInput(
            f"DATASET={name} is reserved for GSM8K, but DATASET_SOURCE=synthetic makes other data: set DATASET=sums."
        )
    if name == SYNTHETIC_NAME and source != "synthetic":
        raise BadInput(
            f"DATASET={name} is reserved for synthetic data, but DATASET_SOURCE={source} is not synthetic: set DATASET=gsm8k."
        )
    return name


def _prepare_from_hub(root: SharedRoot, target: Path) -> artefact.Manifest:
    source = "hub"
    hub = Hub(
        root,
        "DATASET_SOURCE=hub",
        "without a way out, use DATASET_SOURCE=path:DIR with its train.jsonl and test.jsonl.",
    )
    there = artefact.find(target)
    # An existing data set needs no network: it keeps its revision.
    revision = there.revision if there is not None and there.source == source else hub.dataset_revision(_GSM8K_REPO)

    def rows() -> dict[str, list[Row]]:
        splits = hub.dataset(_GSM8K_REPO, "main", revision)
        return {split: gsm8k_rows(_places(splits[split], split), split) for split in SPLITS}

    return _ensure(target, Source(source, revision), rows)


def _places(examples: Iterable[Mapping[str, Any]], split: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((f"{_GSM8K_REPO} {split} row {index}", example) for index, example in enumerate(examples))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
