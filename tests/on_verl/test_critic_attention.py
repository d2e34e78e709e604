"""The attention of PPO's critic on real torch and verl, in an image without flash-attn."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification, Qwen2Config, Qwen2ForCausalLM
from verl.utils.model import load_valuehead_model

import critic_attention


def test_the_critic_has_the_attention_of_its_config(tmp_path, monkeypatch):
    size = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    Qwen2ForCausalLM(Qwen2Config(**size, num_attention_heads=2, num_key_value_heads=2)).save_pretrained(tmp_path)

    def load():
        config = AutoConfig.from_pretrained(tmp_path, attn_implementation="sdpa", num_labels=1)
        return load_valuehead_model(str(tmp_path), torch.float32, config, False)

    with pytest.raises(RuntimeError, match="value head"):
        load()
    monkeypatch.setattr(
        AutoModelForTokenClassification, "from_pretrained", AutoModelForTokenClassification.from_pretrained
    )
    critic_attention._wrap()
    assert load().config._attn_implementation == "sdpa"
