"""What a job without a new step is doing, by the stacks that its processes write when a debug bundle asks for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared_fixtures import write

from verl_regress.jobs import debug, stacks

HOOKS = Path(__file__).parents[2] / "py" / "hooks"


@pytest.fixture
def hanging(make_job, tmp_path):
    """A job whose one process hangs in a reward function."""
    job = make_job(started={"node": "worker-0"})
    (job.state / "stacks_asked").touch()
    write(tmp_path / "code" / "verl.py", "")
    reward = write(
        job.root.user_code / "slow.py",
        "import time, verl\n\ndef compute_score():\n    judge()\n\ndef judge():\n    time.sleep(60)\n\ncompute_score()\n",
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VERL_REGRESS"))}
    env |= {"PYTHONPATH": f"{tmp_path}/code:{HOOKS}", "VERL_REGRESS_HOOKS": "process_memory"}
    env |= {"VERL_REGRESS_JOB_DIR": str(job.path), "VERL_REGRESS_NODE": "worker-0"}
    with subprocess.Popen([sys.executable, reward], env=env) as process:
        while not list(job.state.glob("memory/*.txt")):
            assert process.poll() is None
        yield job, process
        process.kill()


def test_a_bundle_of_a_running_job_has_its_stacks_and_they_say_what_it_does(hanging, unused_address):
    job, process = hanging
    bundle = debug.take(job, unused_address, "stalled", logs=True)
    [file] = (bundle / "stacks").iterdir()
    assert "in judge\n" in file.read_text()
    name = Path(sys.executable).name
    assert (
        stacks.words(job, bundle)
        == f"scoring in judge (user/code/slow.py:7, {name} (process {process.pid}) on worker-0)"
    )


def test_a_process_that_cannot_answer_delays_nothing_nor_does_a_job_that_is_over(hanging, monkeypatch):
    job, process = hanging
    process.send_signal(19)  # SIGSTOP
    monkeypatch.setattr(stacks, "_PATIENCE", 0.3)
    assert stacks.ask(job) == {}
    job.write_state("ended", {"exit_code": 1, "reason": "gone"})
    (job.state / "stacks_asked").unlink()
    assert stacks.ask(job) == {}
    assert not (job.state / "stacks_asked").exists()


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (["_wait in threading", "generate_sequences in agent_loop"], "generating in generate_sequences"),
        (["get in worker", "update_actor in base", "generate in other"], "updating in update_actor"),
        (["_save_checkpoint in ray_trainer", "fit in ray_trainer"], "saving a checkpoint in _save_checkpoint"),
        (["_wait in threading"], None),
    ],
)
def test_what_the_functions_of_verl_say(make_job, tmp_path, frames, words):
    rows = [frame.split(" in ") for frame in frames]
    text = "now W (process 7) on worker-1\n" + "".join(
        f'  File "/x/{module}.py", line 3 in {function}\n' for function, module in rows
    )
    write(tmp_path / "bundle" / "stacks" / "w-7.txt", text)
    found = stacks.words(make_job(), tmp_path / "bundle")
    assert found is None if words is None else found.startswith(f"{words} (/x/")
