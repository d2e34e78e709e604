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

PROMPTS, ANSWERS = ([5, 6, 7], [8, 9]), ([1, 2], [3, 4, 5])
TRUTHS = ("12", "7")


class Worker:
    """A reward worker: the reward is the number of the answer's tokens plus the ground truth."""

    seen: ClassVar[list] = []

    def __init__(self):
        self.compute_score = types.SimpleNamespace(remote=self.score)

    def score(self, data):
        Worker.seen.append(data)
        truth = data[0].non_tensor_batch["reward_model"]["ground_truth"]
        reward = data.batch["responses"].shape[1] + float(truth)
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
        more = {"extra_fields": {"reward_extra_info": {"acc": 0.5}}, "num_turns": 2}
        rows.append({**tokens, **scores, **more, **given(number)})
    torch.save({"tensordict": list_of_dict_to_tensordict(rows), "keys": ["a_0_0", "b_0_0"]}, path)
    return path


def test_v1_replays_the_rewards_of_its_own_code(skip, tmp_path, capsys):
    found = skip.torch.load(recorded_by_v1(tmp_path / "tq_batch.pt"), weights_only=False)["tensordict"]
    assert [row.tolist() for row in found["rm_scores"].unbind()] == [[0, 14], [0, 0, 10]]
    assert [each["reward_extra_info"] for each in found["extra_fields"]] == [{"acc": 14}, {"acc": 10}]
    first, second = Worker.seen
    assert (first.batch["prompts"].tolist(), first.batch["input_ids"].tolist()) == ([[5, 6, 7]], [[5, 6, 7, 1, 2]])
    assert second.batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1]]
    assert second[0].non_tensor_batch["extra_info"] == {"index": 1}
    assert second[0].non_tensor_batch["__num_turns__"] == 2
    assert capsys.readouterr().out == f"{recomputed_rewards.SAYS}\n"


def test_v0_replays_the_rewards_of_its_own_code(skip, tmp_path, capsys):
    tensors = {
        "prompts": [[5, 6, 7], [0, 8, 9]], "responses": [[1, 2, 0], [3, 4, 5]],
        "attention_mask": [[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]], "rm_scores": [[0.0, 0.5, 0.0], [0.0, 0.0, 0.5]],
    }  # fmt: skip
    columns = {"__num_turns__": np.array([2, 2]), "acc": np.array([0.5, 0.5]), "turn_scores": np.array([1, 2])}
    recorded = DataProto.from_dict({name: torch.tensor(rows) for name, rows in tensors.items()}, columns)
    recorded.meta_info["reward_extra_keys"] = ["acc"]
    (tmp_path / "3").mkdir()
    recorded.save_to_disk(tmp_path / "3/gen_batch.dp")
    replay = types.SimpleNamespace(
        action=skip.SkipAction.CACHE, _get_step_dump_dir=lambda step: tmp_path / str(step),
        gen_batch_name="gen_batch.dp", print_mark="",
    )  # fmt: skip
    known = {name: np.array([given(0)[name], given(1)[name]], dtype=object) for name in given(0)}
    prompts = types.SimpleNamespace(non_tensor_batch=known)
    found = skip.RolloutSkip.warp_function(replay, 3, None, "manager", prompts)
    assert found.batch["rm_scores"].tolist() == [[0, 14, 0], [0, 0, 10]]
    assert found.non_tensor_batch["acc"].tolist() == [14, 10]
    assert [data.batch["input_ids"].tolist() for data in Worker.seen] == [[[5, 6, 7, 1, 2]], [[8, 9, 3, 4, 5]]]
    assert Worker.seen[1][0].non_tensor_batch["tool_extra_fields"]["turn_scores"] == 2
    assert recomputed_rewards.SAYS in capsys.readouterr().out


def test_a_recording_without_rewards_is_left_to_verl(skip, tmp_path):
    path = recorded_by_v1(tmp_path / "tq_batch.pt", scored=False)
    found = skip.torch.load(path, weights_only=False)["tensordict"]
    assert "rm_scores" not in set(found.keys())
    assert Worker.seen == []
