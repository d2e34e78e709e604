"""What counts as a secret in plain text, by its name and by its form; where it may be; and that no message shows it."""

import pytest
import yaml
from shared_fixtures import BASE

from verl_regress.base import documents
from verl_regress.base.errors import BadInput
from verl_regress.base.jobspec import BaseConfig, JobSpec
from verl_regress.plan import plain_secrets
from verl_regress.plan.overrides import Override
from verl_regress.plan.request import CommandLine, Defaults, Request

RUNTIME_ENV = "+ray_kwargs.ray_init.runtime_env"
VALUE = "notarealvalue0123456789abcdef0123456789"
FORMS = [
    f"hf_{VALUE}", f"sk-{VALUE}", f"sk-proj-{VALUE}", f"sk-ant-api03-{VALUE}", f"ghp_{VALUE}", f"github_pat_{VALUE}",
    f"glpat-{VALUE}", "AKIANOTAREALKEY01234", f"xoxb-{VALUE}", f"AIza{VALUE}", f"wandb_v1_{VALUE}", f"eyJ{VALUE}.eyJ{VALUE}.{VALUE}",
    "-----BEGIN OPENSSH PRIVATE KEY-----", "http://me:not-real@proxy:3128", "redis://:not-real@cache/0",
]  # fmt: skip
NAMES = [
    "WANDB_API_KEY", "wandb_api_key", "HF_TOKEN", "TOKEN", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWORD",
    "CLIENT_SECRET",
]  # fmt: skip
# Names and values that only look like it; the keys are those of verl 0.7.1 to main that end so.
VARIABLES = {
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "PROMPT_KEY": "prompt", "MAX_TOKEN": "1048576", "SSL_KEY": "/etc/ssl/private/mine.pem",
    "MY_KEY": "${shared_root}/user/key", "REQUIRE_PASSWORD": "false", "TOKENIZERS_PARALLELISM": "true", "NCCL_SOCKET_IFNAME": "eth0",
    "http_proxy": "http://proxy:3128", "MODEL": "/private/common/models/sk-learn-classification-of-many-things", "AT": "http://h/a:b@c",
    "KEYS_TO_KEEP": VALUE,
}  # fmt: skip
OVERRIDES = [
    *(f"data.{name}_key=some_long_column" for name in ("prompt", "image", "video", "audio", "reward_fn", "messages", "tools", "teacher")),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1048576", "reward_model.reward_kwargs.api_key=EMPTY",
    "data.data_source_key=data_source", "+data.apply_chat_template_kwargs={enable_thinking_key: thinking_of_it}",
    "+reward.reward_kwargs.api_key=${oc.env:OPENAI_API_KEY}", f"{RUNTIME_ENV}.env_vars.TOKENIZERS_PARALLELISM=true",
    "trainer.logger=[console,wandb]", "=", "a b c", "~data.pad_token",
]  # fmt: skip


def check(variables=(), overrides=(), base=None, typed=(), is_allowed=False):
    spec = {"workload": "grpo", "env_vars": dict(variables), "trainer_overrides": list(overrides)}
    plain_secrets.check(
        Request(
            JobSpec.from_document(documents.parse(yaml.safe_dump(spec), "my.yaml", "jobspec")),
            BaseConfig.from_document(
                documents.parse(
                    yaml.safe_dump(yaml.safe_load(BASE) | {"address": "http://ray:1"} | (base or {})),
                    "cpu.yaml",
                    "base_config",
                )
            ),
            CommandLine(overrides=tuple(Override(text, "OVERRIDES") for text in typed), plain_secrets=is_allowed),
            Defaults("cpu", "tiny", "sums", "codeA", "c"),
        )
    )


def test_the_sentence_has_each_place_and_says_what_to_write():
    with pytest.raises(BadInput) as refused:
        check(
            {"WANDB_API_KEY": VALUE, "https_proxy": "http://me:not-real@proxy:3128"},
            [f"{RUNTIME_ENV}.env_vars.SWANLAB_API_KEY={VALUE}"],
        )
    assert str(refused.value) == (
        f"env_vars.WANDB_API_KEY (from my.yaml) and env_vars.https_proxy (from my.yaml) and {RUNTIME_ENV}.env_vars.SWANLAB_API_KEY (from "
        "my.yaml) look like secrets, which Ray and the job's files show as plain text: write secrets: [{name: WANDB_API_KEY}, {name: "
        "HTTPS_PROXY}, {name: SWANLAB_API_KEY}] in the JobSpec instead (an override for verl reads it as ${oc.env:NAME}), or set "
        "ALLOW_PLAIN_SECRETS=1."
    )


# promise: takes a secret that is written as plain text into `env_vars` or an override
@pytest.mark.parametrize(
    "given",
    [
        *({"variables": {"X": form}} for form in FORMS),
        *({"typed": [f"reward.reward_kwargs.x={form}"]} for form in FORMS),
        *({"variables": {name: VALUE}} for name in NAMES),
        *({"overrides": [f"{RUNTIME_ENV}.env_vars.{name}={VALUE}"]} for name in NAMES),
        *({"typed": [f"++ray_kwargs={{ray_init: {{runtime_env: {{env_vars: {{'{name}': '{VALUE}'}}}}}}}}"]} for name in NAMES),
        *({"base": {"runtime_env": {"env_vars": {name: VALUE}}}} for name in NAMES),
        {"base": {"trainer_overrides": {"grpo": [f"+x.api_key={VALUE}"]}}},
        {"typed": [f"+reward.reward_kwargs.api_key={VALUE}"]},
        {"typed": [f"{RUNTIME_ENV}.env_vars.WANDB_API_KEY=${{oc.env:WANDB_API_KEY}}"]},  # Ray would show it
        {"variables": {"DB_PASSWORD": "short"}},
        {"typed": [f"WANDB_API_KEY:{VALUE}"]},  # no override, which other messages would quote
        {"typed": [f"hf_{VALUE}=1"]},
    ],
    ids=lambda given: str(given)[:60],
)  # fmt: skip
def test_a_secret_is_refused_wherever_it_is_and_no_message_shows_it(given):
    with pytest.raises(BadInput, match=r" looks? like (a secret|secrets), which ") as refused:
        check(**given)
    assert all(part not in str(refused.value) for part in (VALUE, "AKIANOT", "not-real", "short", "BEGIN"))
    check(**given, is_allowed=True)


def test_what_only_looks_like_a_secret_is_accepted():
    check(VARIABLES, OVERRIDES, typed=OVERRIDES)


def test_a_long_text_takes_no_longer_than_reading_it():
    check({"X": "a" * 100_000}, typed=["a" * 100_000, "sk-" + "a-" * 50_000, "://" * 30_000])
