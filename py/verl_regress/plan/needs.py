"""What a job's settings need of the nodes and of other services: packages that only some settings load, and keys of trackers.

A wrong refusal is worse than a missed mistake: what is not listed here is left for verl.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from verl_regress.base.errors import BadInput
from verl_regress.plan.compose import Composed, leaves
from verl_regress.plan.environment import Environment

_LOGGER = "trainer.logger"
# The packages of values, by the end of the key. Read in verl 0.7.1 to 0.9.1: rollouts (workers/rollout), trackers (utils/tracking.py), engines
# (workers/engine), weight transfer (checkpoint_engine) and attention (transformers). A vendor's build has more in its name, such as vllm-ascend.
_PACKAGES: dict[str, Mapping[Any, str]] = {
    "rollout.name": {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"},
    _LOGGER: {name: name for name in ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")},
    ".strategy": {
        "megatron": "megatron-core",
        "veomni": "veomni",
        "torchtitan": "torchtitan",
        "automodel": "nemo-automodel",
    },
    "checkpoint_engine.backend": {"nixl": "nixl", "mooncake": "mooncake-transfer-engine"},
    ".attn_implementation": {"flash_attention_2": "flash-attn"},
    ".use_liger": {True: "liger-kernel"},
}
# Trackers that cannot begin without a key: its variable, and the variable with which they keep to this machine.
_KEYS = {"wandb": ("WANDB_API_KEY", "WANDB_MODE"), "swanlab": ("SWANLAB_API_KEY", "SWANLAB_MODE")}
_WITHOUT_KEY = ("offline", "disabled", "dryrun", "local")


class Package(NamedTuple):
    """A package that a setting needs; `named` is how messages name the setting, and who made it."""

    name: str
    named: str

    def is_in(self, packages: Mapping[str, Any]) -> bool:
        """Whether a node with these packages has it, or a build of it with another name."""
        return any(each == self.name or each.startswith(f"{self.name}-") for each in packages)


def packages_of(composed: Composed) -> Iterator[Package]:
    """The packages that some layer's settings need."""
    for key, value in leaves(composed.config):
        packages = next((each for end, each in _PACKAGES.items() if key.endswith(end)), {})
        if isinstance(value, str | bool) and value in packages and composed.origin_of(key):
            yield Package(packages[value], composed.named(key, value))


def check_keys(composed: Composed, environment: Environment) -> None:
    """Raise BadInput for a tracker that would ask for a key which the job has not."""
    value = composed.value(_LOGGER)
    known = {**os.environ, **environment.variables, **{secret.name: "secret" for secret in environment.secrets}}
    for logger in value if isinstance(value, list) else [value]:
        key, mode = _KEYS.get(str(logger), ("", ""))
        is_logged_in = Path(known.get("NETRC") or "~/.netrc").expanduser().is_file()
        if key and not known.get(key) and known.get(mode, "").lower() not in _WITHOUT_KEY and not is_logged_in:
            raise BadInput(
                f"{composed.named(_LOGGER, logger)} needs a key, and the job has no {key}: write secrets: [{{name: {key}}}] in the JobSpec, "
                f"or {mode}: offline under its env_vars, or leave {logger} out."
            )
