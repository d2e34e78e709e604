"""The checkpoints of an attempt: which exist, which are complete, and how a trainer continues from one."""

import hashlib
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from verl_regress.base.files import read_text, value_at
from verl_regress.base.layout import JobDir

Config = Callable[[str], Any]
"""verl's composed config: its value at a dotted key, None if there is none."""

ALL = ("model", "optimizer", "extra")  # verl's default for save_contents; load_contents is the same, unless it is set
_WEIGHTS = ("model", "hf_model")
# The files of each kind of contents, by the strategy of the engine that loads them (fsdp_checkpoint_manager.py and
# megatron_checkpoint_manager.py of 0.7.1 to 0.9.1). FSDP never loads what hf_model saves; with mbridge, Megatron does.
_FSDP = {
    "model": ("model_world_size_*.pt",),
    "optimizer": ("optim_world_size_*.pt",),
    "extra": ("extra_state_world_size_*.pt",),
}
_MEGATRON = {
    "model": ("*.distcp", "*.safetensors"),
    "hf_model": ("*.safetensors",),
    "optimizer": ("*.distcp",),
    "extra": ("*.distcp",),
}
_FILES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "fsdp": _FSDP,
    "fsdp2": _FSDP,
    "veomni": _FSDP,
    "megatron": _MEGATRON,
}
_ANY = {"model": ("model_world_size_*", "*.distcp", "*.safetensors")}  # of other strategies, or where none is recorded

_OF_RANK = re.compile(r"(.+)_world_size_([0-9]+)_rank_[0-9]+\.pt")  # FSDP
_NEVER_EMPTY = (".pt", ".distcp", ".safetensors")


def names(job: JobDir) -> list[str]:
    """The names `global_step_N`, in order of N."""
    found = [path.name for path in job.checkpoints.glob("global_step_*") if path.is_dir()]
    return sorted((name for name in found if name[12:].isdecimal()), key=lambda name: int(name[12:]))


def newest(job: JobDir) -> Path | None:
    """The newest complete `global_step_N` of this attempt, or None."""
    return next((path for path, problem in all_with_problems(job) if problem is None), None)


def all_with_problems(job: JobDir) -> Iterator[tuple[Path, str | None]]:
    """Every `global_step_N` of this attempt, the newest first, with why it is not complete for the config of the job (None: it is).

    verl writes N to latest_checkpointed_iteration.txt when all of it is saved (0.7.1 to 0.9.1), and removes old ones while it saves.
    """
    found = names(job)
    try:
        latest = int(read_text(job.checkpoints / "latest_checkpointed_iteration.txt"))
    except (FileNotFoundError, ValueError):
        latest = 0
    config = _recorded(job) if found else None
    for name in reversed(found):
        path = job.checkpoints / name
        yield path, problem_of(path, config) if step_of(name) <= latest else "it was not saved to its end"


def _recorded(job: JobDir) -> Config | None:
    """The config that a submission recorded; None if there is none that can be read."""
    import yaml  # takes milliseconds to load, and most commands about a job do without

    with suppress(OSError, ValueError, yaml.YAMLError):
        text = read_text(job.config / "verl_config.yaml")
        return partial(value_at, yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    return None


def weights_hash(checkpoint: Path) -> str | None:
    """One hash over all weights in a checkpoint of FSDP; None if it has none that can be read.

    torch saves a zip with one entry per tensor (`data/N`), and the checksum of each in the zip's directory, so no tensor is read (2.13).
    """
    found = hashlib.sha256()
    shards = sorted(checkpoint.rglob("model_world_size_*_rank_*.pt"))
    for shard in shards:
        found.update(f"{shard.relative_to(checkpoint)}\n".encode())
        try:
            with zipfile.ZipFile(shard) as archive:
                tensors = [each for each in archive.infolist() if "/data/" in each.filename]
        except (OSError, zipfile.BadZipFile):
            return None
        if not any(each.CRC for each in tensors):
            return None  # torch.serialization has an option that leaves the checksums out
        found.update("".join(f"{each.filename} {each.file_size} {each.CRC}\n" for each in tensors).encode())
    return found.hexdigest()[:16] if shards else None


def step_of(checkpoint: str) -> int:
    """The N of the name `global_step_N`."""
    return int(checkpoint.removeprefix("global_step_"))


@dataclass(frozen=True)
class Part:
    """A model that verl saves and loads: its folder in a checkpoint ("" for SFT), the key of its settings, what it saves and loads, and as
    which files.
    """

    folder: str
    key: str
    saves: tuple[str, ...] = ALL
    loads: tuple[str, ...] = ALL
    files: Mapping[str, Sequence[str]] = field(default_factory=lambda: _ANY)

    @property
    def named(self) -> str:
        """The setting that decides what is loaded, as messages name it."""
        return f"{self.key}.{'save' if self.loads == self.saves else 'load'}_contents=[{','.join(self.loads)}]"

    @property
    def loads_weights(self) -> bool:
        """Without them, verl begins with those of the model that the job names."""
        return bool(self._weights & {*self.loads})

    @property
    def missing(self) -> list[str]:
        """What it does not save of all that a training continues with."""
        saves_weights = bool(self._weights & {*self.saves})
        needed = [kind for kind in ALL if kind in self.files and not (kind == "model" and saves_weights)]
        return [kind for kind in dict.fromkeys((*needed, *self.loads)) if kind not in self.saves]

    @property
    def continues(self) -> bool:
        """Will a trainer continue from what it saves? All that is loaded must be there, and weights among it."""
        return self.loads_weights and {*self.loads} <= {*self.saves}

    @property
    def _weights(self) -> set[str]:
        return {kind for kind in _WEIGHTS if kind in self.files}


def parts_of(config: Config) -> list[Part]:
    """The parts of a checkpoint that a trainer with this config saves and loads: RL's critic only where it trains one."""
    if config("actor_rollout_ref") is None:
        return [_part(config, "", "checkpoint", str(config("engine.strategy")))]
    actor = "actor_rollout_ref.actor"
    found = [_part(config, "actor", f"{actor}.checkpoint", str(config(f"{actor}.strategy")))]
    has_critic = config("critic.enable")
    if has_critic if has_critic is not None else config("algorithm.adv_estimator") == "gae":
        found.append(_part(config, "critic", "critic.checkpoint", str(config("critic.strategy"))))
    return found


def _part(config: Config, folder: str, key: str, strategy: str) -> Part:
    saves, loads = config(f"{key}.save_contents"), config(f"{key}.load_contents")
    saves = tuple(saves) if isinstance(saves, list) else ALL
    return Part(folder, key, saves, tuple(loads) if isinstance(loads, list) else saves, _FILES.get(strategy, _ANY))


def problem_of(checkpoint: Path, config: Config | None = None, gpus: int | None = None) -> str | None:
    """What keeps a trainer with this config, on so many GPUs, from continuing from it; None if nothing does (0.7.1 to 0.9.1).

    It must have what the trainer will load. Without a config, its own parts must have weights. Only N GPUs load what N saved (FSDP).
    """
    paths = sorted(checkpoint.rglob("*"))
    is_sft = any(path.parent == checkpoint and path.match("data_*.pt") for path in paths)
    parts = parts_of(config) if config is not None else _parts_in(checkpoint, paths, is_sft=is_sft)
    for part in parts:
        home = checkpoint / part.folder
        problem = _problem_of_part(part, [path for path in paths if path.is_relative_to(home) and path.is_file()])
        if problem is not None:
            return problem
    data = "data_0.pt" if not parts[0].folder else "data.pt"
    if checkpoint / data not in paths:
        return f"it has no {data}, so the data would begin again"
    return _problem_of_files(checkpoint, paths, gpus)


def _parts_in(checkpoint: Path, paths: Sequence[Path], *, is_sft: bool) -> list[Part]:
    """Its own parts. SFT has data_0.pt, and no folders."""
    folders = [""] if is_sft else ["actor", *(["critic"] if checkpoint / "critic" in paths else [])]
    return [Part(folder, "", loads=("model",)) for folder in folders]


def _problem_of_part(part: Part, files: Sequence[Path]) -> str | None:
    """What it lacks of the files that are loaded, or that no weights are."""
    name, base = part.folder or "it", "so verl would begin with the base weights"
    if not part.loads_weights:
        has_weights = _has(files, part.files["model"])
        return f"{part.named} loads no weights, {base}" if has_weights else f"{_lacking(part, 'model')}, {base}"
    for kind in part.loads:
        if kind in part.files and not _has(files, part.files[kind]):
            return f"{name} has no weights" if kind in _WEIGHTS else _lacking(part, kind)
    return None


def _has(files: Sequence[Path], patterns: Sequence[str]) -> bool:
    return any(path.match(pattern) for path in files for pattern in patterns)


def _lacking(part: Part, kind: str) -> str:
    return f"{part.folder or 'it'} has no {' or '.join(part.files[kind])} ({part.named})"


def _problem_of_files(checkpoint: Path, paths: Sequence[Path], gpus: int | None) -> str | None:
    """A file that is empty, a rank that is missing, or another number of ranks than the job has."""
    ranks = Counter[tuple[Path, str, int]]()
    for path in paths:
        if path.suffix in _NEVER_EMPTY and path.is_file() and path.stat().st_size == 0:
            return f"{path.relative_to(checkpoint)} is empty"
        if match := _OF_RANK.fullmatch(path.name):
            ranks[path.parent.relative_to(checkpoint), match[1], int(match[2])] += 1
    for (place, kind, world), found in ranks.items():
        if found != world:
            return f"it has {found} of {world} files {place / kind}_world_size_{world}_rank_*.pt"
        if kind == "model" and gpus not in (None, world):
            return f"it was saved on {world} GPUs ({place / kind}_world_size_{world}_rank_*.pt), and this job trains on {gpus}"
    return None


def resume_overrides(checkpoint: Path) -> list[str]:
    """The overrides that make any trainer continue from a checkpoint and leave it unchanged (0.7.1 to 0.9.1)."""
    return ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}"]
