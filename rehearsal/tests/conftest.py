"""Tests that need torch, verl and Ray: run inside the node image, with the verl release to test first on PYTHONPATH."""

import pytest
import torch

import verl_rehearsal
from verl_rehearsal import tiny_model

verl_rehearsal.install()
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The folders of a tiny actor and its critic, and the facts about them."""
    folder = tmp_path_factory.mktemp("models")
    facts = tiny_model.build(folder / "actor", folder / "critic", seed=0)
    return folder / "actor", folder / "critic", facts


@pytest.fixture(scope="session")
def actor(models):
    """The tiny actor in float32."""
    from transformers import Qwen2ForCausalLM

    return Qwen2ForCausalLM.from_pretrained(models[0], dtype=torch.float32, attn_implementation="sdpa").eval()
