"""The hooks of PPO's critic on real torch and verl, in an image without flash-attn: its attention, and its new head."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification, Qwen2Config, Qwen2ForCausalLM
from verl.utils.model import load_valuehead_model

import critic_attention


@pytest.fixture
def actor(tmp_path):
    """A model without a critic's head."""
    size = Qwen2Config(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )  # fmt: skip
    Qwen2ForCausalLM(size).save_pretrained(tmp_path / "actor")
    return str(tmp_path / "actor")


def test_the_critic_has_the_attention_of_its_config(actor, monkeypatch):
    def load():
        config = AutoConfig.from_pretrained(actor, attn_implementation="sdpa", num_labels=1)
        return load_valuehead_model(actor, torch.float32, config, False)

    with pytest.raises(RuntimeError, match="value head"):
        load()
    monkeypatch.setattr(
        AutoModelForTokenClassification, "from_pretrained", AutoModelForTokenClassification.from_pretrained
    )
    critic_attention._wrap()
    assert load().config._attn_implementation == "sdpa"


def test_new_weights_are_equal_in_runs_with_one_seed(actor, tmp_path):
    program = (
        "import sys, torch\n"
        "from transformers import AutoModelForTokenClassification as Critic\n"
        "head = Critic.from_pretrained(sys.argv[1], attn_implementation='sdpa', num_labels=1).score.weight\n"
        "print(torch.initial_seed(), head.flatten().tolist())\n"
    )
    said = []
    for name, seed in ("a", 100), ("b", 100), ("c", 200):
        (tmp_path / name / "config").mkdir(parents=True)
        (tmp_path / name / "config/asked.json").write_text(json.dumps({"said": {"seed": seed}}))
        env = {
            **os.environ, "PYTHONPATH": str(Path(critic_attention.__file__).parent), "VERL_REGRESS_HOOKS": "torch_seed",
            "VERL_REGRESS_JOB_DIR": str(tmp_path / name),
        }  # fmt: skip
        run = subprocess.run(
            [sys.executable, "-c", program, actor], env=env, capture_output=True, text=True, check=True
        )
        said.append(run.stdout)
    assert said[0].startswith("100 ")
    assert said[0] == said[1]
    assert said[1].split(" ")[1:] != said[2].split(" ")[1:]
