"""Another verl release fails with one sentence: what is missing, which verl was found where, and the cure."""

import abc
import sys
import types

import pytest

from verl_rehearsal import (
    cpu_platform,
    order,
    request_seed,
    rollout,
    verl_on_cpu,
    weights,
)
from verl_rehearsal.errors import RehearsalError


@pytest.fixture
def verl(tmp_path, monkeypatch):
    """A fake verl release that has moved everything away."""
    package = types.ModuleType("verl")
    package.__file__ = str(tmp_path / "verl" / "__init__.py")
    (tmp_path / "verl" / "version").mkdir(parents=True)
    (tmp_path / "verl" / "version" / "version").write_text("0.11.0\n")
    monkeypatch.setitem(sys.modules, "verl", package)
    return package


def sentence(verl, lack, hook):
    return (
        f"verl 0.11.0 at {verl.__file__} has {lack}, which the rehearsal {hook} hook relies on: "
        f"rehearse with verl 0.7.1 to 0.9.1 or teach rehearsal/verl_rehearsal/{hook}.py the new name, as maintain/verl-releases.md describes"
    )


@pytest.mark.parametrize(
    ("hook", "module", "symbol"),
    [
        (verl_on_cpu, "verl.workers.engine.base", "EngineRegistry.register"),
        (verl_on_cpu, "verl.utils.device", "get_nccl_backend"),
        (verl_on_cpu, "verl.utils.attention_utils", "_get_attention_functions"),
        (verl_on_cpu, "verl.utils.model", "load_valuehead_model"),
        (verl_on_cpu, "verl.utils.fsdp_utils", "CPUOffloadPolicy"),
        (rollout, "verl.workers.rollout.base", "_ROLLOUT_REGISTRY"),
        (rollout, "verl.workers.rollout.replica", "RolloutReplicaRegistry.register"),
        (cpu_platform, "verl.plugin.platform.platform_manager", "set_platform"),
        (weights, "verl.workers.engine.fsdp.transformer_impl", "FSDPEngine.optimizer_step"),
        (order, "verl.trainer.ppo.v1.trainer_base", "uuid.uuid4"),
        (order, "verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer._materialize_batch"),
        (request_seed, "verl.experimental.agent_loop.agent_loop", "AgentLoopWorker._run_agent_loop"),
    ],
)
def test_a_missing_symbol(verl, hook, module, symbol):
    with pytest.raises(RehearsalError) as error:
        hook.apply(types.ModuleType(module))
    assert str(error.value) == sentence(verl, f"no {module}.{symbol}", hook.__name__.split(".")[1])


def test_a_parameter_that_is_gone(verl):
    class EngineRegistry:
        @classmethod
        def register(cls, model_type, backend):
            """Without ``device``."""

    module = types.ModuleType("verl.workers.engine.base")
    module.EngineRegistry = EngineRegistry
    with pytest.raises(RehearsalError) as error:
        verl_on_cpu.apply(module)
    lack = "no parameter 'device' in verl.workers.engine.base.EngineRegistry.register"
    assert str(error.value) == sentence(verl, lack, "verl_on_cpu")


def test_a_platform_that_is_asked_for_more(verl, monkeypatch):
    base = types.ModuleType("verl.plugin.platform.platform_base")
    base.PlatformBase = abc.ABCMeta("PlatformBase", (), {"warp": abc.abstractmethod(lambda self: None)})
    monkeypatch.setitem(sys.modules, base.__name__, base)
    for package in ("verl.plugin", "verl.plugin.platform"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    module = types.ModuleType("verl.plugin.platform.platform_manager")
    module.set_platform = lambda platform: None
    with pytest.raises(RehearsalError) as error:
        cpu_platform.apply(module)
    assert str(error.value) == (
        f"verl 0.11.0 at {verl.__file__} has no PlatformBase without warp, as the rehearsal cpu_platform hook relies on: "
        "rehearse with verl 0.7.1 to 0.9.1 or teach rehearsal/verl_rehearsal/cpu_platform.py the new name, as maintain/verl-releases.md describes"
    )
