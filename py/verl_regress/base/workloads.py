"""The workloads: which verl module runs, and the overrides for its data, its model and its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_regress.base.ids import SFT_SUFFIX
from verl_regress.base.layout import JobDir


@dataclass(frozen=True)
class JobPaths:
    """What a job reads, and where it writes, as every node sees them."""

    model: Path
    dataset: Path
    job: JobDir
    reward_fn: Path | None = None


@dataclass(frozen=True)
class Workload:
    """One of verl's trainers: `python -m module key=value …`.

    `profile_keys` are the lists in the base config's trainer_overrides that apply to it, `seed_keys` what TRAIN_SEED sets, in any release,
    and `model_keys` what names the model. `has_critic` says whether it trains one; None: its trainer has no such choice. With
    `always_saves_last` the last step has a checkpoint even if `save_freq` asks for none. `dataset_suffix` is appended to the knob DATASET. Its
    processes need `hooks` (py/hooks/) and `env_vars`.
    """

    module: str
    profile_keys: tuple[str, ...]
    seed_keys: tuple[str, ...]
    model_keys: tuple[str, ...]
    data_files: tuple[str, str]
    estimator: tuple[str, ...] = ()
    has_reward: bool = True
    has_critic: bool | None = None
    always_saves_last: bool = False
    dataset_suffix: str = ""
    samples_key: str = ""
    hooks: tuple[str, ...] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)

    def overrides(self, paths: JobPaths) -> list[str]:
        """What sets the job's paths; keys read in verl 0.7.1 to 0.9.1 and main at 1dda039b (trainer/config/*.yaml)."""
        train, validation = self.data_files
        return [
            f"hydra.run.dir={paths.job.driver_log.parent}/hydra",
            "trainer.project_name=verl-regress",
            f"trainer.experiment_name={paths.job.ray_id}",
            "trainer.logger=[console,file]",
            "trainer.total_epochs=1",
            "trainer.save_freq=10",
            f"trainer.default_local_dir={paths.job.checkpoints}",
            *self.estimator,
            f"data.train_files={paths.dataset}/{train}",
            f"data.val_files={paths.dataset}/{validation}",
            *(f"{key}={paths.model}" for key in self.model_keys),
        ]


# Every key for a seed of these trainers on FSDP, in verl 0.7.1 to 0.9.1 and main at 1dda039b; docs/verdict.md says what
# each decides.
_RL_SEEDS = (
    "data.seed",
    "actor_rollout_ref.rollout.seed",
    "actor_rollout_ref.actor.data_loader_seed",
    "actor_rollout_ref.actor.fsdp_config.seed",
    "actor_rollout_ref.ref.fsdp_config.seed",
    "reward.reward_model.rollout.seed",
)
# The last one is the same key as the one before, in 0.7.1.
_CRITIC_SEEDS = ("critic.data_loader_seed", "critic.fsdp.seed", "critic.model.fsdp_config.seed")
# The data set reads data.seed, which no release has in its config.
_SFT_SEEDS = ("trainer.seed", "engine.seed", "++data.seed")

_ACTOR = "actor_rollout_ref.model.path"
_GRPO = Workload(
    "verl.trainer.main_ppo",
    ("rl", "grpo"),
    _RL_SEEDS,
    (_ACTOR,),
    ("train.parquet", "test.parquet"),
    ("algorithm.adv_estimator=grpo",),
    has_critic=False,
    # Where the trainer writes the prompts and answers of each step; in verl 0.7.1 to 0.9.1 and main at 1dda039b, V0 and V1.
    samples_key="trainer.rollout_data_dir",
    hooks=("transfer_queue_names",),
)

WORKLOADS: dict[str, Workload] = {
    "ppo": replace(
        _GRPO,
        profile_keys=("rl", "ppo"),
        seed_keys=(*_RL_SEEDS, *_CRITIC_SEEDS),
        model_keys=(_ACTOR, "critic.model.path"),
        estimator=("algorithm.adv_estimator=gae",),
        has_critic=True,
        hooks=(*_GRPO.hooks, "critic_attention"),
    ),
    "grpo": _GRPO,
    "sft": Workload(
        "verl.trainer.sft_trainer_ray",
        ("sft",),
        _SFT_SEEDS,
        ("model.path",),
        ("train.parquet", "val.parquet"),
        has_reward=False,
        always_saves_last=True,  # verl 0.7.1 to 0.9.1
        dataset_suffix=SFT_SUFFIX,
        hooks=("sft_driver",),
        # At this level it prints how many steps it will take, as the other trainers do anyway.
        env_vars={"RAY_ADDRESS": "auto", "VERL_SFT_LOGGING_LEVEL": "INFO"},
    ),
}

# No layer may change these: a job writes to its own directory and nowhere else.
FIXED_KEYS = ("trainer.default_local_dir", "hydra.run.dir")
