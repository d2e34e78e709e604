"""Runs one of verl's trainers as a rehearsal: with the tiny model, the sums, and the overrides that let it train on CPUs.

The overrides are for one machine and verl 0.7.1 to 0.9.1; env/ray/cpu.yaml has those of a cluster (a test compares them).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_rehearsal import report
from verl_rehearsal.errors import RehearsalError


@dataclass(frozen=True)
class RehearsedTrainer:
    """One of verl's trainers: its module, its overrides, the key of its model, and how the names of its data files begin."""

    module: str
    overrides: tuple[str, ...]
    model_key: str = "actor_rollout_ref.model.path"
    data_prefix: str = ""


# With ? an override is left out where this verl's config lacks its key, with ! nothing may change it.
_RL = (
    "!trainer.device=cpu",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    "trainer.total_training_steps=10",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
    "?trainer.use_legacy_worker_impl=disable",
    "?transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "reward.num_workers=1",
    "data.train_batch_size=16",
    "data.max_prompt_length=64",
    "data.max_response_length=24",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.model.use_remove_padding=True",
    "?++actor_rollout_ref.model.lora.merge=True",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "!actor_rollout_ref.actor.strategy=fsdp2",
    "!actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "!actor_rollout_ref.ref.strategy=fsdp2",
    "!actor_rollout_ref.ref.fsdp_config.strategy=fsdp2",
    "actor_rollout_ref.ref.use_torch_compile=False",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
    "!actor_rollout_ref.rollout.name=hf_cpu",
    "actor_rollout_ref.rollout.mode=async",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
)
_PPO = (
    *_RL,
    "algorithm.adv_estimator=gae",
    "critic.strategy=${oc.select:critic.fsdp.strategy,fsdp}",
    "critic.model.path=${actor_rollout_ref.model.path}-critic",
    "critic.model.use_remove_padding=True",
    "+critic.model.override_config.attn_implementation=sdpa",
    "?critic.model.fsdp_config.strategy=fsdp2",
    "?critic.fsdp.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",  # of a rank's mini-batch of 4: gradients are accumulated
    "critic.ppo_micro_batch_size_per_gpu=2",
    "?++critic.fsdp.use_dynamic_bsz=False",  # without these three verl (0.7.0 to 0.9.1) does not use that size
    "?++critic.fsdp.micro_batch_size_per_gpu=2",
    "?++critic.fsdp.infer_micro_batch_size_per_gpu=4",
)
_GRPO = (
    *_RL,
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.use_kl_loss=True",
)
_SFT = (
    "!trainer.device=cpu",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    "trainer.total_training_steps=10",
    "data.train_batch_size=16",
    "data.micro_batch_size_per_gpu=8",
    "data.max_length=96",
    "data.use_dynamic_bsz=False",
    "model.use_remove_padding=True",
    "+model.override_config.attn_implementation=sdpa",
    "!engine.strategy=fsdp2",
    "engine.use_torch_compile=False",
    "optim.lr=1e-4",
)
TRAINERS = {
    "ppo": RehearsedTrainer("verl.trainer.main_ppo", _PPO),
    "grpo": RehearsedTrainer("verl.trainer.main_ppo", _GRPO),
    "sft": RehearsedTrainer("verl.trainer.sft_trainer_ray", _SFT, model_key="model.path", data_prefix="sft_"),
}
_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # compiling costs more than it saves on a tiny model, and needs a C++ compiler
    "OMP_NUM_THREADS": "1",  # one thread a process: they share a few cores
    "HF_HUB_OFFLINE": "1",
}


def command(workload: str, run: Path, model: Path, data: Path, overrides: Sequence[str]) -> list[str]:
    """The trainer's argv, for this Python: what it trains on, where it writes, the overrides, and then the user's own.

    Raises RehearsalError if verl, the model or the data are not there, or if the user's override would change what a rehearsal needs.
    """
    for need, made_by in ((model / "config.json", "model"), (data / "train.parquet", "data")):
        if not need.is_file():
            raise RehearsalError(
                f"{need} does not exist: make it with 'python -m verl_rehearsal {made_by} {need.parent}'."
            )
    trainer = TRAINERS[workload]
    own = [
        f"data.train_files={data.absolute()}/{trainer.data_prefix}train.parquet",
        f"data.val_files={data.absolute()}/{trainer.data_prefix}test.parquet",
        f"{trainer.model_key}={model.absolute()}",
        f"trainer.default_local_dir={run.absolute()}/checkpoints",
        f"hydra.run.dir={run.absolute()}/hydra",
        "trainer.logger=[console,file]",
    ]
    ours = [*_known(trainer.overrides), *own]
    fixed = {_key(each) for each in trainer.overrides if each.startswith("!")}
    for override in overrides:
        if _key(override) in fixed:
            raise RehearsalError(f"{override} is not possible in a rehearsal, which trains on CPUs: leave it out.")
    given = {_key(each) for each in overrides}
    last = {_key(each): each for each in ours if _key(each) not in given}  # of two, as of GRPO's batch size
    return [sys.executable, "-m", trainer.module, *last.values(), *overrides]


def start(argv: list[str], run: Path) -> None:
    """Become the trainer of `command`, which writes metrics.jsonl, reports/ and checkpoints/ under `run`.

    Raises RehearsalError if `run` exists, because records are appended to.
    """
    try:
        run.mkdir(parents=True)
    except FileExistsError:
        raise RehearsalError(f"{run} exists, and may have the records of another run: name a new directory.") from None
    os.environ.update(environment(run))
    os.execv(argv[0], argv)


def environment(run: Path) -> dict[str, str]:
    """The variables that the trainer needs in addition to its argv."""
    return {
        **_ENVIRONMENT,
        "VERL_REHEARSAL": "1",
        report.DIRECTORY_VARIABLE: f"{run.absolute()}/reports",
        "VERL_FILE_LOGGER_PATH": f"{run.absolute()}/metrics.jsonl",
    }


def _key(override: str) -> str:
    return override.lstrip("!?+~").partition("=")[0]


def _known(overrides: Sequence[str]) -> Iterator[str]:
    """Without the marks, and without what this verl's config does not have."""
    config = None
    for override in overrides:
        if override.startswith("?"):
            from omegaconf import OmegaConf

            config, key = config or _composed(), _key(override)
            needed = key.rpartition(".")[0] if override.startswith("?++") else key  # what it is added to
            if OmegaConf.select(config, needed) is None:
                continue
        yield override.lstrip("!?")


def _composed() -> Any:
    """The config of verl's RL trainer without overrides; imports no verl."""
    from hydra import compose, initialize_config_dir

    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise RehearsalError(
            f"This Python ({sys.executable}) has no verl: install it, or put a checkout on PYTHONPATH."
        )
    with initialize_config_dir(str(Path(spec.origin).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer")
