"""Batches of verl's V1 trainer: uids are counted, answers sorted, and polling takes less than two seconds."""

import types

import pytest

from verl_rehearsal import order


def test_uids_are_counted_and_hold_no_underscore():
    module = types.ModuleType("verl.trainer.ppo.v1.trainer_base")
    module.uuid = types.SimpleNamespace(uuid4=lambda: "random")
    order.apply(module)
    assert [str(module.uuid.uuid4()) for _ in range(2)] == ["000000000000", "000000000001"]


def made():
    class ReplayBuffer:
        poll_interval = 2.0

        def _materialize_batch(self, partition_id, selected_prompt_uids, partition_snapshot):
            return partition_id, selected_prompt_uids, list(partition_snapshot)

        def _wait_for_next_poll(self, partition_id, last_debug_time):
            return self.poll_interval, partition_id, last_debug_time

    module = types.ModuleType("verl.trainer.ppo.v1.replay_buffer")
    module.ReplayBuffer = ReplayBuffer
    order.apply(module)
    return ReplayBuffer()


@pytest.fixture
def buffer():
    return made()


def test_a_batch_is_sorted_by_prompt_session_and_index(buffer):
    finished = dict.fromkeys(["2_0_0", "1_10_0", "1_2_1", "1", "1_2_0", "2"])
    assert buffer._materialize_batch("train", ["2", "1"], finished) == (
        "train",
        ["1", "2"],
        ["1", "1_2_0", "1_2_1", "1_10_0", "2", "2_0_0"],
    )


@pytest.mark.parametrize(("unordered", "prompts"), [("1", ["2", "1"]), ("0", ["1", "2"]), ("", ["1", "2"])])
def test_a_job_that_asks_for_it_keeps_the_order_in_which_answers_finished(monkeypatch, unordered, prompts):
    monkeypatch.setenv("VERL_REHEARSAL_UNORDERED", unordered)
    batch = made()._materialize_batch("train", ["2", "1"], dict.fromkeys(["2_0_0", "1_0_0"]))
    assert batch == ("train", prompts, [f"{prompt}_0_0" for prompt in prompts])


def test_samples_are_polled_often(buffer):
    assert buffer._wait_for_next_poll("train", 7.0) == (0.05, "train", 7.0)
