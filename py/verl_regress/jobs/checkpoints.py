"""The checkpoints of an attempt: which exist, which are complete, and how a trainer continues from one."""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from pathlib import Path

from verl_regress.base.files import read_text
from verl_regress.base.layout import JobDir


def names(job: JobDir) -> list[str]:
    """The names `global_step_N`, in order of N."""
    found = [path.name for path in job.checkpoints.glob("global_step_*") if path.is_dir()]
    return sorted((name for name in found if name[12:].isdecimal()), key=lambda name: int(name[12:]))


def why_none(job: JobDir) -> str:
    """`no checkpoint`, and the reason if `make gc` removed them (verl_regress.store.retention)."""
    collected = job.read_state("collected")
    return (
        "no checkpoint"
        if collected is None
        else f"no checkpoint any more ('make gc' removed them at {collected['time']})"
    )


def newest(job: JobDir) -> Path | None:
    """The newest complete `global_step_N` of this attempt, or None.

    verl writes N to latest_checkpointed_iteration.txt when all of global_step_N is saved, RL and SFT alike (0.7.1,
    0.8.0): a checkpoint with a higher N is half-written. verl removes old ones while it saves, so the remaining ones are checked too.
    """
    try:
        latest = int(read_text(job.checkpoints / "latest_checkpointed_iteration.txt"))
    except (FileNotFoundError, ValueError):
        return None
    saved = [job.checkpoints / name for name in names(job) if step_of(name) <= latest]
    return next(filter(_is_complete, reversed(saved)), None)


def weights_hash(checkpoint: Path) -> str | None:
    """One hash over all weights in a checkpoint of FSDP; None if it has none that can be read.

    torch saves a zip with one entry per tensor (`data/N`), and the checksum of each in the zip's directory, so nothing is unpickled
    and no tensor is read. Two runs that end with equal weights have equal entries (torch 2.13; the pickle beside them differs).
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


def _is_complete(checkpoint: Path) -> bool:
    """Does each part have weights, and all ranks of every kind of file (FSDP, 0.7.1, 0.8.0)?

    RL's parts are the actor, and the critic where verl trains one. SFT has data_0.pt, and no parts.
    """
    ranks = Counter[tuple[Path, str, str]]()
    for path in checkpoint.rglob("*_world_size_*_rank_*.pt"):
        kind, _, of = path.stem.partition("_world_size_")
        ranks[path.parent, kind, of.partition("_rank_")[0]] += 1
    is_sft = any(checkpoint.glob("data_*.pt"))
    parts = [checkpoint] if is_sft else [checkpoint / "actor", *checkpoint.glob("critic")]
    return all(map(_has_weights, parts)) and all(found == int(world) for (_, _, world), found in ranks.items())


def _has_weights(part: Path) -> bool:
    """From FSDP or Megatron (0.7.1 to 0.9.1: dist_ckpt, or huggingface with mbridge)."""
    return any(
        path.name.startswith("model_world_size_") or path.suffix in (".distcp", ".safetensors")
        for path in part.rglob("*")
    )


def continuing(checkpoint: Path) -> list[str]:
    """The overrides that make any trainer continue from a checkpoint and leave it unchanged (0.7.1 to 0.9.1)."""
    return ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}"]
