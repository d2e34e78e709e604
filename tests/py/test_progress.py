import json

import pytest
from conftest import write, write_checkpoint

from verl_regress import progress
from verl_regress.progress import Step


@pytest.mark.parametrize(
    ("metrics", "total", "line"),
    [
        ({}, None, "step 3"),
        ({}, 10, "step 3 of 10"),
        (
            {"timing_s/step": 4.25, "critic/score/mean": 0.12345},
            10,
            "step 3 of 10, 4.2 s a step, critic/score/mean 0.123",
        ),
        (
            {"perf/time_per_step": 1, "critic/rewards/mean": -1},
            10,
            "step 3 of 10, 1.0 s a step, critic/rewards/mean -1.000",
        ),
        ({"train/loss": 2.5, "other": 1}, 10, "step 3 of 10, train/loss 2.500"),
    ],
)
def test_the_line_of_a_step(metrics, total, line):
    assert Step(3, metrics).line(total) == line


def test_steps_are_the_training_steps(make_job):
    job = make_job()
    assert progress.steps(progress.lines(job)) == []
    rows = [
        {"step": 0, "data": {"val-core/sums/acc": 0.1, "val-aux/num_turns/min": 2}},
        {"step": 1, "data": {"actor/lr": 1e-4}},
        {"step": 1, "data": {"val/loss": 1.5}},
        {"step": 2, "data": {"actor/lr": 1e-4, "val-core/sums/acc": 0.2}},
    ]
    whole = "".join(json.dumps(row) + "\n" for row in rows)
    job.metrics.write_text(whole + '{"step": 3, "da')
    assert [step.number for step in progress.steps(progress.lines(job))] == [1, 2]
    job.metrics.write_text(whole + '{"step": 3, "data": {"actor/lr": 1}}\n')
    assert [step.number for step in progress.steps(progress.lines(job))] == [1, 2, 3]


def test_the_total_is_what_the_trainer_said(make_job):
    job = make_job()
    assert progress.total_steps(job) is None
    job.driver_log.write_bytes(b"\xff\nTotal training steps: x\n")
    assert progress.total_steps(job) is None
    job.driver_log.write_bytes(b"\xff\n(TaskRunner pid=1) Total training steps: 12\n")
    assert progress.total_steps(job) == 12


def test_lines_of_the_log(make_job):
    job = make_job()
    assert progress.log_lines(job, "MVP_") == []
    job.driver_log.write_bytes(b"MVP_A: 1\n\xff MVP_B: 2\nMVP_C: 3")
    assert progress.log_lines(job, "MVP_") == ["MVP_A: 1", "MVP_C: 3"]


def test_checkpoints_in_the_order_of_their_steps(make_job):
    job = make_job()
    for name in ("global_step_10", "global_step_9", "global_step_x", "other"):
        (job.checkpoints / name).mkdir()
    (job.checkpoints / "global_step_1").write_text("a file")
    assert progress.checkpoints(job) == ["global_step_9", "global_step_10"]


@pytest.mark.parametrize(
    ("saved", "latest", "newest"),
    [
        ({2: "actor critic data.pt", 4: "actor critic data.pt"}, 4, 4),
        ({2: "actor critic data.pt", 4: "actor"}, 2, 2),  # died while it saved 4
        ({2: "actor data.pt", 10: "actor data.pt"}, 10, 10),
        ({2: "critic data.pt"}, 2, None),  # what max_actor_ckpt_to_keep leaves while the next one is saved
        ({2: "actor data.pt", 4: "data.pt"}, 4, 2),
        ({2: "data_0.pt", 4: "data_0.pt"}, 4, 4),  # SFT
        ({2: "actor data.pt", 4: ""}, 4, 2),
        ({4: "actor data.pt"}, None, None),  # died while it saved the first
        ({}, 4, None),  # collected
    ],
)
def test_the_newest_checkpoint_that_is_whole(make_job, saved, latest, newest):
    job = make_job()
    for step, parts in saved.items():
        write_checkpoint(job, step, parts, latest=latest)
    found = progress.newest_checkpoint(job)
    assert found == (job.checkpoints / f"global_step_{newest}" if newest else None)


def test_a_checkpoint_without_a_rank_is_not_whole(make_job):
    job = make_job()
    for step in (2, 4):
        write_checkpoint(job, step, "actor data.pt", latest=4)
    (job.checkpoints / "global_step_4" / "actor" / "optim_world_size_2_rank_1.pt").unlink()
    assert progress.newest_checkpoint(job) == job.checkpoints / "global_step_2"


@pytest.mark.parametrize("said", ["", "soon", "-"])
def test_a_tracker_that_says_nothing(make_job, said):
    job = make_job()
    write_checkpoint(job, 2, "actor data.pt", latest=2)
    (job.checkpoints / "latest_checkpointed_iteration.txt").write_text(said)
    assert progress.newest_checkpoint(job) is None


def test_attempts_are_joined_behind_their_parents_checkpoint():
    earlier = [json.dumps({"step": step, "data": {"a": 1}}) for step in (0, 1, 2, 3)]
    later = [json.dumps({"step": step, "data": {"a": 2}}) for step in (3, 4)]
    joined = progress.join(earlier, 2, later)
    assert [(row["step"], row["data"]["a"]) for row in map(json.loads, joined)] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]
    assert progress.join(earlier, 0, later) == [earlier[0], *later]
    assert progress.join([], 5, later) == later


def test_the_steps_of_a_job_are_those_of_the_attempts_that_it_went_on_from(make_job, run):
    def attempt(name, steps, parent, step):
        job = make_job(name)
        write(job.metrics, "".join(json.dumps({"step": n, "data": {"by": job.attempt}}) + "\n" for n in steps))
        plan = {"parent": parent and {"attempt": parent, "checkpoint": step and "c", "step": step}}
        write(job.config / "resolved.json", json.dumps(plan))

    attempt("job", (1, 2, 3), None, 0)
    attempt("job/attempts/2", (3, 4, 5), 1, 2)
    attempt("job/attempts/3", (1, 2), 1, 0)  # a retry
    attempt("job/attempts/4", (5, 6), 2, 4)  # goes on from attempt 2, whatever came after it

    def told(asked):
        rows = map(json.loads, run("logs", "--metrics", asked).out.splitlines())
        return [(row["step"], row["data"]["by"]) for row in rows]

    assert told("job.a1") == [(1, 1), (2, 1), (3, 1)]
    assert told("job.a2") == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert told("job.a3") == [(1, 3), (2, 3)]
    assert told("job") == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 4), (6, 4)]
