import errno
import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
from conftest import write, write_checkpoint

from verl_regress.base.errors import Unreadable
from verl_regress.jobs import checkpoints, progress
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
    job.metrics.write_text(whole + '\n \n{"step": 3, "data": {"actor/lr": 1}}\n')
    assert [step.number for step in progress.steps(progress.lines(job))] == [1, 2, 3]


def test_a_record_that_the_disk_does_not_give_is_named_with_the_reason(make_job, monkeypatch):
    job = make_job()
    job.metrics.mkdir()
    with pytest.raises(Unreadable) as refusal:
        progress.lines(job)
    assert str(refusal.value) == f"{job.metrics} cannot be read: Is a directory: fix that, then run it again."

    def fail(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "exists", fail)
    with pytest.raises(Unreadable) as refusal:
        progress.lines(job)
    assert str(refusal.value) == f"{job.metrics} cannot be read: Input/output error: fix that, then run it again."


def test_a_metric_with_a_byte_that_is_no_utf_8_is_kept_with_a_replacement_character(make_job):
    job = make_job()
    job.metrics.write_bytes(b'{"step": 1, "data": {"caf\xe9": 2}}\n')
    assert progress.steps(progress.lines(job)) == [Step(1, {"caf\ufffd": 2})]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b'{"step": 1}', '{"step": 1}'),
        (b'{"data": {}}', '{"data": {}}'),
        (b'{"step": "1", "data": {}}', '{"step": "1", "data": {}}'),
        (b'{"step": 1, "data": []}', '{"step": 1, "data": []}'),
        (b'{"step": 1, "data": {', '{"step": 1, "data": {'),
        (b"[1]", "[1]"),
        (b"1", "1"),
        (b"caf\xe9", "caf\ufffd"),
        (b"x" * 40, "x" * 40),
        (b"x" * 41, "x" * 40 + "… (41 characters)"),
        (b"[" * 100_000, "[" * 40 + "… (100000 characters)"),
    ],
)
def test_a_line_that_is_no_step_is_refused_with_its_text(run, make_job, line, shown):
    job = make_job()
    job.metrics.write_bytes(b'{"step": 0, "data": {}}\n' + line + b"\n")
    assert run("logs", "--metrics", "job").is_refusal(
        f"{job.metrics} cannot be read: {shown} is not a step with its data: restore it from a backup.", status=1
    )


def test_a_file_that_is_too_long_is_refused_with_its_size(run, make_job, monkeypatch):
    job = make_job()
    write(job.metrics, '{"step": 1, "data": {}}\n')
    monkeypatch.setattr(progress, "_MOST_METRICS", 24)
    assert run("logs", "--metrics", "job").out == '{"step": 1, "data": {}}\n'
    monkeypatch.setattr(progress, "_MOST_METRICS", 23)
    assert run("logs", "--metrics", "job").is_refusal(
        f"{job.metrics} cannot be read: it has 24 bytes, far more than the program writes there: restore it from a backup.",
        status=1,
    )


def test_the_last_step_is_read_from_the_end_of_the_file(make_job):
    job = make_job()
    assert progress.last_step(job) == 0
    write(job.metrics, "".join(f'{{"step": {step}, "data": {{"actor/lr": 1}}}}\n' for step in range(1, 20001)))
    assert progress.last_step(job) == 20000
    with job.metrics.open("a") as file:
        file.write('{"step": 20001, "data"')  # half-written
    assert progress.last_step(job) == 20000


def test_the_last_line_is_refused_if_it_is_no_step(make_job):
    job = make_job()
    write(job.metrics, '{"step": 1, "data": {}}\n{"step": 2}\n')
    with pytest.raises(Unreadable) as refusal:
        progress.last_step(job)
    assert str(refusal.value) == (
        f'{job.metrics} cannot be read: {{"step": 2}} is not a step with its data: restore it from a backup.'
    )


def test_the_last_step_before_the_first_new_one_is_the_parents(make_job):
    job = make_job("job/attempts/2")
    has_plan(job, parent={"attempt": 1, "checkpoint": "c", "step": 4})
    assert progress.last_step(job) == 4
    write(job.metrics, '{"step": 5, "da')
    assert progress.last_step(job) == 4
    write(job.metrics, '{"step": 5, "data": {}}\n')
    assert progress.last_step(job) == 5


def test_the_last_step_of_the_console_logger_is_read_from_the_end_of_the_log(make_job):
    job = make_job("job/attempts/2")
    overrides = [{"text": "trainer.logger=[console]", "origin": "OVERRIDES"}]
    has_plan(job, parent={"attempt": 1, "checkpoint": "c", "step": 4}, overrides=overrides)
    assert progress.last_step(job) == 4
    write(job.driver_log, "Training begins\n")
    assert progress.last_step(job) == 4
    write(job.driver_log, "Training begins\nstep:5 - a:1\nsaved\nstep:6 - a:1\n")
    assert progress.last_step(job) == 6
    write(job.driver_log, "step:6 - a:1\nsaved\nstep:7 - a:1")  # half-written
    assert progress.last_step(job) == 6


def test_the_total_is_what_the_trainer_said(make_job):
    job = make_job()
    assert progress.total_steps(job) is None
    job.driver_log.write_bytes(b"\xff\nTotal training steps: x\n")
    assert progress.total_steps(job) is None
    job.driver_log.write_bytes(b"\xff\n(TaskRunner pid=1) Total training steps: 12\n")
    assert progress.total_steps(job) == 12


def test_the_total_is_looked_for_in_the_first_4_mib_of_the_log(make_job):
    job, said = make_job(), "Total training steps: 12"
    write(job.driver_log, f"{'x' * ((4 << 20) - len(said))}{said}\n")
    assert progress.total_steps(job) == 12
    write(job.driver_log, f"{'x' * (4 << 20)}{said}\n")
    assert progress.total_steps(job) is None


def test_lines_of_the_log(make_job):
    job = make_job()
    assert progress.log_lines(job, "MVP_") == []
    job.driver_log.write_bytes(b"MVP_A: \xff1 \n\xff MVP_B: 2\nMVP_C: 3")
    assert progress.log_lines(job, "MVP_") == ["MVP_A: \ufffd1 ", "MVP_C: 3"]


def test_checkpoints_in_the_order_of_their_steps(make_job):
    job = make_job()
    for name in ("global_step_10", "global_step_9", "global_step_x", "other"):
        (job.checkpoints / name).mkdir()
    (job.checkpoints / "global_step_1").write_text("a file")
    assert checkpoints.names(job) == ["global_step_9", "global_step_10"]


@pytest.mark.parametrize(
    ("saved", "latest", "newest"),
    [
        ({2: "actor critic data.pt", 4: "actor critic data.pt"}, 4, 4),
        ({2: "actor critic data.pt", 4: "actor"}, 2, 2),  # died while it saved 4
        ({2: "actor data.pt", 10: "actor data.pt"}, 10, 10),
        ({2: "critic data.pt"}, 2, None),  # verl's state while it saves the next one, due to max_actor_ckpt_to_keep
        ({2: "actor data.pt", 4: "data.pt"}, 4, 2),
        ({2: "data_0.pt", 4: "data_0.pt"}, 4, 4),  # SFT
        ({2: "actor data.pt", 4: ""}, 4, 2),
        ({4: "actor data.pt"}, None, None),  # died while it saved the first
        ({}, 4, None),  # collected
    ],
)
def test_the_newest_complete_checkpoint(make_job, saved, latest, newest):
    job = make_job()
    for step, parts in saved.items():
        write_checkpoint(job, step, parts, latest=latest)
    found = checkpoints.newest(job)
    assert found == (job.checkpoints / f"global_step_{newest}" if newest else None)


@pytest.mark.parametrize(
    ("config", "newest"),
    [
        ("algorithm: {adv_estimator: gae}\ncritic: {enable: null}\n", 2),
        ("algorithm: {adv_estimator: gae}\ncritic: {}\n", 2),  # a release without that key
        ("algorithm: {adv_estimator: gae}\ncritic: {enable: false}\n", 4),
        ("algorithm: {adv_estimator: grpo}\ncritic: {enable: true}\n", 2),
        ("algorithm: {adv_estimator: grpo}\ncritic: {enable: null}\n", 4),
        ("trainer: {}\n", 4),
    ],
)
def test_a_checkpoint_without_the_critic_that_verl_trains_is_incomplete(make_job, config, newest):
    """Before: it counted as complete."""
    job = make_job()
    write(job.config / "verl_config.yaml", config)
    write_checkpoint(job, 2, latest=4)
    write_checkpoint(job, 4, "actor data.pt", latest=4)  # max_critic_ckpt_to_keep
    assert checkpoints.newest(job) == job.checkpoints / f"global_step_{newest}"


def test_a_checkpoint_without_a_rank_is_incomplete(make_job):
    job = make_job()
    for step in (2, 4):
        write_checkpoint(job, step, "actor data.pt", latest=4)
    (job.checkpoints / "global_step_4" / "actor" / "optim_world_size_2_rank_1.pt").unlink()
    assert checkpoints.newest(job) == job.checkpoints / "global_step_2"


@pytest.mark.parametrize("said", ["", "soon", "-"])
def test_a_tracker_file_without_a_step(make_job, said):
    job = make_job()
    write_checkpoint(job, 2, "actor data.pt", latest=2)
    (job.checkpoints / "latest_checkpointed_iteration.txt").write_text(said)
    assert checkpoints.newest(job) is None


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
    attempt("job/attempts/4", (5, 6), 2, 4)  # continues attempt 2, whatever came after that

    def numbers(asked):
        rows = map(json.loads, run("logs", "--metrics", asked).out.splitlines())
        return [(row["step"], row["data"]["by"]) for row in rows]

    assert numbers("job.a1") == [(1, 1), (2, 1), (3, 1)]
    assert numbers("job.a2") == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert numbers("job.a3") == [(1, 3), (2, 3)]
    assert numbers("job") == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 4), (6, 4)]


@pytest.mark.parametrize("attempt", [None, -1, 0, 2, 3])
def test_an_attempt_that_continues_from_no_earlier_one_is_refused(make_job, run, attempt):
    make_job("job")
    job = make_job("job/attempts/2")
    has_plan(job, parent={"attempt": attempt, "checkpoint": "c", "step": 2})
    assert run("logs", "--metrics", "job").is_refusal(
        f"{job.config / 'resolved.json'} cannot be read: parent.attempt must be an earlier attempt, not {attempt}: "
        "restore it from a backup.",
        status=1,
    )


@pytest.mark.parametrize(
    ("parent", "known"),
    [
        (None, {"attempt": None, "checkpoint": None, "step": 0}),
        ({"step": 3}, {"attempt": None, "checkpoint": None, "step": 3}),
        ({"attempt": 1, "checkpoint": "c", "step": 3}, {"attempt": 1, "checkpoint": "c", "step": 3}),
    ],
)
def test_what_an_attempt_continues_from(make_job, parent, known):
    job = make_job()
    has_plan(job, parent=parent)
    assert progress.parent_of(job) == known


@pytest.mark.parametrize(
    ("overrides", "asked", "writes_file", "logs_steps"),
    [
        ([], None, True, True),
        (["trainer.logger=[file]"], "[file]", True, True),
        (["+trainer.logger=[console]"], "[console]", False, True),
        (["++trainer.logger=wandb"], "wandb", False, False),
        (["trainer.logger=[file]", "trainer.logger=[wandb]", "trainer.seed=1"], "[wandb]", False, False),
        (["trainer.logger=['a=b']"], "['a=b']", False, False),
        (["+my.trainer.logger=[wandb]", "+Xtrainer.logger=[wandb]", "trainer.loggers=[wandb]"], None, True, True),
    ],
)
def test_the_loggers_that_were_asked_for(make_job, overrides, asked, writes_file, logs_steps):
    job = make_job()
    has_plan(job, overrides=[{"text": text, "origin": "OVERRIDES"} for text in overrides])
    assert progress.loggers(job) == asked
    assert (progress.writes_file(job), progress.logs_steps(job)) == (writes_file, logs_steps)


LOGS = Path(__file__).parents[1] / "recorded" / "driver_logs"


def with_logger(job, logger, log=None):
    """A job with another trainer.logger, and the log of a real one (tests/recorded)."""
    has_plan(job, overrides=[{"text": f"trainer.logger={logger}", "origin": "OVERRIDES"}])
    if log is not None:
        shutil.copy(LOGS / log, job.driver_log)
    return job


@pytest.mark.parametrize("log", ["ppo-0.7.1", "ppo-0.8.0", "grpo-0.7.1", "sft-0.7.1", "sft-0.8.0"])
def test_steps_come_from_the_log_where_only_the_console_logger_writes_them(make_job, run, log):
    job = with_logger(make_job(), "[console]", f"{log}.log")
    steps = progress.steps(progress.lines(job))
    assert [step.number for step in steps] == [1, 2]
    assert all("train/loss" in step.metrics or "critic/score/mean" in step.metrics for step in steps)
    assert progress.last_step(job) == 2
    assert progress.taken(job) == "2 of 2 training steps"
    assert [json.loads(line)["step"] for line in run("logs", "--metrics", "job").out.splitlines()][-1] == 2


def test_a_log_that_cannot_be_read_is_the_one_that_is_named(make_job, monkeypatch):
    """Its job has no metrics.jsonl. Root may read every file, so the call itself fails here."""
    job = make_job("job")
    job.metrics.unlink(missing_ok=True)

    def refuse(path, _most):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(progress, "opened", refuse)
    with pytest.raises(PermissionError) as error:
        progress.lines(job)
    assert error.value.filename == str(job.driver_log)


def test_the_console_says_what_the_file_says(make_job):
    """A real job of verl 0.7.1 with both loggers."""
    job = with_logger(make_job(), "[console]", "ppo-0.7.1.log")
    rows = [json.loads(line) for line in progress.lines(job)]
    recorded = [json.loads(line) for line in (LOGS / "ppo-0.7.1.metrics.jsonl").read_text().splitlines()]
    assert len(rows) == len(recorded) == 3
    for row, known in zip(rows, recorded, strict=True):
        assert row["step"] == known["step"]
        assert row["data"] == pytest.approx({name: float(value) for name, value in known["data"].items()})


# What Ray adds to the first line that it leaves out elsewhere.
DEDUPLICATED = (
    "(Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable log deduplication, or see "
    "https://docs.ray.io/en/master/ray-observability/user-guides/configure-logging.html#log-deduplication for more options.)"
)


@pytest.mark.parametrize(
    ("line", "data"),
    [
        ("step:3 - a/b:1.5 - c:np.float64(0.25) - d:-1e-05", {"a/b": 1.5, "c": 0.25, "d": -1e-5}),
        ("(TaskRunner pid=1) step:3 - a:2\x1b[32m [repeated 2x across cluster]\x1b[0m", {"a": 2}),
        (f"step:3 - a:2\x1b[32m [repeated 2x across cluster] {DEDUPLICATED}\x1b[0m", {"a": 2}),  # before: no metric
        ("step:3 - c:1 - val-core/my set/a:b/acc:0.5", {"c": 1, "val-core/my set/a:b/acc": 0.5}),
        ("step:3 - caf\udce9:1", {"caf\ufffd": 1}),
        ("step:3 - release:1.2.3 - a:np.str_('1') - b:np.int64(2)", {"b": 2}),
        ("step:3 - s:text", None),
        ("Epoch 1/1:  50%|##| 1/2 [00:02<00:02]step:3 - val@1:0.5 - n:nan - s:text", {"val@1": 0.5, "n": float("nan")}),
        ("substep:3 - a:1", None),
        ("step:3", None),
        ("step:3 - nothing here", None),
    ],
)
def test_lines_of_the_console_logger(line, data):
    row = progress.console_line(line.encode("utf-8", "surrogateescape"))
    if data is None:
        assert row is None
    else:
        assert json.loads(row)["data"] == pytest.approx(data, nan_ok=True)


def test_loggers_that_write_no_steps_here_are_named_instead_of_a_count(make_job, run):
    job = with_logger(make_job(), "[wandb]")
    sentence = "its loggers write no steps here (trainer.logger=[wandb])"
    assert (progress.taken(job), progress.last_step(job)) == (sentence, None)
    said = run("logs", "--metrics", "job")
    assert (said.status, said.out, said.err.strip()) == (0, "", f"job has no steps to print: {sentence}.")


def test_a_file_that_grows_is_read_once(tmp_path):
    tail = progress.Tail(tmp_path / "log")
    assert list(tail.new_lines()) == []
    write(tmp_path / "log", "a\nb")
    assert list(tail.new_lines()) == [b"a"]
    with (tmp_path / "log").open("a") as log:
        log.write("c\nd\n")
    assert (list(tail.new_lines()), list(tail.new_lines()), tail.size) == ([b"bc", b"d"], [], 7)


def test_of_a_line_longer_than_a_piece_the_last_piece_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_PIECE", 4)
    write(tmp_path / "log", "0123456789ab\nc\n")
    assert list(progress.Tail(tmp_path / "log").new_lines()) == [b"89ab", b"c"]


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.slow
def test_a_huge_log_is_never_in_memory_whole(tmp_path, end):
    """100 MiB, as many lines or as a single one without an end."""
    with (tmp_path / "log").open("wb") as log:
        for _ in range(100 * 1024):
            log.write(b"x" * (1024 - len(end)) + end)
    tail = progress.Tail(tmp_path / "log")
    tracemalloc.start()
    try:
        assert sum(1 for _ in tail.new_lines()) == len(end) * 100 * 1024
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert tail.size == 100 << 20
