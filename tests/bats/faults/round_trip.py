"""Hostile values through a real job: `make DIR SHARED` writes what is submitted, `check DIR JOB_DIR` compares what arrived.

The job's own processes report what arrived: a hook of the user's in each of them (the environment and argv), the reward function
in its Ray actor (verl's arguments and the environment), and Hydra's own record of the overrides.
"""

import json
import re
import sys
from pathlib import Path

HOSTILE = "-rf a  b 'single' \"double\" $(touch CANARY) `touch CANARY` ;touch CANARY; $HOME $$ %s * ~ {x} [y], z: é💥 \\ \\\\ #"
TWO_LINES = f"{HOSTILE}\nsecond line\t'"
ENV_VARS = {
    "ROUND_TRIP_PLAIN": "-rf a  b 'single' \"double\" `touch CANARY` ;touch CANARY; %s * ~ é💥 \\ \\\\ #",
    "ROUND_TRIP_LINES": "first\nsecond\t'\n",
    "ROUND_TRIP_DOLLAR": f"{TWO_LINES} ${{HOME}} ${{NOT_SET}} $NOT_SET ${{shared_rot}}",
    "ROUND_TRIP_EMPTY": "",
}
KEY = "reward.custom_reward_function.reward_kwargs"
KWARGS = {"from_spec": TWO_LINES, "from_environment": TWO_LINES, "from_file": HOSTILE}

HOOK = """\
import os
import sys

import job_report

OURS = {name: value for name, value in os.environ.items() if name.startswith("ROUND_TRIP_")}  # and not the secret


def install():
    job_report.write("environ", {"argv": sys.orig_argv, "environ": OURS})
"""
REWARD_FN = """\
import os
import threading

import job_report

LOCK = threading.Lock()  # verl calls it from several threads
OURS = {name: value for name, value in os.environ.items() if name.startswith("ROUND_TRIP_")}


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    arrived = {name: value for name, value in kwargs.items() if name.startswith("from_")}
    with LOCK:
        job_report.write("reward", {"kwargs": arrived, "environ": OURS})
    return 0.5
"""


def override(name: str) -> str:
    """As Hydra wants it (1.3, OverrideLexer.g4): backslashes count before the quote and at the end."""
    body = re.sub(r"(\\*)'", r"\1\1\\'", KWARGS[name])
    body = re.sub(r"(\\+)\Z", r"\1\1", body)
    return f"+{KEY}.{name}='{body}'"


def make(directory: Path, shared: Path) -> None:
    """The JobSpec, OVERRIDES, OVERRIDES_FILE, and the user's code."""
    code = shared / "user" / "code" / "round_trip"
    code.mkdir(parents=True, exist_ok=True)
    (code / "round_trip_hook.py").write_text(HOOK)
    (code / "reward_fn.py").write_text(REWARD_FN)
    spec = {
        "workload": "grpo",
        "reward_fn_path": "${shared_root}/user/code/round_trip/reward_fn.py",
        "secrets": [{"name": "API_KEY"}],
        "trainer_overrides": ["trainer.total_training_steps=1", "trainer.nnodes=1", override("from_spec")],
        "env_vars": {
            **ENV_VARS,
            "PYTHONPATH": "${shared_root}/user/code/round_trip",
            "VERL_REGRESS_HOOKS": "verl_rehearsal,round_trip_hook",  # the profile's own stay
        },
    }
    (directory / "spec.json").write_text(json.dumps(spec))
    (directory / "environment").write_text(override("from_environment"))
    (directory / "file").write_text(f"# from a file\n{override('from_file')}\n")


def check(job: Path) -> None:
    """Every process that reported had every value, byte for byte."""
    environs = [json.loads(path.read_text()) for path in (job / "state" / "reports").glob("environ-*.json")]
    rewards = [json.loads(path.read_text()) for path in (job / "state" / "reports").glob("reward-*.json")]
    drivers = [report for report in environs if "verl.trainer.main_ppo" in report["argv"]]
    actors = [report for report in environs if any("default_worker.py" in word for word in report["argv"])]
    assert drivers, "no driver reported its environment"
    assert actors, "no Ray worker reported its environment"
    assert rewards, "no reward function was called"
    for report in [*environs, *rewards]:
        assert {name: report["environ"].get(name) for name in ENV_VARS} == ENV_VARS, report
    for report in rewards:
        assert report["kwargs"] == KWARGS, report
    given = [override(name) for name in KWARGS]
    for report in drivers:
        assert sorted(word for word in report["argv"] if KEY in word) == sorted(given), report["argv"]
    sent = json.loads((job / "config" / "runtime_env.json").read_text())["env_vars"]
    assert not any("$" in value for value in sent.values()), sent
    recorded = (job / "logs" / "hydra" / ".hydra" / "overrides.yaml").read_text()
    assert recorded.count(KEY) == len(given), recorded
    print(
        f"{len(KWARGS) + len(ENV_VARS)} values in {len(drivers)} driver, {len(actors)} Ray workers, {len(rewards)} reward actors"
    )


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        check(Path(sys.argv[2]))
