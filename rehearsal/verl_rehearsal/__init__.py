"""The CPU layer of a rehearsal: it lets verl's unmodified trainers run without a GPU.

``install()`` is called at the start of every process (driver, trainer, Ray actors): with ``VERL_REHEARSAL=1`` by
``activation``, in a job of verl-regress by its sitecustomize. verl is never edited: each hook acts on one module, right
after that module was imported.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

__version__ = "1.3.0"  # that of py/verl_regress/__init__.py

# A module, and the hook for it: right after the import, the hook's apply() is called with the module.
HOOKS = (
    ("torch", "torch_cpu"),
    ("torch.distributed", "process_group"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "data_loader"),
    ("verl.plugin.platform.platform_manager", "cpu_platform"),
    ("verl.utils.device", "verl_on_cpu"),
    ("verl.utils.fsdp_utils", "verl_on_cpu"),
    ("verl.utils.attention_utils", "verl_on_cpu"),
    ("verl.utils.model", "verl_on_cpu"),
    ("verl.workers.engine.base", "verl_on_cpu"),
    ("verl.workers.engine.fsdp.transformer_impl", "weights"),
    ("verl.workers.rollout.base", "rollout"),
    ("verl.workers.rollout.replica", "rollout"),
    ("verl.experimental.agent_loop.agent_loop", "request_seed"),
    ("verl.trainer.ppo.v1.trainer_base", "order"),
    ("verl.trainer.ppo.v1.replay_buffer", "order"),
    ("verl.workers.engine_workers", "garbage"),
)


def _applying(hook: str) -> Callable[[ModuleType], None]:
    return lambda module: import_module(f"{__name__}.{hook}").apply(module)


@functools.cache
def install() -> None:
    """Register every hook, once; imports neither torch nor verl."""
    import wrapt  # here, so that the package's pure parts (sums, symbols) load without wrapt

    from verl_rehearsal import garbage

    garbage.collect_seldom()
    for module, hook in HOOKS:
        wrapt.register_post_import_hook(_applying(hook), module)
