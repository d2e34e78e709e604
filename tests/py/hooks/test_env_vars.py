"""The environment that a job's processes take from its config, because Ray would change it on the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

HOOKS = Path(__file__).parents[3] / "py" / "hooks"
PRINT_ENVIRON = "import json, os; print(json.dumps(dict(os.environ)))"


def python(job_dir, code=PRINT_ENVIRON):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VERL_REGRESS"))}
    env |= {
        "PYTHONPATH": str(HOOKS),
        "VERL_REGRESS_HOOKS": "env_vars",
        "HOME": "/home",
        "VERL_REGRESS_JOB_DIR": job_dir,
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30, check=False
    )


def test_values_arrive_unchanged_also_in_child_processes(tmp_path):
    values = {"A": "$HOME ${HOME} $(touch x) `touch y`", "B": "line\nline 'quote\" $", "Ü": "-é $"}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "env_vars.json").write_text(json.dumps(values))
    for code in (
        PRINT_ENVIRON,
        f"import subprocess; subprocess.run(['{sys.executable}', '-S', '-c', {PRINT_ENVIRON!r}])",
    ):
        ran = python(str(tmp_path), code)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert json.loads(ran.stdout).items() >= values.items()


def test_a_process_that_cannot_have_them_does_not_run(tmp_path):
    ran = python(str(tmp_path))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert (
        "verl-regress: the hook 'env_vars' named in VERL_REGRESS_HOOKS could not be installed: FileNotFoundError"
        in ran.stderr
    )
