"""What a job takes from a cluster: the devices that verl's processes use, one each, as Ray counts them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Maps verl's trainer.device to Ray's resource (single_controller/ray/base.py of 0.7.1); other names stay the same. From
# 0.9.1 on the platform names the resource, which on every machine is right for its trainer.device.
_RESOURCE = {"cuda": "GPU", "npu": "NPU"}
# The pools that verl's trainers make beyond their own (main_ppo.py, sft_trainer_ray.py and trainer/ppo/v1 of 0.7.1 to 0.9.1), each with the
# setting that makes it: of a reward model (its config moved in 0.7.1), and of the teachers of distillation (from 0.8.0 on).
_IF_TRUE = {
    "reward.reward_model": "reward.reward_model.enable_resource_pool",
    "reward_model": "reward_model.enable_resource_pool",
    "distillation": "distillation.enabled",
}


@dataclass(frozen=True)
class Pool:
    """One of verl's pools: as many devices on each of so many nodes. Ray keeps those of a node together (STRICT_PACK)."""

    key: str
    nodes: int
    on_each: int


@dataclass(frozen=True)
class Devices:
    """`count` of Ray's resource `resource`; `pools` must have whole nodes."""

    resource: str
    count: int
    pools: tuple[Pool, ...] = ()

    @classmethod
    def from_config(cls, value: Callable[[str], Any]) -> "Devices":
        """The devices of a job with verl's config; `value` gives the config's value at a dotted key, None if there is none."""
        keys = ["trainer", *(key for key, setting in _IF_TRUE.items() if value(setting) is True)]
        pools = tuple(filter(None, (_pool(value, key) for key in keys)))
        # The V1 trainer may run the rollout apart from itself; its replicas may be smaller than a node.
        is_apart = value("trainer.use_v1") is True and value("trainer.v1.trainer_mode") == "separate_async"
        rollout = _pool(value, "actor_rollout_ref.rollout") if is_apart else None
        device = str(value("trainer.device") or "cuda")
        count = sum(pool.nodes * pool.on_each for pool in (*pools, rollout) if pool is not None)
        return cls(_RESOURCE.get(device, device), count, pools)

    @property
    def trainer(self) -> int | None:
        """How many the trainer itself has; None if the config does not say it."""
        return next((pool.nodes * pool.on_each for pool in self.pools if pool.key == "trainer"), None)

    def misfit(self, has: Sequence[int]) -> Pool | None:
        """A pool that can never fit on nodes that have so many devices each, however free they are; None if there is none."""
        for pool in self.pools:
            wanted = sum(each.nodes * (each.on_each // pool.on_each) for each in self.pools)
            if wanted > sum(node // pool.on_each for node in has):
                return pool
        return None


def _pool(value: Callable[[str], Any], key: str) -> Pool | None:
    """The pool of that key; None if it has no devices, or a value that is not a number, which is left for verl to refuse."""
    nodes, on_each = value(f"{key}.nnodes"), value(f"{key}.n_gpus_per_node")
    are_numbers = isinstance(nodes, int) and isinstance(on_each, int)
    return Pool(key, nodes, on_each) if are_numbers and nodes > 0 and on_each > 0 else None
