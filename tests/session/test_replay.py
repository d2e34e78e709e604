"""Replay: which cases are replayed, and what of a run shows that it trained on exactly what A recorded."""

from types import SimpleNamespace

import pytest
from shared_fixtures import write

import recomputed_rewards
from verl_regress.base.errors import BadInput, RegressError
from verl_regress.base.layout import JobDir
from verl_regress.session import replay, suites

STEP = "replay_verl-regress/GBS8_N2_in5_out7/{}/0/tq_batch.pt"
READ = "(TaskRunner pid=9) Injected 16 cached trajectories from step {} (8 prompts x 2)\n"


def files(directory, steps=(1, 2), text="rollouts of {}"):
    for step in steps:
        write(directory / STEP.format(step), text.format(step))
    return replay.files_of(directory)


def reader(shared, *steps):
    """A job whose log says that it read these steps."""
    job = JobDir(shared.jobs / "ppo-b")
    write(job.driver_log, "".join(["step 1 of 2\n", *map(READ.format, steps)]))
    return job


def test_a_run_that_read_every_step_trained_on_the_recording(shared, tmp_path):
    recorded = files(tmp_path / "r")
    assert replay.misused(reader(shared, 1, 2), recorded, tmp_path / "r", [1, 2]) is None
    assert replay.misused(reader(shared, 2), recorded, tmp_path / "r", [2]) is None  # it continued after step 1
    said = "it did not read A's rollouts of step {}, so it generated its own"
    assert replay.misused(reader(shared, 1), recorded, tmp_path / "r", [1, 2]) == said.format(2)
    assert replay.misused(reader(shared, 2), recorded, tmp_path / "r", [2, 3]) == said.format(3)  # past the recording


def test_a_run_that_computed_every_reward_again_says_so(shared, tmp_path):
    job, recorded = reader(shared, 1, 2), files(tmp_path / "r")
    log = job.driver_log.read_text()
    for times, said in (1, "it computed the rewards of 1 of 2 steps again"), (2, None):
        write(job.driver_log, log + f"(TaskRunner pid=9) {recomputed_rewards.SAYS}\n" * times)
        assert replay.misused(job, recorded, tmp_path / "r", [1, 2], is_scored=True) == said


def test_v0_says_in_other_words_what_it_read(shared, tmp_path):
    job = reader(shared)
    write(job.driver_log, "[RolloutSkip()] Load generate result at step 1 (request step 1) from /x/gen_batch.dp\n")
    assert replay.misused(job, files(tmp_path / "r", [1]), tmp_path / "r", [1]) is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda home: write(home / STEP.format(2), "rollouts"), f"{STEP.format(2)} is of other bytes"),
        (lambda home: (home / STEP.format(1)).unlink(), f"{STEP.format(1)} is missing"),
        # Another batch size or n has another folder, where verl finds nothing and generates.
        (lambda home: write(home / "r/GBS4/1/0/tq_batch.pt", "x"), "r/GBS4/1/0/tq_batch.pt is new"),
    ],
)
def test_a_recording_that_is_not_as_a_wrote_it(shared, tmp_path, spoil, said):
    recorded = files(tmp_path / "r")
    replay.need_unchanged(tmp_path / "r", recorded)
    spoil(tmp_path / "r")
    assert replay.misused(reader(shared, 1, 2), recorded, tmp_path / "r", [1, 2]).endswith(f"as they were: {said}")
    with pytest.raises(RegressError, match="begin a new session"):
        replay.need_unchanged(tmp_path / "r", recorded)


def test_a_file_of_no_step_is_no_rollout(tmp_path):
    recorded = files(tmp_path / "r")
    write((tmp_path / "r" / STEP.format(1)).with_name(".nfs0001"), "x")
    assert replay.files_of(tmp_path / "r") == recorded
    write(tmp_path / "r/config.json", "x")
    write(tmp_path / "r/a/b/x", "x")
    assert replay.unrecorded(files(tmp_path / "r"), [1, 2]) is None


def test_every_run_has_its_recording_at_one_path(tmp_path):
    texts = [each.text for each in replay.overrides(tmp_path / "r", 2)]
    assert {"trainer.experiment_name=replay", "trainer.project_name=verl-regress"} <= {*texts}


def test_a_recording_without_a_step_of_its_run_is_none(tmp_path):
    assert replay.unrecorded(files(tmp_path / "r"), [1, 2]) is None
    assert "step 3, 4 were not recorded" in replay.unrecorded(files(tmp_path / "r"), [1, 2, 3, 4])


def test_a_recording_that_others_can_change_is_not_unpickled(tmp_path):
    recorded = files(tmp_path / "r")
    (tmp_path / "r" / STEP.format(1)).chmod(0o666)
    with pytest.raises(BadInput, match="can be changed by every user"):
        replay.need_unchanged(tmp_path / "r", recorded)


def test_runs_of_one_code_that_must_agree_train_on_one_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "_why_not", lambda *_: None)
    monkeypatch.setattr(replay, "_most_bytes", lambda _: 1)
    samples = SimpleNamespace(workload=SimpleNamespace(samples_key="x"))
    planned = SimpleNamespace(request=samples, composed=SimpleNamespace(value=lambda _: 1))
    suite = suites.parse("cases: {ppo: {workload: ppo, equal: [[a=1]]}}", "my.yaml")
    found = replay.decide(suite, tmp_path / "replay", lambda *_: planned)
    assert {name: each["recorded_by"] for name, each in found.items()} == {"ppo": "ppo", "ppo-1": "ppo"}
