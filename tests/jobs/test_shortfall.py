"""The steps that an attempt recorded, against those that were to do."""

import json

import pytest
from shared_fixtures import write

from verl_regress.jobs import shortfall


@pytest.fixture
def trained(make_job):
    """What is said of an attempt that recorded these steps of those planned."""

    def trained(*numbers, announced=None, overrides=(), name="job", **steps):
        job = make_job(name)
        plan = {**job.read_config("resolved.json"), "overrides": [{"text": text} for text in overrides]}
        write(job.config / "resolved.json", json.dumps({**plan, **({"steps": steps} if steps else {})}))
        rows = [{"step": number, "data": {"train/loss": 1.0}} for number in numbers]
        write(job.metrics, "".join(f"{json.dumps(row)}\n" for row in [{"step": 0, "data": {"val/loss": 1.0}}, *rows]))
        write(job.driver_log, f"Total training steps: {announced}\n" if announced else "")
        return job

    return trained


@pytest.mark.parametrize(
    ("numbers", "given", "words"),
    [
        ([], {"after": 8, "last": 16}, "trained none of the 8 steps (9 to 16)"),
        ([9, 10, 11], {"after": 8, "last": 16}, "trained 3 of 8 steps (9 to 16)"),
        (
            [7, 8],
            {"after": 8, "last": 16},
            "trained none of the 8 steps (9 to 16)",
        ),  # those of another attempt do not count
        ([1, 2], {"after": 0, "last": 8, "announced": 2}, None),  # verl left out rows: it knows better
        ([1, 2, 3], {"after": 0, "last": 3, "total": 20}, "trained 3 of 20 steps (1 to 20)"),
        ([], {"after": 0, "last": 3, "total": 20}, "trained none of the 3 steps (1 to 3)"),
        ([1], {"after": 0, "last": None, "announced": 2}, "trained 1 of 2 steps (1 to 2)"),
        ([1], {"announced": 2}, "trained 1 of 2 steps (1 to 2)"),  # an earlier version planned none
        ([1, 2], {"after": 0, "last": 2}, None),
        ([1, 2, 3], {"after": 0, "last": 2}, None),
        ([], {"after": 8, "last": 8, "announced": 8}, None),  # nothing was left, or val_only
        ([], {"after": 0, "last": None}, None),
        ([], {"after": 0, "last": 8, "overrides": ["trainer.logger=[console]"]}, None),
    ],
)
def test_what_was_not_trained(trained, numbers, given, words):
    found = shortfall.of_job(trained(*numbers, **given))
    assert (found and found.words) == words


def test_an_attempt_that_saved_a_new_checkpoint_has_trained_whatever_it_recorded(trained):
    job = trained(after=8, last=16)
    assert shortfall.has_trained_nothing(job).words == "trained none of the 8 steps (9 to 16)"
    (job.checkpoints / "global_step_8").mkdir()
    assert shortfall.has_trained_nothing(job) is not None
    (job.checkpoints / "global_step_16").mkdir()
    assert shortfall.has_trained_nothing(job) is None
    assert shortfall.has_trained_nothing(trained(9, name="other", after=8, last=16)) is None
