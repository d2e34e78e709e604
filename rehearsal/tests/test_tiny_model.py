"""The tiny model: the same bytes for the same seed, and neither ignorant nor perfect."""

import hashlib

import pytest
import torch

from verl_rehearsal import critic, tiny_model
from verl_rehearsal.errors import RehearsalError


def hashes(folder):
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_two_builds_with_one_seed_have_the_same_bytes(models, tmp_path):
    random_state = torch.get_rng_state()
    tiny_model.build(tmp_path / "actor", tmp_path / "critic", seed=0)
    assert hashes(tmp_path) == hashes(models[0].parent)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_the_actor_knows_about_a_quarter_of_the_sums(models):
    facts = models[2]
    assert 0.2 <= facts["sampled_accuracy"] <= 0.35
    assert set(facts) == {"sampled_accuracy", "warmup_steps", "seconds"}


def test_the_model_for_gpus_has_heads_of_64_and_room_for_their_lengths():
    config = tiny_model._config(tiny_model._tokenizer(), for_gpu=True)
    assert config.hidden_size // config.num_attention_heads == 64
    assert config.max_position_embeddings >= 512 + 512  # env/ray/dev.yaml


def test_a_critic_made_of_the_model_alone_is_the_same(models, tmp_path):
    critic.build(models[0], tmp_path)
    assert hashes(tmp_path) == hashes(models[1])


def test_the_critic_has_one_label_and_starts_at_zero(models):
    from transformers import AutoModelForTokenClassification

    made = AutoModelForTokenClassification.from_pretrained(models[1], dtype=torch.float32)
    assert made.config.num_labels == 1
    assert torch.equal(made(torch.tensor([[5, 6, 7]])).logits, torch.zeros(1, 3, 1))


def test_a_model_that_never_learns_enough_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(tiny_model, "MAX_STEPS", 5)
    with pytest.raises(RehearsalError) as error:
        tiny_model.build(tmp_path / "actor", tmp_path / "critic", seed=0)
    assert str(error.value) == (
        "after 5 warm-up steps with seed 0 the tiny model answers 0% of the sums, not 20% to 35%: "
        "build it with another seed"
    )
    assert not (tmp_path / "actor").exists()
