"""Overrides with which the trainer that runs does nothing, sizes that it asserts, and an estimator of another workload."""

import pytest
import yaml
from shared_fixtures import write

from verl_regress.base.errors import BadInput, Refusals
from verl_regress.base.workloads import WORKLOADS
from verl_regress.plan import needs, readers, sizes
from verl_regress.plan.compose import Composed
from verl_regress.plan.environment import Environment
from verl_regress.plan.overrides import DETERMINISTIC, Override
from verl_regress.plan.source import Source

FILES = {
    "trainer/main_ppo.py": "from verl.trainer.ppo.v1 import get\nfrom verl.trainer.main_ppo_v0 import TaskRunner\nconfig.trainer.v1.trainer_mode\n",
    "trainer/main_ppo_v0.py": "from verl.utils import tracking\nself.config.trainer.old_only\n",
    "trainer/config/algorithm.py": "class AlgoConfig:\n    filter_groups: dict\n",
    "trainer/ppo/v1/__init__.py": "from .trainer_base import a\nfrom .sync import b\nfrom .apart import c\n",
    "trainer/ppo/v1/trainer_base.py": 'from verl.experimental.agent_loop import agent_loop\nself.config.algorithm.get("filter_groups")\n',
    "trainer/ppo/v1/sync.py": '@register_trainer("sync")\nclass A: ...\n',
    "trainer/ppo/v1/apart.py": '@register_trainer("apart")\nclass B:\n    config.trainer.v1.apart.sync_step\n',
    "experimental/agent_loop/agent_loop.py": "from verl.experimental.agent_loop import single, tool\n",
    "experimental/agent_loop/single.py": '@register("single_turn_agent")\nclass C: ...\n',
    "experimental/agent_loop/tool.py": '@register("tool_agent")\nclass D:\n    self.config.multi_turn.max_turns\n',
    "utils/tracking.py": 'log("training/filter_groups/left")\n',
    "utils/reward_score/math.py": 'return {"score": 1, "acc": True}\n',
}
LOOP = {"actor_rollout_ref": {"rollout": {"agent": {"default_agent_loop": "single_turn_agent"}}}}
WRITE_SAME = "write the same for both."


def sentences(check):
    """What is wrong, as it is noted."""
    try:
        with Refusals() as wrong:
            check(wrong)
    except BadInput as error:
        return [*error.sentences]
    return []


@pytest.fixture
def unread(tmp_path):
    """The sentences about one override of a GRPO job."""
    for name, text in FILES.items():
        write(tmp_path / "verl" / name, text)
    source = Source(tmp_path)

    def unread(key, *, use_v1=True, origin="OVERRIDES", names_loops=False, **more):
        trainer = {"use_v1": use_v1, "v1": {"trainer_mode": "sync"}}
        config = {"trainer": trainer, "algorithm": {"adv_estimator": "grpo"}, **LOOP, **more}
        overrides = (Override(f"{key}=x", "OVERRIDES"), Override(f"trainer.use_v1={use_v1}", origin))
        composed = Composed(overrides, (), yaml.safe_dump(config), frozenset({key}))
        grpo = WORKLOADS["grpo"]
        running = readers.running(composed, source, grpo, names_loops=names_loops)
        return sentences(lambda wrong: readers.check(composed, source, grpo, running, wrong))

    return unread


def test_a_key_of_the_other_trainer_is_refused(unread):
    key = "algorithm.filter_groups.enable"
    assert unread(key) == []
    assert unread(key, use_v1=False, origin=DETERMINISTIC) == [
        f"The override '{key}=x' (from OVERRIDES) sets a key that verl reads in verl/trainer/ppo/v1/trainer_base.py only, which this trainer "
        "does not run with trainer.use_v1=False (from DETERMINISTIC=1): leave it out, or change that."
    ]


@pytest.mark.parametrize(
    ("key", "more", "where"),
    [
        ("trainer.old_only", {}, "verl/trainer/main_ppo_v0.py"),
        ("trainer.v1.trainer_mode", {"use_v1": False}, "verl/trainer/ppo/v1/"),
        ("trainer.v1.apart.sync_step", {}, "verl/trainer/ppo/v1/apart.py"),
        ("actor_rollout_ref.rollout.multi_turn.max_turns", {}, "verl/experimental/agent_loop/tool.py"),
    ],
)
def test_each_trainer_mode_and_agent_loop_reads_its_own(unread, key, more, where):
    [sentence] = unread(key, **more)
    assert f"sets a key that verl reads in {where} only" in sentence


def test_rows_may_name_their_agent_loop(unread):
    assert unread("actor_rollout_ref.rollout.multi_turn.max_turns", names_loops=True) == []


def test_a_metric_that_no_reward_function_returns_is_refused(unread):
    def with_metric(metric, **more):
        groups = {"adv_estimator": "grpo", "filter_groups": {"enable": True, "metric": metric}}
        return unread("trainer.use_v1", algorithm=groups, **more)

    assert with_metric("acc") == with_metric("reward") == []
    assert "write algorithm.filter_groups.metric=reward" in with_metric("seq_final_reward")[0]
    assert with_metric("mine", reward={"custom_reward_function": {"path": "/private/user/code/r.py"}}) == []


@pytest.mark.parametrize(
    ("workload", "estimator", "enable", "cure"),
    [
        ("grpo", "gae", None, "write WORKLOAD=ppo"),
        ("ppo", "grpo", None, "write WORKLOAD=grpo"),
        ("ppo", "gae", False, "write WORKLOAD=grpo"),
        ("grpo", "rloo", None, None),
        ("ppo", "rloo", True, None),
    ],
)
def test_the_estimator_must_be_of_the_workload(tmp_path, workload, estimator, enable, cure):
    """Before: grpo under WORKLOAD=ppo was recorded as PPO, and no critic was trained."""
    config = {"algorithm": {"adv_estimator": estimator}, "critic": {"enable": enable}}
    composed, of = Composed((), (), yaml.safe_dump(config)), WORKLOADS[workload]
    said = sentences(lambda wrong: readers.check(composed, Source(tmp_path), of, set(), wrong))
    assert (cure in said[0]) if cure else said == []


ACTOR = {"strategy": "fsdp2", "use_dynamic_bsz": False, "ppo_mini_batch_size": 8, "ppo_micro_batch_size_per_gpu": 4}
ROLLOUT = {"n": 4, "log_prob_micro_batch_size_per_gpu": 8}


def too_much(workload="grpo", *, actor=None, rollout=None, trainer=None, data=None, **more):
    config = {
        "trainer": {
            "nnodes": 2,
            "n_gpus_per_node": 1,
            "use_v1": True,
            "v1": {"trainer_mode": "sync"},
            **(trainer or {}),
        },
        "algorithm": {"adv_estimator": "grpo"},
        "data": {"train_batch_size": 8, **(data or {})},
        "actor_rollout_ref": {"actor": {**ACTOR, **(actor or {})}, "rollout": {**ROLLOUT, **(rollout or {})}},
        **more,
    }
    composed = Composed((), (), yaml.safe_dump(config))
    return sentences(lambda wrong: sizes.check(WORKLOADS[workload], composed, wrong))


def test_the_sizes_of_a_profile_are_taken():
    assert too_much() == []


def test_a_mini_batch_that_is_more_than_the_batch_is_refused():
    assert too_much(actor={"ppo_mini_batch_size": 256}) == [
        "actor_rollout_ref.actor.ppo_mini_batch_size=256 (from verl's config) is more than data.train_batch_size=8: write 8 or less, or a "
        "larger data.train_batch_size."
    ]
    assert too_much(actor={"ppo_mini_batch_size": 256, "use_dynamic_bsz": True}) == []


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"actor": {"ppo_micro_batch_size": 4}}, "are both set, and verl takes one"),
        ({"actor": {"ppo_micro_batch_size_per_gpu": None}}, "ppo_micro_batch_size_per_gpu is null, and verl needs it"),
        ({"rollout": {"log_prob_micro_batch_size_per_gpu": None}}, "log_prob_micro_batch_size_per_gpu is null"),
        (
            {"actor": {"ppo_mini_batch_size": 3}, "rollout": {"n": 3}, "data": {"train_batch_size": 4}},
            "2 ranks cannot share evenly",
        ),
        ({"actor": {"ppo_micro_batch_size_per_gpu": 3}}, "gives each of 2 ranks 16 answers, which"),
        ({"actor": {"use_dynamic_bsz": True}, "rollout": {"log_prob_use_dynamic_bsz": False}}, WRITE_SAME),
        (
            {"trainer": {"v1": {"trainer_mode": "separate_async", "separate_async": {"parameter_sync_step": 4}}}},
            "data.train_batch_size=32",
        ),
        ({"rollout": {"temperature": 0, "val_kwargs": {"do_sample": True}}}, "write a temperature above 0"),
    ],
)
def test_what_verl_asserts_is_refused_before(more, part):
    assert any(part in sentence for sentence in too_much(**more))


@pytest.mark.parametrize("size", [0, None, "8", True])
def test_a_size_that_is_no_number_above_0_makes_no_demand(size):
    """Before: it was advised to write data.train_batch_size=0."""
    steps, parts = {"separate_async": {"parameter_sync_step": size}}, ("tensor_model", "data", "pipeline_model")
    trainer = {"v1": {"trainer_mode": "separate_async", **steps}}
    apart = {"nnodes": 1, "n_gpus_per_node": 1, **{f"{part}_parallel_size": size for part in parts}}
    assert too_much(trainer=trainer, rollout=apart) == []
    assert too_much(actor={"ppo_mini_batch_size": size, "ulysses_sequence_parallel_size": size}) == []
    assert too_much(data={"train_batch_size": size}) == []


def test_a_batch_of_sft_must_divide():
    sft = {"engine": {"strategy": "fsdp2"}}
    assert too_much("sft", data={"micro_batch_size_per_gpu": 4, "use_dynamic_bsz": False}, **sft) == []
    [sentence] = too_much("sft", data={"micro_batch_size_per_gpu": 3, "use_dynamic_bsz": False}, **sft)
    assert sentence.endswith(
        "gives each of 2 ranks 4 rows, which data.micro_batch_size_per_gpu=3 does not divide: write data.train_batch_size=12."
    )


def test_packages_are_needed_for_what_a_layer_sets():
    overrides = [Override(f"{key}=x", "OVERRIDES") for key in ("actor_rollout_ref.rollout.name", "trainer.logger")]
    config = {
        "trainer": {"logger": ["console", "mlflow"]},
        "actor_rollout_ref": {"rollout": {"name": "vllm"}, "actor": {"strategy": "megatron"}},
    }
    found = [*needs.packages_of(Composed(tuple(overrides), (), yaml.safe_dump(config)))]
    assert {each.name: each.named for each in found} == {
        "mlflow": "trainer.logger=mlflow (from OVERRIDES)",
        "vllm": "actor_rollout_ref.rollout.name=vllm (from OVERRIDES)",
    }
    assert [each.is_in({"vllm-ascend": "1", "mlflow": "1"}) for each in found] == [True, True]
    assert [each.is_in({"vllmx": "1"}) for each in found] == [False, False]


@pytest.mark.parametrize("variables", [{"WANDB_API_KEY": "k"}, {"WANDB_MODE": "offline"}, {}])
def test_a_tracker_needs_its_key(variables, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    composed = Composed((Override("trainer.logger=x", "OVERRIDES"),), (), "trainer: {logger: [console, wandb]}")
    check = lambda wrong: needs.check_keys(composed, Environment(variables, {}, {}, ()))  # noqa: E731
    assert sentences(check) == (
        []
        if variables
        else [
            "trainer.logger=wandb (from OVERRIDES) needs a key, and the job has no WANDB_API_KEY: write secrets: [{name: WANDB_API_KEY}] in the "
            "JobSpec, or WANDB_MODE: offline under its env_vars, or leave wandb out."
        ]
    )
