"""The trainer's side of the rollout ``hf_cpu``: starts the server of one replica and names it."""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.hf_server import HFServer


def server_name(replica_rank: int) -> str:
    """Return the name of the replica's Ray actor, by which its training worker finds it."""
    return f"hf_server_{replica_rank}_0"


class HFReplica(RolloutReplica):
    """One server next to one training worker, on the same node.

    Implements ``verl.workers.rollout.replica.RolloutReplica``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b. What Ray
    adds to each actor, ``__ray_call__`` and ``__ray_ready__``, is not documented; read in Ray 2.60.
    """

    async def launch_servers(self) -> None:
        """Start the server next to its training worker. Raises RehearsalError unless the replica is hybrid and of one worker."""
        if self.rollout_mode != RolloutMode.HYBRID or self.world_size != 1 or self.is_reward_model:
            raise RehearsalError(
                f"the rollout hf_cpu serves hybrid replicas of one training worker, not a replica of {self.world_size} "
                f"in {self.rollout_mode}: set tensor_model_parallel_size, data_parallel_size and "
                "pipeline_model_parallel_size of actor_rollout_ref.rollout to 1 and train without a reward model"
            )
        node_id = await self.workers[0].__ray_call__.remote(lambda _worker: ray.get_runtime_context().get_node_id())
        server: Any = (
            ray.remote(HFServer)
            .options(
                name=server_name(self.replica_rank),
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
            )
            .remote(self.model_config.path, response_length=self.config.response_length)
        )
        await server.__ray_ready__.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"hf_cpu/{self.replica_rank}"  # verl only needs it to differ between replicas

    async def wake_up(self) -> None:
        """Do nothing: there is no device memory to restore."""

    async def sleep(self) -> None:
        """Do nothing: there is no device memory to free."""
