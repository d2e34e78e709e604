"""TRAIN_SEED and the generator from which torch draws new weights, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch_seed


def test_new_weights_are_equal_in_runs_with_one_seed(tmp_path):
    def weights(seed, hook):
        job = tmp_path / f"{seed}-{hook}"
        (job / "config").mkdir(parents=True, exist_ok=True)
        (job / "config/asked.json").write_text(json.dumps({"said": {"seed": seed}}))
        ours = {
            "PYTHONPATH": str(Path(torch_seed.__file__).parent),
            "VERL_REGRESS_HOOKS": hook,
            "VERL_REGRESS_JOB_DIR": str(job),
        }
        program = [sys.executable, "-c", "import torch; print(torch.nn.Linear(3, 1).weight.tolist())"]
        return subprocess.run(program, env={**os.environ, **ours}, capture_output=True, text=True, check=True).stdout

    assert weights(100, "torch_seed") == weights(100, "torch_seed") != weights(200, "torch_seed")
    assert weights(100, "") != weights(100, "")
