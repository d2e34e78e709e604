"""The checkpoints of an attempt: which exist, which are complete, and how a trainer continues from one."""

import hashlib
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from verl_regress.base.files import read_text
from verl_regress.base.layout import JobDir

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
    """Every `global_step_N` of this attempt, the newest first, with why it is not complete (None: it is).

    verl writes N to latest_checkpointed_iteration.txt when all of it is saved (0.7.1 to 0.9.1), and removes old ones while it saves.
    """
    try:
        latest = int(read_text(job.checkpoints / "latest_checkpointed_iteration.txt"))
    except (FileNotFoundError, ValueError):
        latest = 0
    for name in reversed(names(job)):
        path = job.checkpoints / name
        yield path, problem_of(path) if step_of(name) <= latest else "it was not saved to its end"


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


def problem_of(checkpoint: Path, gpus: int | None = None) -> str | None:
    """What keeps a trainer on so many GPUs from continuing from it (None: on any number); None if nothing does (0.7.1 to 0.9.1).

    RL's parts are the actor, and the critic where verl trains one. SFT has data_0.pt, and no parts. Only N GPUs load what N saved (FSDP).
    """
    paths = sorted(checkpoint.rglob("*"))
    is_sft = any(path.parent == checkpoint and path.match("data_*.pt") for path in paths)
    parts = (
        [checkpoint] if is_sft else [checkpoint / "actor", *(path for path in paths if path == checkpoint / "critic")]
    )
    for part in parts:
        # From FSDP or Megatron (dist_ckpt, or huggingface with mbridge).
        files = [path for path in paths if path.is_relative_to(part)]
        if not any(path.match("model_world_size_*") or path.suffix in (".distcp", ".safetensors") for path in files):
            return f"{'it' if is_sft else part.name} has no weights"
    if not is_sft and checkpoint / "data.pt" not in paths:
        return "it has no data.pt, so the data would begin again"
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
