"""Takes the padding helpers from verl's own pure-torch module instead of flash_attn.

Touches ``verl.utils.attention_utils._get_attention_functions``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b:
without an NPU it imports ``flash_attn.bert_padding``, which is CUDA only. ``verl.utils.npu_flash_attn_utils`` has the
same four functions in torch and einops (the file is byte for byte the same in these releases).
``use_remove_padding=True`` needs them, and a rehearsal needs that: the padded path's log-probs do not match the
rollout's.
"""

from importlib import import_module
from types import ModuleType

from verl_rehearsal.symbols import require

# in the order that _get_attention_functions returns them
HELPERS = ("index_first_axis", "pad_input", "rearrange", "unpad_input")


def apply(module: ModuleType) -> None:
    """Replace ``_get_attention_functions``; ``module`` is ``verl.utils.attention_utils``."""
    require(module, "_get_attention_functions", hook="padding")
    pure_torch = import_module("verl.utils.npu_flash_attn_utils")
    for name in HELPERS:
        require(pure_torch, name, hook="padding")
    functions = tuple(getattr(pure_torch, name) for name in HELPERS)
    module._get_attention_functions = lambda: functions  # type: ignore[attr-defined]
