"""The devices that a job with verl's config takes, and the nodes on which they fit."""

import pytest
from omegaconf import OmegaConf

from verl_regress.plan.devices import Devices, Pool

POOL = {"nnodes": 2, "n_gpus_per_node": 4}
REWARD = {"enable_resource_pool": True, "nnodes": 1, "n_gpus_per_node": 3}
DISTILLATION = {"enabled": True, "nnodes": 1, "n_gpus_per_node": 2}
APART = {"actor_rollout_ref": {"rollout": {"nnodes": 1, "n_gpus_per_node": 5}}}
V1 = {"use_v1": True, "v1": {"trainer_mode": "separate_async"}}


def devices(trainer=POOL, **config):
    whole = OmegaConf.create({"trainer": trainer, **config})
    return Devices.from_config(lambda key: OmegaConf.select(whole, key))


@pytest.mark.parametrize(
    ("config", "resource", "count"),
    [
        ({}, "GPU", 8),
        ({"trainer": {**POOL, "device": "cpu"}}, "cpu", 8),
        ({"trainer": {**POOL, "device": "npu"}}, "NPU", 8),
        ({"reward_model": REWARD}, "GPU", 11),
        ({"reward": {"reward_model": REWARD}}, "GPU", 11),
        ({"distillation": DISTILLATION}, "GPU", 10),
        ({"distillation": {**DISTILLATION, "enabled": False}}, "GPU", 8),
        ({"trainer": {**POOL, **V1}, **APART}, "GPU", 13),
        ({"trainer": {**POOL, **V1, "v1": {"trainer_mode": "sync"}}, **APART}, "GPU", 8),
    ],
)
def test_the_devices_that_the_job_will_take(config, resource, count):
    found = devices(**config)
    assert (found.resource, found.count) == (resource, count)


def test_devices_fit_on_nodes_pool_by_pool():
    both = devices(reward_model=REWARD)
    assert both.pools == (Pool("trainer", 2, 4), Pool("reward_model", 1, 3))
    fits = [both.misfit(has) is None for has in ([4, 4, 3], [8, 4], [11], [4, 4, 2, 2], [3] * 4)]
    assert fits == [True, True, True, False, False]
    apart = devices({**POOL, **V1}, **APART)
    assert apart.misfit([4, 4, 1, 1, 1, 1, 1]) is None  # replicas of the rollout may be smaller
