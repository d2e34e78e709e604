"""Hashes of weights: of a whole model, as actor and rollout have it, and of the shards that one rank trains."""

import hashlib
from collections.abc import Mapping

import torch


def sha256_of(weights: Mapping[str, torch.Tensor]) -> str:
    """Return the hex sha256 over name, shape and float32 bytes of every tensor, in name order.

    Tensors of a narrower type are widened first, which is exact: a bfloat16 actor and the float32 rollout that loaded
    it have the same hash.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name].detach().to(device="cpu", dtype=torch.float32).contiguous()
        digest.update(f"{name} {tuple(values.shape)}\n".encode())
        digest.update(values.numpy().data)
    return digest.hexdigest()


def sha256_of_shards(model: torch.nn.Module) -> str:
    """Return the same hash over this rank's own part of every parameter; FSDP2 keeps it in a DTensor."""
    return sha256_of({name: getattr(value, "_local_tensor", value) for name, value in model.named_parameters()})
