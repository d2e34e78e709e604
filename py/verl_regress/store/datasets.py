"""Training data as verl's trainers read it: `datasets/<name>/{train,test}.parquet` for RL, and for SFT the same questions
with their answers, `datasets/<name>_sft/{train,val}.parquet`.

The RL columns are what verl's own preparation of GSM8K writes: data_source, prompt, ability, reward_model
{style, ground_truth} and extra_info. SFT has one column, messages: [{role, content}].
"""

import argparse
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from verl_regress.base import ids, say
from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.store import artefact, rehearsal, tables, tarball
from verl_regress.store.artefact import Origin, sha256_of
from verl_regress.store.hub import Hub

Row = dict[str, Any]
Data = Mapping[str, Any]  # of each split: its rows, or a parquet file of a user's

SPLITS = ("train", "test")
SYNTHETIC_NAME = "sums"
GSM8K_NAME = "gsm8k"
KNOB = "DATASET"

_GSM8K_REPO = "openai/gsm8k"
_GSM8K_PROMPT = '{question} Let\'s think step by step and output the final answer after "####".'
_GSM8K_COLUMNS = {"question", "answer"}
_FORMS = {"": "prompt", ids.SFT_SUFFIX: "messages"}  # of data: what ends its name, and the column that verl reads
_STEMS = (("train",), ("test", "val"))  # of a user's files of each split
_FINAL_ANSWER = re.compile(r"####\s*(-?[0-9][0-9.,]*)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `prepare-data`."""
    parser.add_argument(
        "--source", required=True, help="synthetic, hub, or path:PLACE with the tar of its files on stdin"
    )
    parser.add_argument("--name", default="", help="the dataset's name; empty: the source's own (sums, gsm8k)")
    parser.add_argument("--seed", type=int, required=True, help="decides the rows of synthetic data")


def run(args: argparse.Namespace) -> int:
    """Make the data set that `args` asks for, or skip it; returns 0."""
    prepare(SharedRoot(Path(args.shared_root)), args.source, args.name, args.seed, sys.stdin.buffer)
    return 0


def prepare(root: SharedRoot, source: str, name: str, seed: int, stream: BinaryIO) -> None:
    """Make `datasets/<name>` and `datasets/<name>_sft` from `source` unless they exist.

    `stream` is only read for `path:PLACE`: a tar of the files there. Data with one of verl's columns alone becomes that form alone. Raises
    BadInput for a name or data that cannot be used, and as `artefact.ensure_all` does.
    """
    default = SYNTHETIC_NAME if source == "synthetic" else GSM8K_NAME
    target = root.datasets / ids.check_name(name or default, KNOB)
    if source == "hub":
        _prepare_from_hub(root, target)
    elif source == "synthetic":
        rows = json.loads(rehearsal.run(f"DATASET_SOURCE=synthetic with SEED={seed}", "data", "-", f"--seed={seed}"))
        made_from = Origin(source, _sha256(json.dumps(rows, sort_keys=True).encode()), seed)
        _ensure(target, made_from, SYNTHETIC_NAME, lambda: rows)
    else:
        _prepare_from_files(target, source, stream)


def _prepare_from_files(target: Path, source: str, stream: BinaryIO) -> None:
    place = source.removeprefix("path:")
    with TemporaryDirectory() as temporary:
        tarball.unpack(stream, Path(temporary), place)
        files = _files(Path(temporary), place)
        made_from = Origin(source, _sha256("".join(map(sha256_of, files.values())).encode()))
        named = {
            split: place if Path(place).name == one.name else f"{place}/{one.name}" for split, one in files.items()
        }
        found = {split: _read(file, named[split]) for split, file in files.items()}
        columns = set.intersection(*(names for names, _ in found.values()))
        data: Data = {split: content for split, (_, content) in found.items()}
        if is_gsm8k := columns >= _GSM8K_COLUMNS and not any(isinstance(rows, Path) for rows in data.values()):
            data = {split: gsm8k_rows(rows, split, f"{named[split]} line") for split, rows in data.items()}
        forms = [*_FORMS] if is_gsm8k else [suffix for suffix, column in _FORMS.items() if column in columns]
        if not forms:
            raise BadInput(
                f"{place} (from DATASET_SOURCE) is not usable, because its columns are {shown(', '.join(sorted(columns)))}: verl reads prompt for "
                "RL and messages for SFT, and lines of JSON with GSM8K's question and answer become both."
            )
        _ensure(target, made_from, GSM8K_NAME if is_gsm8k else "", lambda: data, forms)


def _files(folder: Path, place: str) -> dict[str, Path]:
    """The file of each split; a single one is both. Raises BadInput."""
    found = sorted(folder.iterdir())
    by_split = [[file for file in found if file.stem in stems or len(found) == 1] for stems in _STEMS]
    if any([file.suffix in (".parquet", ".jsonl") for file in files] != [True] for files in by_split):
        raise BadInput(
            f"{place} (from DATASET_SOURCE) is not usable, because it has {shown(', '.join(file.name for file in found))}: name a folder with one "
            "train and one test or val, each .parquet or .jsonl, or one such file."
        )
    if len(found) == 1:
        say.warn(f"{place} has one file, so its rows are both training data and test data")
    return {split: files[0] for split, files in zip(SPLITS, by_split, strict=True)}


def gsm8k_rows(examples: Iterable[Mapping[str, Any]], split: str, place: str) -> list[Row]:
    """The RL rows for GSM8K's `examples`, each a question and an answer. Raises BadInput, which gives the number of a wrong one after `place`."""
    rows = []
    for index, example in enumerate(examples):
        final = _FINAL_ANSWER.search(str(example["answer"]))
        if final is None or not isinstance(example["question"], str):
            raise BadInput(
                f"{place} {index + 1}: the question is not text, or the answer has no '#### number' at its end: fix or drop it."
            )
        row = {
            "data_source": _GSM8K_REPO,  # by which verl chooses the reward function
            "prompt": [{"role": "user", "content": _GSM8K_PROMPT.format(question=example["question"])}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": final[1].replace(",", "")},
            "extra_info": {"split": split, "index": index} | {key: example[key] for key in ("answer", "question")},
        }
        rows.append(row)
    return rows


def _read(file: Path, place: str) -> tuple[set[str], list[Row] | Path]:
    """The columns of a user's file, and its rows if it is JSON. Raises BadInput, with the first line that cannot be used."""
    if file.suffix == ".parquet":
        return {*parquet_of(file, place)[0]}, file
    rows, needed = [], _GSM8K_COLUMNS.union(_FORMS.values())
    for number, line in enumerate(file.read_bytes().splitlines() or [b""], start=1):
        try:
            rows.append(dict(json.loads(line)))
            if not needed.intersection(rows[0]) <= set(rows[-1]):
                raise TypeError(f"it lacks {', '.join(sorted(needed.intersection(rows[0]) - set(rows[-1])))}")
        except (ValueError, TypeError) as error:
            raise BadInput(
                f"{place} line {number} is not usable ({error}): write one JSON object per line, all with the same keys."
            ) from error
    return set(rows[0]), rows


def parquet_of(file: Path, named: str) -> tuple[list[str], int]:
    """The columns of a parquet file and the number of its rows, from its footer. Raises BadInput; ImportError on a login host."""
    table = tables.of_parquet(file, named)
    return [*table.columns], int(table.rows or 0)


def write_parquet(rows: list[Row] | Path, path: Path) -> None:
    """Write `rows` to `path`, the same bytes for the same rows and the same pyarrow; a file is copied. Raises BadInput."""
    if isinstance(rows, Path):
        shutil.copyfile(rows, path)
        return
    import pyarrow
    import pyarrow.parquet

    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(
            f"{path.name} cannot be written as parquet ({shown(str(error), 200)}): give each key one type in all rows."
        ) from None


def conversations(rows: Iterable[Row]) -> list[Row]:
    """The SFT rows for RL `rows`: each question with GSM8K's worked answer, or with the number alone for a sum."""
    answers = ((row, f"#### {row['reward_model']['ground_truth']}") for row in rows)
    return [
        {"messages": [*row["prompt"], {"role": "assistant", "content": row["extra_info"].get("answer", number)}]}
        for row, number in answers
    ]


def _ensure(
    target: Path, origin: Origin, kind: str, make_data: Callable[[], Data], forms: Iterable[str] = _FORMS
) -> None:
    """Make `target` in these forms. `kind` is SYNTHETIC_NAME or GSM8K_NAME, which no other data may be called, or empty."""
    if target.name in (SYNTHETIC_NAME, GSM8K_NAME) and kind != target.name:
        raise BadInput(
            f"DATASET={target.name} is reserved for {'GSM8K' if target.name == GSM8K_NAME else 'synthetic data'}, but "
            f"{origin.source} (from DATASET_SOURCE) has other data: set another DATASET."
        )
    suffixes = [*forms]

    def build(directories: Sequence[Path]) -> dict[str, int]:
        counts = {}
        for split, rows in make_data().items():
            counts[f"{split}_rows"] = len(rows) if isinstance(rows, list) else parquet_of(rows, str(rows))[1]
            for directory, form in zip(directories, suffixes, strict=True):
                _write_split(directory, form, split, rows)
        return counts

    artefact.ensure_all([target.with_name(target.name + form) for form in suffixes], origin, build, knob=KNOB)


def _write_split(directory: Path, form: str, split: str, rows: list[Row] | Path) -> None:
    name = "val" if form and split == "test" else split
    if form and not isinstance(rows, Path) and _FORMS[form] not in rows[0]:
        rows = conversations(rows)
    write_parquet(rows, directory / f"{name}.parquet")


def _prepare_from_hub(root: SharedRoot, target: Path) -> None:
    cure = "without a way out, use DATASET_SOURCE=path:DIR with its train.jsonl and test.jsonl."
    hub = Hub(root, "DATASET_SOURCE=hub", _GSM8K_REPO, cure)
    revision = hub.revision(target, "hub", "dataset")

    def rows() -> Data:
        splits = hub.dataset("main", revision)
        return {split: gsm8k_rows(splits[split], split, f"{_GSM8K_REPO} {split} row") for split in SPLITS}

    _ensure(target, Origin("hub", revision), GSM8K_NAME, rows)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
