"""Registers the rollout ``hf_cpu`` (mode ``async``).

Touches ``verl.workers.rollout.base._ROLLOUT_REGISTRY`` (the training worker's side) and
``verl.workers.rollout.replica.RolloutReplicaRegistry`` (the trainer's side), read in verl 0.7.1 to 0.9.1 and main at
1dda039b. verl comes with vLLM, SGLang and TensorRT-LLM servers; the rehearsal image has none of them.
"""

from types import ModuleType

from verl_rehearsal.symbols import require

NAME = "hf_cpu"


def apply(module: ModuleType) -> None:
    """Register ``hf_cpu`` with ``module``, one of the two registries' modules."""
    if module.__name__.endswith(".base"):
        require(module, "_ROLLOUT_REGISTRY", hook="rollout")
        module._ROLLOUT_REGISTRY[(NAME, "async")] = "verl_rehearsal.hf_rollout.HFRollout"
    else:
        require(module, "RolloutReplicaRegistry.register", "name", "loader", hook="rollout")
        module.RolloutReplicaRegistry.register(NAME, _replica_class)


def _replica_class() -> type:
    from verl_rehearsal.hf_replica import HFReplica

    return HFReplica
