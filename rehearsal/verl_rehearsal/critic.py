"""Makes the critic of any model: on the model's body, with values that start at zero."""

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForTokenClassification

from verl_rehearsal.errors import RehearsalError

_OF_TOKENIZER = ("tok", "vocab", "merges", "spiece", "sentencepiece", "chat_template")


def build(model: Path, folder: Path) -> None:
    """Write the critic of the model in one Hugging Face folder into another, with its tokenizer.

    Raises RehearsalError if transformers has no critic for such a model.
    """
    try:
        config = AutoConfig.from_pretrained(model, num_labels=1)
        config.classifier_dropout = 0.0
        critic = AutoModelForTokenClassification.from_pretrained(model, config=config, dtype="auto")
    except (ValueError, OSError) as error:
        raise RehearsalError(f"no critic can be made of {model} ({' '.join(str(error).split())[:200]})") from error
    for name, weights in critic.named_parameters():
        if not name.startswith(f"{critic.base_model_prefix}."):
            torch.nn.init.zeros_(weights)  # a random head would start PPO with noise
    critic.save_pretrained(folder)
    for file in model.iterdir():
        if file.name.startswith(_OF_TOKENIZER) or "token" in file.name:
            shutil.copyfile(file, folder / file.name)
