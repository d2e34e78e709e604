"""Keeps a reference policy where it is.

Touches ``verl.utils.fsdp_utils.CPUOffloadPolicy``, read in verl 0.7.1 to 0.9.1 and main at 1dda039b. The FSDP2 engine
offloads a model that is never trained to pinned CPU memory, and torch pins memory only if there is an accelerator. On a
CPU there is nothing to offload.
"""

from types import ModuleType

from verl_rehearsal.symbols import require


def apply(module: ModuleType) -> None:
    """Make the policy "no offloading"; ``module`` is ``verl.utils.fsdp_utils``."""
    require(module, "CPUOffloadPolicy", hook="offload", parameters=("pin_memory",))
    module.CPUOffloadPolicy = lambda pin_memory: None  # type: ignore[attr-defined]
