"""Loads the critic with an attention that runs on a CPU.

Touches ``verl.utils.model.load_valuehead_model``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b. It asks for
``flash_attention_2`` whatever the model's configuration says, and if that is missing reports "not a value head model".
The FSDP engine loads critics through it from 0.8.0 on; in 0.7.1 it follows the configuration.
"""

from types import ModuleType
from typing import TYPE_CHECKING

from verl_rehearsal.symbols import require

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel


def apply(module: ModuleType) -> None:
    """Replace ``load_valuehead_model``; ``module`` is ``verl.utils.model``."""
    require(
        module,
        "load_valuehead_model",
        hook="critic",
        parameters=("local_path", "torch_dtype", "model_config", "trust_remote_code"),
    )
    module.load_valuehead_model = _load_token_classifier  # type: ignore[attr-defined]


def _load_token_classifier(
    local_path: str, torch_dtype: "torch.dtype", model_config: "PretrainedConfig", trust_remote_code: bool
) -> "PreTrainedModel":
    from transformers import AutoModelForTokenClassification

    critic: PreTrainedModel = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )
    return critic
