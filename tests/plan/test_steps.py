"""The steps that an attempt is to train, from its config, the rows of its data and what verl's code does when it continues."""

import pytest
from shared_fixtures import write

from verl_regress.base.files import value_at
from verl_regress.base.workloads import WORKLOADS
from verl_regress.jobs.shortfall import FROM_WITHIN
from verl_regress.plan import steps
from verl_regress.plan.compose import CONFIG

# Where each release restores the data: at the end of an epoch, too; only within one; or with a loop that begins the data again.
ALWAYS = "class A:\n  def load(self):\n    self.train_dataloader.load_state_dict(state)\n"
WITHIN = "class A:\n  def load(self):\n    if not at_epoch_boundary: self.train_dataloader.load_state_dict(state)\n"
AGAIN = (
    f"{ALWAYS}  def next(self):\n    try: return next(self.it)\n    except StopIteration: self.it = iter(self.data)\n"
)
FROM = "/jobs/me/checkpoints/global_step_"


class Config:
    """A composed config with these values; OVERRIDES set all of them."""

    def __init__(self, **values):
        self.document = {"trainer": {"total_epochs": 1, "save_freq": 10}, "data": {"train_batch_size": 8}}
        for key, value in values.items():
            self.document[key] = {**self.document.get(key, {}), **value}

    def value(self, key):
        return value_at(self.document, key)

    def named(self, key, value):
        return f"{key}={value} (from {'OVERRIDES' if value is not None else CONFIG})"


def of(tmp_path, workload="sft", rows=64, code=ALWAYS, data=None, **trainer):
    for name in (
        "utils/checkpoint/checkpoint_handler.py",
        "trainer/ppo/ray_trainer.py",
        "trainer/ppo/v1/trainer_base.py",
    ):
        write(tmp_path / "verl" / name, code)
    config = Config(trainer=trainer, data=data or {}, **({} if workload == "sft" else {"actor_rollout_ref": {}}))
    return steps.steps_of(tmp_path, WORKLOADS[workload], config, rows), config


@pytest.mark.parametrize(
    ("given", "after", "last", "saves"),
    [
        ({}, 0, 8, 1),  # the last step is saved, too
        ({"save_freq": 4}, 0, 8, 2),
        ({"save_freq": -1}, 0, 8, 1),  # SFT saves the last step anyway
        ({"save_freq": "after_each_epoch", "total_epochs": 3}, 0, 24, 3),
        ({"total_training_steps": 5}, 0, 5, 1),
        ({"total_training_steps": 300, "save_freq": 100}, 0, 8, 0),
        ({"rows": 71}, 0, 8, 1),  # the last rows make no batch
        ({"rows": None}, 0, None, None),
        ({"rows": None, "total_training_steps": 5}, 0, 5, 1),
        ({"resume_mode": "resume_path", "resume_from_path": f"{FROM}4"}, 4, 8, 1),
        ({"resume_mode": "disable", "resume_from_path": f"{FROM}4"}, 0, 8, 1),
        ({"resume_mode": "auto", "resume_from_path": None}, 0, 8, 1),
        ({"workload": "grpo", "save_freq": -1}, 0, 8, 0),
        ({"workload": "grpo", "val_only": True}, 0, 0, 0),
        ({"workload": "grpo", "val_only": True, "val_before_train": False}, 0, 8, 1),  # verl reads it only there
        ({"workload": "grpo", "data": {"gen_batch_size": 4}}, 0, 16, 2),
        ({"workload": "grpo", "data": {"gen_batch_size": 4}, "use_v1": True}, 0, 8, 1),
    ],
)
def test_where_it_begins_and_ends_and_what_it_saves(tmp_path, given, after, last, saves):
    found, _ = of(tmp_path, **given)
    assert (found.after, found.last, found.saves) == (after, last, saves)


@pytest.mark.parametrize(
    ("workload", "code", "after", "epochs", "total", "skipped"),
    [
        ("sft", ALWAYS, 8, 2, None, 8),
        ("sft", ALWAYS, 8, 3, None, 8),
        ("sft", ALWAYS, 8, 3, 12, 0),  # the epoch after the next one has them
        ("sft", ALWAYS, 4, 2, None, 0),
        ("sft", ALWAYS, 0, 2, None, 0),
        ("sft", WITHIN, 8, 2, None, 0),
        ("grpo", ALWAYS, 8, 2, None, 8),
        ("grpo", WITHIN, 8, 2, None, 0),
        ("grpo", AGAIN, 8, 2, None, 0),
        ("sft", "no Python (", 8, 2, None, 0),
        ("sft", "", 8, 2, None, 0),
    ],
)
def test_what_a_verl_leaves_out_that_continues_an_epoch_that_ended(
    tmp_path, workload, code, after, epochs, total, skipped
):
    resumed = {"resume_mode": "resume_path", "resume_from_path": f"{FROM}{after}"} if after else {}
    found, _ = of(tmp_path, workload, code=code, total_epochs=epochs, total_training_steps=total, **resumed)
    assert found.skipped == skipped


def said(tmp_path, **given):
    found, config = of(tmp_path, **given)
    return list(steps.warnings(found, config, "verl 0.9.1"))


def test_what_will_not_be_trained_or_saved_is_said_before(tmp_path):
    short = {"rows": 256, "total_training_steps": 300, "save_freq": 100}
    asked = "trainer.total_training_steps=300 (from OVERRIDES): this will train"
    because = (
        "of 300 steps and save no checkpoint, because an epoch of the data has 32 and trainer.total_epochs=1 (from OVERRIDES): "
        "write trainer.total_epochs=10."
    )
    assert said(tmp_path, **short) == [f"{asked} 32 {because}"]
    assert said(tmp_path, **short, data={"filter_overlong_prompts": True}) == [f"{asked} at most 32 {because}"]
    ended = {"total_epochs": 2, "resume_mode": "resume_path", "resume_from_path": f"{FROM}8"}
    assert said(tmp_path, **ended) == [
        f"verl 0.9.1 looks for more data in the epoch that ended with step 8, so this will train 0 of 8 steps: {FROM_WITHIN}."
    ]
    assert len(said(tmp_path, **ended, total_training_steps=20)) == 1
    assert said(tmp_path, **{**ended, "total_epochs": 1}) == [
        "no step is left after step 8, so this will train nothing: add OVERRIDES=trainer.total_epochs=3."
    ]
    for complete in (
        {"val_only": True, "workload": "grpo"},
        {},
        {"total_training_steps": 8},
        {"total_epochs": 2},
        {"rows": None, "total_training_steps": 300},
    ):
        assert said(tmp_path, **complete) == []


@pytest.mark.parametrize(
    ("saves", "strategy", "lacks"),
    [
        (["model", "optimizer", "extra"], "fsdp2", None),
        (["hf_model"], "fsdp2", "model and no optimizer and no extra, and no job could continue from them"),
        (["model"], "fsdp", "optimizer and no extra, and a job that continues from them begins with new ones"),
        (["hf_model", "optimizer", "extra"], "megatron", None),  # mbridge loads them
        (["hf_model"], "megatron", "optimizer and no extra, and a job that continues from them begins with new ones"),
        (["hf_model"], "torchtitan", "model, and no job could continue from them"),
    ],
)
def test_checkpoints_that_will_lack_something_are_said_before(tmp_path, saves, strategy, lacks):
    found, config = of(tmp_path, workload="grpo")
    config.document["actor_rollout_ref"] = {"actor": {"strategy": strategy, "checkpoint": {"save_contents": saves}}}
    warnings = list(steps.warnings(found, config, "verl 0.9.1"))
    assert len(warnings) == (lacks is not None)
    key = "actor_rollout_ref.actor.checkpoint.save_contents"
    begin = f"{key}=[{','.join(saves)}] (from OVERRIDES): the checkpoints will have no {lacks}: write {key}=[{','.join(saves)},"
    assert all(warning.startswith(begin) for warning in warnings)
    config.document["trainer"]["save_freq"] = -1
    assert list(steps.warnings(steps.steps_of(tmp_path, WORKLOADS["grpo"], config, 64), config, "verl 0.9.1")) == []


@pytest.mark.parametrize(
    ("total", "epochs", "after", "more"),
    [
        (8, 2, 8, "OVERRIDES='trainer.total_training_steps=18 trainer.total_epochs=3'"),
        (2, 4, 2, "OVERRIDES=trainer.total_training_steps=12"),
        (None, 1, 8, "OVERRIDES=trainer.total_epochs=3"),
        (20, 1, 8, "OVERRIDES=trainer.total_epochs=3"),
    ],
)
def test_what_gives_an_attempt_without_steps_some(tmp_path, total, epochs, after, more):
    resumed = {"resume_mode": "resume_path", "resume_from_path": f"{FROM}{after}"}
    found, config = of(tmp_path, total_training_steps=total, total_epochs=epochs, **resumed)
    assert steps.asking_for_more(found, config) == more
