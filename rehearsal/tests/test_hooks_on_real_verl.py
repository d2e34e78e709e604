"""Each hook, on the verl that PYTHONPATH names."""

import asyncio
import inspect
import os
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch


def test_fsdp_engines_are_there_for_the_cpu():
    import verl.workers.engine  # noqa: F401 - registers the engines
    from verl.workers.engine.base import EngineRegistry

    for model_type in ("language_model", "value_model"):
        for backend in ("fsdp", "fsdp2"):
            assert EngineRegistry.get_engine_cls(model_type, backend).__name__.startswith("FSDPEngine")


def test_an_engine_that_is_not_fsdp_is_not_registered_for_the_cpu():
    from verl.workers.engine.base import BaseEngine, EngineRegistry

    @EngineRegistry.register(model_type="test_model", backend="megatron", device=["cuda"])
    class Engine(BaseEngine):
        pass

    assert EngineRegistry._engines["test_model"]["megatron"] == {"cuda": Engine}


def test_the_device_is_the_cpu_and_its_backend_gloo():
    from verl.utils import device

    assert (device.get_device_name(), device.get_device_id(), device.get_nccl_backend()) == ("cpu", "cpu", "gloo")


def test_torch_cpu_has_what_verl_calls_on_a_device():
    from verl.utils.device import get_torch_device

    cpu = get_torch_device()
    assert cpu is torch.cpu
    assert (cpu.memory_allocated(), cpu.max_memory_reserved("cpu"), cpu.mem_get_info()) == (0, 0, (0, 0))
    cpu.manual_seed(3)
    state = cpu.get_rng_state()
    drawn = torch.rand(4)
    cpu.set_rng_state(state)
    assert torch.equal(torch.rand(4), drawn)
    cpu.empty_cache()


def test_data_is_loaded_without_processes():
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(range(4), batch_size=2, num_workers=8)
    assert loader.num_workers == 0
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_the_process_group_starts_on_gloo_and_its_rank_is_reported(tmp_path, monkeypatch):
    import json

    from verl.utils.distributed import initialize_global_process_group_ray

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DIST_INIT_METHOD", f"file://{tmp_path}/rendezvous")
    monkeypatch.setenv("VERL_REHEARSAL_REPORTS", str(tmp_path / "reports"))
    initialize_global_process_group_ray()
    try:
        assert torch.distributed.get_backend() == "gloo"
    finally:
        torch.distributed.destroy_process_group()
    (report,) = (tmp_path / "reports").glob(f"training_actor-*-{os.getpid()}.json")
    written = json.loads(report.read_text())
    assert (written["rank"], written["world_size"]) == (0, 1)


def test_padding_goes_there_and_back_without_flash_attn():
    from verl.utils.attention_utils import pad_input, unpad_input

    values = torch.arange(12.0).reshape(2, 3, 2)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    unpadded, indices, *_ = unpad_input(values, mask)
    assert unpadded.shape == (5, 2)
    assert torch.equal(pad_input(unpadded, indices, 2, 3), values * mask[..., None])


def test_the_rollout_is_registered_on_both_sides():
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from verl_rehearsal.hf_replica import HFReplica
    from verl_rehearsal.hf_rollout import HFRollout

    assert get_rollout_class("hf_cpu", "async") is HFRollout
    assert get_rollout_replica_class("hf_cpu") is HFReplica
    assert not inspect.isabstract(HFReplica)
    assert not inspect.isabstract(HFRollout)


def test_the_critic_loads_without_flash_attn(models):
    from transformers import AutoConfig
    from verl.utils.model import load_valuehead_model

    critic = load_valuehead_model(str(models[1]), torch.float32, AutoConfig.from_pretrained(models[1]), False)
    assert critic.config._attn_implementation == "sdpa"
    assert critic(torch.tensor([[5, 6, 7]])).logits.shape == (1, 3, 1)


def test_fsdp_wraps_the_layers_of_a_model_that_names_them_in_a_set(monkeypatch):
    from verl.utils import fsdp_utils

    class Layer(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(Layer(2, 2), torch.nn.ReLU(), Layer(2, 2))
    model.config = SimpleNamespace(tie_word_embeddings=False)
    model._no_split_modules = {"Layer"}  # as transformers 5 has it
    wrapped = []
    monkeypatch.setattr(fsdp_utils, "fully_shard", lambda module, **_: wrapped.append(module))
    fsdp_utils.apply_fsdp2(model, {}, {})
    assert wrapped == [model[0], model[2], model]


def test_each_step_of_an_optimizer_is_reported_with_the_weights_that_it_left(tmp_path, monkeypatch):
    import json

    from verl.workers.engine.fsdp import transformer_impl

    class Optimizer:
        def __init__(self, model):
            self.model = model

        def step(self):
            with torch.no_grad():
                self.model.weight.add_(self.by)

    monkeypatch.setenv("VERL_REHEARSAL_REPORTS", str(tmp_path / "reports"))
    for kind in (transformer_impl.FSDPEngineWithLMHead, transformer_impl.FSDPEngineWithValueHead):
        engine = kind.__new__(kind)
        engine.module = torch.nn.Linear(2, 2)
        engine.scaler, engine._qat_enabled = None, False
        engine.optimizer = Optimizer(engine.module)
        engine.optimizer_config = type("Config", (), {"clip_grad": 1.0})()
        for by in (1.0, 0.0):
            engine.optimizer.by = by
            for parameter in engine.module.parameters():
                parameter.grad = torch.ones_like(parameter)
            engine.optimizer_step()
    (report,) = (tmp_path / "reports").glob("trained_weights-*")
    counted = {"optimizer_steps": 2, "distinct": 1}
    assert json.loads(report.read_text()) == {"models": {"actor": counted, "critic": counted}}


class Stop(Exception):
    """Ends an agent loop as soon as it has its sampling parameters."""


class SeedCollector:
    """An agent loop that only notes the seed it is given."""

    seeds: ClassVar[list[int]] = []

    def __init__(self, **_kwargs):
        pass

    async def run(self, sampling_params, **_kwargs):
        self.seeds.append(sampling_params["seed"])
        raise Stop


def test_each_request_gets_a_seed_of_its_own():
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop import agent_loop

    class Worker(agent_loop.AgentLoopWorker):
        config = OmegaConf.create({"data": {"seed": None}, "actor_rollout_ref": {"rollout": {"name": "hf_cpu"}}})

        def __init__(self):
            pass

        def __getattr__(self, _name):
            return None  # servers, tokenizer, tools: whatever this release passes to an agent loop

    agent_loop._agent_loop_registry["test"] = {"_target_": f"{__name__}.SeedCollector"}
    SeedCollector.seeds.clear()
    # The V1 trainer of verl 0.9.1 leaves rollout_n at 0 and counts in session_id.
    for step, rollout_n, session in (
        (1, 0, {}),
        (1, 1, {}),
        (2, 0, {}),
        (1, 0, {}),
        (1, 0, {"session_id": 0}),
        (1, 0, {"session_id": 1}),
        (1, 0, {"session_id": 2}),
    ):
        trajectory = {"step": step, "sample_index": 4, "rollout_n": rollout_n, "validate": False}
        with pytest.raises(Stop):
            asyncio.run(
                Worker()._run_agent_loop({"temperature": 1.0}, trajectory, agent_name="test", trace=False, **session)
            )
    first, second, later, again, *sessions = SeedCollector.seeds
    assert len({first, second, later}) == 3
    assert first == again
    assert sessions[:2] == [first, second]
    assert sessions[2] not in (first, second, later)
