"""What a job takes from a cluster: the devices that verl's processes use, one each, as Ray counts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# Maps verl's trainer.device to Ray's resource (single_controller/ray/base.py of 0.7.1); other names stay the same. From
# 0.9.1 on the platform names the resource, which on every machine is the one of the right trainer.device.
_RESOURCE = {"cuda": "GPU", "npu": "NPU"}
# The pools that verl's trainers make (main_ppo.py and sft_trainer_ray.py of 0.7.1 to 0.9.1). A reward model has its own
# if its config says so; that config moved in 0.7.1.
_TRAINER = "trainer"
_REWARD_MODELS = ("reward.reward_model", "reward_model")


@dataclass(frozen=True)
class Devices:
    """`count` of Ray's resource `resource`."""

    resource: str
    count: int

    @classmethod
    def of(cls, value: Callable[[str], Any]) -> Devices:
        """The devices of a job with verl's config; `value` gives the config's value at a dotted key, None if there is none."""
        pools = [_TRAINER, *(pool for pool in _REWARD_MODELS if value(f"{pool}.enable_resource_pool") is True)]
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
