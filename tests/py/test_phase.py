"""What a job is doing, from the logs of real drivers (tests/recorded/driver_logs), its state files and Ray's actors."""

import os
from pathlib import Path

import pytest

from verl_regress.jobs import liveness, phase
from verl_regress.jobs.status import Status

LOGS = Path(__file__).parents[1] / "recorded" / "driver_logs"
WORKER = "create_colocated_worker_cls.<locals>.WorkerDict"


def actors(**states):
    return [{"class_name": name, "state": state} for name, some in states.items() for state in some]


def phases_of(name):
    """The driver's phases line by line in a recorded log, without repetitions; no step was recorded elsewhere."""
    driver, seen, step = phase.Driver(), [], 0
    for line in (LOGS / name).read_bytes().splitlines():
        driver.feed(line)
        row = phase.progress.of_console(line)
        step = max(step, row.number if row else 0)
        words = driver.does(step, None)
        if not seen or seen[-1] != words:
            seen.append(words)
    return seen


STARTUP = ["starting verl's driver", "starting verl's trainer", "reading the data"]
WITHOUT_ACTORS = "starting Ray workers and loading the model"


@pytest.mark.parametrize("name", ["ppo-0.7.1.log", "ppo-0.8.0.log"])
def test_ppo_with_validation_and_a_checkpoint_each_step(name):
    assert phases_of(name) == [
        *STARTUP,
        WITHOUT_ACTORS,
        "training step 1 of 2",
        "validating before step 1",
        "training step 1 of 2",
        "saving a checkpoint after step 1",
        "validating after step 1",
        "training step 2 of 2",
        "saving a checkpoint after step 2",
        "validating after step 2",
        "finishing after the last step",
    ]


def test_grpo():
    assert phases_of("grpo-0.7.1.log") == [
        *STARTUP,
        WITHOUT_ACTORS,
        "training step 1 of 2",
        "training step 2 of 2",
        "saving a checkpoint after step 2",
        "finishing after the last step",
    ]


def test_the_v1_trainer_with_a_checkpoint_to_continue_from():
    """It has words of its own for loading and saving."""
    assert phases_of("ppo-0.9.1-resumed.log") == [
        *STARTUP,
        WITHOUT_ACTORS,
        "loading the checkpoint global_step_10",
        "training step 1 of 12",
        "training step 12 of 12",
        "saving a checkpoint after step 12",
        "finishing after the last step",
    ]


@pytest.mark.parametrize("name", ["sft-0.7.1.log", "sft-0.8.0.log"])
def test_sft_records_a_step_before_its_checkpoint(name):
    assert phases_of(name) == [
        *STARTUP,
        "training step 1",
        "training step 1 of 2",
        "training step 2 of 2",
        "finishing after the last step",
        "saving a checkpoint after step 2",
        "finishing after the last step",
    ]


@pytest.mark.parametrize(
    ("has", "words"),
    [
        (actors(TaskRunner=["ALIVE"]), "starting Ray workers"),
        (
            actors(**{"TaskRunner": ["ALIVE"], WORKER: ["ALIVE", "PENDING_CREATION"]}),
            "starting Ray workers (2 of 3 actors alive)",
        ),
        (
            actors(**{"TaskRunner": ["ALIVE"], WORKER: ["ALIVE", "ALIVE", "DEAD"]}),
            "loading the model on 2 workers",
        ),
        (
            actors(**{"TaskRunner": ["ALIVE"], WORKER: ["ALIVE"] * 2, "HFServer": ["ALIVE", "PENDING_CREATION"]}),
            "starting the rollout (4 of 5 actors alive)",
        ),
        (actors(TrainingWorker=["ALIVE", "ALIVE"]), "loading the model on 2 workers"),
    ],
)
def test_the_actors_show_what_a_driver_waits_for(has, words):
    """Class names and states as listed by Ray 2.60 for verl 0.7.1 and 0.8.0."""
    driver = phase.Driver()
    for line in [b"INFO worker.py:2029 -- Connected to Ray cluster.", b"dataset len: 512"]:
        driver.feed(line)
    assert driver.does(0, has) == words


def test_a_job_that_continues_from_a_checkpoint():
    driver = phase.Driver()
    for line in [b"Connected to Ray cluster", b"dataset len: 8", b"Total training steps: 20"]:
        driver.feed(line)
    driver.feed(b"(TaskRunner pid=1) Load from checkpoint folder: /private/jobs/a/checkpoints/global_step_10")
    assert driver.does(10, []) == "loading the checkpoint global_step_10"
    driver.feed(b"(TaskRunner pid=1) Setting global step to 10")
    assert driver.does(10, []) == "training step 11 of 20"
    driver.feed(b"(TaskRunner pid=1) test_gen_batch meta info: {'validate': True, 'global_steps': 10}")
    assert driver.does(10, []) == "validating after step 10"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.SUBMITTING, "submitting it to Ray"),
        (Status.PENDING, "waiting for Ray to start its launcher"),
        (Status.QUEUED, "waiting in the queue"),
        (Status.UNKNOWN, "waiting for Ray to answer"),
        (Status.RUNNING, "starting its launcher"),
        (Status.SUCCEEDED, None),
    ],
)
def test_before_it_trains(make_job, status, words):
    assert phase.before_training(make_job(), status) == words


def test_the_launchers_own_work(make_job):
    job = make_job()
    lock = liveness.hold(job)
    assert phase.before_training(job, Status.RUNNING) == "proving the code that it imports"
    job.write_state("started", {})
    assert phase.before_training(job, Status.RUNNING) is None
    job.write_state("ended", {"exit_code": 0, "reason": "the trainer ended"})
    assert phase.before_training(job, Status.RUNNING) == "taking a debug bundle of its end"
    os.close(lock)
