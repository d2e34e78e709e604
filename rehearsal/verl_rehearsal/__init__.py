"""The CPU layer of a rehearsal: it lets verl's unmodified trainers run without a GPU.

``VERL_REGRESS_HOOKS=verl_rehearsal`` makes the sitecustomize of every job process (driver, trainer, Ray actors) call
``install()``. verl is never edited: each hook acts on one module, right after that module was imported.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

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
    import job_report

    if hook not in _applied:
        _applied.add(hook)
        job_report.write("hooks", {"hooks": sorted(_applied)})


def install() -> None:
    """Register every hook; imports neither torch nor verl."""
    import wrapt  # here, so that the package's pure parts (sums, symbols) load without wrapt

    from verl_rehearsal import garbage

    garbage.collect_seldom()
    for module, hook in HOOKS:
        wrapt.register_post_import_hook(_applying(hook), module)
