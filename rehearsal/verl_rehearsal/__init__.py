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

# (module whose import triggers the hook, our module whose apply() is then called with it)
HOOKS = (
    ("torch", "torch_cpu"),
    ("torch.distributed", "process_group"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "data_loader"),
    ("verl.plugin.platform.platform_manager", "cpu_platform"),
    ("verl.utils.device", "device"),
    ("verl.utils.fsdp_utils", "offload"),
    ("verl.utils.fsdp_utils", "wrapping"),
    ("verl.utils.attention_utils", "padding"),
    ("verl.utils.model", "critic"),
    ("verl.workers.engine.base", "engine"),
    ("verl.workers.engine.fsdp.transformer_impl", "trained_weights"),
    ("verl.workers.engine.fsdp.transformer_impl", "checkpoint_weights"),
    ("verl.workers.rollout.base", "rollout"),
    ("verl.workers.rollout.replica", "rollout"),
    ("verl.experimental.agent_loop.agent_loop", "request_seed"),
    ("verl.trainer.ppo.v1.trainer_base", "order"),
    ("verl.trainer.ppo.v1.replay_buffer", "order"),
    ("verl.workers.engine_workers", "garbage"),
)


def _applying(hook: str) -> Callable[[ModuleType], None]:
    def apply(module: ModuleType) -> None:
        import_module(f"{__name__}.{hook}").apply(module)
        if module.__name__.startswith("verl."):
            _report(hook)

    return apply


_applied: set[str] = set()


def _report(hook: str) -> None:
    """Report the hooks that acted on verl in this process."""
    from verl_rehearsal import report

    if hook not in _applied:
        _applied.add(hook)
        report.write("hooks", {"hooks": sorted(_applied)})


@functools.cache
def install() -> None:
    """Register every hook, once; imports neither torch nor verl."""
    import wrapt  # here, so that the package's pure parts (sums, symbols) load without wrapt

    from verl_rehearsal import garbage

    garbage.collect_seldom()
    for module, hook in HOOKS:
        wrapt.register_post_import_hook(_applying(hook), module)
