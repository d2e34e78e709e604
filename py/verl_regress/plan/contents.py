"""What data and models on the shared root must contain for a job to take its first step: read from footers and headers, never as a whole.

Only what certainly fails is refused. verl's loaders were read in 0.7.1 to 0.9.1.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from math import prod
from pathlib import Path

from verl_regress.base.errors import BadInput, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.jobs import checkpoints
from verl_regress.plan.compose import Composed
from verl_regress.plan.inputs import Input
from verl_regress.plan.workloads import Workload
from verl_regress.store.datasets import parquet_of

_MOST_HEADER = 100_000_000  # bytes: the most that safetensors reads
_INDEX, _ONE = "model.safetensors.index.json", "model.safetensors"
# In the names of the files that can be one.
_OF_TOKENIZER = ("tok", "vocab", "spiece", "sentencepiece", "bpe", ".model", ".py")
_TRAIN, _BATCHES = "data.train_files", ("data.train_batch_size", "data.gen_batch_size")
_RESUMED, _CHECKPOINT = "trainer.resume_from_path", re.compile("global_step_[0-9]+$")
# What can split sequences, and the model whose attention it uses.
_SEQUENCES = {"actor_rollout_ref.actor": "actor_rollout_ref.model", "critic": "critic.model", "engine": "model"}
_TRAINED = ("actor_rollout_ref.model", "model")  # whose tokenizer the job uses


def check(root: SharedRoot, workload: Workload, composed: Composed, read: Iterable[Input]) -> int | None:
    """Raise BadInput for data, a model or a checkpoint with which the trainer cannot take its first step, and for sizes that do not divide.

    Returns how many rows an epoch of the training data has; None if that is not known.
    """
    # The user's own class reads the files in its own way.
    rows = None if composed.value("data.custom_cls.path") else _check_data(root, workload, composed)
    if workload.has_reward:
        _check_shape(composed)
    _check_sequence(composed)
    for one in read:
        if not root.has(one.path):
            continue
        # An index that is not one is left for verl.
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            if one.key.endswith("model.path"):
                _check_model(one, composed)
    _check_checkpoint(root, workload, composed)
    return rows


def _check_shape(composed: Composed) -> None:
    """What verl asserts once its trainer runs (validate_config), and of its engines when they begin."""
    gpus, actor, resource = composed.devices.trainer, "actor_rollout_ref.actor", composed.devices.resource
    rollout = "actor_rollout_ref.rollout"
    keys = ("data.train_batch_size", f"{rollout}.n")
    batch, answers = (value if isinstance(value := composed.value(key), int) else 0 for key in keys)
    is_cut = composed.value(f"{actor}.use_dynamic_bsz") is False and composed.value(f"{actor}.strategy") != "megatron"
    if gpus and is_cut and batch * answers % gpus:
        raise BadInput(
            f"{composed.named(keys[0], batch)} with {keys[1]}={answers} gives {batch * answers} answers, which {gpus} {resource} cannot share evenly: "
            f"write {keys[0]}={-(-batch // gpus) * gpus}."
        )
    # Then the rollout has GPUs of its own, or its replicas are divided in another way.
    is_apart = composed.value("trainer.v1.trainer_mode") == "separate_async"
    is_other = is_apart or composed.value(f"{rollout}.disaggregation.enabled") is True
    parallel = [f"{rollout}.{of}_parallel_size" for of in ("tensor_model", "data", "pipeline_model")]
    sizes = {key: size for key in parallel if isinstance(size := composed.value(key), int) and size > 1}
    each = prod(sizes.values())  # of one replica
    if gpus and gpus % each and not is_other:
        fits = next(less for less in range(each, 0, -1) if gpus % less == 0)
        raise BadInput(
            f"{' times '.join(composed.named(*size) for size in sizes.items())} does not divide the job's {gpus} {resource} (trainer.nnodes "
            f"times trainer.n_gpus_per_node): write {fits}{' as their product' if len(sizes) > 1 else ''}."
        )


def _check_sequence(composed: Composed) -> None:
    """verl splits a sequence inside flash attention alone (monkey_patch.py, 0.9.1): with another one each rank would see its part only."""
    for part, model in _SEQUENCES.items():
        key, chosen = f"{part}.ulysses_sequence_parallel_size", f"{model}.override_config.attn_implementation"
        size, attention = composed.value(key), composed.value(chosen)
        if isinstance(size, int) and size > 1 and attention and not str(attention).startswith("flash_attention"):
            raise BadInput(
                f"{composed.named(key, size)} splits sequences, which verl does in flash attention alone, and {chosen} is {attention}: "
                f"write ++{chosen}=flash_attention_2, with an image that has flash-attn, or leave {key} out."
            )


def _check_data(root: SharedRoot, workload: Workload, composed: Composed) -> int | None:
    """Check the columns and the rows; returns as `check` does."""
    column_key, rows = "data.prompt_key" if workload.has_reward else "data.messages_key", {}
    for key in (_TRAIN, "data.val_files"):
        named = composed.value(key) or []
        files = map(str, named if isinstance(named, list) else [named])
        rows[key] = [_rows_of(root, composed, key, file, column_key) for file in files]
    is_own_choice = composed.value("data.sampler.class_path") or composed.value("data.datagen.path")
    known = [count for count in rows[_TRAIN] if count is not None]
    if is_own_choice or not known or len(known) < len(rows[_TRAIN]):
        return None
    most = composed.value("data.train_max_samples")
    used = min(sum(known), most) if isinstance(most, int) and most > 0 else sum(known)
    sizes = [size for key in _BATCHES if isinstance(size := composed.value(key), int)]
    if sizes and used < min(sizes):
        raise BadInput(
            f"{composed.named(_TRAIN, composed.value(_TRAIN))} gives {used} rows, which make no batch of {min(sizes)}: write a smaller "
            "data.train_batch_size, or name more rows."
        )
    return used


def _rows_of(root: SharedRoot, composed: Composed, key: str, file: str, column_key: str) -> int | None:
    """The number of rows of a parquet file on the shared root; None for any other, and where pyarrow is not. Raises BadInput."""
    path, column = Path(file.removeprefix("file://")), composed.value(column_key)
    if path.suffix != ".parquet" or not root.has(path):
        return None
    try:
        names, count = parquet_of(path, composed.named(key, path))
    except ImportError:
        return None
    if isinstance(column, str) and column not in names:
        raise BadInput(
            f"{composed.named(key, path)} has no column {shown(column)!r} ({column_key} of verl's config): name one of {shown(', '.join(names))}."
        )
    return count


def _check_checkpoint(root: SharedRoot, workload: Workload, composed: Composed) -> None:
    """The one that the trainer will load, also a job's own (`make resume`)."""
    mode, path = composed.value("trainer.resume_mode"), composed.value(_RESUMED)
    if mode == "disable" or not path or not root.has(Path(str(path))):
        return
    named, text = composed.named(_RESUMED, path), str(path)
    if mode == "auto" and workload.has_reward:
        raise BadInput(f"{named} is not read with trainer.resume_mode=auto: write trainer.resume_mode=resume_path.")
    if not _CHECKPOINT.search(text if workload.has_reward else text.rstrip("/")):
        raise BadInput(
            f"{named} is no checkpoint that verl takes: name a folder global_step_N, without a slash behind it."
        )
    problem = checkpoints.problem_of(Path(text), composed.value, composed.devices.trainer)
    if problem is not None:
        raise BadInput(f"{named} is not usable, because {problem}: name another checkpoint.")


def _check_model(one: Input, composed: Composed) -> None:
    names = {path.name for path in one.path.iterdir()}
    weights = {_ONE} & names
    if not weights and _INDEX in names:
        weights = {*json.loads((one.path / _INDEX).read_bytes())["weight_map"].values()}
    for name in sorted(weights):
        problem = _problem_of(one.path / name)
        if problem:
            raise BadInput(f"{one.named} is not usable, because {shown(name)} {problem}: copy the model again.")
    above = one.key.rpartition(".")[0]
    is_bare = weights and not any(mark in name.lower() for name in names for mark in _OF_TOKENIZER)
    if is_bare and above in _TRAINED and not composed.value(f"{above}.tokenizer_path"):
        raise BadInput(
            f"{one.named} has weights, and no file of a tokenizer: copy the model's tokenizer.json and tokenizer_config.json there, or name "
            f"a folder that has them with {above}.tokenizer_path."
        )


def _problem_of(weights: Path) -> str | None:
    """Why safetensors will not load this file; its header says how long it is."""
    if not weights.exists():
        return f"is missing, which {_INDEX} names"
    size = weights.stat().st_size
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            if not 0 < length <= min(_MOST_HEADER, size - 8):
                raise ValueError
            header = json.loads(file.read(length))
            tensors = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return f"has {size:,} bytes that are not those of a safetensors file"
    whole = 8 + length + max(tensors, default=0)
    return f"is cut: it has {size:,} of {whole:,} bytes" if size < whole else None
