"""Loads the critic with the attention that its config names.

verl 0.7.1 to 0.9.1 and main load it with flash_attention_2 whatever the config says (`load_valuehead_model` in verl/utils/model.py), so PPO
fails in an image without flash-attn, such as ours. Seen on an H100.
"""

from typing import Any

from on_import import on_import


def install() -> None:
    """Watch for the import of what loads the critic."""
    on_import("verl.utils.model", lambda _: _wrap())


def _wrap() -> None:
    from transformers import AutoModelForTokenClassification as Critic

    load = Critic.from_pretrained

    def load_as_configured(
        *args: Any, config: Any = None, attn_implementation: str | None = None, **options: Any
    ) -> Any:
        if attn_implementation == "flash_attention_2" and config is not None:
            attn_implementation = config._attn_implementation
        return load(*args, config=config, attn_implementation=attn_implementation, **options)

    Critic.from_pretrained = load_as_configured
