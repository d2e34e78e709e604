"""What models and checkpoints on the shared root must contain for a job to begin with their weights: read from headers, never as a whole.

Only what certainly fails is refused. verl's loaders were read in 0.7.1 to 0.9.1.
"""

import json
import re
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from verl_regress.base.errors import BadInput, Refusals, shown
from verl_regress.base.layout import SharedRoot
from verl_regress.base.workloads import Workload
from verl_regress.jobs import checkpoints
from verl_regress.plan.compose import Composed
from verl_regress.plan.inputs import Input

_MOST_HEADER = 100_000_000  # bytes: the most that safetensors reads
_INDEX, _ONE = "model.safetensors.index.json", "model.safetensors"
# What ends the names of files of weights that transformers loads; a name in torch's pickle; and what a wrapper puts into a tensor's name.
_OF_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf")
_TENSOR = re.compile(rb"[\w.]+\.(?:weight|bias)")
_WRAPPED = re.compile(
    r"^(?:base_model\.model|module|_orig_mod)\.|\.(?:base_layer|lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)\b"
    r"|_fsdp_wrapped_module|_checkpoint_wrapped_module|_flat_param"
)
# In the names of the files that can be one.
_OF_TOKENIZER = ("tok", "vocab", "spiece", "sentencepiece", "bpe", ".model", ".py")
_RESUMED, _CHECKPOINT = "trainer.resume_from_path", re.compile("global_step_[0-9]+$")
_TRAINED = ("actor_rollout_ref.model", "model")  # whose tokenizer the job uses


def check(root: SharedRoot, workload: Workload, composed: Composed, read: Iterable[Input], wrong: Refusals) -> None:
    """Note in `wrong` a model or a checkpoint with which the trainer cannot take its first step, or would begin with other weights."""
    # What a link leads to elsewhere is, on the nodes, what they have there.
    for one in filter(lambda each: root.leads_to(each.path), read):
        # An index that is not one is left for verl.
        with wrong.noted(), suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            if one.key.endswith("model.path"):
                _check_model(one, composed)
    with wrong.noted():
        _check_checkpoint(root, workload, composed)


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
    if "config.json" not in names:  # the hub's cache, whose missing files the nodes may fetch
        return
    weights = {_ONE} & names
    if not weights and _INDEX in names:
        weights = {*json.loads((one.path / _INDEX).read_bytes())["weight_map"].values()}
    for name in sorted(weights):
        problem = _problem_of(one.path / name)
        if problem:
            raise BadInput(f"{one.named} is not usable, because {shown(name)} {problem}: copy the model again.")
    _need_own_names(one, names, weights)
    above = one.key.rpartition(".")[0]
    is_bare = weights and not any(mark in name.lower() for name in names for mark in _OF_TOKENIZER)
    if is_bare and above in _TRAINED and not composed.value(f"{above}.tokenizer_path"):
        raise BadInput(
            f"{one.named} has weights, and no file of a tokenizer: copy the model's tokenizer.json and tokenizer_config.json there, or name "
            f"a folder that has them with {above}.tokenizer_path."
        )


def _need_own_names(one: Input, names: set[str], weights: set[str]) -> None:
    """transformers draws a weight at random, with a warning in the log, if no tensor has its name (4.57, 5.10).

    Raises BadInput if the folder has no weights, or has those of a wrapper that was saved with its model inside.
    """
    known = weights or {name for name in names if name.endswith(_OF_WEIGHTS)}
    if not known:
        above = one.path.parent if one.path.name == "huggingface" else Path("CHECKPOINT/actor")
        raise BadInput(
            f"{one.named} has a config.json and no weights, as the folder huggingface of a checkpoint has: merge the checkpoint first ("
            f"python3 -m verl.model_merger merge --backend fsdp --local_dir {above} --target_dir NEW), and name the new folder."
        )
    for name in sorted(known):
        found = next(filter(_WRAPPED.search, _tensors_of(one.path / name)), None)
        if found is not None:
            raise BadInput(
                f"{one.named} is not a model as transformers loads it, because {shown(name)} has {shown(found, 80)}, the name in a wrapper that "
                "was saved with it (LoRA, FSDP, DDP or compile), so that all weights would be drawn at random: merge it (python3 -m "
                "verl.model_merger merge, or peft's merge_and_unload), and name the merged model."
            )


def _tensors_of(weights: Path) -> list[str]:
    """The names of the tensors in a file of weights: by the header of safetensors, or in the pickle of torch's zip."""
    if weights.suffix == ".safetensors":
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return list(json.loads(file.read(min(length, _MOST_HEADER))))
    if not zipfile.is_zipfile(weights):
        return []
    with zipfile.ZipFile(weights) as archive:
        pickles = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
        texts = [archive.read(each) for each in pickles if each.file_size <= _MOST_HEADER]
    return [name.decode() for text in texts for name in _TENSOR.findall(text)]


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
