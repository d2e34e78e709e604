"""The attention of PPO's critic on real torch and verl, in an image without flash-attn, in processes without a rehearsal."""

import os
import subprocess
import sys

from transformers import Qwen2Config, Qwen2ForCausalLM

PROGRAM = """
import sys, torch
from transformers import AutoConfig
from verl.utils.model import load_valuehead_model
config = AutoConfig.from_pretrained(sys.argv[1], attn_implementation="sdpa", num_labels=1)
print(load_valuehead_model(sys.argv[1], torch.float32, config, False).config._attn_implementation)
"""


def test_the_critic_has_the_attention_of_its_config(tmp_path):
    size = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    Qwen2ForCausalLM(Qwen2Config(**size, num_attention_heads=2, num_key_value_heads=2)).save_pretrained(tmp_path)

    def load(hook):
        env = {**os.environ, "VERL_REGRESS_HOOKS": hook}
        return subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], env=env, capture_output=True, text=True)

    assert "is not a value head model" in load("").stderr
    loaded = load("critic_attention")
    assert (loaded.returncode, loaded.stdout.split()[-1:]) == (0, ["sdpa"]), loaded.stderr
