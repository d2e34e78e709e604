"""Words of a fixed set come from the code of the snapshot: its registries, and what it compares a key with."""

import pytest
from shared_fixtures import write

from verl_regress.base.errors import BadInput
from verl_regress.plan.source import Source
from verl_regress.plan.words import Words

FILES = {
    "trainer/ppo/core_algos.py": """\
class AdvantageEstimator(str, Enum):
    GAE = "gae"
    GRPO = "grpo"

@register_adv_est(AdvantageEstimator.GAE)
def gae(): ...

@register_adv_est(AdvantageEstimator.GRPO)
@register_adv_est("rloo")
def grpo(): ...

def kl(logprob, kl_penalty):
    if kl_penalty in ("kl", "k1"):
        return 1
    if kl_penalty == "k3":
        return 2
    raise NotImplementedError

def get_kl_controller(kl_ctrl):
    if kl_ctrl.type == "fixed":
        return 1
    elif kl_ctrl.type == "adaptive":
        return 2
    else:
        raise NotImplementedError
""",
    "experimental/reward_loop/reward_manager/naive.py": '@register("naive")\nclass A: ...\n',
    "experimental/reward_loop/reward_manager/dapo.py": '@register("dapo")\nclass B: ...\n',
    "workers/rollout/base.py": '_ROLLOUT_REGISTRY = {("vllm", "async"): "verl.vllm.A", ("sglang", "async"): "verl.sglang.B"}\n',
    "utils/tracking.py": 'class Tracking:\n    supported_backend = ["console", "wandb", "file"]\n',
    "workers/config/actor.py": """\
class ActorConfig(BaseConfig):
    def __post_init__(self):
        valid = ["token-mean", "seq-mean-token-sum"]
        if self.loss_agg_mode not in valid:
            raise ValueError("Invalid")

class FSDPActorConfig(ActorConfig): ...

class FSDPOptimizerConfig(ActorConfig):
    def __post_init__(self):
        assert self.lr_scheduler_type in ["constant", "cosine"]

class OtherOptimizerConfig(ActorConfig):
    def __post_init__(self):
        assert self.lr_scheduler_type in ["constant", "linear"]

class EngineConfig:
    reshard: Literal["default", "never"] = "default"
""",
    "trainer/main.py": """\
if config.trainer.resume_mode == "disable":
    pass
elif config.trainer.resume_mode == "auto":
    pass
else:
    raise ValueError
if config.trainer.get("resume_mode") == "resume_path":
    pass
if config.data.name == "open":
    pass
if config.load_format != "dummy":
    raise ValueError
""",
}
CONFIG = {
    "actor.actor": {"_target_": "verl.workers.config.FSDPActorConfig"},
    "actor.optim": {"_target_": "verl.workers.config.FSDPOptimizerConfig"},
}


@pytest.fixture
def refusal(tmp_path):
    """Why a word is refused; nothing if it is taken."""
    for name, text in FILES.items():
        write(tmp_path / "verl" / name, text)
    words = Words(Source(tmp_path), "verl 0.9.1")

    def refusal(key, default, value, **config):
        try:
            words.need("it", key, default, value, {**CONFIG, **config}.get)
        except BadInput as error:
            return str(error)
        return ""

    return refusal


@pytest.mark.parametrize(
    ("key", "default", "wrong", "known"),
    [
        ("algorithm.adv_estimator", "gae", "loop", "gae, grpo, rloo"),
        ("actor.actor.kl_loss_type", "k3", "k5", "k1, k3, kl"),
        ("actor.actor.loss_agg_mode", "token-mean", "seq-mean", "seq-mean-token-sum, token-mean"),
        ("actor.optim.lr_scheduler_type", "constant", "linear", "constant, cosine"),
        ("algorithm.kl_ctrl.type", "fixed", "adaptve", "adaptive, fixed"),
        ("reward.reward_manager.name", "naive", "prime", "dapo, naive"),
        ("actor_rollout_ref.rollout.name", "vllm", "hf", "sglang, vllm"),
        ("trainer.logger", ["console", "wandb"], ["console", "wandbb"], "console, file, wandb"),
        ("trainer.resume_mode", "auto", "resume_from_path", "auto, disable, resume_path"),
        ("trainer.resume_mode", "auto", "/private/jobs/a/checkpoints/global_step_2", "auto, disable, resume_path"),
        ("engine.reshard", "default", "sometimes", "default, never"),
    ],
)
def test_a_word_that_the_code_does_not_know_is_refused(refusal, key, default, wrong, known):
    word = wrong[-1] if isinstance(wrong, list) else wrong
    assert refusal(key, default, wrong) == (
        f"it sets {word}, which verl 0.9.1 does not know there: write one of {known}; or '++{key}={wrong}' if code of your own adds it."
    )
    for right in known.split(", "):
        assert refusal(key, default, [right] if isinstance(wrong, list) else right) == ""


@pytest.mark.parametrize(
    ("key", "default", "value"),
    [
        ("data.name", "open", "anything"),  # compared, and any other word is fine
        ("trainer.experiment_name", "gsm8k", "mine"),
        ("rollout.load_format", "dummy", "safetensors"),  # only one of the rollouts takes no other
        ("trainer.resume_mode", None, "never"),  # verl's own default is none of these words
        ("trainer.resume_mode", "auto", "${oc.env:MODE}"),
        ("trainer.resume_mode", "auto", None),
        ("actor.actor.kl_loss_type", "k3", "k3+"),
    ],
)
def test_where_it_is_not_sure_any_word_is_taken(refusal, key, default, value):
    assert refusal(key, default, value) == ""


@pytest.mark.parametrize(
    ("key", "value", "setting"),
    [
        ("algorithm.adv_estimator", "mine", "actor_rollout_ref.model.external_lib"),
        ("reward.reward_manager.name", "Mine", "reward.reward_manager.module.path"),
    ],
)
def test_code_of_the_user_may_add_words(refusal, key, value, setting):
    default = "gae" if key.startswith("algorithm") else "naive"
    assert refusal(key, default, value)
    assert refusal(key, default, value, **{setting: "mylib"}) == ""
