"""The hook of the SFT driver on the real trainer: its own loop, where torch has no CUDA, with workers that only answer."""

import types

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer import sft_trainer_ray as trainer

import sft_driver

CONFIG = OmegaConf.create(
    {
        "trainer": {
            "project_name": "p", "experiment_name": "e", "logger": [], "total_epochs": 1, "device": "cuda",
            "balance_batch": False,
        },
        "model": {"use_remove_padding": True},
        "data": {
            "use_dynamic_bsz": False, "max_token_len_per_gpu": 64, "micro_batch_size_per_gpu": 1, "pad_mode": "no_padding",
        },
    }
)  # fmt: skip


class Workers:
    """Stands for the worker group: the metrics of one step, as the trainer reads them."""

    def train_batch(self, _data):
        metrics = {"loss": 1.5, "grad_norm": 1.0, "lr": 0.1, "mfu": 0.0}
        answer = trainer.tu.get_tensordict({"x": torch.zeros(1)}, {"metrics": metrics})
        return types.SimpleNamespace(get=lambda: answer)

    infer_batch = train_batch


@pytest.fixture
def fit(monkeypatch):
    """Runs the loop for one step and a validation; returns what it logged."""
    logged = {}
    monkeypatch.setattr(
        trainer, "Tracking", lambda **_: types.SimpleNamespace(log=lambda data, step: logged.update(data))
    )

    def run(trainer_class):
        one = trainer_class.__new__(trainer_class)
        batch = {"input_ids": torch.nested.as_nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged)}
        vars(one).update(
            config=CONFIG, resume_global_step=0, total_training_steps=1, steps_per_epoch=1, global_batch_size=2,
            train_sampler=types.SimpleNamespace(set_epoch=lambda **_: None), train_dataloader=[batch], val_dataloader=[batch],
            model_config=types.SimpleNamespace(tokenizer=types.SimpleNamespace(pad_token_id=0)), save_freq=-1, test_freq=-1,
            start_profile_step=-1, end_profile_step=-1, training_client=Workers(),
            ckpt_handler=types.SimpleNamespace(save_checkpoint=lambda **_: None),
        )  # fmt: skip
        one.device_name = CONFIG.trainer.device  # as SFTTrainer.__init__ does
        one.fit()
        return logged

    return run


def test_without_the_hook_the_driver_needs_a_gpu(fit):
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        fit(trainer.SFTTrainer)


def test_with_it_the_statistics_are_made_on_the_cpu(fit):
    hooked = types.SimpleNamespace(SFTTrainer=type("SFTTrainer", (trainer.SFTTrainer,), {}))
    sft_driver.keep_statistics_on_the_cpu(hooked)
    logged = fit(hooked.SFTTrainer)
    assert (logged["train/global_tokens"], logged["train/loss"], logged["val/loss"]) == (5, 1.5, 1.5)


def test_each_worker_asks_for_one_device(monkeypatch):
    from verl.single_controller.ray import base

    # From 0.9.1 on it is the platform's, which the rehearsal says; before, that of trainer.device.
    device = "cpu" if hasattr(base, "get_platform") else "GPU"
    asked = []

    def placement_group(bundles, **_):
        asked.append(bundles)
        return types.SimpleNamespace(ready=lambda: None)

    monkeypatch.setattr(base, "placement_group", placement_group)
    monkeypatch.setattr(base.ray, "get", lambda refs: refs)
    monkeypatch.setattr(base, "sort_placement_group_by_node_ip", lambda groups: groups)
    base.RayResourcePool(process_on_nodes=[4, 4]).get_placement_groups(device_name=CONFIG.trainer.device)
    assert [[set(bundle) for bundle in bundles] for bundles in asked] == [[{"CPU", device}] * 4] * 2
    assert all(bundle[device] == 1 for bundles in asked for bundle in bundles)
