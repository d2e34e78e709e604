"""Replaces what verl does for machines with GPUs alone, one function for each of its modules.

All of it was read in verl 0.7.1 to 0.9.1 and main at 1dda039b. Each function requires the names that it touches.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from verl_rehearsal.symbols import require

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

_HOOK = "verl_on_cpu"


def apply(module: ModuleType) -> None:
    """Change ``module``, which is a key of ``CHANGES``."""
    CHANGES[module.__name__](module)


def _device(module: ModuleType) -> None:
    """Without an NPU it always returns "nccl", which a torch without CUDA cannot initialise."""
    require(module, "get_nccl_backend", hook=_HOOK)
    module.get_nccl_backend = lambda: "gloo"  # type: ignore[attr-defined]


def _fsdp_utils(module: ModuleType) -> None:
    """The FSDP2 engine offloads a model that is never trained to pinned memory, for which torch needs an accelerator.

    verl 0.7.1 takes the first of ``model._no_split_modules``, which is a set from transformers 5 on.
    """
    require(module, "CPUOffloadPolicy", "pin_memory", hook=_HOOK)
    require(module, "apply_fsdp2", "model", "fsdp_kwargs", "config", hook=_HOOK)
    apply_fsdp2 = module.apply_fsdp2

    def apply_to_list(model: Any, fsdp_kwargs: Mapping[str, Any], config: Any) -> Any:
        names = getattr(model, "_no_split_modules", None)
        if isinstance(names, set):
            model._no_split_modules = sorted(names)
        return apply_fsdp2(model, fsdp_kwargs, config)

    module.CPUOffloadPolicy = lambda pin_memory: None  # type: ignore[attr-defined]
    module.apply_fsdp2 = apply_to_list  # type: ignore[attr-defined]


def _attention_utils(module: ModuleType) -> None:
    """Without an NPU it imports ``flash_attn.bert_padding``, which is CUDA only; verl has the same four functions in torch.

    ``use_remove_padding=True`` needs them, and a rehearsal needs that: the padded path's log-probs do not match the rollout's.
    """
    require(module, "_get_attention_functions", hook=_HOOK)
    pure_torch = import_module("verl.utils.npu_flash_attn_utils")
    names = ("index_first_axis", "pad_input", "rearrange", "unpad_input")  # in the order in which they are returned
    for name in names:
        require(pure_torch, name, hook=_HOOK)
    functions = tuple(getattr(pure_torch, name) for name in names)
    module._get_attention_functions = lambda: functions  # type: ignore[attr-defined]


def _model(module: ModuleType) -> None:
    """It loads a critic with ``flash_attention_2``, whatever the model's configuration says; engines use it from 0.8.0 on."""
    taken = ("local_path", "torch_dtype", "model_config", "trust_remote_code")
    require(module, "load_valuehead_model", *taken, hook=_HOOK)
    module.load_valuehead_model = _load_token_classifier  # type: ignore[attr-defined]


def _load_token_classifier(
    local_path: str, torch_dtype: "torch.dtype", model_config: "PretrainedConfig", trust_remote_code: bool
) -> "PreTrainedModel":
    from transformers import AutoModelForTokenClassification

    critic: PreTrainedModel = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )
    return critic


def _engine(module: ModuleType) -> None:
    """verl registers its FSDP engines for ["cuda", "npu"] only, though FSDP2 runs on CPUs: "Unknown device: cpu"."""
    require(module, "EngineRegistry.register", "model_type", "backend", "device", hook=_HOOK)
    register = module.EngineRegistry.register

    def register_with_cpu(
        model_type: str, backend: list[str] | str, device: list[str] | str = "cuda", **vendor: object
    ) -> Callable[[type], type]:
        backends = {backend} if isinstance(backend, str) else set(backend)
        devices = [device] if isinstance(device, str) else list(device)
        added = ["cpu"] if backends & {"fsdp", "fsdp2"} and "cpu" not in devices else []
        return register(model_type, backend, devices + added, **vendor)  # type: ignore[no-any-return]

    module.EngineRegistry.register = register_with_cpu


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "verl.utils.device": _device,
    "verl.utils.fsdp_utils": _fsdp_utils,
    "verl.utils.attention_utils": _attention_utils,
    "verl.utils.model": _model,
    "verl.workers.engine.base": _engine,
}
