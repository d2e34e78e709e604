"""Computes the rewards of replayed rollouts again, with the code of the job: cases of a suite with `recompute_rewards`.

verl 0.9.1 computes rewards in its agent loop (`AgentLoopWorker._compute_score`), which a replayed step leaves out, and takes the recorded ones.
Here its reward workers get the recorded answers as a padded batch, as they get it for a reward model on the trainer's GPUs. A recording
without rewards is left alone: verl has them from such a model, with which it computes them after a replay, too.
"""

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from on_import import on_import

SAYS = "verl-regress: the rewards of a replayed batch are computed again"  # make verify looks for it in the log


def install() -> None:
    """Watch for the import of verl's replay."""
    on_import("verl.utils.skip.rollout_skip", _wrap)


def _wrap(skip: ModuleType) -> None:
    load, replay_v0 = skip.torch.load, skip.RolloutSkip.warp_function

    def load_v1(*args: Any, **options: Any) -> Any:
        recorded = load(*args, **options)
        print(SAYS, flush=True)
        if recorded["tensordict"].get("rm_scores", None) is not None:
            _score_v1(recorded["tensordict"])
        return recorded

    def replayed_v0(self: Any, step: int, generate: Any, manager: Any, prompts: Any) -> Any:
        recorded = replay_v0(self, step, generate, manager, prompts)
        print(SAYS, flush=True)
        if recorded.batch.get("rm_scores", None) is not None:
            _score_v0(recorded, prompts.non_tensor_batch)
        return recorded

    skip.torch = SimpleNamespace(load=load_v1, save=skip.torch.save)  # type: ignore[attr-defined]
    skip.RolloutSkip.warp_function = replayed_v0


def _score_v1(recorded: Any) -> None:
    """Score a TensorDict: a row for each answer, without padding, and what the agent loop had as objects."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows = [recorded[name].unbind() for name in ("prompts", "responses")]
    masks = [pad_sequence([torch.ones_like(row) for row in each], batch_first=True) for each in rows]
    prompts, answers = (pad_sequence(each, batch_first=True) for each in rows)
    names = [name for name in sorted(recorded.keys()) if not isinstance(recorded[name], torch.Tensor)]
    columns = {name: list(recorded[name]) for name in names}
    more = columns["extra_fields"]
    given = {**columns, "__num_turns__": columns["num_turns"], "tool_extra_fields": more}
    rewards, infos = _scored(prompts, answers, torch.cat(masks, dim=1), given)
    for fields, info in zip(more, infos, strict=True):
        fields["reward_extra_info"] = info
    scores = [row[: len(answer)] for row, answer in zip(rewards, rows[1], strict=True)]
    recorded["rm_scores"] = torch.nested.as_nested_tensor(scores, layout=torch.jagged)


def _score_v0(recorded: Any, prompts: Mapping[str, Any]) -> None:
    """Score a DataProto: a padded row for each answer, and what the agent loop added, as columns; `prompts` has those of the prompts."""
    import numpy as np

    batch, columns = recorded.batch, recorded.non_tensor_batch
    added = {name: column for name, column in columns.items() if name not in recorded.meta_info["reward_extra_keys"]}
    more = [dict(zip(added, row, strict=True)) for row in zip(*added.values(), strict=True)]
    given = {**prompts, "__num_turns__": columns["__num_turns__"], "tool_extra_fields": more}
    batch["rm_scores"], infos = _scored(batch["prompts"], batch["responses"], batch["attention_mask"], given)
    recorded.meta_info["reward_extra_keys"] = list(infos[0])
    columns.update({name: np.array([info[name] for info in infos]) for name in infos[0]})


def _scored(prompts: Any, answers: Any, mask: Any, given: Mapping[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """The `rm_scores` of padded answers, and the `reward_extra_info` of each, by verl's reward workers."""
    import numpy as np
    import ray
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
    from verl.protocol import DataProto

    objects = {name: np.fromiter(column, dtype=object) for name, column in given.items()}
    data = DataProto.from_dict({"prompts": prompts, "responses": answers, "attention_mask": mask}, objects)
    names = [name for name in ray.util.list_named_actors() if name.startswith("reward_loop_worker_")]
    if not names:
        raise RuntimeError(
            "verl has no reward workers (reward_loop_worker_N): leave recompute_rewards out of the suite"
        )
    parts = data.split(-(-len(data) // len(names)))  # at most one for each worker
    pending = [ray.get_actor(name).compute_score_batch.remote(part) for name, part in zip(names, parts, strict=False)]
    found = [each for part in ray.get(pending) for each in part]
    rewards = RewardManagerBase.assemble_rm_scores(data, [each["reward_score"] for each in found])
    return rewards, [each["reward_extra_info"] for each in found]
