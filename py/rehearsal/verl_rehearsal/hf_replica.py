"""The trainer's side of the rollout ``hf_cpu``: starts the server of one replica and names it."""

import asyncio
from typing import Any, NoReturn

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.hf_server import HFServer


def server_name(replica_rank: int) -> str:
    """Return the name of the replica's Ray actor, by which its training worker finds it."""
    return f"hf_server_{replica_rank}_0"


class HFReplica(RolloutReplica):
    """One server beside one training worker, sharing its node.

    Implements ``verl.workers.rollout.replica.RolloutReplica``, read in verl 0.7.0 to 0.9.1 and main at 1dda039b;
    ``get_ray_class_with_init_args`` is abstract in 0.7.0 only.
    """

    async def launch_servers(self) -> None:
        """Start the server beside its training worker. Raises RehearsalError for other than hybrid replicas of one."""
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
            .remote(
                self.model_config.path,
                response_length=self.config.response_length,
                max_num_seqs=self.config.max_num_seqs,
            )
        )
        await server.__ray_ready__.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"hf_cpu/{self.replica_rank}"  # verl only needs it to differ between replicas

    async def wake_up(self) -> None:
        """Have the training worker send its weights where that is how verl syncs them.

        verl 0.7.0 has no checkpoint engine: there the manager wakes the replicas before each generation, and what wakes
        is ``ActorRolloutRefWorker.wake_up``, which updates the rollout's weights. Later workers have no such method.
        """
        await self._call_workers("wake_up")

    async def sleep(self) -> None:
        """Have the training worker change back to training, in verl 0.7.0 only; see ``wake_up``."""
        await self._call_workers("sleep")

    async def _call_workers(self, method: str) -> None:
        await asyncio.gather(*(getattr(worker, method).remote() for worker in self.workers if hasattr(worker, method)))

    def get_ray_class_with_init_args(self) -> NoReturn:
        """Only colocated and standalone replicas have workers of their own, and ``launch_servers`` refuses those."""
        raise RehearsalError(
            "the rollout hf_cpu serves hybrid replicas only, which have no workers of their own: train synchronously"
        )
