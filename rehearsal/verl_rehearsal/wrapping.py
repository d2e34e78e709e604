"""Lets verl 0.7.1 wrap a model of transformers 5 in FSDP.

Touches ``verl.utils.fsdp_utils.apply_fsdp2``, read in verl 0.7.1, 0.8.0, 0.9.1 and main at 1dda039b. It takes the first
of ``model._no_split_modules``, which is a list up to transformers 4 and a set from transformers 5 on. verl takes either
from 0.8.0 on.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from verl_rehearsal.symbols import require


def apply(module: ModuleType) -> None:
    """Pass a list on; ``module`` is ``verl.utils.fsdp_utils``."""
    require(module, "apply_fsdp2", hook="wrapping", parameters=("model", "fsdp_kwargs", "config"))
    apply_fsdp2 = module.apply_fsdp2

    def apply_to_list(model: Any, fsdp_kwargs: Mapping[str, Any], config: Any) -> Any:
        names = getattr(model, "_no_split_modules", None)
        if isinstance(names, set):
            model._no_split_modules = sorted(names)
        return apply_fsdp2(model, fsdp_kwargs, config)

    module.apply_fsdp2 = apply_to_list  # type: ignore[attr-defined]
