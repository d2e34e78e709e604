"""What a job takes from a cluster: the devices that verl's processes use, one each, as Ray counts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# Maps verl's trainer.device to Ray's resource (single_controller/ray/base.py of 0.7.1); other names stay the same. From
# 0.9.1 on the platform names the resource, which on every machine is the one of the right trainer.device.
_RESOURCE = {"cuda": "GPU", "npu": "NPU"}
# The pools that verl's trainers make (main_ppo.py, sft_trainer_ray.py and trainer/ppo/v1 of 0.7.1 to 0.9.1). A reward model
# (its config moved in 0.7.1) and the teachers of distillation (from 0.8.0 on) have their own if the setting says so, and the
# rollout has if the V1 trainer runs it apart from itself.
_TRAINER = "trainer"
_IF_TRUE = {
    "reward.reward_model": "reward.reward_model.enable_resource_pool",
    "reward_model": "reward_model.enable_resource_pool",
    "distillation": "distillation.enabled",
}
_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Devices:
    """`count` of Ray's resource `resource`."""

    resource: str
    count: int

    @classmethod
    def from_config(cls, value: Callable[[str], Any]) -> Devices:
        """The devices of a job with verl's config; `value` gives the config's value at a dotted key, None if there is none."""
        pools = [_TRAINER, *(pool for pool, setting in _IF_TRUE.items() if value(setting) is True)]
        if value("trainer.use_v1") is True and value("trainer.v1.trainer_mode") == "separate_async":
            pools.append(_ROLLOUT)
        device = str(value("trainer.device") or "cuda")
        return cls(_RESOURCE.get(device, device), sum(_pool(value, pool) for pool in pools))

    def recorded(self) -> dict[str, Any]:
        """The devices as config/resolved.json records them."""
        return {"resource": self.resource, "count": self.count}

    def on_node(self, resources: Mapping[str, float]) -> int:
        """How many of them a node with these resources has."""
        return int(resources.get(self.resource, 0))


def _pool(value: Callable[[str], Any], pool: str) -> int:
    nodes, on_each = value(f"{pool}.nnodes"), value(f"{pool}.n_gpus_per_node")
    # A value that is not a number is left for verl to refuse.
    return nodes * on_each if isinstance(nodes, int) and isinstance(on_each, int) else 0
