"""Another verl release fails with one sentence: what is missing, which verl was found where, and the cure."""

import sys
import types

import pytest

from verl_rehearsal import critic, device, engine, offload, padding, request_seed, rollout
from verl_rehearsal.errors import RehearsalError


@pytest.fixture
def verl(tmp_path, monkeypatch):
    """A stand-in for a verl release that has moved everything away."""
    package = types.ModuleType("verl")
    package.__file__ = str(tmp_path / "verl" / "__init__.py")
    (tmp_path / "verl" / "version").mkdir(parents=True)
    (tmp_path / "verl" / "version" / "version").write_text("0.9.1\n")
    monkeypatch.setitem(sys.modules, "verl", package)
    return package


def sentence(verl, lack, hook):
    return (
        f"verl 0.9.1 at {verl.__file__} has {lack}, which the rehearsal {hook} hook relies on: "
        f"rehearse with verl 0.7.0 to 0.8.0 or teach py/rehearsal/verl_rehearsal/{hook}.py the new name"
    )


@pytest.mark.parametrize(
    ("hook", "module", "symbol"),
    [
        (engine, "verl.workers.engine.base", "EngineRegistry.register"),
        (device, "verl.utils.device", "get_nccl_backend"),
        (padding, "verl.utils.attention_utils", "_get_attention_functions"),
        (critic, "verl.utils.model", "load_valuehead_model"),
        (offload, "verl.utils.fsdp_utils", "CPUOffloadPolicy"),
        (rollout, "verl.workers.rollout.base", "_ROLLOUT_REGISTRY"),
        (rollout, "verl.workers.rollout.replica", "RolloutReplicaRegistry.register"),
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
        engine.apply(module)
    lack = "no parameter 'device' in verl.workers.engine.base.EngineRegistry.register"
    assert str(error.value) == sentence(verl, lack, "engine")


def test_an_unknown_verl_is_called_unknown(monkeypatch):
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    with pytest.raises(RehearsalError, match=r"^verl \(of unknown version and place\) has no verl\.utils\.device\."):
        device.apply(types.ModuleType("verl.utils.device"))
