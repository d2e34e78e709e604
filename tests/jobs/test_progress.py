import json

import pytest
from shared_fixtures import write

from verl_regress.jobs import progress
from verl_regress.jobs.progress import Step


def has_plan(job, **changes):
    """Give the job a plan with these keys."""
    plan = json.loads((job.config / "resolved.json").read_text())
    write(job.config / "resolved.json", json.dumps({**plan, **changes}))


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
    assert progress.training(progress.rows(job)) == []
    rows = [
        {"step": 0, "data": {"val-core/sums/acc": 0.1, "val-aux/num_turns/min": 2}},
        {"step": 1, "data": {"actor/lr": 1e-4}},
        {"step": 1, "data": {"val/loss": 1.5}},
        {"step": 2, "data": {"actor/lr": 1e-4, "val-core/sums/acc": 0.2}},
    ]
    whole = "".join(json.dumps(row) + "\n" for row in rows)
    job.metrics.write_text(whole + '{"step": 3, "da')
    assert [step.number for step in progress.training(progress.rows(job))] == [1, 2]
    job.metrics.write_text(whole + '\n \n{"step": 3, "data": {"actor/lr": 1}}\n')
    assert [step.number for step in progress.training(progress.rows(job))] == [1, 2, 3]


@pytest.mark.parametrize(
    "line", [b'{"step": 1}', b'{"step": "1", "data": {}}', b'{"step": 1, "data": {', b"[1]", b"[" * 100_000]
)
def test_a_damaged_line_is_no_step(run, make_job, line):
    job = make_job()
    whole = [b'{"step": 0, "data": {"a": 1}}', b'{"step": 2, "data": {"a": 1}}']
    job.metrics.write_bytes(b"\n".join([whole[0], line, whole[1], b""]))
    assert run("logs", "--metrics", "job").out.encode() == b"\n".join([*whole, b""])
    assert progress.last_step(job) == 2


def test_the_last_step_before_the_first_new_one_is_the_parents(make_job):
    job = make_job("job/attempts/2")
    has_plan(job, parent={"attempt": 1, "checkpoint": "c", "step": 4})
    assert progress.last_step(job) == 4
    write(job.metrics, '{"step": 5, "da')
    assert progress.last_step(job) == 4
    write(job.metrics, '{"step": 5, "data": {}}\n')
    assert progress.last_step(job) == 5


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
    job.driver_log.write_bytes(b"MVP_A: \xff1 \n\xff MVP_B: 2\nMVP_C: 3")
    assert progress.log_lines(job, "MVP_") == ["MVP_A: \ufffd1 ", "MVP_C: 3"]


def test_the_steps_of_a_job_are_those_of_the_attempts_that_it_went_on_from(make_job, run):
    def attempt(name, steps, parent, step):
        job = make_job(name)
        write(job.metrics, "".join(json.dumps({"step": n, "data": {"by": job.attempt}}) + "\n" for n in steps))
        plan = {"parent": parent and {"attempt": parent, "checkpoint": step and "c", "step": step}}
        write(job.config / "resolved.json", json.dumps(plan))

    attempt("job", (1, 2, 3), None, 0)
    attempt("job/attempts/2", (3, 4, 5), 1, 2)
    attempt("job/attempts/3", (1, 2), 1, 0)  # a retry
    attempt("job/attempts/4", (5, 6), 2, 4)  # continues attempt 2, whatever came after that

    def numbers(asked):
        rows = map(json.loads, run("logs", "--metrics", asked).out.splitlines())
        return [(row["step"], row["data"]["by"]) for row in rows]

    assert numbers("job.a1") == [(1, 1), (2, 1), (3, 1)]
    assert numbers("job.a2") == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert numbers("job.a3") == [(1, 3), (2, 3)]
    assert numbers("job") == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 4), (6, 4)]


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        ([], None),
        (["trainer.logger=[file]"], None),
        (["+trainer.logger=[console]"], "[console]"),
        (["++trainer.logger=wandb"], "wandb"),
        (["trainer.logger=[file]", "trainer.logger=[wandb]", "trainer.seed=1"], "[wandb]"),
        (["trainer.logger=['a=b']"], "['a=b']"),
        (["+my.trainer.logger=[wandb]", "+Xtrainer.logger=[wandb]", "trainer.loggers=[wandb]"], None),
    ],
)
def test_the_logger_without_file_that_was_asked_for(make_job, overrides, asked):
    job = make_job()
    has_plan(job, overrides=[{"text": text, "origin": "OVERRIDES"} for text in overrides])
    assert progress.logger_without_file(job) == asked


def test_loggers_that_write_no_steps_here_are_named_instead_of_a_count(make_job, run):
    job = make_job()
    has_plan(job, overrides=[{"text": "trainer.logger=[wandb]", "origin": "OVERRIDES"}])
    sentence = "its loggers write no steps here (trainer.logger=[wandb])"
    assert (progress.summary(job), progress.last_step(job)) == (sentence, None)
    said = run("logs", "--metrics", "job")
    assert (said.status, said.out, said.err.strip()) == (0, "", f"job has no steps to print: {sentence}.")


def test_a_file_that_grows_is_read_once(tmp_path):
    tail, one = progress.Tail(tmp_path / "log"), '{"step": 1, "data": {}}'
    assert tail.new_steps() == []
    write(tmp_path / "log", f"{one}\n{one[:9]}")
    assert [step.number for step in tail.new_steps()] == [1]
    with (tmp_path / "log").open("a") as log:
        log.write(f"{one[9:]}\n")
    assert ([step.number for step in tail.new_steps()], tail.new_steps()) == ([1], [])
