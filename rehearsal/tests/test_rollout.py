"""The server and the adapter: concurrent requests, and weights that are proved to be equal."""

import asyncio
import json

import pytest
import torch

from verl_rehearsal.errors import RehearsalError
from verl_rehearsal.hf_rollout import HFRollout
from verl_rehearsal.hf_server import HFServer
from verl_rehearsal.weights import sha256_of


@pytest.fixture
def server(models):
    return HFServer(str(models[0]), response_length=8)


def params(seed, **more):
    return {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "logprobs": True, "seed": seed, **more}


def answers(server, *requests):
    async def ask():
        return await asyncio.gather(
            *(server.generate(prompt, sampling, request_id=str(n)) for n, (prompt, sampling) in enumerate(requests))
        )

    return asyncio.run(ask())


class Remote:
    """An actor handle whose server is in this process."""

    def __init__(self, method):
        self.remote = method


@pytest.fixture
def adapter(server, tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_REHEARSAL_REPORTS", str(tmp_path / "reports"))
    rollout = HFRollout.__new__(HFRollout)
    rollout._rank, rollout._updates = 1, []
    rollout._server = type("Handle", (), {"load_weights": Remote(server.load_weights)})()
    rollout.reports = tmp_path / "reports"
    return rollout


def changed(actor, dtype=torch.bfloat16):
    return {name: (tensor + 0.01).to(dtype) for name, tensor in actor.state_dict().items()}


def test_concurrent_requests_get_the_answers_they_would_get_alone(server):
    requests = [([5, 9, 30], params(1)), ([7], params(2)), ([5, 9, 30], params(3)), ([7], params(2, temperature=0.0))]
    together = [(output.token_ids, output.log_probs, output.stop_reason) for output in answers(server, *requests)]
    alone = [
        (output.token_ids, output.log_probs, output.stop_reason)
        for request in requests
        for output in answers(server, request)
    ]
    assert together == alone
    assert together[0] != together[2]


def test_log_probs_come_only_when_asked_for(server):
    with_log_probs, without = answers(server, ([7], params(2)), ([7], params(2, logprobs=False)))
    assert len(with_log_probs.log_probs) == len(with_log_probs.token_ids)
    assert without.log_probs is None


def test_an_error_reaches_every_waiting_caller(server):
    server._model = None
    with pytest.raises(TypeError):
        answers(server, ([7], params(1)), ([8], params(2)))


def test_pictures_are_refused(server):
    with pytest.raises(RehearsalError, match=r"serves text only, not \['image_data'\]"):
        asyncio.run(server.generate([7], params(1), "id", image_data=["a picture"]))


def test_a_bfloat16_actor_and_the_float32_rollout_have_equal_hashes(server, actor):
    weights = changed(actor)
    assert asyncio.run(server.load_weights(weights, 3)) == sha256_of(weights)
    assert sha256_of(weights) != sha256_of(actor.state_dict())


@pytest.mark.parametrize("change", ["missing", "extra", "shape"])
def test_weights_that_are_not_exactly_the_models_are_refused(server, actor, change):
    weights = changed(actor)
    if change == "missing":
        del weights["lm_head.weight"]
    elif change == "extra":
        weights["other.weight"] = torch.zeros(1)
    else:
        weights["lm_head.weight"] = weights["lm_head.weight"][:-1]
    with pytest.raises(RehearsalError, match="the rollout cannot hold the actor's weights"):
        asyncio.run(server.load_weights(weights, 1))


def test_the_hash_tells_names_and_shapes_apart():
    ones = torch.ones(2, 3)
    hashes = {sha256_of({"a": ones}), sha256_of({"b": ones}), sha256_of({"a": ones.T}), sha256_of({"a": ones + 1e-7})}
    assert len(hashes) == 4
    assert sha256_of({"a": ones, "b": ones.T}) == sha256_of({"b": ones.T.contiguous(), "a": ones})


def test_updates_are_reported_by_rank_with_both_hashes(adapter, actor):
    asyncio.run(adapter.update_weights(iter(actor.state_dict().items()), global_steps=0, peft_config=None))
    asyncio.run(adapter.update_weights(iter(changed(actor).items()), global_steps=1))
    (report,) = adapter.reports.glob("rollout_weights-*")
    written = json.loads(report.read_text())
    first, second = sha256_of(actor.state_dict()), sha256_of(changed(actor))
    assert written["rank"] == 1
    assert written["updates"] == [
        {"global_step": 0, "actor_sha256": first, "rollout_sha256": first},
        {"global_step": 1, "actor_sha256": second, "rollout_sha256": second},
    ]


def test_samples_are_reported_with_the_step_whose_weights_drew_them(server, actor, tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_REHEARSAL_REPORTS", str(tmp_path / "reports"))
    asyncio.run(server.load_weights(actor.state_dict(), 6))
    same, other = answers(server, ([7], params(1)), ([7], params(2)))
    asyncio.run(server.load_weights(changed(actor), 7))
    answers(server, ([7], params(1)))
    (report,) = (tmp_path / "reports").glob("rollout_samples-*")
    first, second = json.loads(report.read_text())["samples"]
    assert (first[0], first[1], first[2], second[2]) == (6, second[1], 1, 2)
    assert (first[3] == second[3]) == (same.token_ids == other.token_ids)


def test_a_rollout_with_other_weights_stops_the_job_and_is_on_record(adapter, actor):
    async def load_nothing(_weights, _global_step):
        return "0" * 64

    adapter._server.load_weights = Remote(load_nothing)
    expected = sha256_of(actor.state_dict())
    with pytest.raises(RehearsalError) as error:
        asyncio.run(adapter.update_weights(iter(actor.state_dict().items()), global_steps=7))
    assert str(error.value) == (
        f"after weight update 1 (global step 7) replica 1 holds weights with sha256 {'0' * 64}, the actor {expected}: "
        "the rollout would sample from another policy than the one being trained"
    )
    (report,) = adapter.reports.glob("rollout_weights-*")
    assert json.loads(report.read_text())["updates"][0]["rollout_sha256"] == "0" * 64


def test_lora_adapters_are_refused(adapter):
    with pytest.raises(RehearsalError, match="not LoRA adapters"):
        asyncio.run(adapter.update_weights(iter(()), peft_config={"r": 8}))


def test_differences_of_weights_are_refused(adapter):
    with pytest.raises(RehearsalError, match="loads whole tensors, not 'delta_flush'"):
        asyncio.run(adapter.update_weights(iter(()), wire_format="delta_flush"))
