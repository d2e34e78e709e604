"""The workloads: which verl module runs, and the overrides by which it finds its data, model and place for outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verl_regress.layout import JobDir


@dataclass(frozen=True)
class Places:
    """The paths that a job's overrides name, as every node sees them."""

    model: Path
    dataset: Path
    job: JobDir


@dataclass(frozen=True)
class Workload:
    """One of verl's trainers: `python -m module key=value …`."""

    module: str
    data_files: tuple[str, ...]
    overrides: Callable[[Places], list[str]]


def _trainer(places: Places) -> list[str]:
    """What every trainer gets; keys read in verl 0.7.0, 0.7.1 and 0.8.0 (trainer/config/*.yaml)."""
    return [
        f"hydra.run.dir={places.job.driver_log.parent}/hydra",
        "trainer.project_name=verl-regress",
        f"trainer.experiment_name={places.job.path.name}",
        "trainer.logger=[console,file]",
        "trainer.total_epochs=1",
        "trainer.save_freq=10",
        f"trainer.default_local_dir={places.job.checkpoints}",
    ]


def _reinforcement(places: Places, estimator: str) -> list[str]:
    return [
        *_trainer(places),
        f"algorithm.adv_estimator={estimator}",
        f"data.train_files={places.dataset}/train.parquet",
        f"data.val_files={places.dataset}/test.parquet",
        f"actor_rollout_ref.model.path={places.model}",
    ]


def _ppo(places: Places) -> list[str]:
    return [*_reinforcement(places, "gae"), f"critic.model.path={places.model}"]


WORKLOADS: dict[str, Workload] = {
    "ppo": Workload("verl.trainer.main_ppo", ("train.parquet", "test.parquet"), _ppo),
}

# No layer may move these: a job writes into its own directory and nowhere else.
FIXED_KEYS = ("trainer.default_local_dir", "hydra.run.dir")
