"""Makes the batches of verl's V1 trainer the same from run to run.

Touches, read in verl 0.9.1 and main at 1dda039b:

- ``verl.trainer.ppo.v1.trainer_base.uuid``: prompts get uuid4 as their uid, and some code sorts batches by it. Here
  uids are counted.
- ``verl.trainer.ppo.v1.replay_buffer.ReplayBuffer._materialize_batch``: a batch keeps the order in which answers
  finished. It differs from run to run, and so do mini batches, the order of additions and the gradients. Here a batch
  is sorted by prompt, session and index. With ``UNORDERED`` as 1 in the job's environment it is not: such runs are
  noisy, as those on GPUs are.
- ``ReplayBuffer.poll_interval``: the trainer checks every two seconds whether all answers are there, longer than a
  rehearsal needs to give them. Here it checks every ``POLL_SECONDS``.
"""

import itertools
import os
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from verl_rehearsal.symbols import require

POLL_SECONDS = 0.05
UNORDERED = "VERL_REHEARSAL_UNORDERED"


def apply(module: ModuleType) -> None:
    """Count uids, or sort batches; ``module`` is ``trainer_base`` or ``replay_buffer`` of ``verl.trainer.ppo.v1``."""
    if module.__name__.endswith(".trainer_base"):
        require(module, "uuid.uuid4", hook="order")
        numbers = itertools.count()
        # Digits only: the part of a trajectory's key before the first "_" is its prompt's uid.
        module.uuid = SimpleNamespace(uuid4=lambda: f"{next(numbers):012d}")  # type: ignore[attr-defined]
        return
    taken = ("partition_id", "selected_prompt_uids", "partition_snapshot")
    require(module, "ReplayBuffer._materialize_batch", *taken, hook="order")
    require(module, "ReplayBuffer._wait_for_next_poll", hook="order")
    materialize_batch = module.ReplayBuffer._materialize_batch
    wait_for_next_poll = module.ReplayBuffer._wait_for_next_poll

    def materialize_sorted(
        buffer: Any, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: Mapping[str, Any]
    ) -> Any:
        ordered = {key: partition_snapshot[key] for key in sorted(partition_snapshot, key=_sort_key)}
        return materialize_batch(buffer, partition_id, sorted(selected_prompt_uids), ordered)

    def wait_shortly(buffer: Any, *args: Any) -> Any:
        buffer.poll_interval = POLL_SECONDS
        return wait_for_next_poll(buffer, *args)

    if os.environ.get(UNORDERED) != "1":
        module.ReplayBuffer._materialize_batch = materialize_sorted
    module.ReplayBuffer._wait_for_next_poll = wait_shortly


def _sort_key(key: str) -> tuple[str, tuple[int, ...]]:
    """Return the sort key for a key: ``{uid}`` of a prompt, ``{uid}_{session}_{index}`` of an answer."""
    uid, *numbers = key.split("_")
    return uid, tuple(int(number) for number in numbers)
