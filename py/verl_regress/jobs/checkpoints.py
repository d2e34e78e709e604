"""The checkpoints of an attempt: which exist, which are complete, and how a trainer continues from one."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_regress.base import records
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
    0.8.0): a checkpoint with a higher N is half-written. verl removes old ones while it saves, and may keep
    fewer critics than actors (max_critic_ckpt_to_keep), so the remaining ones are checked too.
    """
    try:
        latest = int(read_text(job.checkpoints / "latest_checkpointed_iteration.txt"))
    except (FileNotFoundError, ValueError):
        return None
    saved = [job.checkpoints / name for name in names(job) if step_of(name) <= latest]
    needed = _needed(job)
    return next((path for path in reversed(saved) if _is_whole(path, needed)), None)


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


def _needed(job: JobDir) -> frozenset[str] | None:
    """The parts of each of the job's checkpoints; None if no submission made its directory.

    RL's have the actor, and the critic if verl trains one (its need_critic, 0.7.1 to 0.9.1). SFT's have no parts, and its
    config no `algorithm`.
    """
    try:
        config = config_of(job)
    except FileNotFoundError:
        return None
    if "algorithm" not in config:
        return frozenset()
    has_critic = section(config, "critic").get("enable")
    if has_critic is None:
        has_critic = section(config, "algorithm").get("adv_estimator") == "gae"
    return frozenset({"actor", "critic"} if has_critic else {"actor"})


def config_of(job: JobDir) -> dict[str, Any]:
    """The config that Hydra composed for the trainer, `config/verl_config.yaml`. Raises OSError and Unreadable."""
    file = job.config / "verl_config.yaml"
    with contextlib.suppress(yaml.YAMLError, RecursionError, ValueError):
        config = yaml.safe_load(read_text(file))
        if isinstance(config, dict):
            return config
    raise records.not_as_written(file, "it is cut off, or no YAML mapping")


def section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A mapping of that config; an empty one if it has none of that name."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _is_whole(checkpoint: Path, needed: frozenset[str] | None) -> bool:
    """Does it have all ranks of every kind of file (FSDP, 0.7.1, 0.8.0), and the `needed` parts with their weights?"""
    ranks: dict[tuple[Path, str, int], int] = {}
    for path in checkpoint.rglob("*_world_size_*_rank_*.pt"):
        kind, _, of = path.stem.partition("_world_size_")
        key = (path.parent, kind, int(of.partition("_rank_")[0]))
        ranks[key] = ranks.get(key, 0) + 1
    parts = {path.name for path in checkpoint.iterdir()}
    if needed is None:
        needed = frozenset({"actor"} if "data.pt" in parts else ())  # RL's data.pt; SFT has data_0.pt
    return (
        bool(parts)
        and all(found == world for (_, _, world), found in ranks.items())
        and all(
            _has_weights(home, {kind for at, kind, _ in ranks if at == home})
            for home in map(checkpoint.joinpath, needed)
        )
    )


def _has_weights(part: Path, kinds: Collection[str]) -> bool:
    """Does the actor or the critic have weights? `kinds` are the kinds of FSDP's files there: other backends write none of
    those, but any number of the files below (Megatron 0.7.1 to 0.9.1: dist_ckpt, or huggingface with mbridge).
    """
    if kinds:
        return "model" in kinds
    return any(path.suffix in (".distcp", ".safetensors") for path in part.rglob("*"))


def continuing(checkpoint: Path) -> list[str]:
    """The overrides that make any trainer continue from a checkpoint and leave it unchanged (0.7.1 to 0.9.1)."""
    return ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}"]
