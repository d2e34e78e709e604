"""The files of rows that a job trains on: that they have what the data class, the agent loop and the reward manager read, and rows enough.

Read in verl 0.7.1 to 0.9.1: utils/dataset/rl_dataset.py (parquet and JSON, joined by the library datasets, which wants one type for a
column) and multiturn_sft_dataset.py (parquet, joined by pandas, which does not). A file outside the shared root is not checked.
"""

import ast
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.base.workloads import Workload
from verl_regress.plan.compose import Composed
from verl_regress.plan.reward_fn import MANAGERS, parsed
from verl_regress.store import tables
from verl_regress.store.tables import Table

TRAIN, _VAL = "data.train_files", "data.val_files"
_BATCHES = ("data.train_batch_size", "data.gen_batch_size")
_OWN_LOOPS = tuple(f"actor_rollout_ref.rollout.agent.agent_loop_{name}" for name in ("config_path", "manager_class"))
_TEMPLATE = "actor_rollout_ref.model.custom_chat_template"
_MESSAGE = ("role", "content")


class Data(NamedTuple):
    """The columns of the training data, and how many rows an epoch of it has; None where that is not known."""

    columns: Set[str] | None = None
    rows: int | None = None


def check(root: SharedRoot, workload: Workload, composed: Composed, code_path: Path, wrong: Refusals) -> Data:
    """Note in `wrong` what the files lack; returns what the training data has."""
    if composed.value("data.custom_cls.path"):  # the user's own class reads the files
        return Data()
    reader = _Reader(root, workload, composed, code_path)
    train = reader.read(TRAIN, wrong)
    reader.read(_VAL, wrong)
    rows = _rows(composed, train)
    with wrong.noted():
        _need_batch(composed, rows)
    known = [table for table in train if table is not None]
    columns = set[str]().union(*(table.columns for table in known))
    return Data(columns if known and len(known) == len(train) else None, rows)


@dataclass(frozen=True)
class _Reader:
    """Reads the files of a job of this workload, whose config is `composed`, with the verl at `code_path`."""

    root: SharedRoot
    workload: Workload
    composed: Composed
    code_path: Path

    def read(self, key: str, wrong: Refusals) -> list[Table | None]:
        """The tables in the files of a key, None for one that cannot be checked; what they lack is noted in `wrong`."""
        files, found = _files(self.composed, key), dict[str, Table]()
        for file in files:
            with wrong.noted():
                table = self._table(key, file)
                if table is not None:
                    found[file] = table
                    self._need_columns(key, file, table)
        if self.workload.has_reward:
            with wrong.noted():
                _need_one_type(self.composed, key, found)
        return [found.get(file) for file in files]

    def _table(self, key: str, file: str) -> Table | None:
        """The table in a file on the shared root; None where it is missing, which is an input's own fault, and where pyarrow is."""
        path, named = Path(file), self.composed.named(key, file)
        if not self.root.has(path) or not path.is_file():
            return None
        if self.workload.has_reward and path.suffix not in (".parquet", ".json", ".jsonl"):
            raise BadInput(f"{named} is not a file that verl reads: name one that ends in .parquet, .json or .jsonl.")
        if self.workload.has_reward and path.suffix != ".parquet":
            return tables.of_json(path, named)
        try:
            return tables.of_parquet(path, named)
        except ImportError:
            return None

    def _need_columns(self, key: str, file: str, table: Table) -> None:
        """Raise BadInput for a file that lacks what verl reads of each row."""
        named = self.composed.named(key, file)
        _need_prompts(self.workload, self.composed, named, table)
        if key == TRAIN and self.workload.has_reward:
            _need_reward_columns(self.composed, self.code_path, named, table)


def _files(composed: Composed, key: str) -> list[str]:
    named = composed.value(key) or []
    return [str(each).removeprefix("file://") for each in (named if isinstance(named, list) else [named])]


def _need_prompts(workload: Workload, composed: Composed, named: str, table: Table) -> None:
    """The column of prompts must be a list of messages, which the chat template writes: of anything else it takes what it finds, or nothing."""
    column_key = "data.prompt_key" if workload.has_reward else "data.messages_key"
    column = composed.value(column_key)
    if not isinstance(column, str):
        return
    if column not in table.columns:
        raise BadInput(
            f"{named} has no column {shown(column)!r} ({column_key} of verl's config): name one of {shown(', '.join(table.columns))}."
        )
    kind = table.columns[column]
    if any(composed.value(key) for key in (*_OWN_LOOPS, _TEMPLATE)):  # they may take anything
        return
    match kind:
        case [dict() as message]:
            fits = all(part in message for part in _MESSAGE)
        case ["null"] | "null":
            fits = True
        case _:
            fits = False
    if not fits:
        raise BadInput(
            f"{named} has {tables.described(kind)} in its column {shown(column)!r} ({column_key} of verl's config), but verl reads a list of "
            f"{{role, content}} there, and would train on empty messages: write each as [{{'role': 'user', 'content': …}}], or name "
            "another column."
        )


def _need_reward_columns(composed: Composed, code_path: Path, named: str, table: Table) -> None:
    """What verl's reward manager reads of each row; one of the user's own, a reward model and an agent loop may read anything."""
    manager = str(composed.value("reward.reward_manager.name"))
    is_other = composed.value("reward.reward_manager.source") not in (None, "register")
    is_model = composed.value("reward.reward_model.enable") is True
    if is_other or is_model or any(composed.value(key) for key in _OWN_LOOPS):
        return
    for column, key in _read_by(code_path / MANAGERS / f"{manager}.py"):
        kind = table.columns.get(column)
        if kind is None or (key and kind != "null" and not (isinstance(kind, dict) and key in kind)):
            has = "has no such column" if kind is None else f"has {tables.described(kind)} there"
            raise BadInput(
                f"{named} {has}: verl's reward manager {manager} reads {column}{f'.{key}' if key else ''} of each row; add it, or name "
                "another reward manager with reward.reward_manager.name."
            )


def _read_by(manager: Path) -> Iterator[tuple[str, str | None]]:
    """The columns, each with the key in it, that a reward manager reads of a row whether they are there or not."""
    seen: dict[str, str | None] = {}
    for node in ast.walk(parsed(manager)):
        match node:
            case ast.Subscript(
                value=ast.Subscript(
                    value=ast.Attribute(attr="non_tensor_batch"), slice=ast.Constant(value=str(column))
                ),
                slice=ast.Constant(value=str(key)),
            ):
                seen[column] = key
            case ast.Subscript(value=ast.Attribute(attr="non_tensor_batch"), slice=ast.Constant(value=str(column))):
                seen.setdefault(column, None)
    yield from seen.items()


def _need_one_type(composed: Composed, key: str, read: Mapping[str, Table]) -> None:
    """verl joins the files of a key."""
    files = list(read)
    for other in files[1:]:
        by_rows = not all(file.endswith(".parquet") for file in (files[0], other))
        found = tables.difference(dict(read[files[0]].columns), dict(read[other].columns), by_rows=by_rows)
        if found is not None:
            column, one, another = found
            raise BadInput(
                f"{key} (from {composed.origin_of(key)}): {column[1:]} is {tables.described(one)} in {files[0]} and "
                f"{tables.described(another)} in {other}, and verl joins both files: give it one type."
            )


def _rows(composed: Composed, read: list[Table | None]) -> int | None:
    """How many rows an epoch has; a sampler of the user's own may draw any number."""
    is_own_choice = composed.value("data.sampler.class_path") or composed.value("data.datagen.path")
    counts = [table.rows for table in read if table is not None and table.rows is not None]
    if is_own_choice or not counts or len(counts) < len(read):
        return None
    most = composed.value("data.train_max_samples")
    return min(sum(counts), most) if isinstance(most, int) and most > 0 else sum(counts)


def _need_batch(composed: Composed, rows: int | None) -> None:
    sizes = [size for key in _BATCHES if isinstance(size := composed.value(key), int)]
    if rows is not None and sizes and rows < min(sizes):
        raise BadInput(
            f"{composed.named(TRAIN, composed.value(TRAIN))} gives {rows} rows, which make no batch of {min(sizes)}: write a smaller "
            "data.train_batch_size, or name more rows."
        )
