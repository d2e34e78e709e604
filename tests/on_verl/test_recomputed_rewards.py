"""The hook that computes replayed rewards again, on what verl's own V1 and V0 trainers record and read."""

import importlib
import types
from typing import ClassVar

import numpy as np
import pytest
import ray
import torch
from verl.protocol import DataProto
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

import recomputed_rewards

PROMPTS, ANSWERS = ([5, 6, 7], [8, 9], [8]), ([1, 2], [3, 4, 5], [6])
TRUTHS = ("12", "7", "1")
MASKS = [[1, 1, 1, 1, 1, 0], [1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 0]]


class Worker:
    """A reward worker: the reward is the number of the answer's tokens plus the ground truth."""

    seen: ClassVar[list] = []

    def __init__(self):
        self.compute_score_batch = types.SimpleNamespace(remote=self.score)

    def score(self, data):
        Worker.seen.append(data)
        return [self.score_of(answer) for answer in data]

    def score_of(self, answer):
        tokens = answer.batch["attention_mask"][3:].sum().item()
        reward = tokens + float(answer.non_tensor_batch["reward_model"]["ground_truth"])
        return {"reward_score": reward, "reward_extra_info": {"acc": reward}}


@pytest.fixture
def skip(monkeypatch):
    """verl's module of the replay, with the hook, beside two reward workers and an actor of another kind."""
    module = importlib.import_module("verl.utils.skip.rollout_skip")
    monkeypatch.setattr(module, "torch", module.torch)
    monkeypatch.setattr(module.RolloutSkip, "warp_function", module.RolloutSkip.warp_function)
    named = ["reward_loop_worker_0", "other", "reward_loop_worker_1"]
    monkeypatch.setattr(ray.util, "list_named_actors", lambda: named)
    monkeypatch.setattr(ray, "get_actor", {name: Worker() for name in named if name != "other"}.__getitem__)
    monkeypatch.setattr(ray, "get", lambda pending: pending)
    monkeypatch.setattr(Worker, "seen", [])
    monkeypatch.setattr(recomputed_rewards, "on_import", lambda name, then: then(importlib.import_module(name)))
    recomputed_rewards.install()
    return module


def given(number):
    return {"data_source": "sums", "reward_model": {"ground_truth": TRUTHS[number]}, "extra_info": {"index": number}}


def recorded_by_v1(path, *, scored=True):
    rows = []
    for number, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        tokens = {"prompts": torch.tensor(prompt), "responses": torch.tensor(answer)}
        scores = {"rm_scores": torch.full((len(answer),), 0.5)} if scored else {}
        fields = {"reward_extra_info": {"acc": 0.5}, "turn_scores": [number + 1]}
        more = {"extra_fields": fields, "num_turns": 2}
        rows.append({**tokens, **scores, **more, **given(number)})
    torch.save({"tensordict": list_of_dict_to_tensordict(rows), "keys": ["a_0_0", "b_0_0"]}, path)
    return path


def test_v1_replays_the_rewards_of_its_own_code(skip, tmp_path, capsys):
    found = skip.torch.load(recorded_by_v1(tmp_path / "tq_batch.pt"), weights_only=False)["tensordict"]
    assert [row.tolist() for row in found["rm_scores"].unbind()] == [[0, 14], [0, 0, 10], [2]]
    assert [each["reward_extra_info"]["acc"] for each in found["extra_fields"]] == [14, 10, 2]
    first, second = Worker.seen
    assert (len(first), len(second)) == (2, 1)
    assert first.batch["prompts"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert first.batch["responses"].tolist() == [[1, 2, 0], [3, 4, 5]]
    assert [*first.batch["attention_mask"].tolist(), *second.batch["attention_mask"].tolist()] == MASKS
    assert second[0].non_tensor_batch["extra_info"] == {"index": 2}
    assert second[0].non_tensor_batch["__num_turns__"] == 2
    assert second[0].non_tensor_batch["tool_extra_fields"]["turn_scores"] == [3]
    assert capsys.readouterr().out == f"{recomputed_rewards.SAYS}\n"


def test_v0_replays_the_rewards_of_its_own_code(skip, tmp_path, capsys):
    tensors = {
        "prompts": [[5, 6, 7], [0, 8, 9], [0, 0, 8]], "responses": [[1, 2, 0], [3, 4, 5], [6, 0, 0]],
        "attention_mask": [[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0]],
        "rm_scores": [[0.0, 0.5, 0.0], [0.0, 0.0, 0.5], [0.5, 0.0, 0.0]],
    }  # fmt: skip
    columns = {"__num_turns__": [2, 2, 2], "acc": [0.5, 0.5, 0.5], "turn_scores": [1, 2, 3]}
    columns = {name: np.array(column) for name, column in columns.items()}
    recorded = DataProto.from_dict({name: torch.tensor(rows) for name, rows in tensors.items()}, columns)
    recorded.meta_info["reward_extra_keys"] = ["acc"]
    (tmp_path / "3").mkdir()
    recorded.save_to_disk(tmp_path / "3/gen_batch.dp")
    replay = types.SimpleNamespace(
        action=skip.SkipAction.CACHE, _get_step_dump_dir=lambda step: tmp_path / str(step),
        gen_batch_name="gen_batch.dp", print_mark="",
    )  # fmt: skip
    known = {name: np.array([given(number)[name] for number in range(3)], dtype=object) for name in given(0)}
    prompts = types.SimpleNamespace(non_tensor_batch=known)
    found = skip.RolloutSkip.warp_function(replay, 3, None, "manager", prompts)
    assert found.batch["rm_scores"].tolist() == [[0, 14, 0], [0, 0, 10], [2, 0, 0]]
    assert found.non_tensor_batch["acc"].tolist() == [14, 10, 2]
    assert [data.batch["responses"].tolist() for data in Worker.seen] == [[[1, 2, 0], [3, 4, 5]], [[6, 0, 0]]]
    assert Worker.seen[1][0].non_tensor_batch["tool_extra_fields"] == {"__num_turns__": 2, "turn_scores": 3}
    assert recomputed_rewards.SAYS in capsys.readouterr().out


def test_a_recording_without_rewards_is_left_to_verl(skip, tmp_path):
    path = recorded_by_v1(tmp_path / "tq_batch.pt", scored=False)
    found = skip.torch.load(path, weights_only=False)["tensordict"]
    assert "rm_scores" not in set(found.keys())
    assert Worker.seen == []
