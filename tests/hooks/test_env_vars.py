"""The environment that a job's processes take from its config, because Ray would change it on the way."""

import json
import sys

from shared_fixtures import HOOKS, environment, python, write

PRINT_ENVIRON = "import json, os; print(json.dumps(dict(os.environ)))"


def ran(job_dir, code=PRINT_ENVIRON):
    return python("-c", code, env=environment(HOOKS, hooks="env_vars", job_dir=job_dir, HOME="/home"))


def test_values_arrive_unchanged_also_in_child_processes(tmp_path):
    values = {"A": "$HOME ${HOME} $(touch x) `touch y`", "B": "line\nline 'quote\" $", "Ü": "-é $"}
    write(tmp_path / "config" / "env_vars.json", json.dumps(values))
    for code in (
        PRINT_ENVIRON,
        f"import subprocess; subprocess.run(['{sys.executable}', '-S', '-c', {PRINT_ENVIRON!r}])",
    ):
        ended = ran(tmp_path, code)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert json.loads(ended.stdout).items() >= values.items()


def test_a_process_that_cannot_have_them_does_not_run(tmp_path):
    ended = ran(tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    said = "verl-regress: the hook 'env_vars' named in VERL_REGRESS_HOOKS could not be installed: FileNotFoundError"
    assert said in ended.stderr
