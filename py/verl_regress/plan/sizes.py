"""Sizes that verl asserts before its first step, and some only in it: what is here was read in the files named, in verl 0.7.1 to 0.9.1.

Only what certainly fails is refused. What engines of Megatron, VeOmni and others want is left to them.
"""

from collections.abc import Iterator
from math import prod

from verl_regress.base.errors import BadInput, Refusals
from verl_regress.base.workloads import Workload
from verl_regress.plan.compose import Composed

_ACTOR, _ROLLOUT, _CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic"
_BATCH, _FSDP = "data.train_batch_size", ("fsdp", "fsdp2", "fsdp_turbo")
# What can split sequences, and the model whose attention it uses.
_SEQUENCES = {"actor_rollout_ref.actor": "actor_rollout_ref.model", "critic": "critic.model", "engine": "model"}


def check(workload: Workload, composed: Composed, wrong: Refusals) -> None:
    """Note in `wrong` the sizes of the composed config with which the trainer ends."""
    for each in (*(_OF_RL if workload.has_reward else (_check_rows_of_sft,)), _check_sequence):
        with wrong.noted():
            each(composed)


def _size(composed: Composed, key: str, otherwise: int = 0) -> int:
    """A size of the config, which is a whole number above 0; `otherwise` for anything else, which makes no demand here."""
    value = composed.value(key)
    return value if type(value) is int and value > 0 else otherwise


def _trained(composed: Composed) -> Iterator[str]:
    """The parts of the config of what is trained with rows in batches of one size; a dynamic one takes what fits."""
    has_critic = composed.value("critic.enable")
    is_gae = composed.value("algorithm.adv_estimator") == "gae"
    parts = [_ACTOR, *([_CRITIC] if has_critic is True or (has_critic is None and is_gae) else [])]
    yield from (part for part in parts if composed.value(f"{part}.use_dynamic_bsz") is False)


def _check_mini_batches(composed: Composed) -> None:
    """workers/config/actor.py and critic.py, validate."""
    for part in _trained(composed):
        key, batch = f"{part}.ppo_mini_batch_size", _size(composed, _BATCH)
        size = _size(composed, key)
        if 0 < batch < size:
            raise BadInput(
                f"{composed.named(key, size)} is more than {_BATCH}={batch}: write {batch} or less, or a larger {_BATCH}."
            )


def _check_micro_batches(composed: Composed) -> None:
    """workers/config/actor.py and critic.py, __post_init__, and utils/config.py, check_mutually_exclusive."""
    keys = [f"{part}.ppo_micro_batch_size" for part in _trained(composed)]
    if composed.value(f"{_ACTOR}.use_dynamic_bsz") is False:
        keys.append(f"{_ROLLOUT}.log_prob_micro_batch_size")
    for key in keys:
        old, new = composed.value(key), composed.value(f"{key}_per_gpu")
        if old is not None and new is not None:
            raise BadInput(
                f"{composed.named(key, old)} and {composed.named(f'{key}_per_gpu', new)} are both set, and verl takes one: leave {key} out, "
                "or write null for it."
            )
        part, _, name = f"{key}_per_gpu".rpartition(".")
        if old is None and new is None and name in (composed.value(part) or {}):
            raise BadInput(f"{key}_per_gpu is null, and verl needs it: write how many rows a GPU takes at once.")


def _check_engines(composed: Composed) -> None:
    """workers/engine_workers.py, train_mini_batch, and engine/utils.py, prepare_micro_batches; the trainers of 0.9.1 and later use them."""
    if composed.value("trainer.use_v1") is None:
        return
    gpus, answers = composed.devices.trainer, _size(composed, f"{_ROLLOUT}.n", 1)
    for part in _trained(composed):
        ranks = (gpus or 0) // _size(composed, f"{part}.ulysses_sequence_parallel_size", 1)
        mini, micro = (
            _size(composed, f"{part}.{name}") for name in ("ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu")
        )
        if composed.value(f"{part}.strategy") not in _FSDP or not ranks or not mini:
            continue
        named = composed.named(f"{part}.ppo_mini_batch_size", mini)
        if mini * answers % ranks:
            raise BadInput(
                f"{named} with {_ROLLOUT}.n={answers} gives {mini * answers} answers, which {ranks} ranks cannot share evenly: write a multiple "
                f"of {ranks}."
            )
        if micro and mini * answers // ranks % micro:
            raise BadInput(
                f"{named} with {_ROLLOUT}.n={answers} gives each of {ranks} ranks {mini * answers // ranks} answers, which "
                f"{composed.named(f'{part}.ppo_micro_batch_size_per_gpu', micro)} does not divide: write a size that does."
            )
    dynamic, log_prob = (
        composed.value(key) for key in (f"{_ACTOR}.use_dynamic_bsz", f"{_ROLLOUT}.log_prob_use_dynamic_bsz")
    )
    if isinstance(dynamic, bool) and isinstance(log_prob, bool) and dynamic != log_prob:
        named = composed.named(f"{_ROLLOUT}.log_prob_use_dynamic_bsz", log_prob)
        raise BadInput(f"{named} must be as {_ACTOR}.use_dynamic_bsz={dynamic}: write the same for both.")


def _check_separate(composed: Composed) -> None:
    """trainer/ppo/v1/trainer_separate_async.py, __init__ (0.9.1)."""
    mode = "trainer.v1.trainer_mode"
    if composed.value("trainer.use_v1") is not True or composed.value(mode) != "separate_async":
        return
    key = "trainer.v1.separate_async.parameter_sync_step"
    batch, steps, mini = (_size(composed, name) for name in (_BATCH, key, f"{_ACTOR}.ppo_mini_batch_size"))
    if batch and steps and mini and batch != steps * mini:
        raise BadInput(
            f"{composed.named(_BATCH, batch)} must be {key}={steps} times {_ACTOR}.ppo_mini_batch_size={mini} with {mode}=separate_async: "
            f"write {_BATCH}={steps * mini}, or another {key}."
        )
    for name in ("nnodes", "n_gpus_per_node"):
        if _size(composed, f"{_ROLLOUT}.{name}") < 1:
            raise BadInput(
                f"{composed.named(mode, 'separate_async')} needs GPUs of its own for the rollout: write {_ROLLOUT}.{name}=1 or more."
            )
    backend = f"{_ROLLOUT}.checkpoint_engine.backend"
    if composed.value(backend) == "naive":
        raise BadInput(
            f"{composed.named(backend, 'naive')} cannot send weights to a rollout with GPUs of its own ({mode}=separate_async): write nccl, or "
            "another backend."
        )


def _check_validation(composed: Composed) -> None:
    """utils/config.py, validate_config."""
    key = f"{_ROLLOUT}.temperature"
    temperature = composed.value(key)
    if (
        composed.value(f"{_ROLLOUT}.val_kwargs.do_sample") is True
        and temperature in (0, 0.0)
        and temperature is not False
    ):
        raise BadInput(
            f"{composed.named(key, temperature)} samples nothing, and {_ROLLOUT}.val_kwargs.do_sample is True: write a temperature above 0."
        )


def _check_rows_of_sft(composed: Composed) -> None:
    """trainer/sft_trainer_ray.py deals a batch out to the ranks, and engine/utils.py cuts each part, prepare_micro_batches."""
    key, ranks = "data.micro_batch_size_per_gpu", composed.devices.trainer or 0
    ranks //= _size(composed, "engine.ulysses_sequence_parallel_size", 1)
    batch, micro = _size(composed, _BATCH), _size(composed, key)
    is_cut = composed.value("data.use_dynamic_bsz") is False and composed.value("engine.strategy") in _FSDP
    if is_cut and ranks and micro and batch and (batch < ranks or batch // ranks % micro):
        raise BadInput(
            f"{composed.named(_BATCH, batch)} gives each of {ranks} ranks {batch // ranks} rows, which {key}={micro} does not divide: write "
            f"{_BATCH}={-(-batch // (ranks * micro)) * ranks * micro}."
        )


def _check_answers(composed: Composed) -> None:
    """utils/config.py, validate_config."""
    gpus, resource = composed.devices.trainer, composed.devices.resource
    keys = (_BATCH, f"{_ROLLOUT}.n")
    batch, answers = (_size(composed, key) for key in keys)
    is_cut = composed.value(f"{_ACTOR}.use_dynamic_bsz") is False and composed.value(f"{_ACTOR}.strategy") != "megatron"
    if gpus and is_cut and batch * answers % gpus:
        raise BadInput(
            f"{composed.named(keys[0], batch)} with {keys[1]}={answers} gives {batch * answers} answers, which {gpus} {resource} cannot share evenly: "
            f"write {keys[0]}={-(-batch // gpus) * gpus}."
        )


def _check_replicas(composed: Composed) -> None:
    """workers/engine_workers.py, init_model."""
    gpus, resource = composed.devices.trainer, composed.devices.resource
    # Then the rollout has GPUs of its own, or its replicas are divided in another way.
    is_apart = composed.value("trainer.v1.trainer_mode") == "separate_async"
    is_other = is_apart or composed.value(f"{_ROLLOUT}.disaggregation.enabled") is True
    parallel = [f"{_ROLLOUT}.{of}_parallel_size" for of in ("tensor_model", "data", "pipeline_model")]
    sizes = {key: size for key in parallel if (size := _size(composed, key)) > 1}
    each = prod(sizes.values())  # of one replica
    if gpus and gpus % each and not is_other:
        fits = next(less for less in range(each, 0, -1) if gpus % less == 0)
        raise BadInput(
            f"{' times '.join(composed.named(*size) for size in sizes.items())} does not divide the job's {gpus} {resource} (trainer.nnodes "
            f"times trainer.n_gpus_per_node): write {fits}{' as their product' if len(sizes) > 1 else ''}."
        )


def _check_sequence(composed: Composed) -> None:
    """verl splits a sequence inside flash attention alone (monkey_patch.py, 0.9.1): with another one each rank would see its part only."""
    for part, model in _SEQUENCES.items():
        key, chosen = f"{part}.ulysses_sequence_parallel_size", f"{model}.override_config.attn_implementation"
        size, attention = _size(composed, key), composed.value(chosen)
        if size > 1 and composed.value(f"{model}.use_remove_padding") is False:
            raise BadInput(
                f"{composed.named(key, size)} needs {model}.use_remove_padding=True (workers/config/actor.py of verl): write it, or leave {key} out."
            )
        if size > 1 and attention and not str(attention).startswith("flash_attention"):
            raise BadInput(
                f"{composed.named(key, size)} splits sequences, which verl does in flash attention alone, and {chosen} is {attention}: "
                f"write ++{chosen}=flash_attention_2, with an image that has flash-attn, or leave {key} out."
            )


_OF_RL = (
    _check_mini_batches,
    _check_micro_batches,
    _check_answers,
    _check_engines,
    _check_replicas,
    _check_separate,
    _check_validation,
)
