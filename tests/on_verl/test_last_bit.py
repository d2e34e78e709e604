"""The hook of PERTURBED=1 on torch's own optimizers: each update begins with other last bits."""

import importlib

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

import last_bit

OPTIMIZER = importlib.import_module("torch.optim.optimizer")  # torch.optim does not name it


@pytest.fixture(autouse=True)
def perturbing():
    """The hook, for the time of a test."""
    handle = OPTIMIZER.register_optimizer_step_pre_hook(last_bit._flip)
    yield
    handle.remove()


@pytest.mark.parametrize(("dtype", "moved"), [(torch.float32, 2**-7), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)])
def test_each_gradient_differs_by_the_last_bit_of_its_precision(dtype, moved):
    weight = torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))
    weight.grad = torch.tensor([[1.0, -1.0, 4.0], [0.0, 2.0, -0.5]], dtype=dtype)
    torch.optim.SGD([weight], lr=1.0).step()
    expected = torch.tensor([[1.0, -1.0, 4.0], [0.0, 2.0, -0.5]]) * (1 + moved)
    assert torch.equal(-weight.detach().float(), expected)


def test_a_weight_without_a_gradient_and_one_in_another_precision_are_left_alone():
    weights = [torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
    weights[0].grad = torch.ones(2, dtype=torch.float64)
    torch.optim.SGD(weights, lr=1.0).step()
    assert [each.tolist() for each in weights] == [[-1.0, -1.0], [0.0, 0.0]]


def test_of_a_sharded_weight_the_part_of_this_process_is_changed(tmp_path):
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)  # fmt: skip
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = torch.nn.Parameter(DTensor.from_local(torch.zeros(3), mesh, [Replicate()]))
        weight.grad = DTensor.from_local(torch.ones(3), mesh, [Replicate()])
        torch.optim.SGD([weight], lr=1.0).step()
        assert weight.to_local().tolist() == [-(1 + 2**-7)] * 3
    finally:
        torch.distributed.destroy_process_group()


def test_it_is_registered_with_torch(monkeypatch):
    monkeypatch.setattr(last_bit, "on_import", lambda name, then: then(importlib.import_module(name)))
    before = len(OPTIMIZER._global_optimizer_pre_hooks)
    last_bit.install()
    hooks = OPTIMIZER._global_optimizer_pre_hooks
    assert (len(hooks), list(hooks.values())[-1]) == (before + 1, last_bit._flip)
    hooks.popitem()
