"""The training worker's side of the rollout ``hf_cpu``: sends the actor's weights, and proves that they arrived."""

import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout

from verl_rehearsal import report
from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.hf_replica import server_name
from verl_rehearsal.weights import sha256_of


class HFRollout(BaseRollout):
    """Implements ``verl.workers.rollout.base.BaseRollout``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b.

    A replica is one training worker (``HFReplica.launch_servers`` refuses any other), so its rank is the worker's rank.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self._rank = int(os.environ["RANK"])
        self._server: Any = None
        self._updates: list[dict[str, object]] = []

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: there is no device memory to restore."""

    async def release(self) -> None:
        """Do nothing: there is no device memory to free."""

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], **kwargs: Any) -> None:
        """Send all weights to the server and report both sides' hashes.

        ``weights`` are the actor's full tensors by their Hugging Face names; ``global_steps`` comes from verl 0.7.1 on.
        Raises RehearsalError if the server then has other weights than the actor, for LoRA adapters, and for the wire
        formats of verl 0.9.1 that send differences.
        """
        if kwargs.get("peft_config") is not None:
            raise RehearsalError("the rollout hf_cpu loads whole models, not LoRA adapters: rehearse with lora_rank=0")
        if kwargs.get("wire_format", "named_tensors") != "named_tensors":
            raise RehearsalError(
                f"the rollout hf_cpu loads whole tensors, not {kwargs['wire_format']!r}: leave "
                "actor_rollout_ref.rollout.checkpoint_engine as verl has it"
            )
        tensors = {name: tensor.detach().cpu() for name, tensor in weights}
        actor_sha256 = sha256_of(tensors)
        if self._server is None:  # the servers start after the training workers
            self._server = ray.get_actor(server_name(self._rank))
        global_step = kwargs.get("global_steps")
        rollout_sha256 = await self._server.load_weights.remote(tensors, global_step)
        update = {"global_step": global_step, "actor_sha256": actor_sha256, "rollout_sha256": rollout_sha256}
        self._updates.append(update)
        report.write("rollout_weights", {"rank": self._rank, "node_ip": report.node_ip(), "updates": self._updates})
        if rollout_sha256 != actor_sha256:
            raise RehearsalError(
                f"after weight update {len(self._updates)} (global step {global_step}) replica {self._rank} holds "
                f"weights with sha256 {rollout_sha256}, the actor {actor_sha256}: the rollout would sample from another "
                "policy than the one being trained"
            )
