"""Computes the rewards of replayed rollouts again, with the code of the job: cases of a suite with `recompute_rewards`.

verl 0.9.1 computes rewards in its agent loop (`AgentLoopWorker._compute_score`), which a replayed step leaves out, and takes the recorded ones.
Here its reward workers get each recorded answer as they get it from the agent loop. A recording without rewards is left alone: they come from
a reward model on the trainer's GPUs, with which verl computes them after a replay, too.
"""

import itertools
from collections.abc import Iterable, Mapping
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
        _score_v1(recorded["tensordict"])
        return recorded

    def replayed_v0(self: Any, step: int, generate: Any, manager: Any, prompts: Any) -> Any:
        recorded = replay_v0(self, step, generate, manager, prompts)
        print(SAYS, flush=True)
        _score_v0(recorded, prompts.non_tensor_batch)
        return recorded

    skip.torch = SimpleNamespace(load=load_v1, save=skip.torch.save)  # type: ignore[attr-defined]
    skip.RolloutSkip.warp_function = replayed_v0


def _score_v1(recorded: Any) -> None:
    """Score a TensorDict: a row for each answer, without padding, and what the agent loop had as objects."""
    import torch

    if recorded.get("rm_scores", None) is None:
        return
    prompts, answers = (recorded[name].unbind() for name in ("prompts", "responses"))
    names = [name for name in sorted(recorded.keys()) if not isinstance(recorded[name], torch.Tensor)]
    columns = {name: list(recorded[name]) for name in names}
    more = columns["extra_fields"]
    given = _rows({**columns, "__num_turns__": columns["num_turns"], "tool_extra_fields": more})
    rewards = [torch.zeros(len(answer)) for answer in answers]
    for row, fields, found in zip(rewards, more, _scores(prompts, answers, given), strict=True):
        row[-1] = found["reward_score"]
        fields["reward_extra_info"] = found["reward_extra_info"]
    recorded["rm_scores"] = torch.nested.as_nested_tensor(rewards, layout=torch.jagged)


def _score_v0(recorded: Any, given: Mapping[str, Any]) -> None:
    """Score a DataProto: a padded row for each answer, and what the agent loop added, as columns; `given` are those of the prompts."""
    import numpy as np

    batch, columns = recorded.batch, recorded.non_tensor_batch
    if batch.get("rm_scores", None) is None:
        return
    masks = batch["attention_mask"].bool().tensor_split([batch["prompts"].size(1)], dim=1)
    padded = zip((batch["prompts"], batch["responses"]), masks, strict=True)
    prompts, answers = ([row[kept] for row, kept in zip(rows, mask, strict=True)] for rows, mask in padded)
    known = {**given, "__num_turns__": columns["__num_turns__"], "tool_extra_fields": _rows(columns)}
    found = _scores(prompts, answers, _rows(known))
    batch["rm_scores"].zero_()
    for row, answer, each in zip(batch["rm_scores"], answers, found, strict=True):
        row[len(answer) - 1] = each["reward_score"]
    names = recorded.meta_info["reward_extra_keys"] = list(found[0]["reward_extra_info"])
    for name in names:
        columns[name] = np.array([each["reward_extra_info"][name] for each in found])


def _rows(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _scores(prompts: Iterable[Any], answers: Iterable[Any], given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What verl's reward workers find for each answer: `reward_score` and `reward_extra_info`."""
    import numpy as np
    import ray
    import torch
    from verl.protocol import DataProto

    names = [name for name in ray.util.list_named_actors() if name.startswith("reward_loop_worker_")]
    workers = itertools.cycle([ray.get_actor(name) for name in names])
    pending = []
    for prompt, answer, known in zip(prompts, answers, given, strict=True):
        tokens = {"prompts": prompt, "responses": answer, "input_ids": torch.cat([prompt, answer])}
        tokens["attention_mask"] = torch.ones_like(tokens["input_ids"])
        objects = {name: np.fromiter([value], dtype=object, count=1) for name, value in known.items()}
        data = DataProto.from_dict({name: row[None] for name, row in tokens.items()}, objects)
        pending.append(next(workers).compute_score.remote(data))
    return ray.get(pending)  # type: ignore[no-any-return]
